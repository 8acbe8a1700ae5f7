"""The HTTP calls of Meituan's Leaf."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from html import escape
from typing import Final

from issuer.clock import Deadline
from issuer.core.scheme_record import strategy
from issuer.doors.web.calls import Request, decoded
from issuer.doors.web.compat.family import (
    JSON_UTF8,
    Call,
    Family,
    Handler,
    boot_error,
    joined,
    later,
    media_of,
    not_found,
    parameters,
    without_extras,
)
from issuer.doors.web.page import POLICY
from issuer.doors.web.replies import LAST, PLAIN, Problem, Reply, dumped
from issuer.errors import ClockBehind, Forbidden, InvalidArgument, IssuerError, Unauthenticated, UnknownTag
from issuer.strategies.snowflake.layout import Layout
from issuer_persistence.records import Tag

_Row = Iterable[object]

#: Leaf ignores the key of its snowflake call. Its numbers come from this tag.
SNOWFLAKE_TAG: Final = "leaf-snowflake"
#: Layout of Leaf's snowflake numbers. Numbers of another layout could repeat numbers that Leaf has issued.
LAYOUT: Final = Layout(epoch=1_288_834_974_657)

#: What Leaf reports in `Result{id=N, status=EXCEPTION}`.
_NOT_READY, _UNKNOWN, _FAILED = -1, -2, -3
#: If the clock is behind by more than this, in ms, Leaf does not wait for it, and reports -3.
_CLOCK_WAIT: Final = 5

_EXCEPTION: Final = "com.sankuai.inf.leaf.server.exception.LeafServerException"
_MISSING: Final = "org.springframework.web.bind.MissingServletRequestParameterException"
_SEGMENT, _SNOWFLAKE = "/api/segment/get", "/api/snowflake/get"
_PAGES: Final = re.compile(r"/(decodeSnowflakeId|cache|db)(\.[^/]*|/)?")
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_LONGS: Final = range(-(2**63), 2**63)
_FILE: Final = ((b"content-disposition", b"inline;filename=f.txt"),)


class Leaf(Family):
    """The calls of a Leaf server. As in Leaf, a draw ignores the last `.suffix` of the key."""

    roots = (_SEGMENT, _SNOWFLAKE, "/decodeSnowflakeId", "/cache", "/db")
    reads = ("leaf_decodeSnowflakeId", "leaf_cache", "leaf_db")
    cuts = True
    _checked: Tag | None = None

    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to Leaf."""
        for begin, name, call in (
            (_SEGMENT, "leaf_segment", self._segment_of),
            (_SNOWFLAKE, "leaf_snowflake", lambda _: self._snowflake),
        ):
            if path.startswith(begin) and path[len(begin) : len(begin) + 1] in ("", "/"):
                key = without_extras(path[len(begin) + 1 :])
                bare = key.removesuffix("/")
                return name, call(key) if bare and "/" not in bare else not_found
        page = _PAGES.fullmatch(without_extras(path))
        if page is None:
            return None
        pages = {"decodeSnowflakeId": self._decode, "cache": self._cache, "db": self._db}
        return f"leaf_{page[1]}", pages[page[1]]

    def _segment_of(self, key: str) -> Handler:
        """Return the handler of a draw. `key`: end of the path, which is encoded and may have a slash at its end."""
        try:
            tag = decoded(key.removesuffix("/"))
        except Problem:
            return _bad_path
        if "/" in tag:
            return _bad_path
        suffix = None
        if self.cuts and "." in tag and not key.endswith("/"):  # Spring does not cut a key that a slash follows
            tag, _, suffix = tag.rpartition(".")
        return partial(self._segment, tag, suffix)

    async def _segment(self, tag: str, suffix: str | None, request: Request) -> Reply | bytes:
        """Draw a number. `suffix`: the part of the key that was cut, None if nothing was cut."""
        try:
            self.identify(request, "issue", tag)
            await self.check(request)
            number = await self.service.ids.next(tag, timeout=self.timeout)
        except IssuerError as error:
            return self._refused(request, error, _UNKNOWN if isinstance(error, UnknownTag) else _FAILED)
        media = JSON_UTF8 if suffix == "json" else media_of(request)
        if suffix is None and media == PLAIN:
            return b"%d" % number
        return Reply(b"%d" % number, media, headers=() if suffix in (None, "json") else _FILE)

    async def _snowflake(self, request: Request) -> Reply:
        try:
            self.identify(request, "issue", SNOWFLAKE_TAG)
            await self._check_snowflake(request)
            number = await self.service.ids.next(SNOWFLAKE_TAG, timeout=self.timeout)
        except IssuerError as error:
            waits = isinstance(error, ClockBehind) and error.behind <= _CLOCK_WAIT
            off = isinstance(error, UnknownTag | InvalidArgument)
            return self._refused(request, error, _NOT_READY if waits or off else _FAILED)
        return Reply(b"%d" % number, media_of(request))

    async def _check_snowflake(self, request: Request) -> None:
        await self.service.look_ups.look_up(SNOWFLAKE_TAG, request.owner, self.timeout)
        record = await self.service.ids.engine.record(SNOWFLAKE_TAG, Deadline(self.timeout))
        if record is self._checked:
            return
        if strategy(record.scheme) != "snowflake" or Layout.of(record.scheme.get("options", {})) != LAYOUT:
            problem = f"tag {SNOWFLAKE_TAG!r} must have the strategy snowflake with the epoch {LAYOUT.epoch} of Leaf"
            raise InvalidArgument(problem, tag=SNOWFLAKE_TAG, value=SNOWFLAKE_TAG)
        self._checked = record

    def _refused(self, request: Request, error: IssuerError, reason: int) -> Reply:
        if isinstance(error, Unauthenticated | Forbidden):
            raise error
        message = f"Result{{id={_NOT_READY if self.service.ids.closed else reason}, status=EXCEPTION}}"
        headers = (*LAST, *later(error))
        return boot_error(request, 500, message, exception=_EXCEPTION, code=error.code, headers=headers)

    async def _decode(self, request: Request) -> Reply:
        """Show the parts of a snowflake number, computed with signed shifts as Leaf does."""
        request.known().count()
        values = (await parameters(request)).get("snowflakeId")
        if values is None:
            message = "Required String parameter 'snowflakeId' is not present"
            return boot_error(request, 400, message, exception=_MISSING, headers=LAST)
        text = joined(values)
        if not _LONG.fullmatch(text) or int(text) not in _LONGS:
            return Reply(dumped({"errorMsg": "snowflake Id反解析发生异常!"}), JSON_UTF8)
        number = int(text)
        ms = (number >> LAYOUT.shift) + LAYOUT.epoch
        local = f"{datetime.fromtimestamp(ms // 1000):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"  # noqa: DTZ006 - as Leaf
        content = {
            "workerId": str(number >> LAYOUT.sequence_bits & 1023),
            "sequenceId": str(number & 4095),
            "timestamp": f"{ms}({local})",
        }
        return Reply(dumped(content), JSON_UTF8)

    # In these two pages, as in Leaf, `max` is the number after the last reserved one, and `value` is the next number.

    async def _db(self, request: Request) -> Reply:
        self.identify(request, "read")
        return await _page(("tag", "max", "step", "update"), self._tags())

    async def _tags(self) -> AsyncIterator[_Row]:
        async for page in self.service.ids.engine.care.tag_pages(self.timeout):
            for each in (record for record in page if isinstance(record, Tag)):  # Leaf has no way to show a damaged one
                # A row of another program has no time before the issuer has changed it.
                changed = datetime.fromtimestamp(each.timestamp // 1000) if each.timestamp else ""  # noqa: DTZ006 - as Leaf
                yield each.tag, each.max + 1, each.step, changed

    async def _cache(self, request: Request) -> Reply:
        self.identify(request, "read")
        columns = ("name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1")
        return await _page(columns, self._segments())

    async def _segments(self) -> AsyncIterator[_Row]:
        ids = self.service.ids
        for tag in sorted(ids.engine.registry.combiners):  # those that this process uses
            step, ranges = 0, []
            with suppress(IssuerError):  # without its state, a tag is shown as not initialized
                found = await ids.inspect(tag, timeout=self.timeout)
                step, redis, buffer = found.store.step, found.redis, ids.engine.combiner(tag).supply.state.buffer
                if redis is not None:
                    ranges = [(redis.cur, redis.max), (redis.next_cur, redis.next_max)]
                elif buffer is not None and (upcoming := buffer.upcoming) is not None:
                    ranges = [(max(each.low, upcoming - 1), each.high) for each in buffer.held if each.high >= upcoming]
            known = [(low + 1, high + 1, step) for low, high in ranges if low is not None and high is not None]
            first, second = (*known, (0, 0, 0), (0, 0, 0))[:2]
            yield tag, bool(known), len(known) > 1, 0, *first, *second


class ExactLeaf(Leaf):
    """The calls of Leaf for new clients: a draw uses the whole key, with its dots."""

    cuts = False


async def _bad_path(_: Request) -> Reply:
    """Return Tomcat's reply to a path that it does not accept."""
    title = "HTTP Status 400 - Bad Request"
    page = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Reply(page.encode(), b"text/html;charset=utf-8", 400, LAST)


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
