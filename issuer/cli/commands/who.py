"""`issuer who`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import FAILED, OK, PROBLEM, complain, json_option
from issuer.cli.numbers import ambiguous, read, value_argument
from issuer.cli.session import Session
from issuer.errors import NotDecodable, brief
from issuer.terminal import moment, plain, show, show_json
from issuer.views import state, view
from issuer_persistence.records import now_ms

SECTION = "Checks"


@click.command(
    short_help="Show which process reserved a number, and when.",
    epilog="""\b
    Examples:
      issuer who orders 4711
      issuer who orders 4711 --json
      issuer who invoices INV-2026-000017

    \b
    Exit codes: 0 the segment was found, 1 no ledger entry contains the number,
    4 several entries contain it: run issuer verify.
    """,
)
@tag_argument()
@value_argument
@json_option()
@click.pass_obj
def who(session: Session, *, tag: str, value: str, as_number: bool, as_json: bool) -> int:
    """Show which process reserved the segment that contains VALUE of TAG, and when.

    VALUE is a number or a text of TAG. The ledger records segments, not single numbers. It does not record which caller
    drew a number from Redis. In JSON, a segment has `low`, the number before its first number, and `high`, its last
    number.
    """
    issuer = session.connect()
    decoded = read(issuer, tag, value, as_number=as_number)
    if decoded.counter is None:
        why = "its strategy makes numbers without a counter" if decoded.fields is not None else ambiguous(issuer, tag)
        raise NotDecodable(f"{brief(value)} of {tag!r} has no ledger entry: {why}", tag=tag, value=value)
    part, number = decoded.part or tag, decoded.counter
    found = issuer.who(part, number)
    shown = state(found)
    plainly = part == tag and number == decoded.value
    if as_json:
        show_json(view(found) | ({} if plainly else {"value": decoded.value}))
    elif found.entries:
        now = now_ms()
        lines = [click.style(f"{plain(tag)} {plain(value)}", bold=True)]
        lines += [] if plainly else [f"counter   {number} of {plain(part)}"]
        lines.append(f"state     {shown}")
        for entry in found.entries:
            lines += [
                f"segment   {entry.low + 1}..{entry.high}",
                f"reserved  {moment(entry.time, now)}",
                *([f"service   {plain(entry.application)}"] if entry.application else []),
                f"by        {plain(entry.host)}, pid {entry.pid}"
                if entry.host
                else "by        another program on this table, at an unknown earlier time",
                f"for       {plain(entry.reason)}",
            ]
        show("\n".join(lines))
    else:
        named = f"{plain(value)} of {plain(tag)}" + ("" if plainly else f" (counter {number} of {plain(part)})")
        complain(f"{named} is in no ledger entry: {shown}")
    if len(found.entries) > 1:
        complain(
            f"{len(found.entries)} reservations contain it: it may have been issued twice. Run `issuer verify {part}`"
        )
    return FAILED if not found.entries else OK if len(found.entries) == 1 else PROBLEM
