"""Look-ups: queries of the store whether a tag exists, for tags that this process has not used yet.

The number of look-ups is limited, because clients can send any name. Each owner, a token or an address, gets a fair
share of them, so that the invented names of one do not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from issuer.clock import monotonic
from issuer.doors.rates import Bucket, RateBuckets
from issuer.engine.aio import AsyncEngine
from issuer.errors import TooManyRequests, Unavailable, UnknownTag
from issuer.settings import seconds
from issuer_persistence.newest import Newest

#: Largest number of names that are looked up at the same time.
AT_ONCE: Final = 8
#: Largest number of further names of an owner that may wait for their look-up.
WAITING_MOST: Final = 1000
#: Longest time of a look-up in seconds. If the store does not answer, the server draws without a look-up: Redis may
#: have numbers of the tag.
WITHIN: Final = 0.5
#: Maximum number of look-ups of unknown names per second, over all processes of a server.
MISSES_PER_SECOND: Final = 100
#: Seconds for which an unknown name is remembered, so that it is not looked up again.
REMEMBERED: Final = 1.0
#: Maximum number of names that are remembered as unknown, and as found.
_REMEMBERED_MOST: Final = 1000

#: The owner of names that were found before: their look-ups are the first ones. Not "", which is the owner of the names
#: of clients without a known address.
_FOUND: Final = None


class LookUps:
    """Checks that a tag exists before numbers are drawn from it, because a draw of an unknown name costs much more.

    At most AT_ONCE names are looked up at the same time, those of different owners in turn. A name has at most one
    look-up of an owner at a time. If this process already uses a tag, the tag needs no look-up.
    """

    def __init__(self, engine: AsyncEngine, rates: RateBuckets) -> None:
        self.engine = engine
        self.knows = engine.knows
        self._misses: Bucket = rates.bucket(": names that are not there", MISSES_PER_SECOND)
        self._running = 0
        #: Turns that wait, by owner. The first owner is the next one.
        self._turns: dict[str | None, deque[asyncio.Future[None]]] = {}
        self._under_way: dict[tuple[str | None, str], asyncio.Future[None]] = {}
        #: Unknown tags, each with the time at which it is forgotten. No errors are stored here: an error would keep the
        #: variables of its request in memory.
        self._missed: Newest[float] = Newest(_REMEMBERED_MOST)
        self._found: Newest[None] = Newest(_REMEMBERED_MOST)

    async def look_up(self, tag: str, owner: str, timeout: float | None = None, *, draws: bool = True) -> None:
        """Raise UnknownTag if the tag does not exist.

        If the store does not answer in time, return without an error, because Redis may have numbers of the tag.

        Args:
            tag: Name of the tag.
            owner: Name of the caller's token, or its address if it has no token.
            timeout: Longest wait in seconds. None means the timeout of the issuer.
            draws: If True and the tag is unknown, emit the event Rejected.

        Raises Unavailable if other look-ups took too long, TooManyRequests if too many look-ups of the owner wait.
        """
        if self.knows(tag):
            return
        within = self.engine.timeout if timeout is None else seconds(timeout, "timeout", zero=True)
        name = (_FOUND if tag in self._found else owner, tag)
        try:
            async with asyncio.timeout(within):
                while (other := self._under_way.get(name)) is not None:
                    await asyncio.wait((other,))
                    # If the other look-up is cancelled, the tag is unknown, or its caller gave up. Go on: `_look_up`
                    # raises UnknownTag, or queries the store. Otherwise return, so that the caller draws.
                    if not other.cancelled():  # the other look-up found the tag, or the store did not answer
                        return
                await self._look_up(name, min(WITHIN, within / 2))  # the rest of the time is for the draw
        except TimeoutError:
            raise Unavailable(f"tag {tag!r}: too many unknown tags are being looked up", tag=tag) from None
        except UnknownTag as error:
            if draws:
                self.engine.refused(tag, error)
            raise

    async def exists(self, tag: str, owner: str) -> bool:
        """Return whether the tag exists. After another process has deleted it, the result can be True for a minute."""
        try:
            await self.look_up(tag, owner, draws=False)
        except UnknownTag:
            return False
        return await self.engine.exists(tag)

    async def _look_up(self, name: tuple[str | None, str], within: float) -> None:
        owner, tag = name
        if self._missed.get(tag, 0.0) > monotonic():
            raise UnknownTag(tag)
        done = self._under_way[name] = asyncio.get_running_loop().create_future()
        try:
            async with self._turn(owner, tag):
                while wait := self._misses.take():  # noqa: ASYNC110 - other processes use the same limit
                    await asyncio.sleep(wait)
                await self._ask(tag, within)
            done.set_result(None)
        finally:
            del self._under_way[name]
            done.cancel()

    @asynccontextmanager
    async def _turn(self, owner: str | None, tag: str) -> AsyncIterator[None]:
        """Wait until a look-up may begin, the owners in turn. Raises TooManyRequests if too many of the owner wait."""
        if self._running < AT_ONCE:
            self._running += 1
        else:
            turns = self._turns.setdefault(owner, deque())
            if len(turns) >= WAITING_MOST:
                raise TooManyRequests("too many unknown tags are being looked up", tag=tag)
            turn = asyncio.get_running_loop().create_future()
            turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was this task's turn just now
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the next look-up begin: the first one of the next owner."""
        while self._turns:
            owner = _FOUND if _FOUND in self._turns else next(iter(self._turns))
            turns = self._turns.pop(owner)
            turn = turns.popleft()
            if turns:
                self._turns[owner] = turns
            if not turn.done():  # else its caller gave up
                turn.set_result(None)
                return
        self._running -= 1

    async def _ask(self, tag: str, within: float) -> None:
        try:
            async with asyncio.timeout(within):  # do not wait longer, even if the thread that queries the store does
                there = await self.engine.find(tag, within)
        except (Unavailable, TimeoutError):
            return
        except UnknownTag:
            self._found.pop(tag, None)
            self._missed[tag] = monotonic() + REMEMBERED
            raise
        if there:
            self._found[tag] = None
            self._misses.give_back()
