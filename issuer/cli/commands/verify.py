"""`issuer verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import click

from issuer.advice import command_line
from issuer.care.care import Verdict
from issuer.care.discrepancies import UNSEEN, Discrepancy
from issuer.care.verification import MOST
from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, PROBLEM, UNREACHABLE, check_json, code_of, complain, json_lines_option, json_option
from issuer.cli.session import Session, with_progress
from issuer.errors import IssuerError, RedisUnavailable, Unavailable
from issuer.terminal import (
    GAP,
    folded,
    listed,
    numbered,
    plain,
    say,
    screen_width,
    shortened,
    show,
    show_json,
    show_json_line,
)
from issuer.threads import finished
from issuer.times import utc
from issuer.views import advised, said

SECTION = "Checks"


@click.command(
    short_help="Check that no number was reserved twice.",
    epilog="""\b
    Examples:
      issuer verify orders
      issuer verify --all --json
      issuer verify --all --json-lines > verified.jsonl

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
@json_lines_option
@click.pass_obj
def verify(session: Session, *, tag: str | None, everything: bool, as_json: bool, as_lines: bool) -> int:
    """Check that no number of TAG was reserved twice. Nothing is changed.

    The command compares the ledger, the store and Redis. It checks that no two segments in the ledger overlap, that no
    segment ends above the store's max, and that the numbers in Redis are in the ledger. For each problem, it shows the
    processes and times. The check is safe while numbers are drawn. The ledger covers the last 90 days.

    If Redis is unavailable, only the ledger and the store are compared. In JSON, the tags concerned then have an entry
    of the kind "Redis not looked at".
    """
    if tag is not None and everything:
        raise click.UsageError("give a TAG or --all, not both")
    check_json(as_json=as_json, as_lines=as_lines)
    total = _Total()
    care = session.connect().engine.care
    for each in _reported(finished(lambda: care.verified(tag, None))):
        total.add(each)
        if as_lines:
            error = None if each.error is None else said(each.error)
            found = [advised(finding, command_line) for finding in each.result or ()]
            show_json_line({"tag": each.tag, "discrepancies": found, "error": error})
        else:
            total.findings += each.result or ()
    wrong = [finding for finding in total.findings if finding.kind != UNSEEN]
    if as_json:
        show_json([advised(finding, command_line) for finding in total.findings])
    elif wrong:
        show(_report(wrong, screen_width()))
    _sum_up(total, tag)
    if total.unseen:
        say(f"not checked in Redis: {listed(total.unseen)}")
    for name in total.full:
        say(f"{plain(name)}: {MOST} findings shown; there may be more")
    return PROBLEM if total.wrong else max(total.code, UNREACHABLE if total.unseen else OK)


@dataclass(slots=True)
class _Total:
    """Sum of the results of all tags.

    `sound`: how many were checked wholly without a problem. `agree`: tags without a problem, not checked in Redis.
    `unseen`: all tags not checked in Redis. `full`: tags with so many problems that their check has ended early.
    """

    tags: int = 0
    sound: int = 0
    wrong: bool = False
    agree: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    code: int = OK
    findings: list[Discrepancy] = field(default_factory=list)

    def add(self, outcome: Verdict) -> None:
        self.tags += 1
        if outcome.error is not None:
            self.failed.append(outcome.tag)
            self.code = max(self.code, code_of(outcome.error))
            return
        kinds = [finding.kind for finding in outcome.result or ()]
        unseen, wrong = UNSEEN in kinds, any(kind != UNSEEN for kind in kinds)
        self.sound += not kinds
        self.wrong = self.wrong or wrong
        self.unseen += [outcome.tag] if unseen else []
        self.agree += [outcome.tag] if unseen and not wrong else []
        self.full += [outcome.tag] if len(kinds) == MOST else []


def _sum_up(total: _Total, tag: str | None) -> None:
    if tag is not None and total.sound == total.tags:
        say(f"{plain(tag)}: no problem found")
    elif tag is None and (total.sound or not total.agree):
        say(f"{total.sound:,} of {numbered(total.tags, 'tag')} without a problem")
    if total.agree:
        say(f"ledger and store agree, but Redis was not checked: {listed(total.agree)}")
    if total.failed and (tag is None or total.tags > 1):
        say(f"not checked: {listed(total.failed)}")


def _reported(outcomes: Iterable[Verdict]) -> Iterator[Verdict]:
    """Print each error at once. An unavailable server is the same error for all tags: print it for the first one."""
    away: set[type[IssuerError]] = set()
    for each in with_progress(outcomes, "verifying"):
        if each.result is None and each.error is None:  # the tag was deleted in the meantime
            continue
        if each.error is not None and type(each.error) not in away:
            complain(each.error)
        if isinstance(each.error, Unavailable):
            away.add(type(each.error))
        unseen = next((found for found in each.result or () if found.kind == UNSEEN), None)
        if unseen is not None and RedisUnavailable not in away:
            away.add(RedisUnavailable)
            complain(f"Redis was not checked: {unseen.values['why']}")
        yield each


def _report(findings: list[Discrepancy], room: int | None) -> str:
    """`room`: longest line in terminal cells. None means any length."""
    lines: list[str] = []
    cells = None if room is None else room - GAP
    for finding, following in zip_longest(findings, findings[1:]):
        numbers = finding.numbers
        span = "" if numbers is None else f"  {numbers[0]}..{numbers[1]}"
        heading = f"{plain(finding.tag)}  {finding.kind}{span}"
        lines.append(click.style(heading if room is None else shortened(heading, room), bold=True))
        told = [
            f"{utc(each.time)}  {plain(each.host)} pid {each.pid}, {plain(each.reason)}, {each.low + 1}..{each.high}"
            for each in finding.entries
        ] or [plain(str(finding))]
        if following is None or (following.tag, following.kind) != (finding.tag, finding.kind):
            told.append(plain(finding.told(command_line)))
        for text in told:
            lines += [" " * GAP + line for line in folded(text, cells)]
    return "\n".join(lines)
