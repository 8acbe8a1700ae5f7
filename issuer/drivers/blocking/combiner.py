"""Draws numbers of a tag for the threads of this process. Threads that call at the same time share one draw."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Self, TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core.steps import Flight, Steps, renewed
from issuer.core.supply.fetcher import UNCLAIMED
from issuer.core.supply.supply import Supply
from issuer.drivers.blocking.runner import Runner, ThreadLatch, waited
from issuer.drivers.running import SHORTEST, Unanswered
from issuer.errors import CalledWithin, IssuerError, RedisUnavailable, Unavailable
from issuer.forks import GENERATION, refuse_inherited
from issuer.gateway import tag_scripts
from issuer.reentry import callees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from issuer.core.supply.runtime import Runtime
    from issuer.drivers.blocking.connections import Node

T = TypeVar("T")

#: The leader is the thread that draws for a batch of callers. It waits at most this many seconds for the end of the
#: draw in progress, because the thread of that draw may have been interrupted.
TURN = 1.0

#: The leader also waits at most this many seconds until all threads of the last batch have their numbers. 1000 threads
#: need 15 ms for that, but a thread may have given up.
PASSING = 0.005

#: If the last batch had fewer numbers than this, the leader does not wait for its threads: without the wait, two
#: threads are 10 % faster.
PASSES = 3

#: Number of parts in a reply to a draw that elects no process to load a segment: status, low, high.
NUMBERS = 3


class Nowhere:
    """In place of a server, until the first number: each draw takes the slow path. It needs no redis-py."""

    def draw(self, packed: bytes, seconds: float) -> None:
        """Return None; see Node.draw."""


NOWHERE = Nowhere()


class Batch(Flight):
    """One draw for several callers. Each caller has a seat: its place in the batch, from 1. Seat 1 draws for all.

    The caller in seat n gets the n-th number of the draw.

    Each thread wakes the next one, because only one thread can run in the interpreter: 32 threads draw 61 000 numbers a
    second. If two threads at a time were woken, they would draw 50 000, with three even fewer: a thread that finds the
    interpreter in use sleeps again.
    """

    __slots__ = ("got", "lock", "numbers", "passed", "passing", "seats")

    def __init__(self) -> None:
        latch = ThreadLatch()
        super().__init__(latch, threading.get_ident)
        self.lock = latch.lock
        self.seats = itertools.count(1)
        self.numbers: Sequence[int] = ()
        self.got = 0
        #: A lock that is released when all threads of the batch but one have their numbers. If the lock were released
        #: one thread earlier, 4 threads would draw 20 % fewer numbers, in batches of 3.7.
        self.passed = threading.Lock()
        self.passed.acquire()
        self.passing = itertools.count(1)

    def number(self, seat: int) -> int:
        """Return the number of the caller with this seat. 0 if the draw has no number for this seat.

        If the draw has n numbers, the n-th call of this method releases the lock `passed`.
        """
        got = self.got
        if next(self.passing) == got:
            self.passed.release()
        return self.numbers[seat - 1] if seat <= got else 0


class Combiner:
    """Draws numbers of one tag for the threads of a process.

    A single caller draws for itself. If a draw is in progress, a caller takes a seat (a place) in the open batch. The
    thread in the first seat, the leader, waits until the draw in progress has ended and its threads have their numbers.
    These threads usually call again and join the batch. Then the leader draws for all seats. So with 32 threads a batch
    has 32 seats instead of 11, and 40 % more numbers are drawn a second. Numbers stay in order: a batch is closed
    before its draw is sent, so all its calls began before the draw.
    """

    def __init__(self, tag: str, key: str, runtime: Runtime, runner: Runner, timeout: float) -> None:
        """`key`: key of the tag's hash. `timeout`: default timeout of a call, in seconds."""
        self.tag = tag
        self.supply = Supply(tag, key, runtime)
        self.state = self.supply.state
        self._waiting = self.supply.shortage.waiting
        self._runner = runner
        self._redis = runner.redis
        self._timeout = timeout
        self._generation = runner.generation
        self._pack()
        self._node: Node | Nowhere = NOWHERE
        #: A call without a timeout of its own waits this many seconds for its batch. Then it checks the leader.
        self._patience = min(timeout, UNCLAIMED)
        self._limit = runner.redis.timeout if runner.redis is not None else 0.0
        #: Limit of a round trip, in a call without a timeout of its own, in seconds.
        self._seconds = min(self._limit, max(SHORTEST, timeout))
        #: Lock that is held by the caller that is drawing.
        self._turn = threading.Lock()
        self._batch = Batch()
        #: If True, a new caller must join the open batch. Either the batch has a leader, or the last batch just got its
        #: numbers and its threads may call again. If none calls again, the next caller has a batch of one.
        self._queued = False
        #: The lock `Batch.passed` of the last batch, for which the next leader waits. None if it need not wait.
        self._passing: threading.Lock | None = None
        if runner.redis is not None:
            # `publish` must come last, because other threads can draw from then on.
            self.supply.origin.publish(self)

    def rest(self) -> None:
        """Let the next draw take the slow path through `Supply`, because the tag was not used for a while."""
        self._node = NOWHERE
        self.supply.rest()

    def _pack(self) -> None:
        self._packed_as = self.state.scheme_id
        self._draws = self.supply.refill.draws(self._packed_as)
        self._one = self._draws.one

    # ------------------------------------------------------------------ drawing

    def __next__(self) -> int:
        """Draw one counter. `Issuer.next` calls this directly for a tag without a scheme.

        For a single caller, this method takes one round trip and 2 us of Python: it reads no clock and creates no
        object. In a batch, a caller sleeps once, takes its number, and wakes the next thread. It does little else
        before it wakes the next thread, which needs the interpreter.
        """
        state, turn, number = self.state, self._turn, 0
        if self._queued or not turn.acquire(False):  # noqa: FBT003 - a keyword takes twice as long
            number = self._seated()
        else:
            before = state.seen
            try:
                reply = self._node.draw(self._one, self._seconds) if state.buffer is None else None
                if reply is not None and len(reply) == NUMBERS and state.buffer is None:
                    high = int(reply[2])
                    if high > state.seen:
                        number = state.seen = high
                    elif not state.went_back(high - 1, before):
                        number = high
                if number:
                    state.alone += 1  # counts draws for metrics, in 20 ns
                elif state.buffer is None:
                    number = self._long(1, Deadline(self._timeout), reply, before)[0]
                else:
                    number = self._buffered(reply, before)
            except Unanswered as error:
                late = self._unanswered(error, self._seconds)
                number = self._long(1, Deadline(self._timeout - self._seconds), late, before)[0]
            finally:
                turn.release()
        # This comparison comes last, as a signal handler may fork at each call above.
        if state.scheme is None and self._generation == GENERATION.now:
            return number
        return self._valued(number)

    def _buffered(self, reply: list[bytes] | None, before: int) -> int:
        deadline = Deadline(self._timeout)
        return (self.from_buffer(1, deadline) if reply is None else self._long(1, deadline, reply, before))[0]

    def _valued(self, counter: int) -> int:
        value = self.state.value(counter)
        refuse_inherited(self._generation, self.tag)
        return value

    def _seated(self) -> int:
        at_hand = self.supply.at_hand(1)
        if at_hand is not None:
            return at_hand[0]  # without a batch, in which each thread sleeps: with 32 threads, twice as many numbers
        until = monotonic() + self._timeout
        batch = self._batch
        seat = next(batch.seats)
        if seat > 1:
            lock = batch.lock
            if lock.acquire(True, self._patience):  # noqa: FBT003 - as above
                number = batch.number(seat)
                lock.release()
                if number:
                    return number
        return self._shared(Deadline.until(until), batch, seat)

    def __iter__(self) -> Self:
        return self

    def next(self, deadline: Deadline) -> int:
        """Draw one number. Waits until the deadline."""
        if self.supply.alone:
            return self._runner.run(self.supply.obtain(1, deadline), deadline, self.tag)[0]
        turn = self._turn
        if self._queued or not turn.acquire(False):  # noqa: FBT003 - as above
            at_hand = self.supply.at_hand(1)
            if at_hand is not None:
                return at_hand[0]
            batch = self._batch
            return self._shared(deadline, batch, next(batch.seats))
        try:
            return self._draw(1, deadline)[0]
        finally:
            turn.release()

    def draw(self, n: int, deadline: Deadline) -> Sequence[int]:
        """Draw up to n numbers, at least one. Waits until the deadline. Those of a counter are a range."""
        if n == 1:
            for number in self.state.open:  # in memory, without a lock, as in `Issuer.next`
                return range(number, number + 1)
            number = self.next(deadline)
            return range(number, number + 1)
        if self.supply.alone:
            return self._runner.run(self.supply.obtain(n, deadline), deadline, self.tag)
        return self._draw(n, deadline)

    async def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run the steps (calls to Redis and the store) to their end, and return their result."""
        return self._runner.run(steps, deadline, self.tag)

    def _draw(self, n: int, deadline: Deadline) -> Sequence[int]:
        if self.state.buffer is not None:
            return self.from_buffer(n, deadline)
        packed = self._one if n == 1 else self._draws.of(n)
        seconds = min(self._limit, max(SHORTEST, deadline.left()))
        before = self.state.seen
        try:
            reply = self._node.draw(packed, seconds)
            if reply is not None and len(reply) != NUMBERS:
                return self._long(n, deadline, reply, before)
        except Unanswered as error:
            return self._long(n, deadline, self._unanswered(error, seconds), before)
        if reply is None or self.state.buffer is not None:
            return self._long(n, deadline, reply, before)
        low, high = int(reply[1]), int(reply[2])
        if self.state.went_back(low, before):
            return self._long(n, deadline, reply, before)
        self.state.seen = max(self.state.seen, high)
        self.state.drew(high - low)
        return range(low + 1, high + 1)

    def from_buffer(self, n: int, deadline: Deadline) -> Sequence[int]:
        """Draw like `_draw`, from the local buffer. If it is empty, refill it with one call to Redis."""
        numbers: Sequence[int] | None = self.supply.at_hand(n)
        if numbers is None and self._node is not NOWHERE:
            if self.supply.refill.begun and sum(each is self for each in callees(_REFILLS)) > 1:
                raise CalledWithin(tag=self.tag)  # inside the call that draws the lease
            try:
                numbers = self._refill(n, deadline)
            except BaseException:
                self.supply.refill.leave()
                raise
        return self._long(n, deadline, None, 0) if numbers is None else numbers

    def _refill(self, n: int, deadline: Deadline) -> Sequence[int] | None:
        """Draw a lease with one call to Redis, and n of its numbers. None: use `Supply`."""
        refill = self.supply.refill
        first: tag_scripts.Leased | RedisUnavailable | None = None
        begun = refill.begin(n)
        if begun is None:
            return None
        flight, buffer, size = begun
        seconds = min(self._limit, max(SHORTEST, deadline.left()))
        try:
            reply = self._node.draw(self._draws.lease(size) if size else self._draws.of(n), seconds)
        except Unanswered as error:
            first = self._unanswered(error, seconds)
        else:
            if reply is not None and not size:
                return self.supply.passed(flight, reply, n)
            drawn = first = None if reply is None else tag_scripts.leased(reply)
            if drawn is not None and refill.landed(flight, buffer, drawn):
                return self.supply.at_hand(n)
        self._runner.run(refill.land(flight, buffer, first, deadline), deadline, self.tag)
        return None

    def _long(
        self, n: int, deadline: Deadline, first: list[bytes] | RedisUnavailable | None, before: int
    ) -> Sequence[int]:
        """Draw like `_draw`. `first`: reply or error of a draw. `before`: highest number seen when it was sent."""
        drawn = tag_scripts.drawn(first) if isinstance(first, list) else first
        if isinstance(drawn, tag_scripts.Drawn) and drawn.status == "ok" and self.state.ended is None:
            if not self.state.went_back(drawn.low, before) and (taken := self.supply.accept(drawn, n)):
                return taken
            drawn = None  # `Supply.obtain` checks the hash and draws again
        self._node = NOWHERE
        numbers = self._runner.run(self.supply.obtain(n, deadline, drawn), deadline, self.tag)
        if self._redis is not None:
            if self.state.owned:
                self._node = self._redis.node(self.state.key)
                self.supply.used()  # again: if `rest` was called meanwhile, sweeps would not check the tag
            if self._packed_as != self.state.scheme_id:
                self._pack()
        return numbers

    def _unanswered(self, error: Unanswered, seconds: float) -> RedisUnavailable:
        if self._redis is None or isinstance(self._node, Nowhere):
            return RedisUnavailable(str(error), tag=self.tag)
        return self._redis.unanswered(self._node, error, seconds, self.tag)

    # ------------------------------------------------------------------ callers that share a draw

    @property
    def waiting(self) -> int:
        """How many callers wait. The leader of a batch counts at once, the other callers of the batch after 0.25 s."""
        return len(self._waiting)

    def _shared(self, deadline: Deadline, batch: Batch, seat: int) -> int:
        """Return the number of the caller with this seat of the batch. If there is none, join another batch."""
        try:
            return self._sat(deadline, batch, seat)
        finally:
            self._waiting.discard(deadline)

    def _sat(self, deadline: Deadline, batch: Batch, seat: int) -> int:
        while deadline.left() > SHORTEST:
            if batch.ours:  # this call runs inside the leader's call: two draws would use the same batch
                break
            self._waiting.add(deadline)  # again for each batch: the slow path removes the deadline
            try:
                if batch.start():
                    self._lead(batch, deadline)
                elif self._within:
                    break
                else:
                    waited(batch, deadline.left() - SHORTEST)
            except BaseException:
                if batch.ours:
                    # This thread is the leader, and was interrupted. End the batch, so that others join another batch.
                    self._close(batch)
                    batch.finish(progress=False)
                raise
            number = batch.number(seat)
            if number:
                return number
            error = batch.error
            if error is not None and (self.supply.refill.segments.given_up or not isinstance(error, Unavailable)):
                raise renewed(error)
            batch = self._batch
            seat = next(batch.seats)
        # No time is left to wait for another thread.
        return self._draw(1, deadline)[0]

    @property
    def _within(self) -> bool:
        """Whether this call runs inside another call of its thread, for example in a signal handler.

        Then it must not wait for another caller: it could wait for ever for a lock that the other call holds.
        """
        return self._runner.within() or sum(each is self for each in callees(_DRAWS)) > 1

    def _lead(self, batch: Batch, deadline: Deadline) -> None:
        turn = self._turn
        self._queued = True
        mine = turn.acquire(timeout=min(deadline.left(), PASSING))
        if not mine and not self._within:
            mine = turn.acquire(timeout=min(deadline.left(), TURN))
        try:
            passing, self._passing = self._passing, None
            if mine and passing is not None:
                passing.acquire(timeout=min(deadline.left(), PASSING))
            seats = self._close(batch)
            if not mine:
                # The draw in progress waits for a segment, or its thread was interrupted. Draw all the same: two
                # draws at the same time do no harm.
                self._turn = threading.Lock()
            batch.numbers = self._draw(seats, deadline)
            batch.got = len(batch.numbers)
            if batch.got >= PASSES:
                self._passing = batch.passed
                # While threads of this batch still take their numbers, a new call must join a batch and not draw alone.
                self._queued = True
        except IssuerError as error:
            batch.finish(progress=False, error=error)
            raise
        finally:
            if mine:
                turn.release()
        batch.finish(progress=True)

    def _close(self, batch: Batch) -> int:
        """Close the batch, and return how many callers have seats. A caller that comes later gets no number from it."""
        if self._batch is batch:
            self._batch = Batch()
            self._queued = False
        return next(batch.seats) - 1


#: Each call for a number runs exactly one of these methods. So the frames of a thread show how many calls it is in.
_DRAWS = frozenset({Combiner.__next__.__code__, Combiner.next.__code__})
_REFILLS = frozenset({Combiner.from_buffer.__code__})
