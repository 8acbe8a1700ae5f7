"""Look-ups: queries of the store whether a tag exists, for tags that this process has not used yet.

The number of look-ups is limited, because clients can send any name.
"""

from __future__ import annotations

import asyncio
from typing import Final

from issuer.clock import monotonic
from issuer.doors.rates import Bucket, RateBuckets
from issuer.engine.aio import AsyncEngine
from issuer.errors import TooManyRequests, Unavailable, UnknownTag
from issuer.settings import seconds

#: Largest number of names that are looked up at the same time.
AT_ONCE: Final = 8
#: Largest number of further names that may wait for their look-up.
WAITING_MOST: Final = 1000
#: Longest time of a look-up in seconds. If the store does not answer, the server draws without a look-up: Redis may
#: have numbers of the tag.
WITHIN: Final = 0.5
#: Maximum number of look-ups of unknown names per second, over all processes of a server.
MISSES_PER_SECOND: Final = 100
#: Seconds for which an unknown name is remembered, so that it is not looked up again.
REMEMBERED: Final = 1.0
#: When this many unknown names are remembered, those that are older than REMEMBERED seconds are dropped.
_REMEMBERED_MOST: Final = 1000


class LookUps:
    """Checks that a tag exists before numbers are drawn from it, because a draw of an unknown name costs much more.

    A name has at most one look-up at a time, and at most AT_ONCE names are looked up at the same time. If this process
    already uses a tag, the tag needs no look-up.
    """

    def __init__(self, engine: AsyncEngine, rates: RateBuckets) -> None:
        """`engine`: the engine of the issuer. `rates`: limits look-ups of unknown names, over all processes."""
        self.engine = engine
        self.knows = engine.knows
        self._misses: Bucket = rates.bucket(": names that are not there", MISSES_PER_SECOND)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._missed: dict[str, tuple[float, UnknownTag]] = {}

    async def look_up(self, tag: str, timeout: float | None = None, *, draws: bool = True) -> None:
        """Raise UnknownTag if the tag does not exist.

        If the store does not answer in time, return without an error, because Redis may have numbers of the tag.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds. None means the timeout of the issuer.
            draws: If True and the tag is unknown, report the rejected draw to the handler `rejected` of the issuer.

        Raises:
            UnknownTag: The tag does not exist.
            Unavailable: Other look-ups took too long.
            TooManyRequests: Too many look-ups wait.
        """
        try:
            await self._in_time(tag, timeout)
        except UnknownTag as error:
            if draws:
                self.engine.refused(tag, error)
            raise

    async def exists(self, tag: str) -> bool:
        """Return whether the tag exists. After another process has deleted it, the result can be True for a minute."""
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
                    # If the other look-up is cancelled, the tag is unknown, or its caller gave up. Go on: `_look_up`
                    # raises UnknownTag, or queries the store. Otherwise return, so that the caller draws.
                    if not other.cancelled():  # the other look-up found the tag, or the store did not answer
                        return
                await self._look_up(tag, min(WITHIN, within / 2))  # the rest of the time is for the draw
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
                while wait := self._misses.take():  # noqa: ASYNC110 - other processes use the same limit
                    await asyncio.sleep(wait)
                await self._ask(tag, within)
            done.set_result(None)
        finally:
            del self._under_way[tag]
            done.cancel()

    async def _ask(self, tag: str, within: float) -> None:
        try:
            async with asyncio.timeout(within):  # do not wait longer, even if the thread that queries the store does
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
