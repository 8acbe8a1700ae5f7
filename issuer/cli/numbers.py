"""`issuer next`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.errors import IssuerError
from issuer.facade import Issuer

#: Numbers per `take`: each has the whole timeout, and an error part-way costs a gap of no more than these.
CHUNK = 10_000
#: From so many numbers on there is a progress bar.
LONG = 100_000


@click.command(
    short_help="Print the next number, or the next N.",
    epilog="""\b
    Examples:
      issuer next orders
      issuer next orders -n 3 --json           [4, 5, 6]
    """,
)
@tag_argument()
@click.option("-n", "count", metavar="N", type=click.IntRange(min=1), default=1, help="How many numbers; 1 by default.")
@json_option("Print a JSON list.")
@click.pass_obj
def next(session: Session, *, tag: str, count: int, as_json: bool) -> None:
    """Print the next number of TAG, or the next N, one a line.

    An error part-way ends with its exit code; the numbers printed before it are good, also at the tag's limit.
    """
    # Line by line each number ends its line at once: whoever appends to a file that Ctrl-C cut must not lengthen one.
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
