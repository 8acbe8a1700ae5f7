"""Gets numbers if the fast path (one call to Redis, or numbers in memory) has none. For threads and asyncio tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from issuer.clock import Deadline, monotonic, pause
from issuer.core.error_mapping import refused
from issuer.core.events import NumbersWasted
from issuer.core.scheme_record import countable, reserved, strategy
from issuer.core.steps import Flight, Steps, send, sleep, wait
from issuer.core.supply.fetcher import Shortage
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import Place
from issuer.core.supply.mode import Mode, Origin
from issuer.core.supply.refill import Refill
from issuer.core.supply.rejoin import rejoin
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import Buffer, TagState
from issuer.errors import (
    CalledWithin,
    InvalidArgument,
    IssuerError,
    RedisUnavailable,
    Unavailable,
)
from issuer.forks import no_fork
from issuer.gateway import tag_scripts
from issuer.reentry import amid_locks
from issuer_persistence.errors import LimitHit
from issuer_persistence.ledger import Reservation

#: If leases were not checked for CHECK_AFTER seconds, a caller checks them itself. In a process with a scheduler, which
#: checks them every second, a caller does so only after CHECK_LATE seconds.
CHECK_AFTER = 1.0
CHECK_LATE = 2.0

#: If leases are used up in less than this many seconds, or by the callers of one draw, no lease is fetched ahead, as a
#: job in the background takes 0.4 ms. Then a caller that finds no numbers draws the next lease in one round trip.
AHEAD = 0.01

#: How long the first caller of a tag waits for the tag's record, in seconds. Not longer, as Redis may have numbers.
HURRY = 0.05

#: The record is read again after this many seconds. So a process that reserves nothing sees a new setting `lease`, too.
LEARN_AFTER = 60.0


class Supply:
    """Issues a tag's numbers when one call to Redis is not enough, and maintains what this process holds of the tag."""

    def __init__(self, tag: str, key: str, runtime: Runtime) -> None:
        self.state = TagState(tag, key)
        self.origin = Origin(self.state, runtime)
        self.shortage = Shortage(self.state, runtime)
        self.refill = Refill(self.state, runtime, self.origin, self.shortage)
        self.state.seen = runtime.seen.pop(tag, 0)
        #: When the tag was last used, on the monotonic clock. A draw on the fast path does not set it: see `moved`.
        self.used_at = monotonic()
        #: When `moved` was last read: how many numbers this process had issued by then, and `used_at`.
        self._noticed = 0, 0.0
        #: Whether Redis has reported that the tag needs a segment, and no scheduler could load one.
        self._reported = False
        self.runtime = runtime
        self._checked_at = 0.0
        self._unknown_until = 0.0
        self._swept_at = -1
        self._left: tuple[tuple[Lease | Reservation, ...], int] = ((), 0)

    # ------------------------------------------------------------------ drawing

    def obtain(
        self, n: int, deadline: Deadline, first: tag_scripts.Drawn | Unavailable | None = None
    ) -> Steps[Sequence[int]]:
        """Draw up to n numbers, at least one, and wait for them until the deadline. Those of a counter are a range.

        `first`: Redis's reply to a draw of n numbers that the caller has just sent, if it had no usable numbers.
        """
        state, shortage = self.state, self.shortage
        numbers: Sequence[int] | None = None
        self.used()
        shortage.waiting.add(deadline)
        try:
            if state.record is None and self.runtime.settings.lease and self.runtime.redis:
                yield from self.read_soon(deadline)
            while numbers is None:
                buffer = state.buffer
                if not state.counts:
                    draw = (yield from self.origin.source()).take(n, deadline)
                    numbers = yield from self.origin.above_seen(draw, list)
                    self.origin.publish()  # it may have made more numbers
                elif buffer is None:
                    numbers = yield from self._from_redis(n, deadline, first)
                    first = None
                    if numbers is None and state.buffer is None and state.counts:
                        yield from self.refill.segments.wait_for(deadline, n)
                else:
                    numbers = yield from self._from_buffer(buffer, n, deadline)
        finally:
            shortage.waiting.discard(deadline)
        if shortage.since is not None:
            shortage.supplied()
        return numbers

    def check_left(self, n: int) -> Steps[None]:
        """Read the record again, since the limit may have been raised. Raise LimitReached if it still lacks n numbers.

        Without this check, a part of the numbers would be drawn before the error, and lost.
        """
        yield from self.origin.public(self._check_left(n))

    def _check_left(self, n: int) -> Steps[None]:
        record = yield from self.origin.read()
        if self.state.lacks(n):
            raise LimitHit(record.tag, reserved(record)[1], max(self.state.taken(), reserved(record)[0]))

    def read_soon(self, deadline: Deadline) -> Steps[None]:
        """Read the record of a tag that may have leases, at most once a second.

        The wait is short: Redis may have numbers, and callers should not wait for a store that hangs.
        """
        if monotonic() > self._unknown_until:
            known = yield from self.origin.identity_soon()
            learnt = known and (yield from self.origin.try_to_read(deadline, within=HURRY))
            if not learnt:
                self._unknown_until = monotonic() + CHECK_AFTER
                self.runtime.attend()  # a sweep has more time for it

    def _from_buffer(self, buffer: Buffer, n: int, deadline: Deadline) -> Steps[range | None]:
        """Draw from the local buffer. If it is empty, queue for its next range. None if the buffer was replaced."""
        place, taken, state = None, None, self.state
        try:
            while taken is None and state.buffer is buffer and state.counts:
                state.refuse_if_ended()
                if self._unchecked:
                    yield from self._check(buffer, probe=False)
                taken = buffer.take(n, place)
                if taken is None and place is None:
                    place = Place(n)
                elif taken is None and place is not None:
                    yield from self.refill.of_buffer.wait_for(deadline, n)
                    # Numbers set aside for this caller are issued, even if the issuer is closed or Redis is back now.
                    taken = place.taken
        except IssuerError:
            taken = None if place is None else place.taken
            if taken is None:
                raise
        finally:
            if place is not None:
                buffer.leave(place)
        return None if taken is None else self._issued(buffer, taken, n)

    @property
    def alone(self) -> bool:
        """Whether each caller must use `obtain`: the tag has no counter, or the process has segments of its own.

        All other callers can share a draw from Redis, or from the server of this client.
        """
        source = self.state.source
        return self.origin.mode is Mode.DIRECT if source is None else not source.shared

    def at_hand(self, n: int) -> range | None:
        """Take up to n numbers from memory without waiting. None: there are none, or `obtain` must check them first."""
        state, buffer = self.state, self.state.buffer
        if buffer is None or state.ended is not None or self._unchecked:
            return None
        if amid_locks():
            raise CalledWithin(tag=state.tag)
        self.used()
        taken = buffer.take(n)
        return None if taken is None else self._issued(buffer, taken, n)

    def passed(self, flight: Flight, reply: list[bytes], n: int) -> range | None:
        """Return the numbers of a draw of n, of which none is left for the buffer, and end the flight of the draw."""
        state, numbers = self.state, None
        if len(reply) == 3 and state.buffer is not None:  # noqa: PLR2004 - the usual reply, which elects no process
            low, high = int(reply[1]), int(reply[2])
            if state.buffer.issue_outside(low, high):
                state.drew(high - low)
                numbers = range(low + 1, high + 1)
        if numbers is None:
            numbers = self.accept(tag_scripts.drawn(reply), n)
        self.refill.leases.flights.finish(flight, progress=True)
        return numbers

    @property
    def _unchecked(self) -> bool:
        """Whether the leases must be checked before a number is issued."""
        late = CHECK_LATE if self.runtime.scheduled else CHECK_AFTER
        return self.origin.mode is not Mode.DIRECT and monotonic() - self._checked_at > late

    def _issued(self, buffer: Buffer, taken: tuple[int, int], n: int) -> range:
        """Return the numbers taken, and fetch the next range of the buffer if it is due. `n`: how many were wanted."""
        if self.state.buffer is buffer and buffer.due:
            if n > 1:  # sweeps check after other draws
                self.refill.warn_if_near(taken[1])
            origin = self.origin
            if origin.mode is Mode.DIRECT or (origin.lasted > AHEAD and n < origin.lease_size()):
                self.refill.of_buffer.prefetch(n - (taken[1] - taken[0]))
        return range(taken[0] + 1, taken[1] + 1)

    def _from_redis(
        self, n: int, deadline: Deadline, first: tag_scripts.Drawn | Unavailable | None
    ) -> Steps[range | None]:
        attempt, drawn_as, state, origin = 0, None, self.state, self.origin
        while state.buffer is None and state.counts:
            state.refuse_if_ended()
            try:
                if isinstance(first, Unavailable):
                    raise first
                if first is None or first.status == "notmaster":  # another server may be master now
                    # The first try for a trend tag never tests whether Redis is back: direct mode can serve the tag.
                    probe = attempt > 0 or (state.record is not None and state.record.order == "strict")
                    yield from origin.refuse_foreign(probe=probe)
                    drawn_as, before = state.scheme_id, state.seen
                    call = tag_scripts.draw(state.key, n, self.refill.window, drawn_as, self.refill.claimant)
                    first = yield from send(call, probe=probe)
                    if first.status == "ok" and state.went_back(first.low, before):
                        yield from origin.refuse_backwards(first.low, before)
                drawn = first
            except RedisUnavailable as error:
                first = None
                attempt = yield from self._outlast(error, attempt, deadline)
                continue
            if drawn.status == "scheme":
                # The hash has another scheme. If the store still has the scheme of this process, the hash is outdated.
                yield from origin.read()
                if state.scheme_id != drawn_as:
                    first = None
                    continue
            return self.accept(drawn, n)
        return None

    def _outlast(self, error: RedisUnavailable, attempt: int, deadline: Deadline) -> Steps[int]:
        """After a draw that Redis did not answer: use direct mode, or wait. Returns the count of failed attempts."""
        self.shortage.redis_silent(error)
        if not (yield from self.origin.go_direct(deadline)):
            self.shortage.lack(error, monotonic())
            # A strict tag waits for Redis: a failover takes 2-3 s.
            yield from sleep(min(pause(attempt), deadline.left()))
            attempt += 1
            if deadline.left() <= 0:
                raise RedisUnavailable(str(error), tag=self.state.tag, retry_after=error.retry_after) from error
        return attempt

    def accept(self, drawn: tag_scripts.Drawn, n: int) -> range | None:
        """Return the numbers in the reply to a draw of n. None if it has no numbers, or if its numbers become a gap.

        They become a gap if the tag has a local buffer by now that holds numbers, or has issued higher ones: a caller
        could get a lower number after a higher one. Raises FenceError or CorruptState.
        """
        state, shortage = self.state, self.shortage
        if shortage.redis_trouble:
            shortage.redis_back()
        if drawn.status == "ok":
            if shortage.loss:
                shortage.loss_over(drawn.low)
            state.seen = max(state.seen, drawn.high)
            if (drawn.extend or n > 1) and (near := state.near_limit(drawn.high)):  # sweeps check after other draws
                self.runtime.emit(near)
            if drawn.extend:
                self.used()  # a sweep tries again if the segment cannot be loaded now
                self.refill.elected(n - (drawn.high - drawn.low))
            buffer = state.buffer
            if buffer is not None and not buffer.issue_outside(drawn.low, drawn.high):
                self.runtime.emit(NumbersWasted(state.tag, drawn.high - drawn.low))
                return None
            state.drew(drawn.high - drawn.low)
            return range(drawn.low + 1, drawn.high + 1)
        if drawn.status in ("notmaster", "corrupt"):
            raise refused(drawn, state.tag, state.key)
        shortage.none_drawn(drawn.status)
        return None

    def upcoming(self) -> Steps[int]:
        """Return the counter value of the next draw, if no other caller draws first. No number is consumed."""
        buffer = self.state.buffer
        held = None if buffer is None else buffer.upcoming
        if held is not None:
            return held
        record = yield from self.origin.counted()
        if not self.state.counts:
            problem = f"the next number of strategy {strategy(record.scheme)} cannot be predicted"
            raise InvalidArgument(f"tag {self.state.tag!r}: {problem}", tag=self.state.tag)
        if self.runtime.redis:
            yield from self.origin.refuse_foreign(probe=True)
        with no_fork():
            from issuer.core.supply.peek import upcoming

        return (yield from self.origin.public(upcoming(record, self.state.key if self.runtime.redis else None)))

    def warm(self, deadline: Deadline) -> Steps[None]:
        """Wait until numbers are available: in Redis, or in direct mode in the memory of this process."""
        self.used()
        if self.state.record is None:
            yield from self.origin.read()
        state = self.state
        if not state.counts:
            yield from (yield from self.origin.source()).warm(deadline)
            self.origin.publish()  # as after a draw
            return
        while self.origin.mode is not Mode.DIRECT or state.buffer is None or state.buffer.due:
            if (yield from self.refill.segments.wait_for(deadline)):
                return

    def _check(self, buffer: Buffer, *, probe: bool = True) -> Steps[None]:
        """Drop the leases if the tag's hash was replaced since they were drawn.

        The reason: after `recover`, no old number may be issued. If Redis does not answer, keep the leases: no other
        process has their numbers. `probe`: whether the call may test a Redis that did not answer earlier calls (see
        Send in core/steps.py).
        """
        self._checked_at = monotonic()
        yield from self.refill.check(buffer, probe=probe)

    def overdue(self) -> IssuerError:
        """Return the error for a caller whose time is over while another caller draws for it."""
        if self.refill.segments.flights.flight is not None:
            return self.refill.segments.late()
        late = f"tag {self.state.tag!r}: {self.shortage.redis_trouble or 'Redis has not answered in time'}"
        return RedisUnavailable(late, tag=self.state.tag, retry_after=self.shortage.redis_retry)

    # ------------------------------------------------------------------ what the scheduler does

    def used(self) -> None:
        """Note that the tag is in use, so that the next sweep (the scheduler's check, once a second) checks it.

        Callers on the slow path call this.
        """
        self.used_at = monotonic()
        self.runtime.moving.add(self.state.tag)

    def reported(self) -> None:
        """Load a segment in the background if one is due. Called when Redis has reported that a caller needs one."""
        self.used()
        if self.origin.mode is not Mode.DIRECT:
            self._reported = not self.refill.segments.prefetch()

    @property
    def moved(self) -> bool:
        """Whether the next sweep must check the tag: it was used since `moved` was last read, or work is left."""
        if self.state.source is not None and not self.state.source.shared:
            return True
        noticed, issued = self._noticed, self.state.issued
        if issued != noticed[0]:  # draws on the fast path do not set `used_at`
            self.used_at = monotonic()
        self._noticed = issued, self.used_at
        if self._noticed != noticed or self._busy or self.origin.auto:
            return True
        if self.runtime.redis and self.origin.mode is Mode.DIRECT:
            return True
        # Work is left if a fetch failed, Redis did not answer, or it is unknown which store the hash belongs to.
        silent = self.shortage.redis_trouble and self.state.looked_at <= self.shortage.redis_silent_since
        unfinished = self.refill.segments.flights.failures or silent or (self.looks and not self.state.owned)
        return bool(unfinished) and monotonic() - self.used_at < self.runtime.settings.idle_after

    def rest(self) -> None:
        """Stop publishing numbers, so that the next caller uses the slow path, and `used` is called."""
        buffer = self.state.buffer
        if buffer is not None:
            buffer.unpublish()

    @property
    def drains(self) -> bool:
        """Whether this process returns its numbers if nobody uses the tag any more: the tag's setting `drain`."""
        record = self.state.record
        return record is None or record.drain

    def drain(self) -> Steps[None]:
        """Return the unused numbers in memory, because nobody uses the tag any more."""
        buffer = self.state.buffer
        if buffer is not None:
            yield from self.origin.give_back(*buffer.empty())

    @property
    def looks(self) -> bool:
        """Whether a sweep must read the tag's hash: the tag has a counter, and draws from Redis."""
        record = self.state.record
        counts = record is None or countable(record.scheme)
        return counts and self.runtime.redis and self.origin.mode is not Mode.DIRECT

    def fetch(self, deadline: Deadline) -> Steps[int]:
        """Fetch the next segment now, if one is due. Returns how many segments were loaded: 0 or 1."""
        if self.state.source is not None:
            yield from self.state.source.sweep(deadline)
            return 0
        if self.origin.mode is not Mode.DIRECT:
            yield from self.origin.identity_soon()
        hash = (yield from self.origin.look()) if self.looks else None
        reported, self._reported = self._reported, False
        if not (self.refill.due(hash) or reported):
            return 0
        flight, leads = self.refill.segments.flights.join()
        return (yield from self.refill.segments.fly(flight, deadline)) if leads else 0

    def sweep(self, hash: tag_scripts.Hash | None, deadline: Deadline) -> Steps[None]:
        """Check the tag: its leases, the return to Redis, and segments that are due. Or its strategy, until `deadline`.

        A sweep calls the store only if Redis is not enough, because the store may be down. `hash`: the tag's hash as
        just read. None if it was not read.
        """
        buffer = self.state.buffer
        if self.state.source is not None:
            yield from self.state.source.sweep(deadline)
            return
        if self.origin.mode is Mode.DIRECT:
            yield from self.rejoin()
        elif buffer is not None and buffer.issued != self._swept_at:  # unused leases are checked at their next use
            self._swept_at = buffer.issued
            yield from self._check(buffer)
        if hash is not None:
            yield from self.origin.looked(hash)
        yield from self.origin.pace(0 if hash is None else hash.cur or 0)
        flights = self.refill.segments.flights
        if self.refill.due(hash):
            # After a failed fetch the tag may not exist, so no segment is fetched until `refresh` has read its record.
            if self.state.record is not None or not flights.failures:
                self.refill.segments.prefetch()
        elif hash is not None and flights.trouble is None:
            flights.failures = 0  # another process was the loader, and its segment has arrived

    def refresh(self) -> Steps[None]:
        """Read the tag's record if it was not read for LEARN_AFTER seconds, and the store's id if it is unknown."""
        if self.stale:
            yield from self.origin.read(make=False)  # the tag may be a part, which its caller creates

    @property
    def stale(self) -> bool:
        """Whether the tag's record or the store's id should be read."""
        state = self.state
        return state.record is None or not self.runtime.identity.id or monotonic() - state.read_at > LEARN_AFTER

    def rejoin(self) -> Steps[None]:
        """If the tag is in direct mode and Redis is back, draw from Redis again."""
        return rejoin(self.state, self.runtime, self.origin, self.refill.segments.flights, self.shortage)

    # ------------------------------------------------------------------ the end

    @property
    def disposable(self) -> bool:
        """Whether this object can be deleted: the tag was never seen, no caller waits, nothing is fetched or held.

        If the tag was seen, a draw on the fast path may be in progress. No field shows such draws.
        """
        state = self.state
        unseen = state.record is None and not state.owned
        return unseen and not self._busy and (state.buffer is None or not state.buffer.held)

    @property
    def idle(self) -> bool:
        """Whether this process holds no numbers of the tag and no caller waits: all its numbers are in Redis."""
        buffer = self.state.buffer
        return not self._busy and (buffer is None or not buffer.held)

    @property
    def _busy(self) -> bool:
        return bool(self.shortage.waiting) or self.fetching

    @property
    def leaving(self) -> bool:
        """Whether an ended supply has work left: a fetch in progress, or a strategy that must release its resources."""
        return self.fetching or (self.state.source is not None and not self.state.source.left)

    @property
    def fetching(self) -> bool:
        """Whether a fetch is in progress."""
        return self.refill.segments.flights.flight is not None or self.refill.leases.flights.flight is not None

    def end(self) -> None:
        """Issue no more numbers. `close` returns the unused ones.

        Call this before waiting for fetches in progress. Otherwise, if another thread forked during the wait, parent
        and child would issue the same published numbers (seen).
        """
        if self.state.ended is None:
            self._left = self.origin.retire(self.closed_error())

    def closed_error(self) -> IssuerError:
        """Return the error for callers after the issuer was closed."""
        return IssuerError(f"tag {self.state.tag!r}: this issuer is closed", tag=self.state.tag)

    def close(self, deadline: Deadline) -> Steps[None]:
        """Wait for fetches in progress, which give back what they fetch. Then give back this process's numbers.

        Or release the resources of the tag's strategy.
        """
        self.end()
        if self.state.source is not None:
            yield from self.state.source.close(deadline)
        left = False
        for fetcher in (self.refill.segments, self.refill.leases):
            flight = fetcher.flights.flight
            if flight is None:
                continue
            if flight.start():
                # The scheduler's job has not started the fetch yet. When it runs, it will find the flight finished.
                flight.finish(progress=False)
                left = fetcher is self.refill.segments
            else:
                yield from wait(flight, deadline.left())
        if left and deadline.left() > 0:
            # A draw may have elected this process. Without this fetch, the next caller that needs a segment would wait
            # until the election times out.
            with suppress(IssuerError):
                yield from self.fetch(deadline)
        yield from self.origin.give_back(*self._left)
