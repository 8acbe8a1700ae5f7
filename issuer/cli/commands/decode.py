"""`issuer decode`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.numbers import ambiguous, read, value_argument
from issuer.cli.session import Session
from issuer.terminal import moment, plain, show, show_json, stamp_ms
from issuer.views import state, view
from issuer_persistence.records import now_ms

SECTION = "Numbers"


@click.command(
    short_help="Show what a number or a text is made of.",
    epilog="""\b
    Examples:
      issuer decode orders 4711
      issuer decode invoices INV-2026-000017 --json

    \b
    Exit codes: 0 the value was decoded, 2 the tag cannot have issued it.
    """,
)
@tag_argument()
@value_argument
@json_option()
@click.pass_obj
def decode(session: Session, *, tag: str, value: str, as_number: bool, as_json: bool) -> None:
    """Show what VALUE, a number or a text of TAG, is made of, and which process reserved it.

    `counter` is the value of the tag's counter from which the number was computed. The ledger and Redis contain counter
    values.

    If a tag counts from 1 again in each period, only its texts contain the period. For such a tag, VALUE must be a
    text.

    For snowflake tags, `holder` is the process that holds the machine number in Redis now, or held it last. If the tag
    was created with machine=store, `holder` is the process that made the number.

    In JSON, a segment has `low`, the number before its first number, and `high`, its last number.
    """
    issuer = session.connect()
    found = read(issuer, tag, value, as_number=as_number, holder=True)
    content = view(found)
    known = None if found.counter is None else issuer.who(found.part or tag, found.counter)
    if as_json:
        if known is not None:
            content |= {"state": state(known), "reserved": [view(each) for each in known.entries]}
        show_json(content)
        return
    for name, part in content.items():
        time = name == "timestamp" and found.fields is not None
        show(f"time      {stamp_ms(part)}" if time else f"{name:<10}{plain(str(part))}")
    if known is None:
        if found.fields is None:
            show(f"{'counter':<10}unknown: {ambiguous(issuer, tag)}")
        return
    show(f"{'state':<10}{plain(state(known))}")
    for each in known.entries:
        show(f"{'segment':<10}{each.low + 1}..{each.high}")
        show(f"{'reserved':<10}{moment(each.time, now_ms())}")
        show(f"{'by':<10}{plain(each.host)}, pid {each.pid}")
