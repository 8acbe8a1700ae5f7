"""`issuer verify`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from issuer.care.blocking import Verdict
from issuer.care.discrepancies import Discrepancy
from issuer.care.verification import MOST
from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, PROBLEM, UNREACHABLE, code_of, complain, json_option
from issuer.cli.session import Session, with_progress
from issuer.errors import IssuerError, RedisUnavailable, Unavailable
from issuer.terminal import folded, numbered, plain, say, screen_width, shortened, show, show_json
from issuer.times import utc
from issuer.views import view

SECTION = "Checks and recovery"

#: Blanks before the lines under a heading.
INDENTED = 2

#: The kind of a finding that is not a problem. It reports that Redis was not available.
UNSEEN = "Redis not looked at"


@click.command(
    short_help="Check that no number was reserved twice.",
    epilog="""\b
    Examples:
      issuer verify orders
      issuer verify --all --json

    \b
    Exit codes: 0 no problem was found, 4 a problem was found, 5 no problem was
    found, but Redis or the store is unavailable.
    """,
)
@tag_argument(required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Check every tag of the store. This is the default if TAG is omitted."
)
@json_option("Print a JSON list; messages go to stderr.")
@click.pass_obj
def verify(session: Session, *, tag: str | None, everything: bool, as_json: bool) -> int:
    """Check that no number of TAG was reserved twice. Nothing is changed.

    The command compares the ledger, the store and Redis. It checks that no two segments in the ledger overlap, that no
    segment ends above the store's max, and that the numbers in Redis are in the ledger. For each problem, it shows the
    processes and times. The check is safe while numbers are drawn. The ledger covers the last 90 days.

    If Redis is unavailable, only the ledger and the store are compared. In JSON, the tags concerned then have an entry
    of the kind "Redis not looked at".
    """
    if tag is not None and everything:
        raise click.UsageError("give a TAG or --all, not both")
    outcomes = _reported(session.connect().engine.care.verified(tag, None))
    findings = [finding for each in outcomes for finding in each.result or ()]
    wrong = [finding for finding in findings if finding.kind != UNSEEN]
    unseen = [finding.tag for finding in findings if finding.kind == UNSEEN]
    if as_json:
        show_json([view(finding) for finding in findings])
    elif wrong:
        show(_report(wrong, screen_width()))
    _sum_up(outcomes, tag)
    if unseen:
        say(f"not checked in Redis: {', '.join(map(plain, unseen))}")
    for each in outcomes:
        if len(each.result or ()) == MOST:
            say(f"{plain(each.tag)}: {MOST} findings shown; there may be more")
    codes = [code_of(each.error) for each in outcomes if each.error is not None]
    return PROBLEM if wrong else max([*codes, UNREACHABLE if unseen else OK])


def _sum_up(outcomes: list[Verdict], tag: str | None) -> None:
    """Report how many tags were checked completely and have no problem. `tag`: the tag that the user named, if any."""
    sound = [each.tag for each in outcomes if each.result == []]
    agree = [each.tag for each in outcomes if each.result and all(found.kind == UNSEEN for found in each.result)]
    failed = [each.tag for each in outcomes if each.error is not None]
    if tag is not None and len(sound) == len(outcomes):
        say(f"{plain(tag)}: no problem found")
    elif tag is None and (sound or not agree):
        say(f"{len(sound):,} of {numbered(len(outcomes), 'tag')} without a problem")
    if agree:
        say(f"ledger and store agree, but Redis was not checked: {', '.join(map(plain, agree))}")
    if failed and (tag is None or len(outcomes) > 1):
        say(f"not checked: {', '.join(map(plain, failed))}")


def _reported(outcomes: Iterator[Verdict]) -> list[Verdict]:
    """Return the outcomes. Report each error at once, but report an unavailable server only for the first tag."""
    checked: list[Verdict] = []
    away: set[type[IssuerError]] = set()
    for each in with_progress(outcomes, "verifying"):
        if each.result is None and each.error is None:  # the tag was deleted in the meantime
            continue
        checked.append(each)
        if each.error is not None and type(each.error) not in away:
            complain(each.error)
        if isinstance(each.error, Unavailable):
            away.add(type(each.error))
        unseen = next((found for found in each.result or () if found.kind == UNSEEN), None)
        if unseen is not None and RedisUnavailable not in away:
            away.add(RedisUnavailable)
            complain(f"Redis was not checked: {unseen.values['why']}")
    return checked


def _report(findings: list[Discrepancy], room: int | None) -> str:
    """Return the findings as text. Below each heading: the processes and times, or what is wrong."""
    lines: list[str] = []
    cells = None if room is None else room - INDENTED
    for finding in findings:
        numbers = finding.numbers
        span = "" if numbers is None else f"  {numbers[0]}..{numbers[1]}"
        heading = f"{plain(finding.tag)}  {finding.kind}{span}"
        lines.append(click.style(heading if room is None else shortened(heading, room), bold=True))
        told = [
            f"{utc(each.time)}  {plain(each.host)} pid {each.pid}, {plain(each.reason)}, {each.low + 1}..{each.high}"
            for each in finding.entries
        ]
        for text in told or [plain(str(finding))]:
            lines += [" " * INDENTED + line for line in folded(text, cells)]
    return "\n".join(lines)
