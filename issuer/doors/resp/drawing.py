"""Draws for the connections of a server: all INCRs of a tag that are there at the same time share one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from issuer.clock import Deadline, monotonic
from issuer.doors.resp.replies import failure, numbers
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError, Unavailable, UnknownTag

#: Seconds between two looks at the callers' deadlines, and at the clock.
LOOK_EVERY: Final = 0.05

#: Most numbers of one draw: its replies are packed in one go, in 0.1 us each.
DRAW_MOST: Final = 50_000

#: How many tags that aren't drawn from just now are remembered.
QUIET_MOST: Final = 1000


def ending(tag: str | None = None) -> IssuerError:
    """Return the error for those that wait for a number when the server ends."""
    return Unavailable("the server is stopping", tag=tag)


class Client(Protocol):
    """A connection as those see it that draw for it."""

    lost: bool

    def answered(self, demand: Demand) -> None:
        """Take note that the demand's reply is there; it is to be written at the next `flush`."""

    def flush(self) -> None:
        """Write the replies that are next, as far as they are there."""


class Demand:
    """INCRs of one tag, side by side in a client's pipeline.

    `reply`: all their replies once they are there. Numbers that come after that, or once the client is gone, are gaps.
    """

    __slots__ = ("client", "missing", "n", "parts", "reply", "until")

    def __init__(self, client: Client, n: int) -> None:
        self.client = client
        self.n = self.missing = n
        self.parts = b""
        self.until = 0.0
        self.reply: bytes | None = None

    @property
    def waits(self) -> bool:
        """Whether numbers are of use to it."""
        return self.reply is None and not self.client.lost

    def give(self, drawn: Sequence[int]) -> None:
        """Answer as many of the INCRs, in their order."""
        if drawn and self.reply is None and not self.client.lost:
            packed = numbers(drawn)
            if len(drawn) == self.n:
                self._answer(packed)
                return
            self.parts += packed
            self.missing -= len(drawn)
            if not self.missing:
                self._answer(self.parts)

    def give_one(self, drawn: int) -> None:
        """Do the same for a single INCR, in half the time."""
        client = self.client
        if self.reply is None and not client.lost:
            self.reply = b":%d\r\n" % drawn
            client.answered(self)

    def fail(self, error: bytes) -> None:
        """Answer the INCRs that have no number yet with that error."""
        if self.waits:
            self._answer(self.parts + error * self.missing)

    def _answer(self, reply: bytes) -> None:
        self.reply = reply
        self.client.answered(self)


class Drawer:
    """Draws numbers of one tag for all clients that wait, again for those that came meanwhile, until none waits.

    Strict: a draw is for demands that were there before it was sent, and no number of it goes to another one.
    """

    def __init__(self, tag: str, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._tag = tag
        self._engine = engine
        self._loop = loop
        self._queue: list[Demand] = []
        self._served: list[Demand] = []
        self.task: asyncio.Task[None] | None = None
        #: Whether the last draw has found that the tag is not there.
        self.unknown = False
        #: The deadline of a demand that comes now; the clock is read at each look only.
        self._until = 0.0
        self._watch: asyncio.TimerHandle | None = None

    def waiting(self) -> int:
        """Return how many INCRs wait now."""
        return sum(demand.missing for demand in (*self._served, *self._queue) if demand.waits)

    def add(self, demand: Demand) -> None:
        """Draw for the demand as well."""
        if self.task is None:
            # Not by the loop's task factory: an eager one would run it before the other clients' demands are there.
            self.task = asyncio.Task(self._serve(), loop=self._loop)
            if self._watch is None:
                self._look()
            else:
                self._until = monotonic() + LOOK_EVERY + self._engine.timeout
        demand.until = self._until
        self._queue.append(demand)

    def end(self) -> asyncio.Task[None] | None:
        """End the draw under way; return its task, if there is any."""
        if self._watch is not None:
            self._watch.cancel()
        if self.task is not None:
            self.task.cancel()
        return self.task

    async def _serve(self) -> None:
        try:
            while self._queue:
                await self._draw()
        finally:
            self.task = None
            left, self._served, self._queue = [*self._served, *self._queue], [], []
            if left:  # this task was cancelled, as the server ends
                self._fail(left, ending(self._tag))

    async def _draw(self) -> None:
        queue, self._queue = self._queue, []
        self._served = [demand for demand in queue if demand.reply is None and not demand.client.lost]
        if not self._served:
            return
        wanted = sum([demand.missing for demand in self._served])
        # The last one's: that of whoever came before it ends no later.
        deadline = Deadline.until(self._served[-1].until)
        try:
            drawn = await self._engine.draw(self._tag, min(wanted, DRAW_MOST), deadline, self.waiting)
        except Exception as error:  # noqa: BLE001 - every client gets it
            served, self._served = self._served, []
            self.unknown = isinstance(error, UnknownTag)
            self._fail(served, error)
            return
        self._hand_out(drawn)

    def _hand_out(self, drawn: Sequence[int]) -> None:
        served, self._served = self._served, []
        at, end = 0, len(drawn)
        for place, demand in enumerate(served):
            if demand.n == 1 and at < end:
                demand.give_one(drawn[at])
                at += 1
                continue
            stops = at + demand.missing
            if stops > end:
                # Granted short: first in the next draw.
                demand.give(drawn[at:end])
                self._queue[:0] = served[place:]
                break
            demand.give(drawn[at:stops])
            at = stops
        for demand in served:
            demand.client.flush()

    def _fail(self, demands: Sequence[Demand], error: Exception) -> None:
        reply = failure(error)
        for demand in demands:
            demand.fail(reply)
        for demand in demands:
            demand.client.flush()

    def _look(self) -> None:
        """Look at the clock, and fail the demands whose time is over; as long as any waits, look again."""
        self._watch = None
        if self.task is None:
            return
        now = monotonic()
        was, self._until = self._until, now + LOOK_EVERY + self._engine.timeout
        # A loop that was held up has let the clock stand still for those that came since the last look.
        held_up = now + self._engine.timeout > was + LOOK_EVERY
        waiting = [*self._served, *self._queue]
        if held_up:
            for demand in waiting:
                if demand.until == was:
                    demand.until = self._until
        overdue = [demand for demand in waiting if demand.until <= now and demand.waits]
        if overdue:
            self._fail(overdue, self._engine.overdue(self._tag))
        self._watch = self._loop.call_later(LOOK_EVERY, self._look)


class Drawing:
    """The drawers of a server, one for each tag."""

    def __init__(self, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._drawers: dict[str, Drawer] = {}

    @property
    def waiting(self) -> int:
        """How many INCRs wait now."""
        return sum(drawer.waiting() for drawer in self._drawers.values())

    def draw(self, tag: str, demand: Demand, *, found: bool = False) -> bool:
        """Answer the demand with numbers of the tag: at once if they are in hand, and no other demand waits.

        Return False, and do nothing, if this process does not know the tag. `found`: it was looked up.
        """
        drawer = self._drawers.get(tag)
        if drawer is None or drawer.unknown:
            if not found and not self._engine.knows(tag):
                return False
            drawer = drawer or self._drawer(tag)
            drawer.unknown = False
        if drawer.task is None:
            demand.give(self._engine.at_hand(tag, demand.n))
            if demand.reply is not None:
                return True
        drawer.add(demand)
        return True

    def _drawer(self, tag: str) -> Drawer:
        if len(self._drawers) >= QUIET_MOST:
            # Clients make up tags as they like.
            self._drawers = {tag: each for tag, each in self._drawers.items() if each.task is not None}
        drawer = self._drawers[tag] = Drawer(tag, self._engine, self._loop)
        return drawer

    async def close(self) -> None:
        """End the draws under way: their numbers are gaps, and what waits for them gets an error."""
        tasks = [task for drawer in self._drawers.values() if (task := drawer.end()) is not None]
        if tasks:
            await asyncio.wait(tasks)
