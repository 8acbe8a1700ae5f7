"""Fetches segments or leases: one caller or the scheduler fetches the next one, and the other callers wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from issuer.clock import LONGEST_PAUSE, Deadline, monotonic
from issuer.core.events import (
    CallersServed,
    CallersWait,
    ExtensionLate,
    Failed,
    FenceTripped,
    NumbersLost,
    RedisBack,
    RedisSilent,
    StoreBack,
    StoreSilent,
)
from issuer.core.steps import Flight, SingleFlight, Steps, renewed, sleep, wait
from issuer.core.supply.mode import Mode, Origin
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import TagState
from issuer.errors import IssuerError, RedisUnavailable, StoreFull, StoreUnavailable, Unavailable
from issuer.times import lasting

#: If the scheduler has not started a flight after this many seconds, a waiting caller does the flight's work.
UNCLAIMED = 0.25

#: If a caller has waited for less than this many seconds at its deadline, the store may only be slow: the store does
#: not count as down.
EVIDENCE = 0.25

#: CallersWait is sent after callers have waited for this many seconds, whatever the reason.
NOTABLE = 1.0

#: A function that fetches a range of numbers before the deadline. Its steps return how many ranges were fetched (0 or
#: 1), and whether callers may retry now.
Fetch = Callable[[Flight, Deadline], Steps[tuple[int, bool]]]


class Shortage:
    """Reports the beginning and the end of a shortage of numbers to observers, once each."""

    def __init__(self, state: TagState, runtime: Runtime) -> None:
        #: The deadlines of callers that wait for numbers. A driver adds callers that wait for another caller's draw.
        self.waiting: set[Deadline] = set()
        #: When callers began to wait, on the monotonic clock. None: no caller waits. `_told`: CallersWait was sent.
        self.since: float | None = None
        self._told = False
        #: `retry_after` of the last draw that Redis did not answer, in seconds.
        self.redis_retry = LONGEST_PAUSE
        #: The error of the last draw if Redis did not answer it, or "". `redis_silent_since`: when the outage of Redis
        #: began, on the monotonic clock.
        self.redis_trouble = ""
        self.redis_silent_since = 0.0
        #: If Redis has lost this tag's numbers: status of the draw that found the loss. Otherwise "".
        self.loss = ""
        #: The highest number that this process had seen when it last found all segments used up.
        self._ran_out_at = 0
        self._state = state
        self._runtime = runtime

    def lack(self, why: IssuerError | None, since: float, *, late: bool = False) -> None:
        """Emit CallersWait once in each shortage, if callers have waited long enough (NOTABLE) or `late` is True.

        `why`: the reason, None if unknown. Then another process may be the loader, and its log has the cause. `since`:
        when callers began to wait, on the monotonic clock. `late`: a caller has reached its deadline.
        """
        if not self.waiting:
            return
        if self.since is None:
            self.since = since
        if not self._told and (late or monotonic() - self.since >= NOTABLE):
            self._told = True
            cause = why or f"the store {self._runtime.store} provided no segment; another process may be requesting it"
            self._runtime.emit(CallersWait(self._state.tag, str(cause)))

    def supplied(self) -> None:
        """Record that a caller got numbers. Emit CallersServed if CallersWait was emitted."""
        since, told = self.since, self._told
        if since is not None:
            self.since, self._told = None, False
            if told:
                self._runtime.emit(CallersServed(self._state.tag, monotonic() - since))

    def none_drawn(self, status: str) -> None:
        """Report that a draw returned no numbers. The known segments are used up, or Redis has lost them.

        The segments are lost if the hash is missing (`status` "empty") or belongs to another term ("fenced").
        """
        taken = self._state.taken()
        if status == "exhausted" and taken > self._ran_out_at:
            self._ran_out_at = taken
            self._runtime.emit(ExtensionLate(self._state.tag, taken))
        elif status in ("empty", "fenced") and taken and not self.loss:
            self.loss = status
            self._runtime.emit(FenceTripped(self._state.tag, status))

    def loss_over(self, low: int) -> None:
        """Emit NumbersLost when the first numbers after a loss arrive. All of them are above `low`."""
        loss, self.loss = self.loss, ""
        seen = self._state.taken()
        self._runtime.emit(NumbersLost(self._state.tag, loss, low, seen, max(0, low - seen)))

    def redis_silent(self, error: RedisUnavailable) -> None:
        """Record that Redis does not answer draws, and emit RedisSilent once."""
        fresh = not self.redis_trouble
        self.redis_retry, self.redis_trouble = error.retry_after, str(error)
        if fresh:
            self.redis_silent_since = monotonic()
            self._runtime.emit(RedisSilent(self._state.tag, error))

    def redis_back(self) -> None:
        """Record that Redis answers draws again, and emit RedisBack."""
        self.redis_trouble = ""
        self._runtime.emit(RedisBack(self._state.tag, monotonic() - self.redis_silent_since))


class Fetcher:
    """Fetches segments or leases, one at a time, for all callers of a tag.

    Segments are fetched by the scheduler. A lease takes one round trip to Redis, which a caller makes itself.
    """

    def __init__(
        self, runtime: Runtime, origin: Origin, shortage: Shortage, fetch: Fetch, segments: Fetcher | None = None
    ) -> None:
        """`segments`: the tag's fetcher of segments, if this object fetches leases."""
        self.flights = SingleFlight(runtime.flight, longest=runtime.window + 1)
        self._tag = origin.tag
        self._runtime = runtime
        self._origin = origin
        self._shortage = shortage
        self._fetch = fetch
        self._segments = segments or self

    def wait_for(self, deadline: Deadline, wanted: int = 0) -> Steps[bool]:
        """Wait for the next range of numbers, or fetch it if no other caller does. Returns whether it may have arrived.

        `wanted`: how many numbers the caller wants. Raises an error at the deadline. If the store has been down for
        longer than the setting `insist`, and another caller or job retries the store, the error is raised at once.
        """
        leased = self._segments is not self
        if not leased and self.flights.failures and self.given_up and self.prefetch(wanted):
            raise self.late()
        flight, leads = self.flights.join(wanted)
        try:
            if leads and leased:
                yield from self.fly(flight, deadline, in_person=True)
            elif leads:
                yield from self._lead(flight, deadline)
                leads = False  # the scheduler runs the flight
            if not flight.started:
                # The scheduler has not started the flight: its pool is full, or the interpreter exits. A caller without
                # time left must not start the flight, because it would then fail also for callers with more time.
                finished = yield from wait(flight, min(UNCLAIMED, deadline.left()))
                if not finished and deadline.left() > 0:
                    yield from self.fly(flight, deadline, in_person=True)
        except BaseException:
            # This caller was interrupted, and the others must not wait for it. So end the flight, but don't count it as
            # a failure. Otherwise cancelled callers would lengthen the pause after failures, and the process that was
            # elected to load the segment would not load it in time (seen: 4 s).
            if flight.ours or (leads and not flight.started):
                flight.finish(progress=False)
            raise
        return (yield from self._outcome(flight, deadline))

    @property
    def given_up(self) -> bool:
        """Whether the store has been down for longer than callers wait for it (setting `insist`)."""
        silence = self._segments.flights.silence
        return silence is not None and silence >= self._runtime.settings.insist

    def _lead(self, flight: Flight, deadline: Deadline) -> Steps[None]:
        rest = self.flights.pause() if self.flights.failures else 0.0
        if rest:
            yield from sleep(min(rest, deadline.left()))
        if rest and deadline.left() <= 0:
            # The fetch never started, so it does not count as a failure. Each failure extends the pause before the next
            # fetch. If this counted, callers with very short timeouts would extend the pause for ever.
            flight.finish(progress=False)
        elif not self._runtime.background(partial(self.fly, flight)):
            if deadline.left() > 0 and flight.start():
                yield from self.fly(flight, deadline, in_person=True)
            else:
                flight.finish(progress=False)

    def _outcome(self, flight: Flight, deadline: Deadline) -> Steps[bool]:
        finished = yield from wait(flight, min(deadline.left(), self.flights.left(flight)))
        if not finished and deadline.left() <= 0:
            raise self.late()
        if flight.error is not None and not isinstance(flight.error, Unavailable):
            raise renewed(flight.error)
        if not flight.progress:
            if isinstance(flight.error, RedisUnavailable) and self._origin.mode is not Mode.DIRECT:
                self._shortage.redis_silent(flight.error)
                if (yield from self._origin.go_direct(deadline)):
                    return False
            if deadline.left() <= 0 or self.given_up:
                raise self.late()
            self._shortage.lack(flight.error or self.flights.trouble, flight.begun)
        return flight.progress

    def late(self) -> IssuerError:
        """Return the error for a caller that stops waiting."""
        segments, own = self._segments.flights, self.flights.trouble
        if segments is not self.flights and isinstance(own, StoreUnavailable):
            # The fetch of a lease has itself waited for a segment from the store: its error has the reason.
            return renewed(own)
        trouble = segments.trouble or own
        if isinstance(trouble, RedisUnavailable):
            late: Unavailable = RedisUnavailable(str(trouble), tag=self._tag, retry_after=trouble.retry_after)
        else:
            reason = str(trouble) if trouble else f"the store {self._runtime.store} provided no segment"
            silence = segments.silence
            when = "at the deadline" if silence is None else f"and the store has not answered for {lasting(silence)}"
            message, after = f"tag {self._tag!r}: no number is left {when}: {reason}", segments.retry_after()
            if isinstance(trouble, StoreFull):  # `reason` already contains the advice
                late = StoreFull(message, tag=self._tag, retry_after=after, advice="", path=trouble.path)
            else:
                late = StoreUnavailable(message, tag=self._tag, retry_after=after)
        late.__cause__ = trouble
        self._shortage.lack(trouble, monotonic(), late=trouble is not None)
        return late

    def prefetch(self, wanted: int = 0) -> bool:
        """Fetch the next range in the background if there is a scheduler. Never waits.

        `wanted`: how many numbers a caller wants. Returns whether the range arrives without work of the caller: it is
        being fetched now, or will be after a pause.
        """
        if self.flights.flight is not None or (self.flights.failures and self.flights.pause()):
            return True
        if not self._runtime.scheduled:
            return False
        flight, leads = self.flights.join(wanted)
        if leads and not self._runtime.background(partial(self.fly, flight)):
            flight.finish(progress=False)
            return False
        return True

    def fly(
        self, flight: Flight, deadline: Deadline, *, in_person: bool = False, fetch: Fetch | None = None
    ) -> Steps[int]:
        """Run a flight: fetch a range, and end the flight, also after an error. Returns how many ranges came: 0 or 1.

        Does nothing if another caller has already started the flight. `in_person`: a waiting caller runs this, and may
        have little time left. `fetch`: used in place of the fetcher's own function.
        """
        loaded, flights, emit = 0, self.flights, self._runtime.emit
        if not flight.start():
            return loaded
        away = isinstance(flights.trouble, StoreUnavailable)
        try:
            loaded, progress = yield from (fetch or self._fetch)(flight, deadline)
        except IssuerError as error:
            if isinstance(error, StoreUnavailable) and not away:
                emit(StoreSilent(self._tag, error, self._runtime.scheduled))
            elif away and not isinstance(error, Unavailable):
                emit(StoreBack(self._tag, error))
            emit(Failed(self._tag, "fetch", error))
            in_a_hurry = in_person and deadline.left() <= 0 and monotonic() - flight.begun < EVIDENCE
            flights.finish(flight, progress=False, error=error, in_a_hurry=in_a_hurry)
        except BaseException as error:
            if isinstance(error, Exception) and not in_person:
                unforeseen = IssuerError(f"tag {self._tag!r}: loading a segment failed: {error!r}", tag=self._tag)
                unforeseen.__cause__ = error
                flights.finish(flight, progress=False, error=unforeseen)
            else:
                # This error concerns only this caller: a signal handler raised it, for example. The waiters try again.
                flight.finish(progress=False)
            raise
        else:
            flights.finish(flight, progress=progress)
            if away and progress:
                emit(StoreBack(self._tag, None))
        return loaded
