"""`issuer chaos`: processes draw while everything around them breaks, and every number is checked."""

from __future__ import annotations

import click

from issuer.cli.exits import PROBLEM
from issuer.cli.options import Seconds
from issuer.terminal import Column, say, screen_width, show, show_json, table

_UNSHOWN = "No fault of this command can show what these guards are for, only those of `make chaos` can: {}."


@click.command(
    short_help="Break scratch servers under load, and check every number.",
    epilog="""\b
    Examples:
      issuer chaos --seconds 60
      issuer chaos --faults F2,F3              kill, roll back and fail over only
      issuer chaos --without fence             what the fence is for: exit code 4
    """,
)
@click.option("--seconds", metavar="S", type=Seconds(1, 86400), default=30.0, help="How long; 30.")
@click.option("--faults", metavar="LIST", default="", help="Only these, as in F2,F9b; see --list.")
@click.option("--without", metavar="GUARD", multiple=True, help="Take a guard out first; may be repeated; see --list.")
@click.option("--list", "as_list", is_flag=True, help="Print the faults and the guards, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; times are in seconds.")
@click.pass_context
def chaos(
    context: click.Context, *, seconds: float, faults: str, without: tuple[str, ...], as_list: bool, as_json: bool
) -> None:
    """Let four processes draw while Redis and they themselves are killed, rolled back, cut off and delayed.

    Starts two redis-servers, an SQLite store and proxies of its own, all on loopback and in a temporary folder, and
    leaves nothing behind: your own servers are not touched. The program is the redis-server or valkey-server on PATH,
    else the one that the extra `demo` brings. Every number that a process was given is checked: none may come twice,
    from above the store's max, or out of order; and what each fault cost is compared with what it may cost. The exit
    code is 4 if a promise was broken.
    """
    # Its parts are loaded for it alone: the other commands should start fast.
    from issuer.chaos.faults import FAULTS, chosen
    from issuer.chaos.guards import GUARDS, scripts_without
    from issuer.chaos.play import play_for
    from issuer.chaos.report import content, rows

    unshown = [name for name, guard in GUARDS.items() if not guard.shown]
    if as_list:
        lines = [(one.name, one.what) for one in FAULTS] + [(name, guard.what) for name, guard in GUARDS.items()]
        if as_json:
            guards = dict(lines[len(FAULTS) :])
            show_json({"faults": dict(lines[: len(FAULTS)]), "guards": guards, "guards_not_shown": unshown})
            return
        show(table([Column("FAULT"), Column("WHAT HAPPENS", flexible=True)], lines[: len(FAULTS)], screen_width()))
        show("")
        show(table([Column("GUARD"), Column("WHAT IT SEES TO", flexible=True)], lines[len(FAULTS) :], screen_width()))
        show("")
        show(click.wrap_text(_UNSHOWN.format(", ".join(unshown)), screen_width() or 80))
        return
    scripts_without(without)
    blind = ", ".join(name for name in unshown if name in without)
    if blind:
        say(_UNSHOWN.format(blind))
    verdict = play_for(seconds, chosen(faults.split(",") if faults else [], FAULTS), without)
    if as_json:
        show_json(content(verdict))
    else:
        columns = [Column("FOUND"), Column("HOW MUCH", flexible=True, wraps=True)]
        show(table(columns, [*rows(verdict)], screen_width()))
        good, bad = "Every promise was kept.", "A PROMISE IS BROKEN."
        show(click.style(good if verdict.kept else bad, fg="green" if verdict.kept else "red", bold=True))
        if verdict.kept and blind:
            show(f"That tells nothing of: {blind}.")
    if not verdict.kept:
        context.exit(PROBLEM)
