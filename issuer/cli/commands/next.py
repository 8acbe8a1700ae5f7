"""`issuer next`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial

import click

from issuer.api.blocking import Issuer
from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.numbers import key_options
from issuer.cli.options import Whole
from issuer.cli.session import Session
from issuer.core.requests import TTL
from issuer.errors import IssuerError
from issuer.terminal import show_json
from issuer.views import view

SECTION = "Numbers"

#: How many numbers one call of `take` draws. The timeout applies to one such call. If a call fails, at most this many
#: numbers are lost.
CHUNK = 10_000
#: With this many numbers or more, a progress bar is shown.
LONG = 100_000


@click.command(
    short_help="Print the next number of a tag, or the next N.",
    epilog="""\b
    Examples:
      issuer next orders
      issuer next orders -n 3 --json         # [4, 5, 6]
      issuer next invoices --text            # INV-2026-000017
      issuer next orders --key order-778     # the same number at each call
      issuer next users --shard-key alice@example.com
    """,
)
@tag_argument()
@click.option("-n", "count", metavar="N", type=Whole(min=1), default=1, help="How many numbers to print. Default: 1.")
@click.option("--text", "as_text", is_flag=True, help="Print the texts of the numbers, in the tag's format.")
@click.option("--key", metavar="TEXT", help="Idempotency key: calls with the same key print the same number.")
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=float,
    help="How long Redis keeps the number of --key, above 0. Default: 86400 (a day).",
)
@key_options
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
    code then shows the error.
    """
    if key is not None and count > 1:
        raise click.UsageError("--key selects a single number: omit -n")
    if key is None and ttl is not None:
        raise click.UsageError("--ttl requires --key: it sets how long Redis keeps the number of the key")
    if as_text or key is not None or shard_key is not None or restart_key is not None:
        issuer = session.connect()
        kept = TTL if ttl is None else ttl
        draw = partial(issuer.issue, tag, key=key, ttl=kept, shard_key=shard_key, restart_key=restart_key)
        found = (draw() for _ in range(count))
        if as_json:
            show_json([view(each) for each in found])
            return
        for each in found:
            click.echo(each.text if as_text else each.value)
            # Print the number at once: it is valid even if the next draw fails.
            sys.stdout.flush()
        return
    # Print each number together with the end of its line. Otherwise, after Ctrl-C, the output could end with a number
    # without a line end, and text that is appended to the file would extend this number.
    before, between, after = ("[", ", ", "]\n") if as_json else ("", "\n", "")
    lead = before
    # Show no progress bar if the numbers are written to the terminal, too.
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
