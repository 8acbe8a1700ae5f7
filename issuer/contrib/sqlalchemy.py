"""A column default for SQLAlchemy: each new row gets the next number of a tag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Insert
from sqlalchemy.engine.default import DefaultExecutionContext

import issuer
from issuer import AsyncIssuer, Issuer
from issuer.core.requests import TAKE_MOST
from issuer.errors import ConfigurationError, InvalidArgument


def next_number(
    tag: str, *, ids: Issuer | AsyncIssuer | Callable[[], Issuer | AsyncIssuer] | None = None
) -> Callable[[DefaultExecutionContext], int]:
    """Return a column default that draws the next number of a tag for each row without a number.

    It is for `mapped_column(BigInteger, primary_key=True, default=next_number("orders"))` and for `Column`. All rows
    of a statement get their numbers from one draw. With an AsyncEngine, the draw does not block the event loop. The
    errors of `Issuer.take` arrive as the attribute `orig` of SQLAlchemy's StatementError. So does InvalidArgument, for
    an INSERT ... SELECT and for use as `onupdate`: SQLAlchemy would give all rows the same number.

    Args:
        tag: Name of the tag.
        ids: Issuer to draw from, or a function without parameters that returns it for each draw. An Issuer also serves
            an AsyncEngine, in a thread. Default: `issuer.default()`, and with an AsyncEngine `issuer.adefault()`.
    """
    # The values have no reference to their keys, so they are dropped together with the context of the statement.
    drawn: WeakKeyDictionary[DefaultExecutionContext, Iterator[int]] = WeakKeyDictionary()

    def number(context: DefaultExecutionContext) -> int:
        try:
            return next(drawn[context])
        except (KeyError, StopIteration):  # the first row
            count = _rows(context, number)
        sizes = (min(TAKE_MOST, count - done) for done in range(0, count, TAKE_MOST))
        numbers = drawn[context] = iter([each for size in sizes for each in _draw(context, ids, tag, size)])
        return next(numbers)

    return number


def _rows(context: DefaultExecutionContext, default: object) -> int:
    compiled: Any = context.compiled
    if compiled is None:  # the default itself is executed: connection.scalar(table.c.id.default)
        return 1
    if not compiled.insert_prefetch:
        raise InvalidArgument(
            "SQLAlchemy calls onupdate only once for an UPDATE, so all its rows would get the same number; "
            "pass next_number as default, and for an UPDATE of one row draw its number with issuer.next"
        )
    # The statement of the state, as `compiled.statement` can be a lambda_stmt. PostgreSQL has INSERT also in a WITH.
    for each in (compiled.compile_state.statement, *(cte.element for cte in compiled.ctes or ())):
        if isinstance(each, Insert) and each.select is not None:
            raise InvalidArgument(
                "SQLAlchemy calls a default only once for INSERT ... SELECT, so all rows would get the same number; "
                "insert the rows with values, or pass include_defaults=False to from_select"
            )
    columns = sum(getattr(each.default, "arg", None) is default for each in compiled.insert_prefetch)
    return max(1, columns * len(context.compiled_parameters))


def _draw(context: DefaultExecutionContext, given: Any, tag: str, n: int) -> list[int]:
    in_loop = context.dialect.is_async
    if given is None:
        ids = issuer.adefault() if in_loop else issuer.default()
    else:
        ids = given() if callable(given) else given
    if in_loop:
        connection: Any = context.root_connection.connection.dbapi_connection
        drawn: list[int] = connection.run_async(lambda _: _awaited(ids, tag, n))
        return drawn
    if isinstance(ids, AsyncIssuer):
        raise ConfigurationError("an AsyncIssuer serves an AsyncEngine only: pass an Issuer for a blocking engine")
    return [ids.next(tag)] if n == 1 else ids.take(tag, n)


async def _awaited(ids: Issuer | AsyncIssuer, tag: str, n: int) -> list[int]:
    if not isinstance(ids, AsyncIssuer):
        return await asyncio.to_thread(ids.take, tag, n)
    return [await ids.next(tag)] if n == 1 else await ids.take(tag, n)
