"""`issuer verify`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

import click

from issuer.api.blocking import Issuer
from issuer.care.discrepancies import Discrepancy
from issuer.care.verification import MOST
from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, PROBLEM, UNREACHABLE, code_of, complain, json_option
from issuer.cli.options import MANY
from issuer.cli.session import Session
from issuer.errors import IssuerError, RedisUnavailable, Unavailable, UnknownTag
from issuer.terminal import folded, numbered, plain, say, screen_width, shortened, show, show_json
from issuer.times import utc
from issuer.views import view

SECTION = "Checks and recovery"

#: Blanks before what stands under a heading.
INDENTED = 2

#: The kind of a finding that is no fault: Redis was away.
UNSEEN = "Redis not looked at"

#: A tag, what was found of it, and the error that kept it from being looked at.
_Verdict = tuple[str, list[Discrepancy], IssuerError | None]


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
@click.pass_context
def verify(context: click.Context, *, tag: str | None, everything: bool, as_json: bool) -> None:
    """Check that no number of TAG was reserved twice. Nothing is changed.

    The command compares the ledger, the store and Redis. It checks that no two segments in the ledger overlap, that no
    segment ends above the store's max, and that the numbers in Redis are in the ledger. For each problem, it shows the
    processes and times. The check is safe while numbers are drawn. The ledger covers the last 90 days.

    If Redis is unavailable, only the ledger and the store are compared. In JSON, the tags concerned then have an entry
    of the kind "Redis not looked at".
    """
    if tag is not None and everything:
        raise click.UsageError("give a TAG or --all, not both")
    issuer = Session.of(context).connect()
    names = [record.tag for record in issuer.tags()] if tag is None else [tag]
    verdicts = list(_each(issuer, names, named=tag is not None))
    findings = [finding for _, found, _ in verdicts for finding in found]
    wrong = [finding for finding in findings if finding.kind != UNSEEN]
    unseen = [finding.tag for finding in findings if finding.kind == UNSEEN]
    failed = [error for _, _, error in verdicts if error is not None]
    if as_json:
        show_json([view(finding) for finding in findings])
    elif wrong:
        show(_report(wrong, screen_width()))
    _sum_up(verdicts, tag)
    if unseen:
        say(f"not checked in Redis: {', '.join(map(plain, unseen))}")
    for name, found, _ in verdicts:
        if len(found) == MOST:
            say(f"{plain(name)}: {MOST} findings shown; there may be more")
    codes = [*map(code_of, failed), UNREACHABLE if unseen else OK]
    context.exit(PROBLEM if wrong else max(codes))


def _sum_up(verdicts: list[_Verdict], tag: str | None) -> None:
    """Say of how many tags all was looked at and well; `tag`: the only one that was asked for."""
    sound = [name for name, found, error in verdicts if not found and error is None]
    agree = [name for name, found, _ in verdicts if found and all(each.kind == UNSEEN for each in found)]
    failed = [name for name, _, error in verdicts if error is not None]
    if tag is not None and sound:
        say(f"{plain(tag)}: no problem found")
    elif tag is None and (sound or not agree):
        say(f"{len(sound):,} of {numbered(len(verdicts), 'tag')} without a problem")
    if agree:
        say(f"ledger and store agree, but Redis was not checked: {', '.join(map(plain, agree))}")
    if failed and tag is None:
        say(f"not checked: {', '.join(map(plain, failed))}")


def _each(issuer: Issuer, names: list[str], *, named: bool) -> Iterator[_Verdict]:
    """Verify one tag after the other, yielding its findings or an error, which is reported and keeps none waiting."""
    hidden = len(names) < MANY or not sys.stderr.isatty()
    away: set[type[IssuerError]] = set()
    with click.progressbar(names, label="verifying", file=sys.stderr, hidden=hidden) as bar:
        for name in bar:
            try:
                findings = issuer.verify(name)
            except UnknownTag as error:
                if named:
                    complain(error)
                    yield name, [], error
            except IssuerError as error:
                if type(error) not in away:
                    complain(error)
                if isinstance(error, Unavailable):  # for the other tags as well, and reported once
                    away.add(type(error))
                yield name, [], error
            else:
                unseen = next((each for each in findings if each.kind == UNSEEN), None)
                if unseen is not None and RedisUnavailable not in away:
                    away.add(RedisUnavailable)
                    complain(f"Redis was not checked: {unseen.values['why']}")
                yield name, findings, None


def _report(findings: list[Discrepancy], room: int | None) -> str:
    """Return each finding under a heading: process and time of its ledger entries, or what is wrong."""
    lines: list[str] = []
    for finding in findings:
        numbers = finding.numbers
        span = "" if numbers is None else f"  {numbers[0]}..{numbers[1]}"
        lines.append(_bold(f"{plain(finding.tag)}  {finding.kind}{span}", room))
        for entry in finding.entries:
            who = f"{plain(entry.host)} pid {entry.pid}, {plain(entry.reason)}"
            told = f"{utc(entry.time)}  {who}, {entry.low + 1}..{entry.high}"
            cells = None if room is None else room - INDENTED
            lines += [" " * INDENTED + line for line in folded(told, cells)]
        if not finding.entries:
            told, blanks = plain(str(finding)), " " * INDENTED
            wide = INDENTED + len(told) if room is None else room
            lines += textwrap.wrap(told, wide, initial_indent=blanks, subsequent_indent=blanks)
    return "\n".join(lines)


def _bold(heading: str, room: int | None) -> str:
    return click.style(heading if room is None else shortened(heading, room), bold=True)
