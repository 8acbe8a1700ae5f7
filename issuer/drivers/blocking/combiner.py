"""A tag's callers in this process: threads that draw from Redis at the same time share one draw."""

from __future__ import annotations

import itertools
import threading
from typing import Self, TypeVar

import redis

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.steps import Flight, Steps, renewed
from issuer.core.supply.fetcher import UNCLAIMED
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.supply import Supply
from issuer.drivers.blocking.connections import NOWHERE
from issuer.drivers.blocking.runner import Runner, ThreadLatch, run_in_thread, waited
from issuer.drivers.servers import SHORTEST
from issuer.errors import IssuerError, RedisUnavailable, Unavailable
from issuer.reentry import callees
from issuer.strategies.serving import StrategyRunner

T = TypeVar("T")

#: A leader waits for its turn this many seconds at most: the thread that has it may have been interrupted just when
#: taking it.
TURN = 1.0

#: And this many for the batch before to get through: 1000 threads take 15 ms, but one of them may have given up.
PASSING = 0.005

#: A batch of fewer isn't waited for: two threads are 10 % faster without.
PASSES = 3

#: A reply of `next` with this many parts brings numbers, and elects no loader: status, low, high.
NUMBERS = 3

#: One with this many elects this process.
ELECTED = 5

#: What stands for the reply to a draw until it is there.
_SENT: list[bytes] | None = []


class Batch(Flight):
    """One draw for all callers that sit in it. The first to sit down leads; the n-th gets the n-th number.

    They are woken one by one, each by the one before, as only one of them can have the interpreter: 32 threads draw 61
    000 numbers a second that way. In two rows, one of which runs while the other one wakes up, they draw 50 000, in
    three even less: each that finds the interpreter taken sleeps and is woken a second time.
    """

    __slots__ = ("got", "lock", "low", "passed", "passing", "seats")

    def __init__(self) -> None:
        latch = ThreadLatch()
        super().__init__(latch, threading.get_ident)
        self.lock = latch.lock
        self.seats = itertools.count(1)
        self.low = 0
        self.got = 0
        #: Held until each thread has come for its number. Until a leader is awake, the last one is back in a seat:
        #: released one earlier, 4 threads draw 20 % less, in batches of 3.7.
        self.passed = threading.Lock()
        self.passed.acquire()
        self.passing = itertools.count(1)

    def number(self, seat: int) -> int:
        """Return the number of a seat, 0 if it was left without. Once for each."""
        got = self.got
        if next(self.passing) == got:
            self.passed.release()
        return self.low + seat if seat <= got else 0


class Combiner:
    """Draws numbers of one tag for the threads of a process.

    A lone caller draws for itself. Where others are drawing already, it takes a seat in the open batch. The thread in
    the first seat draws for all as soon as the draw under way has ended and those that shared it have come for their
    numbers: they will soon be back, and sit in the next batch. With 32 threads that makes batches of 32 instead of 11,
    and two fifths more numbers a second. Numbers stay in strict order, since a batch is closed before its draw is
    sent: every number is drawn after its call began.
    """

    def __init__(self, tag: str, key: str, runtime: Runtime, runner: Runner, timeout: float) -> None:
        """`key` is the tag's hash in Redis; `timeout`: seconds that a call may wait if it doesn't say it itself."""
        self.tag = tag
        self.supply = Supply(tag, key, runtime)
        self.state = self.supply.state
        self._waiting = self.supply.shortage.waiting
        #: The runner of the tag's strategy, if that has no counter.
        self.serving: StrategyRunner | None = None
        self._key = key
        self._runner = runner
        self._redis = runner.redis
        self._timeout = timeout
        self._pack()
        self._node = NOWHERE
        #: How long a call without a deadline of its own waits for its batch before it looks for its leader.
        self._patience = min(timeout, UNCLAIMED)
        self._limit = runner.redis.timeout if runner.redis is not None else 0.0
        #: How long a round trip may take in a call that doesn't say how long it may wait.
        self._seconds = min(self._limit, max(SHORTEST, timeout))
        #: Held by the caller whose draw is under way.
        self._turn = threading.Lock()
        self._batch = Batch()
        #: Whether a thread leads a batch, or one was just served, whose threads will be back: then no caller overtakes.
        #: Left over from a last batch, it costs the next caller a batch of one.
        self._queued = False
        #: `passed` of the last batch, until the next leader has waited for it.
        self._passing: threading.Lock | None = None
        if runner.redis is not None:
            # Last of all: from now on other threads draw from it.
            self.supply.origin.lay_open(self)

    def _pack(self) -> None:
        self._packed_as = self.state.scheme_id
        self._draws = gateway.Draws(self._key, self.supply.refill.window, self._packed_as)
        self._one = self._draws.one

    # ------------------------------------------------------------------ drawing

    def __next__(self) -> int:
        """Draw one number; `issuer.next` comes here as long as it knows of no scheme. Everything else gives counters.

        A lone caller's number is one round trip and 2 us of Python: no clock is read, no object is made. In a batch,
        a number is one sleep and one waking: the less is done between them, the likelier the interpreter is free for
        the next thread just when it wakes.
        """
        turn = self._turn
        if self._queued or not turn.acquire(False):  # noqa: FBT003 - by keyword it takes twice as long
            until = monotonic() + self._timeout
            batch = self._batch
            seat = next(batch.seats)
            if seat > 1:
                lock = batch.lock
                if lock.acquire(True, self._patience):  # noqa: FBT003 - as above
                    number = batch.number(seat)
                    lock.release()
                    if number:
                        return number if self.state.scheme is None else self.state.value(number)
            return self.state.value(self._shared(Deadline.until(until), batch, seat))
        state = self.state
        before, reply = state.seen, _SENT
        try:
            reply = self._node.draw(self._one, self._seconds)
            if reply is not None and len(reply) == NUMBERS and state.hand is None and state.scheme is None:
                high = int(reply[2])
                if high > state.seen:
                    state.seen = high
                    state.alone += 1  # 20 ns, and the only thing here that metrics need
                    return high
                if not state.went_back(high - 1, before):
                    state.alone += 1
                    return high
            return state.value(self._long(1, Deadline(self._timeout), reply, before)[1])
        except redis.TimeoutError as error:
            late = self._unanswered(error, self._seconds)
            return state.value(self._long(1, Deadline(self._timeout - self._seconds), late, before)[1])
        except BaseException as error:
            self._struck(error, reply)
            raise
        finally:
            turn.release()

    def __iter__(self) -> Self:
        """Return itself: an iterator that never ends."""
        return self

    def next(self, deadline: Deadline) -> int:
        """Draw one number, waiting until the deadline."""
        if self.state.hand is not None:
            return self.run(self.supply.obtain(1, deadline), deadline)[0]
        turn = self._turn
        if self._queued or not turn.acquire(False):  # noqa: FBT003 - as above
            batch = self._batch
            return self._shared(deadline, batch, next(batch.seats))
        try:
            return self._draw(1, deadline)[1]
        finally:
            turn.release()

    def draw(self, n: int, deadline: Deadline) -> range:
        """Draw up to n numbers, at least one, waiting until the deadline."""
        hand = self.state.hand
        if hand is not None:
            if n == 1:
                for number in hand.open:  # as `Issuer.next` does where there are no plugins
                    return range(number, number + 1)
            return self.run(self.supply.obtain(n, deadline), deadline)
        if n == 1:
            number = self.next(deadline)
            return range(number, number + 1)
        low, high = self._draw(n, deadline)
        return range(low + 1, high + 1)

    def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run the protocol's steps to their end."""
        return self._runner.run(steps, deadline, self.tag)

    def run_in_thread(self, steps: Steps[T], deadline: Deadline) -> T:
        """Do the same for a strategy, which is asked in a thread of the store's."""
        return run_in_thread(self._runner, steps, deadline, self.tag)

    def _draw(self, n: int, deadline: Deadline) -> tuple[int, int]:
        """One round trip; what it doesn't bring goes the long way. Returns low and high."""
        packed = self._one if n == 1 else self._draws.of(n)
        seconds = min(self._limit, max(SHORTEST, deadline.left()))
        before, reply = self.state.seen, _SENT
        try:
            reply = self._node.draw(packed, seconds)
            if reply is not None and len(reply) != NUMBERS:
                return self._long(n, deadline, reply, before)
        except redis.TimeoutError as error:
            return self._long(n, deadline, self._unanswered(error, seconds), before)
        except BaseException as error:
            self._struck(error, reply)
            raise
        if reply is None or self.state.hand is not None:
            return self._long(n, deadline, reply, before)
        low, high = int(reply[1]), int(reply[2])
        if self.state.went_back(low, before):
            return self._long(n, deadline, reply, before)
        self.state.seen = max(self.state.seen, high)
        self.state.drew(high - low)
        return low, high

    def _long(
        self, n: int, deadline: Deadline, first: list[bytes] | RedisUnavailable | None, before: int
    ) -> tuple[int, int]:
        """Draw where one round trip didn't do.

        `first`: what it has brought; `before`: the highest number seen when it was sent.
        """
        self._node = NOWHERE
        drawn = gateway.drawn(first) if isinstance(first, list) else first
        if isinstance(drawn, gateway.Drawn) and drawn.status == "ok" and self.state.went_back(drawn.low, before):
            drawn = None  # drawn once more, with a look at the hash
        numbers = self._runner.run(self.supply.obtain(n, deadline, drawn), deadline, self.tag)
        if self._redis is not None:
            if self.state.owned:
                self._node = self._redis.node(self._key)
            if self._packed_as != self.state.scheme_id:
                self._pack()
        return numbers[0] - 1, numbers[-1]

    def _struck(self, error: BaseException, reply: list[bytes] | None) -> None:
        """Take note of an error that came out of a draw. `reply`: to it, as far as that came."""
        struck = not isinstance(error, IssuerError)
        if struck and (reply is _SENT or (reply is not None and len(reply) == ELECTED)):
            self.supply.refill.lost()

    def _unanswered(self, error: redis.TimeoutError, seconds: float) -> RedisUnavailable:
        if self._redis is None:
            return RedisUnavailable(str(error), tag=self.tag)
        return self._redis.unanswered(self._node, error, seconds, self.tag)

    # ------------------------------------------------------------------ together

    @property
    def waiting(self) -> int:
        """How many callers wait now; of those that share a draw only the leader, and those that have waited 0.25 s."""
        return len(self._waiting)

    def _shared(self, deadline: Deadline, batch: Batch, seat: int) -> int:
        """Get a number out of a batch. If this seat got none, by a short grant or a lost leader, sit down again."""
        try:
            return self._sat(deadline, batch, seat)
        finally:
            self._waiting.discard(deadline)

    def _sat(self, deadline: Deadline, batch: Batch, seat: int) -> int:
        while deadline.left() > SHORTEST:
            if batch.ours:  # by a call in the middle of which this one runs: whoever leads it twice gives numbers twice
                break
            self._waiting.add(deadline)  # again each time: a draw that takes the long way ends by discarding it
            try:
                if batch.start():
                    self._lead(batch, deadline)
                elif self._within:
                    break
                else:
                    waited(batch, deadline.left() - SHORTEST)
            except BaseException:
                if batch.ours:
                    # No thread may be left waiting for a leader that was interrupted; the others sit down again.
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
        # Too late to wait for others.
        return self._draw(1, deadline)[1]

    @property
    def _within(self) -> bool:
        """Whether this call runs in the middle of another one on this thread, which may hold what it would wait for."""
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
                # The thread that has it waits for a segment, or was interrupted just when taking it. Without it two
                # draws may be under way: no harm.
                self._turn = threading.Lock()
            batch.low, high = self._draw(seats, deadline)
            batch.got = high - batch.low
            if batch.got >= PASSES:
                self._passing = batch.passed
                # A thread that comes back sits down, instead of drawing alone while the others still pass.
                self._queued = True
        except IssuerError as error:
            batch.finish(progress=False, error=error)
            raise
        finally:
            if mine:
                turn.release()
        batch.finish(progress=True)

    def _close(self, batch: Batch) -> int:
        """Take no more callers; return how many sit in it. A late one finds no number for its seat."""
        if self._batch is batch:
            self._batch = Batch()
            self._queued = False
        return next(batch.seats) - 1


#: A call of a tag's is in one of these, once.
_DRAWS = frozenset({Combiner.__next__.__code__, Combiner.next.__code__})
