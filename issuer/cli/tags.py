"""What is known of tags, and the commands that make, change and retire them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, TypeVar

import click

from issuer.cli.asking import asked
from issuer.cli.completion import tag_argument
from issuer.cli.exits import UNREACHABLE, complain, json_option
from issuer.cli.session import Session
from issuer.cli.sheet import sheet
from issuer.cli.text import Column, ago, plain, say, screen_width, show_json, table
from issuer.cli.text import show as show_data
from persistence.records import HIGHEST, Order, Tag, now_ms

_F = TypeVar("_F", bound=Callable[..., Any])


class _Step(click.ParamType):  # type: ignore[type-arg]  # subscripting it fails in click 8.2
    """A number of numbers, or `auto`."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return "auto" if value == "auto" else int(click.INT.convert(value, param, ctx))


def _first(command: _F) -> _F:
    command = click.option("--above", metavar="N", type=int, help="The first number is N+1.")(command)
    return click.option("--start", metavar="N", type=int, help="The first number is N.")(command)


def _lease(command: _F) -> _F:
    told = "How many numbers of a trend tag each process draws ahead from Redis; 0..1000000, 0: none."
    return click.option("--lease", metavar="N", type=int, help=told)(command)


def _ahead(command: _F) -> _F:
    told = "How many steps a segment holds, 1..1000, so that a longer outage of the store costs nothing."
    return click.option("--ahead", metavar="N", type=int, help=told)(command)


def _settings(tag: Tag) -> str:
    ahead = "" if tag.ahead == 1 else f", {tag.ahead} ahead"
    return ahead + ("" if tag.lease is None else f", lease {tag.lease}")


# ---------------------------------------------------------------------- reading


@click.command(short_help="List the tags of the store.")
@json_option()
@click.pass_obj
def tags(session: Session, *, as_json: bool) -> None:
    """List the tags of the store."""
    found = session.connect().tags()
    if as_json:
        show_json([asdict(tag) for tag in found])
    elif not found:
        say("no tags yet: make one with `issuer create`")
    else:
        show_data(_listing(found))


def _listing(found: list[Tag]) -> str:
    columns = [
        Column("TAG", flexible=True),
        Column("MAX", "right"),
        Column("STEP", "right"),
        Column("ORDER"),
        Column("CHANGED"),
        Column("DESCRIPTION", flexible=True),
    ]
    now = now_ms()
    rows = [
        (
            tag.tag,
            tag.max,
            tag.step,
            f"{tag.order}, halted" if tag.halted else tag.order,
            ago(tag.timestamp, now),
            tag.description,
        )
        for tag in found
    ]
    if not any(tag.description for tag in found):
        columns, rows = columns[:-1], [row[:-1] for row in rows]  # type: ignore[misc]  # one column less
    return table(columns, rows, screen_width())


@click.command(short_help="Show all that is known of a tag.")
@tag_argument()
@json_option()
@click.pass_context
def show(context: click.Context, *, tag: str, as_json: bool) -> None:
    """Show all that the store and Redis know of TAG, changing nothing.

    With Redis away the store's part is shown all the same, and the exit code is 5.
    """
    session = Session.of(context)
    seen = session.connect().inspect(tag)
    if as_json:
        content = asdict(seen)
        if seen.redis_error is None:
            del content["redis_error"]
        del content["waiting"]  # callers wait in processes of their own
        show_json(content)
    else:
        direct = session.settings().redis_url.value == "none"
        show_data(sheet(seen, direct=direct, now=now_ms(), room=screen_width()))
    if seen.redis_error is not None:
        complain(seen.redis_error)
        context.exit(UNREACHABLE)


# ---------------------------------------------------------------------- changing


@click.command(
    short_help="Make a tag.",
    epilog="""\b
    Examples:
      issuer create orders
      issuer create invoices --start 100000 --step 5000 --description "since 2026"
      issuer create web --limit 9007199254740991        what JavaScript counts exactly
      issuer create events --order trend --step 10000 --lease 1000   one round trip for 1000 numbers
      issuer create orders --step 5000 --ahead 8        a step lasts 10 minutes: an hour without the store costs nothing
    """,
)
@click.argument("tag")
@_first
@click.option("--step", metavar="N", type=_Step(), help="Numbers per segment, or auto; 1000 by default.")
@click.option("--limit", metavar="N", type=int, default=HIGHEST, help="The last number there will be; 2^63-1.")
@click.option("--order", type=click.Choice(["strict", "trend"]), help="strict by default; trend without Redis.")
@_lease
@_ahead
@click.option("--description", metavar="TEXT", default="", help="For people.")
@click.pass_obj
def create(
    session: Session,
    *,
    tag: str,
    start: int | None,
    above: int | None,
    step: int | Literal["auto"] | None,
    limit: int,
    order: Order | None,
    lease: int | None,
    ahead: int | None,
    description: str,
) -> None:
    """Make TAG. A deleted tag, made again, goes on above its old numbers."""
    made = session.connect().create(
        tag,
        start=start,
        above=above,
        step=step,
        limit=limit,
        order=order,
        lease=lease,
        ahead=1 if ahead is None else ahead,
        description=description,
    )
    say(f"made {plain(made.tag)}: first number {made.max + 1}, step {made.step}, {made.order}{_settings(made)}")


@click.command(
    short_help="Change a tag while it is in use.",
    epilog="""\b
    Examples:
      issuer set orders --step 5000
      issuer set orders --above 123456         skip the numbers up to 123456
    """,
)
@tag_argument()
@click.option("--step", metavar="N", type=_Step(), help="Numbers per segment, from the next one on.")
@click.option("--limit", metavar="N", type=int, help="The last number there will be; not below max.")
@_first
@_lease
@_ahead
@click.option("--description", metavar="TEXT", help="For people.")
@click.pass_obj
def set(
    session: Session,
    *,
    tag: str,
    step: int | Literal["auto"] | None,
    limit: int | None,
    start: int | None,
    above: int | None,
    lease: int | None,
    ahead: int | None,
    description: str | None,
) -> None:
    """Change TAG while it is in use; every process follows at its next reservation.

    --start and --above only raise: the numbers below are skipped. A changed --lease reaches every process within a
    minute.
    """
    if all(value is None for value in (step, limit, start, above, lease, ahead, description)):
        raise click.UsageError(
            "nothing to change: give --step, --limit, --start, --above, --lease, --ahead or --description"
        )
    now = session.connect().configure(
        tag, step=step, limit=limit, start=start, above=above, lease=lease, ahead=ahead, description=description
    )
    ends = "" if now.limit == HIGHEST else f", limit {now.limit}"
    say(f"changed {plain(now.tag)}: max {now.max}, step {now.step}{ends}{_settings(now)}")


@click.command(short_help="Retire a tag.")
@tag_argument()
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def delete(session: Session, *, tag: str, yes: bool) -> None:
    """Retire TAG: nobody gets a number of it any more. Made again, it goes on above."""
    asked(f"Delete {plain(tag)}?", yes=yes)
    session.connect().delete(tag)
    say(f"deleted {plain(tag)}")
