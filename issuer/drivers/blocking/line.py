"""A tag as this process sees it: a number's way from `next()` to the Lua script, or out of the process's own hand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from issuer import gateway
from issuer.clock import Deadline, monotonic, pause, sleep
from issuer.core import direct
from issuer.core.extend import Election, Extension, extend, known
from issuer.core.outcomes import refused
from issuer.core.retire import floor
from issuer.core.steps import Steps
from issuer.drivers.blocking.flight import Board, Flight
from issuer.drivers.blocking.runner import Runner
from issuer.drivers.blocking.segments import Segments
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable, StoreUnavailable, Unavailable, UnknownTag
from persistence.records import Reservation, Tag

T = TypeVar("T")

log = logging.getLogger("issuer.extension")


#: A flight that the scheduler has not begun after so many seconds is flown by a caller who waits for it.
UNCLAIMED = 0.25


@dataclass(frozen=True, slots=True)
class Means:
    """What the lines of an issuer share.

    `background` runs a job on the scheduler, False if there is none alive; `scheduled`: whether there should be one.
    `window`: how long an elected loader has, in seconds. `auto_create`: make a tag at its first use.
    """

    runner: Runner
    background: Callable[[Callable[[], object]], bool]
    scheduled: bool
    window: float
    auto_create: bool


class Line:
    """Draws numbers of one tag, from Redis or direct, and gets the next segment when one is due."""

    def __init__(self, tag: str, key: str, means: Means) -> None:
        """`key` is the tag's hash in Redis."""
        self.tag = tag
        self.key = key
        self.used_at = monotonic()
        #: Extended by every sweep, used or not.
        self.kept = False
        self.record: Tag | None = None
        self._means = means
        self._redis = means.runner.redis
        self._window = means.window if means.scheduled else None
        self._one = gateway.draw(key, 1, self._window)
        self._board = Board(longest=means.window + 1)
        self._mode_lock = threading.Lock()
        #: What this process serves itself from; None while numbers come from Redis.
        self._segments = Segments() if self._redis is None else None
        self._election = Election()
        self._seen = 0

    # ------------------------------------------------------------------ drawing

    def draw(self, n: int, deadline: Deadline) -> tuple[int, int]:
        """Draw up to n numbers, at least one: low+1 .. high are the caller's alone. Waits until the deadline."""
        self.used_at = monotonic()
        while True:
            segments = self._segments
            if segments is not None:
                taken = segments.take(n)
                if taken is not None:
                    if segments.due:
                        self.prefetch()
                    return taken
            elif (taken := self._draw_from_redis(n, deadline)) is not None:
                return taken
            self._await_segment(deadline)

    def _draw_from_redis(self, n: int, deadline: Deadline) -> tuple[int, int] | None:
        call = self._one if n == 1 else gateway.draw(self.key, n, self._window)
        attempt = 0
        while self._segments is None and self._redis is not None:
            try:
                drawn = self._redis.call(call, deadline, self.tag)
            except RedisUnavailable as error:
                if not self._go_direct(deadline):
                    if deadline.left() <= 0:
                        raise
                    # A strict tag waits for Redis: a failover takes 2-3 s.
                    sleep(min(pause(attempt), deadline.left()))
                    attempt += 1
                    if deadline.left() <= 0:
                        raise RedisUnavailable(str(error), tag=self.tag) from error
                continue
            if drawn.status == "ok":
                self._seen = max(self._seen, drawn.high)
                if drawn.extend:
                    self._election.won += 1
                    self.prefetch()
                return drawn.low, drawn.high
            if drawn.status in ("notmaster", "corrupt"):
                raise refused(drawn, self.tag, self.key)
            return None
        return None

    def _go_direct(self, deadline: Deadline) -> bool:
        """Redis is away: a trend tag goes on with segments of its own. False for a strict one."""
        if self.record is None and deadline.left() > 0:
            try:
                self.learn(deadline)
            except Unavailable:
                return False
        if self.record is None or self.record.order == "strict":
            return False
        with self._mode_lock:
            if self._segments is None:
                log.warning("tag %r: Redis is away, serving from segments of this process", self.tag)
                self._segments = Segments()
        return True

    # ------------------------------------------------------------------ waiting for a segment

    def _await_segment(self, deadline: Deadline) -> bool:
        """Wait until a segment may have come; lead if nobody does. Returns whether one has. Raises at the deadline."""
        flight, leads = self._board.enter()
        try:
            if leads:
                self._lead(flight, deadline)
            if not flight.claimed:
                self._take_over(flight, deadline)
        except BaseException:
            # Interrupted: the others must not wait for us.
            if flight.ours or not flight.claimed:
                self._board.land(flight, progress=False)
            raise
        if not flight.wait(min(deadline.left(), self._board.left(flight))) and deadline.left() <= 0:
            raise self._late()
        verdict = flight.verdict()
        if verdict is not None:
            raise verdict
        if not flight.progress:
            if self._segments is None and isinstance(flight.error, RedisUnavailable):
                self._go_direct(deadline)
            if deadline.left() <= 0:
                raise self._late()
        return flight.progress

    def _lead(self, flight: Flight, deadline: Deadline) -> None:
        wait = self._board.pause()
        sleep(min(wait, deadline.left()))
        if wait and deadline.left() <= 0:
            # It never departed, so it is no failure: counted as one, callers in a hurry would stretch the pause without
            # end.
            flight.land(progress=False)
        elif not self._depart(flight):
            if deadline.left() > 0 and flight.claim():
                self._fly(flight, deadline)
            else:
                flight.land(progress=False)

    def _take_over(self, flight: Flight, deadline: Deadline) -> None:
        """Fly it if the scheduler doesn't begin with it: its pool is full, or the interpreter ends.

        Not without time left: callers in a hurry must not take it from those who have more.
        """
        landed = flight.wait(min(UNCLAIMED, deadline.left()))
        if not landed and deadline.left() > 0 and flight.claim():
            self._fly(flight, deadline)

    def _late(self) -> IssuerError:
        trouble = self._board.trouble
        if isinstance(trouble, RedisUnavailable):
            late: Unavailable = RedisUnavailable(str(trouble), tag=self.tag)
        else:
            store = self._means.runner.store
            reason = str(trouble) if trouble else f"no segment came from the store {store.url}"
            late = StoreUnavailable(
                f"tag {self.tag!r}: nothing left in hand, and {reason} before the deadline", tag=self.tag
            )
        late.__cause__ = trouble
        return late

    def _depart(self, flight: Flight) -> bool:
        """Hand the flight to the scheduler; False if there is none alive."""

        def job() -> None:
            if flight.claim():
                self._fly(flight, Deadline(self._means.window))

        return self._means.background(job)

    def prefetch(self) -> None:
        """Fetch the next segment in the background, if a scheduler is there to do it. Never waits."""
        if not self._means.scheduled or self._board.busy or self._board.pause():
            return
        flight, leads = self._board.enter()
        if leads and not self._depart(flight):
            flight.land(progress=False)

    def fetch(self, deadline: Deadline) -> int:
        """Fetch the next segment now, in this thread, if one is due. Returns how many were loaded: 0 or 1."""
        if not self._due(deadline):
            return 0
        flight, leads = self._board.enter()
        return self._fly(flight, deadline) if leads and flight.claim() else 0

    def warm(self, deadline: Deadline) -> None:
        """Return when there are numbers to draw."""
        segments = self._segments
        if segments is not None and not segments.due:
            return
        while not self._await_segment(deadline):
            if self._segments is not None and not self._segments.due:
                return

    # ------------------------------------------------------------------ flights: one at a time

    def _fly(self, flight: Flight, deadline: Deadline) -> int:
        """Get a segment and land the flight, whatever happens. Returns how many were loaded."""
        loaded = 0
        try:
            if self._segments is None:
                extension = self._extend(deadline)
                loaded = int(extension.outcome == "loaded")
                progress = extension.outcome in ("loaded", "ready")
            else:
                loaded = int(self._reserve_own(flight, deadline))
                progress = True
        except IssuerError as error:
            log.debug("tag %r: no segment: %s", self.tag, error)
            self._board.land(flight, progress=False, error=error)
        except Exception as error:
            unforeseen = IssuerError(f"tag {self.tag!r}: extension failed: {error!r}", tag=self.tag)
            unforeseen.__cause__ = error
            self._board.land(flight, progress=False, error=unforeseen)
            raise
        except BaseException:
            # An interrupt is this thread's own affair: whoever waits tries again.
            self._board.land(flight, progress=False)
            raise
        else:
            self._board.land(flight, progress=progress)
        return loaded

    def _extend(self, deadline: Deadline) -> Extension:
        if self.record is None:
            self.learn(deadline)
        steps = extend(self.tag, self.key, seen=self._taken(), window=self._means.window, election=self._election)
        extension = self._run(steps, deadline)
        self.record = extension.tag or self.record
        if extension.outcome == "loaded":
            log.info(
                "tag %r: segment %d..%d loaded at number %d",
                *(self.tag, extension.low + 1, extension.high, extension.cur),
                extra={"extension": extension},
            )
        return extension

    def _reserve_own(self, flight: Flight, deadline: Deadline) -> bool:
        record = self.record or self.learn(deadline)
        if record.order == "strict" and self._redis is None:
            raise ConfigurationError(
                f"tag {self.tag!r} is strict: its numbers come through Redis only, and none is set", tag=self.tag
            )
        segments = self._segments
        if segments is None or not segments.due:
            return False
        reserved = self._run(direct.reserve(self.tag, seen=self._taken()), deadline)
        self.record = reserved.tag
        with self._mode_lock:
            # Whoever counted as lost, or finds a tag that was made again as strict, has come too late.
            welcome = self._segments is segments and self._board.is_current(flight) and reserved.tag.order == "trend"
            kept = welcome and segments.add(reserved)
            if reserved.tag.order == "strict" and self._redis is not None:
                self._segments = None
        if not kept:
            self._give_back((reserved,), reserved.low, deadline)
        if welcome and not kept and reserved.low < segments.highest:
            self._run(direct.behind(self.tag, stands_at=reserved.low, taken=segments.highest), deadline)
        return kept

    def reserve(self, n: int, deadline: Deadline) -> range:
        """Reserve exactly n numbers in the store for the caller alone, past both buffers."""
        steps = direct.reserve(self.tag, seen=self._taken(), n=n, reason="reserve")
        reserved = self._run(steps, deadline)
        self._seen = max(self._seen, reserved.high)
        return range(reserved.low + 1, reserved.high + 1)

    def _taken(self) -> int:
        """Return the highest number that this process has seen issued: nobody lowers the store's `max` below it.

        Not what it holds: another thread may be handing that back.
        """
        segments = self._segments
        return self._seen if segments is None else max(self._seen, segments.issued)

    def learn(self, deadline: Deadline) -> Tag:
        """Read the tag's record, making the tag if that is allowed. Raises UnknownTag."""
        self.record = self._run(known(self.tag, make=self._means.auto_create), deadline)
        return self.record

    def _run(self, steps: Steps[T], deadline: Deadline) -> T:
        try:
            return self._means.runner.run(steps, deadline, self.tag)
        except UnknownTag:
            self.record = None
            raise

    # ------------------------------------------------------------------ what the scheduler does

    def sweep(self, deadline: Deadline) -> None:
        """Look after the line: learn its record, come back to Redis, fetch what is due in the background."""
        if self.record is None:
            self.learn(deadline)
        if self._segments is not None and self._redis is not None:
            self.rejoin(deadline)
        if self._due(deadline):
            self.prefetch()

    def _due(self, deadline: Deadline) -> bool:
        segments = self._segments
        if segments is not None:
            return segments.due
        if self._redis is None:
            return False
        hash = self._redis.call(gateway.peek(self.key), deadline, self.tag)
        if hash.cur is None or hash.mark is None:
            return True
        return hash.next_max is None and hash.cur >= hash.mark

    def rejoin(self, deadline: Deadline) -> None:
        """Redis is back: hand back what is left, skip there what was issued here, and draw from Redis again."""
        if self._segments is None or self._redis is None:
            return
        flight, leads = self._board.enter()
        if not leads or not flight.claim():
            return
        # Longer, and it would count as lost: another flight would fill what is emptied here.
        deadline = Deadline(min(deadline.left(), self._means.window))
        try:
            segments = self._segments
            if segments is None:
                return
            # Redis must take a write before anything is given up for it: out of memory, or short of replicas, it still
            # answers reads.
            self._run(floor(self.tag, self.key, segments.issued, "keep"), deadline)
            held, used = segments.empty()
            self._give_back(held, used, deadline)
            issued = segments.issued
            self._run(floor(self.tag, self.key, issued, "keep"), deadline)
            with self._mode_lock:
                if self._board.is_current(flight) and not segments.holds and segments.issued == issued:
                    self._seen = max(self._seen, issued)
                    self._segments = None
                    log.warning("tag %r: Redis is back, above %d", self.tag, issued)
        except RedisUnavailable as error:
            log.debug("tag %r: Redis is still away: %s", self.tag, error)
        finally:
            self._board.land(flight, progress=True)

    # ------------------------------------------------------------------ the end

    @property
    def disposable(self) -> bool:
        """Whether nothing would be lost with it: the tag was never seen, and no flight may bring it numbers yet."""
        segments = self._segments
        return self.record is None and not self._board.busy and (segments is None or not segments.holds)

    def close(self, deadline: Deadline) -> None:
        """End a flight under way, then hand back what this process holds."""
        self._board.settle(deadline)
        with self._mode_lock:
            segments = self._segments
        if segments is not None:
            held, used = segments.empty()
            self._give_back(held, used, deadline)

    def _give_back(self, held: Sequence[Reservation], used: int, deadline: Deadline) -> None:
        if not held:
            return
        try:
            self._run(direct.hand_back(held, used), deadline)
        except IssuerError as error:
            log.warning("tag %r: numbers above %d could not be handed back and stay a gap: %s", self.tag, used, error)
