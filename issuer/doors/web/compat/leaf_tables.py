"""The tables of Leaf's pages /db and /cache, in HTML.

As in Leaf, `max` is the number after the last one that is reserved, and `value` is the next number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import datetime
from html import escape

from issuer.api.aio import AsyncIssuer
from issuer.doors.web.page import POLICY
from issuer.doors.web.replies import Reply
from issuer.errors import IssuerError

_Row = Iterable[object]


async def tags(ids: AsyncIssuer, timeout: float) -> Reply:
    """Return the page with all tags of the store."""
    return await _page(("tag", "max", "step", "update"), _tags(ids, timeout))


async def segments(ids: AsyncIssuer, timeout: float) -> Reply:
    """Return the page with the segments of all tags that this process uses: the current one, and the next one."""
    columns = ("name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1")
    return await _page(columns, _segments(ids, timeout))


async def _tags(ids: AsyncIssuer, timeout: float) -> AsyncIterator[_Row]:
    async for page in ids.engine.care.tag_pages(timeout):
        for each in page:
            # A row of another program has no time before the issuer has changed it.
            changed = datetime.fromtimestamp(each.timestamp // 1000) if each.timestamp else ""  # noqa: DTZ006 - as Leaf
            yield each.tag, each.max + 1, each.step, changed


async def _segments(ids: AsyncIssuer, timeout: float) -> AsyncIterator[_Row]:
    for tag in sorted(ids.engine.registry.combiners):
        step, ranges = 0, []
        with suppress(IssuerError):  # without its state, a tag is shown as not initialized
            found = await ids.inspect(tag, timeout=timeout)
            step, redis, buffer = found.store.step, found.redis, ids.engine.combiner(tag).supply.state.buffer
            if redis is not None:
                ranges = [(redis.cur, redis.max), (redis.next_cur, redis.next_max)]
            elif buffer is not None and (upcoming := buffer.upcoming) is not None:
                ranges = [(max(each.low, upcoming - 1), each.high) for each in buffer.held if each.high >= upcoming]
        known = [(low + 1, high + 1, step) for low, high in ranges if low is not None and high is not None]
        first, second = (*known, (0, 0, 0), (0, 0, 0))[:2]
        yield tag, bool(known), len(known) > 1, 0, *first, *second


async def _page(columns: Iterable[str], rows: AsyncIterator[_Row]) -> Reply:
    """Return a page with a table, which is sent row by row. Raises the error of the first row."""
    first = await anext(rows, None)
    begin = b'<!doctype html>\n<html><head><meta charset="utf-8"><title>Leaf</title></head><body>\n<table>\n'
    return Reply(
        begin + _row("th", columns) + (b"" if first is None else _row("td", first)),
        b"text/html;charset=utf-8",
        headers=((b"content-security-policy", POLICY.encode()),),
        rest=_rows(rows),
    )


async def _rows(rows: AsyncIterator[_Row]) -> AsyncIterator[bytes]:
    async for row in rows:
        yield _row("td", row)
    yield b"</table>\n</body></html>\n"


def _row(cell: str, values: _Row) -> bytes:
    shown = (str(each).lower() if isinstance(each, bool) else str(each) for each in values)
    return f"<tr>{''.join(f'<{cell}>{escape(each)}</{cell}>' for each in shown)}</tr>\n".encode()
