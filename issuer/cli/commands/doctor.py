"""`issuer doctor`."""

from __future__ import annotations

from typing import Final

import click

from issuer.advice import command_line
from issuer.care.doctor.findings import Finding, Level
from issuer.cli.exits import OK, PROBLEM, code_of, json_option
from issuer.cli.session import Session, progress_bar
from issuer.terminal import Column, folded, numbered, plain, screen_width, show, show_json, table, wrapped
from issuer.views import advised

SECTION = "Checks"

#: Heading and colour of each level.
HEADINGS: Final[dict[Level, tuple[str, str]]] = {
    "weak": ("PROBLEMS", "red"),
    "advice": ("ADVICE", "yellow"),
    "unknown": ("NOT CHECKED", "cyan"),
    "ok": ("OK", "green"),
}

#: Maximum number of findings that are shown for one check. With --json, all findings are shown.
SHOWN = 5

#: Column at which the text of a finding begins.
INDENT = 8

#: Longest line in terminal cells. On a wider terminal, lines are not longer.
WIDEST = 100


@click.command(
    short_help="Check Redis, the store, the settings and the tags.",
    epilog="""\b
    Examples:
      issuer doctor
      issuer doctor --json | jq '.[] | select(.level == "weak")'

    \b
    Exit codes: 0 no problem was found, 2 a server rejected the settings, 4 a
    problem was found, 5 Redis or the store is unavailable, or a tag could not be
    examined.
    """,
)
@json_option("Print a JSON list of all findings.")
@click.pass_obj
def doctor(session: Session, *, as_json: bool) -> int:
    """Check Redis, the store, the settings and the tags for problems. Nothing is changed.

    Each finding states a fact, why it matters and what to do. If the program lacks the permission for a check, the
    finding names the permission or the place where you can check it yourself.
    """
    with progress_bar("examining tags") as progress:
        findings = session.connect().doctor(progress=progress)
    if as_json:
        show_json([advised(finding, command_line) for finding in findings])
    else:
        show(_report(findings, screen_width()))
    return max((_code(finding) for finding in findings), default=OK)


def _code(finding: Finding) -> int:
    """Return the exit code for a finding. A check that an error prevented is no success."""
    if finding.error is not None:
        return code_of(finding.error)
    return PROBLEM if finding.level == "weak" else OK


def _report(findings: list[Finding], room: int | None) -> str:
    lines: list[str] = []
    for level, (heading, hue) in HEADINGS.items():
        found = [finding for finding in findings if finding.level == level]
        if not found:
            continue
        lines += [click.style(heading, fg=hue, bold=True)]
        lines += [_in_short(found, room)] if level == "ok" else _in_full(found, room)
        lines += [""]
    return "\n".join([*lines, *wrapped(_summary(findings), room)])


def _in_full(findings: list[Finding], room: int | None) -> list[str]:
    lines: list[str] = []
    for check in dict.fromkeys(finding.check for finding in findings):
        same = [finding for finding in findings if finding.check == check]
        for finding in same[:SHOWN]:
            lines += _one(finding, room)
        if len(same) > SHOWN:
            lines.append(f"  and {len(same) - SHOWN:,} more of {check}: --json has them")
    return lines


def _one(finding: Finding, room: int | None) -> list[str]:
    cells = None if room is None else max(min(room, WIDEST) - INDENT, INDENT)
    first, *rest = folded(plain(finding.subject), None if room is None else max(room - len(finding.check) - 4, INDENT))
    lines = [f"  {click.style(finding.check, bold=True)}  {first}"]
    lines += [" " * (len(finding.check) + 4) + line for line in rest]
    for name, text in (("what", finding.what), ("why", finding.why), ("do", finding.told(command_line))):
        for at, line in enumerate(wrapped(plain(text), cells) if text else []):
            lines.append(f"{f'  {name}' if at == 0 else '':{INDENT}}{line}")
    return lines


def _in_short(findings: list[Finding], room: int | None) -> str:
    columns = [Column("CHECK"), Column("OF", flexible=True), Column("SEEN", flexible=True)]
    return table(columns, [(finding.check, finding.subject, finding.what) for finding in findings], room)


def _summary(findings: list[Finding]) -> str:
    count = {level: sum(finding.level == level for finding in findings) for level in HEADINGS}
    problems, advice = numbered(count["weak"], "problem"), numbered(count["advice"], "recommendation")
    return f"{problems}, {advice}, {count['unknown']:,} not checked, {count['ok']:,} ok"
