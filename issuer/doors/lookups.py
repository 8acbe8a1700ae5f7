"""Look-ups of tags that a process has not used yet, limited because clients can send any name."""

from __future__ import annotations

import asyncio
from typing import Final

from issuer.clock import monotonic
from issuer.doors.rates import Bucket, RateBuckets
from issuer.engine.aio import AsyncEngine
from issuer.errors import TooManyRequests, Unavailable, UnknownTag
from issuer.settings import seconds

#: How many names are looked up at once, and how many more may wait for it.
AT_ONCE: Final = 8
WAITING_MOST: Final = 1000
#: Seconds that the store has for one. Numbers in Redis do not wait for a store that is silent: the draw finds them.
WITHIN: Final = 0.5
#: How many names that are not there the store is asked for in a second, by all processes of a server.
MISSES_PER_SECOND: Final = 100
#: Seconds for which such a name is remembered, and how many of them are before those that have expired are dropped.
REMEMBERED: Final = 1.0
_REMEMBERED_MOST: Final = 1000


class LookUps:
    """Checks that a tag exists before numbers are drawn from it, because a draw of an unknown name costs much more.

    A name has at most one look-up at a time, and at most AT_ONCE names are looked up at the same time. A tag that this
    process uses already needs no look-up.
    """

    def __init__(self, engine: AsyncEngine, rates: RateBuckets) -> None:
        """`engine`: of the issuer that has the tags. `rates`: counts names that do not exist."""
        self.engine = engine
        self.knows = engine.knows
        self._misses: Bucket = rates.bucket(": names that are not there", MISSES_PER_SECOND)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._missed: dict[str, tuple[float, UnknownTag]] = {}

    async def look_up(self, tag: str, timeout: float | None = None, *, draws: bool = True) -> None:
        """Return if the tag is there, or may be; raise UnknownTag if it is not.

        `draws`: whether the caller wants numbers, and gets none then. Raises Unavailable if others' look-ups leave no
        time for this one.
        """
        try:
            await self._in_time(tag, timeout)
        except UnknownTag as error:
            if draws:
                self.engine.refused(tag, error)
            raise

    async def exists(self, tag: str) -> bool:
        """Whether the tag is there; see AsyncEngine.exists."""
        try:
            await self._in_time(tag)
        except UnknownTag:
            return False
        return await self.engine.exists(tag)

    async def _in_time(self, tag: str, timeout: float | None = None) -> None:
        if self.knows(tag):
            return
        within = self.engine.timeout if timeout is None else seconds(timeout, "timeout", zero=True)
        try:
            async with asyncio.timeout(within):
                while (other := self._under_way.get(tag)) is not None:
                    await asyncio.wait((other,))
                    if not other.cancelled():  # it is there, or may be
                        return
                await self._look_up(tag, min(WITHIN, within / 2))  # the draw wants time as well
        except TimeoutError:
            raise Unavailable(f"tag {tag!r}: too many unknown tags are being looked up", tag=tag) from None

    async def _look_up(self, tag: str, within: float) -> None:
        until, missed = self._missed.get(tag, (0.0, None))
        if missed is not None and until > monotonic():
            raise UnknownTag(tag, store=missed.store)
        if len(self._under_way) >= AT_ONCE + WAITING_MOST:
            raise TooManyRequests("too many unknown tags are being looked up", tag=tag)
        done = self._under_way[tag] = asyncio.get_running_loop().create_future()
        try:
            async with self._free:
                while wait := self._misses.take():  # noqa: ASYNC110 - other processes take from it as well
                    await asyncio.sleep(wait)
                await self._ask(tag, within)
            done.set_result(None)
        finally:
            del self._under_way[tag]
            done.cancel()

    async def _ask(self, tag: str, within: float) -> None:
        try:
            async with asyncio.timeout(within):  # a thread that asks the store may take a little longer
                there = await self.engine.find(tag, within)
        except (Unavailable, TimeoutError):
            return
        except UnknownTag as error:
            now = monotonic()
            if len(self._missed) >= _REMEMBERED_MOST:
                self._missed = {name: each for name, each in self._missed.items() if each[0] > now}
            self._missed[tag] = now + REMEMBERED, error
            raise
        if there:
            self._misses.give_back()
