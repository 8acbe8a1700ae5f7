"""`issuer next`, `peek` and `decode`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from string import Formatter
from typing import Any, TypeVar

import click

from issuer.api.blocking import Issuer
from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.options import Whole
from issuer.cli.session import Session
from issuer.core.issued import Issued
from issuer.core.requests import TTL
from issuer.errors import IssuerError, NotDecodable, brief
from issuer.numbers.codec import DIGITS_MOST, Decoded
from issuer.terminal import moment, plain, show, show_json, stamp_ms
from issuer.views import state, view
from issuer_persistence.records import now_ms

#: Numbers per `take`: each has the whole timeout, and an error part-way costs a gap of no more than these.
CHUNK = 10_000
#: From this many numbers on there is a progress bar.
LONG = 100_000


_F = TypeVar("_F", bound=Callable[..., Any])


def value_argument(command: _F) -> _F:
    """Add the argument VALUE, a number or a text, and --number."""
    told = "Read VALUE as a number, even if it looks like a text of the tag."
    return click.argument("value")(click.option("--number", "as_number", is_flag=True, help=told)(command))


def _parts(command: _F) -> _F:
    told = "Key that selects the series. Only for keyed tags."
    command = click.option("--restart-key", metavar="TEXT", help=told)(command)
    told = "Key that selects the shard. Only for tags with shards."
    return click.option("--shard-key", metavar="TEXT", help=told)(command)


@click.command(
    short_help="Print the next number of a tag, or the next N.",
    epilog="""\b
    Examples:
      issuer next orders
      issuer next orders -n 3 --json         # [4, 5, 6]
      issuer next invoices --format          # INV-2026-000017
      issuer next orders --key order-778     # the same number at each call
      issuer next users --shard-key alice@example.com
    """,
)
@tag_argument()
@click.option("-n", "count", metavar="N", type=Whole(min=1), default=1, help="How many numbers to print. Default: 1.")
@click.option("--format", "as_text", is_flag=True, help="Print each number as a text, in the tag's format.")
@click.option("--key", metavar="TEXT", help="Idempotency key: calls with the same key print the same number.")
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=float,
    help="How long Redis keeps the number of --key, above 0. Default: 86400 (a day).",
)
@_parts
@json_option("Print a JSON list.")
@click.pass_obj
def next(
    session: Session,
    *,
    tag: str,
    count: int,
    as_text: bool,
    key: str | None,
    ttl: float | None,
    shard_key: str | None,
    restart_key: str | None,
    as_json: bool,
) -> None:
    """Print the next number of TAG, or the next N numbers, one per line.

    If an error occurs after some numbers were printed, these numbers are valid, and no other caller gets them. The exit
    code is that of the error.
    """
    if key is not None and count > 1:
        raise click.UsageError("--key selects a single number: omit -n")
    if key is None and ttl is not None:
        raise click.UsageError("--ttl requires --key: it sets how long Redis keeps the number of the key")
    if as_text or key is not None or shard_key is not None or restart_key is not None:
        how = {"key": key, "ttl": TTL if ttl is None else ttl, "shard_key": shard_key, "restart_key": restart_key}
        found = _each(session.connect(), tag, count, **how)
        _print_issued(found, as_text=as_text, as_json=as_json)
        return
    # Line by line each number ends its line at once: what is appended to a file that Ctrl-C cut must not lengthen one.
    before, between, after = ("[", ", ", "]\n") if as_json else ("", "\n", "")
    lead = before
    # The bar and the numbers would write over each other on one screen.
    hidden = count < LONG or sys.stdout.isatty() or not sys.stderr.isatty()
    with click.progressbar(length=count, label=tag, file=sys.stderr, hidden=hidden) as bar:
        try:
            for numbers in _chunks(session.connect(), tag, count):
                click.echo(lead + between.join(map(str, numbers)), nl=not as_json)
                sys.stdout.flush()
                lead = between if as_json else ""
                bar.update(len(numbers))
        finally:
            if lead != before or not as_json:
                click.echo(after, nl=False)


def _each(issuer: Issuer, tag: str, count: int, **how: Any) -> Iterator[Issued]:
    for _ in range(count):
        yield issuer.issue(tag, **how)


def _print_issued(found: Iterator[Issued], *, as_text: bool, as_json: bool) -> None:
    """Print each as it comes: what was printed is good, even if the next one fails."""
    if as_json:
        show_json([view(each) for each in found])
        return
    for each in found:
        click.echo(each.text if as_text else each.value)
        sys.stdout.flush()


@click.command(
    short_help="Show the next number of a tag without taking it.",
    epilog="""\b
    Examples:
      issuer peek orders
      issuer peek users --shard-key alice@example.com --json
    """,
)
@tag_argument()
@_parts
@json_option()
@click.pass_obj
def peek(session: Session, *, tag: str, shard_key: str | None, restart_key: str | None, as_json: bool) -> None:
    """Show the next number of TAG. No number is taken.

    The number is not reserved for you: the next caller of `issuer next` or of the library gets it.
    """
    found = session.connect().peek(tag, shard_key=shard_key, restart_key=restart_key)
    if as_json:
        show_json(view(found))
    else:
        click.echo(found.text)


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

    If a tag starts again in each period, only its texts contain the period. For such a tag, give the text.

    For snowflake tags, `holder` is the process that holds the machine number in Redis now, or held it last. If the tag
    was created with machine=store, `holder` is the process that made the number.

    In JSON, `low` of a segment is the number before its first number, and `high` is its last number.
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


def read(issuer: Issuer, tag: str, value: str, *, as_number: bool, holder: bool = False) -> Decoded:
    """Tell what a command's VALUE is made of: by the tag's format, unless it is a number that no text looks like."""
    number = int(value) if value.isascii() and value.isdecimal() and len(value) <= DIGITS_MOST else None
    if as_number:
        if number is None:
            raise NotDecodable(f"{brief(value)} is not a whole number", tag=tag, value=value)
        return issuer.decode(tag, number, holder=holder)
    try:
        return issuer.decode(tag, value, holder=holder)
    except NotDecodable as error:
        if number is None:
            raise
        scheme = issuer.inspect(tag).scheme
        if "format" not in scheme:
            raise
        literals = (literal for literal, *_ in Formatter().parse(str(scheme["format"])))
        if any(literal and not literal.isdecimal() for literal in literals):
            return issuer.decode(tag, number, holder=holder)
        # It may be a text that was mistyped, which its check digit shows.
        raise NotDecodable(f"{error}; if it is a number, give --number", tag=tag, value=value) from error


def ambiguous(issuer: Issuer, tag: str) -> str:
    """Say why a number of the tag stands for several counters."""
    scheme = issuer.inspect(tag).scheme
    if "restart" in scheme:
        return "each period has this number; give the text, which contains the period"
    return (
        "the tag issues each number again after its limit"
        if "cycle" in scheme
        else "each series has this number; give the text"
    )


def _chunks(issuer: Issuer, tag: str, count: int) -> Iterator[Sequence[int]]:
    left = count
    while left:
        try:
            numbers = issuer.take(tag, min(left, CHUNK))
        except IssuerError as error:
            if error.drawn:
                yield error.drawn
            raise
        left -= len(numbers)
        yield numbers
