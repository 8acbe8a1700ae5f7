"""How the next segment or lease comes: one caller or the scheduler fetches it, the others wait for that."""

from __future__ import annotations

import logging
from collections.abc import Callable

from issuer import gateway
from issuer.clock import Deadline
from issuer.core import direct
from issuer.core.extend import Extension, extend
from issuer.core.flight import Board, Flight, renewed
from issuer.core.lease import Lease
from issuer.core.outcomes import refused
from issuer.core.scheme import countable
from issuer.core.source import Source
from issuer.core.steps import Steps, send, sleep, wait
from issuer.errors import (
    ConfigurationError,
    CorruptState,
    IssuerError,
    RedisUnavailable,
    StoreUnavailable,
    Unavailable,
)

log = logging.getLogger("issuer.extension")

#: A flight that the scheduler has not begun after so many seconds is flown by a caller who waits for it.
UNCLAIMED = 0.25

#: How many leases below the numbers already issued are thrown away before Redis counts as gone back in time.
ATTEMPTS = 2


class Refill(Source):
    """Fetches segments and leases, one of each at a time."""

    def accept(self, drawn: gateway.Drawn) -> range | None:
        """Take note of what a draw brought; None if a segment has to come first. Raises FenceError, CorruptState."""
        if drawn.status == "ok":
            self.seen = max(self.seen, drawn.high)
            if drawn.extend:
                self.elected()
            return range(drawn.low + 1, drawn.high + 1)
        if drawn.status in ("notmaster", "corrupt"):
            raise refused(drawn, self.tag, self.key)
        return None

    def elected(self) -> None:
        """Take note that a draw has elected this process to load the next segment."""
        self._election.won += 1
        self.prefetch_segment()

    # ------------------------------------------------------------------ waiting for a segment or a lease

    def await_segment(self, deadline: Deadline) -> Steps[bool]:
        """Wait until a segment may have come; lead if nobody does. Returns whether one has. Raises at the deadline."""
        board = self._segments
        flight, leads = board.enter()
        try:
            if leads:
                yield from self._lead(flight, deadline)
            if not flight.claimed:
                yield from self._take_over(flight, deadline, self._fly)
        except BaseException:
            # Interrupted: the others must not wait for us.
            if flight.ours or not flight.claimed:
                board.land(flight, progress=False)
            raise
        return (yield from self._outcome(board, flight, deadline))

    def _outcome(self, board: Board, flight: Flight, deadline: Deadline) -> Steps[bool]:
        landed = yield from wait(flight, min(deadline.left(), board.left(flight)))
        if not landed and deadline.left() <= 0:
            raise self._late(board)
        verdict = flight.verdict()
        if verdict is not None:
            raise verdict
        if not flight.progress:
            if not self._direct and isinstance(flight.error, RedisUnavailable):
                yield from self._go_direct(deadline)
            if deadline.left() <= 0:
                raise self._late(board)
        return flight.progress

    def _lead(self, flight: Flight, deadline: Deadline) -> Steps[None]:
        rest = self._segments.pause()
        yield from sleep(min(rest, deadline.left()))
        if rest and deadline.left() <= 0:
            # It never departed, so it is no failure: counted as one, callers in a hurry would stretch the pause without
            # end.
            flight.land(progress=False)
        elif not self._depart(flight):
            if deadline.left() > 0 and flight.claim():
                yield from self._fly(flight)
            else:
                flight.land(progress=False)

    def _take_over(self, flight: Flight, deadline: Deadline, fetch: Callable[[Flight], Steps[object]]) -> Steps[None]:
        """Fly it if the scheduler doesn't begin with it: its pool is full, or the interpreter ends.

        Not without time left: callers in a hurry must not take it from those who have more.
        """
        landed = yield from wait(flight, min(UNCLAIMED, deadline.left()))
        if not landed and deadline.left() > 0 and flight.claim():
            yield from fetch(flight)

    def await_lease(self, deadline: Deadline) -> Steps[None]:
        """Wait until a lease may have come; fetch it in person if nobody does: it is one round trip."""
        board = self._leases
        flight, leads = board.enter()
        try:
            if leads and flight.claim():
                yield from self._fetch_lease(flight, deadline)
            if not flight.claimed:
                yield from self._take_over(flight, deadline, lambda flight: self._fetch_lease(flight, deadline))
        except BaseException:
            if flight.ours or not flight.claimed:
                board.land(flight, progress=False)
            raise
        yield from self._outcome(board, flight, deadline)

    def _late(self, board: Board) -> IssuerError:
        if board is self._leases and isinstance(board.trouble, StoreUnavailable):
            # It waited for a segment itself, and says what for.
            return renewed(board.trouble)
        trouble = self._segments.trouble or board.trouble
        if isinstance(trouble, RedisUnavailable):
            late: Unavailable = RedisUnavailable(str(trouble), tag=self.tag, retry_after=trouble.retry_after)
        else:
            reason = str(trouble) if trouble else f"no segment came from the store {self._means.store}"
            late = StoreUnavailable(
                f"tag {self.tag!r}: nothing left in hand at the deadline: {reason}",
                tag=self.tag,
                retry_after=self._segments.retry_after(),
            )
        late.__cause__ = trouble
        return late

    def overdue(self) -> IssuerError:
        """Return the error for a caller whose time is over while others ask for it."""
        if self._segments.flight is not None:
            return self._late(self._segments)
        late = f"tag {self.tag!r}: {self._redis_trouble or 'Redis has not answered in time'}"
        return RedisUnavailable(late, tag=self.tag, retry_after=self._redis_retry)

    def _due(self) -> Steps[bool]:
        """Whether a segment should be fetched now."""
        if self._record is not None and not countable(self._record.scheme):
            return False
        if self._direct:
            return self.hand is not None and self.hand.due
        hash = yield from self.look()
        if hash.cur is None or hash.mark is None:
            return True
        return hash.next_max is None and hash.cur >= hash.mark

    def fetch(self) -> Steps[int]:
        """Fetch the next segment now, if one is due. Returns how many were loaded: 0 or 1."""
        if not self._direct:
            yield from self._identity_soon()
        if not (yield from self._due()):
            return 0
        flight, leads = self._segments.enter()
        return (yield from self._fly(flight)) if leads and flight.claim() else 0

    # ------------------------------------------------------------------ ahead of need

    def prefetch(self) -> None:
        """Fetch the next piece for the hand in the background, if a scheduler is there to do it. Never waits."""
        if self._direct:
            self.prefetch_segment()
        else:
            self._ahead(self._leases, self._fetch_lease)

    def prefetch_segment(self) -> None:
        """Fetch the next segment in the background, if a scheduler is there to do it. Never waits."""
        self._ahead(self._segments, lambda flight, _: self._fly(flight))

    def _ahead(self, board: Board, fetch: Callable[[Flight, Deadline], Steps[object]]) -> None:
        if not self._means.scheduled or board.flight is not None or board.pause():
            return
        flight, leads = board.enter()
        if leads and not self._depart(flight, fetch):
            flight.land(progress=False)

    def _depart(self, flight: Flight, fetch: Callable[[Flight, Deadline], Steps[object]] | None = None) -> bool:
        """Hand the flight to the scheduler; False if there is none alive."""

        def job(deadline: Deadline) -> Steps[object]:
            if flight.claim():
                yield from fetch(flight, deadline) if fetch else self._fly(flight)
            return None

        return self._means.background(job)

    # ------------------------------------------------------------------ flights: one at a time for each thing

    def _fly(self, flight: Flight) -> Steps[int]:
        """Get a segment and land the flight, whatever happens. Returns how many were loaded."""
        return (yield from self._flown(self._segments, flight, self._segment(flight)))

    def _flown(self, board: Board, flight: Flight, steps: Steps[tuple[int, bool]]) -> Steps[int]:
        loaded = 0
        away = isinstance(board.trouble, StoreUnavailable)
        try:
            loaded, progress = yield from steps
        except IssuerError as error:
            if isinstance(error, StoreUnavailable) and not away and self._means.scheduled:
                log.warning("tag %r: no segment comes, and what is in hand is all there is: %s", self.tag, error)
            log.debug("tag %r: nothing came: %s", self.tag, error)
            board.land(flight, progress=False, error=error)
        except Exception as error:
            unforeseen = IssuerError(f"tag {self.tag!r}: extension failed: {error!r}", tag=self.tag)
            unforeseen.__cause__ = error
            board.land(flight, progress=False, error=unforeseen)
            raise
        except BaseException:
            # An interrupt is this thread's own affair: whoever waits tries again.
            board.land(flight, progress=False)
            raise
        else:
            board.land(flight, progress=progress)
            if away and progress:
                log.warning("tag %r: segments come again", self.tag)
        return loaded

    def _segment(self, flight: Flight) -> Steps[tuple[int, bool]]:
        if self._direct:
            return int((yield from self._reserve_own(flight))), True
        extension = yield from self._extend()
        return int(extension.outcome == "loaded"), extension.outcome in ("loaded", "ready")

    def _extend(self) -> Steps[Extension]:
        record = yield from self.counted()
        steps = extend(record, self.key, seen=self.taken(), window=self._means.window, election=self._election)
        extension = yield from self._public(steps)
        self.owned = True  # `open` refuses every other store's
        if extension.tag is not None:
            self.record = extension.tag
        if extension.outcome == "loaded":
            log.info(
                "tag %r: segment %d..%d loaded at number %d",
                *(self.tag, extension.low + 1, extension.high, extension.cur),
                extra={"extension": extension},
            )
        return extension

    def _reserve_own(self, flight: Flight) -> Steps[bool]:
        record = yield from self.counted()
        if record.order == "strict" and not self._means.redis:
            raise ConfigurationError(
                f"tag {self.tag!r} is strict: its numbers come through Redis only, and none is set", tag=self.tag
            )
        hand = self.hand
        if hand is None or not hand.due:
            return False
        reserved = yield from self._public(direct.reserve(self.tag, seen=self.taken()))
        try:
            self.record = reserved.tag
        except IssuerError:
            # It can't make numbers of it here. Each call would reserve another one.
            yield from self._give_back((reserved,), reserved.low)
            raise
        with self._mode_lock:
            # Whoever counted as lost, or finds a tag that was made again as strict, has come too late.
            welcome = (
                self._direct
                and self.ended is None
                and self.hand is hand
                and self._segments.is_current(flight)
                and reserved.tag.order == "trend"
            )
            kept = welcome and hand.add(reserved)
            if reserved.tag.order == "strict" and self._means.redis:
                self._direct = False
                self._settle()
        if not kept:
            yield from self._give_back((reserved,), reserved.low)
        if welcome and not kept and reserved.low < hand.highest:
            yield from self._public(direct.behind(self.tag, stands_at=reserved.low, taken=hand.highest))
        return kept

    def _fetch_lease(self, flight: Flight, deadline: Deadline) -> Steps[object]:
        return (yield from self._flown(self._leases, flight, self._lease(flight, deadline)))

    def _lease(self, flight: Flight, deadline: Deadline) -> Steps[tuple[int, bool]]:
        hand, size = self.hand, self._lease_size()
        if hand is None or self._direct or not hand.due:
            return 0, True
        if not size:  # the tag is leased no more
            with self._mode_lock:
                self._settle()
            return 0, True
        granted = 0
        for _ in range(ATTEMPTS):
            piece = yield from self._drawn_ahead(size, deadline)
            with self._mode_lock:
                welcome = (
                    self.ended is None and self._lease_size() and self.hand is hand and self._leases.is_current(flight)
                )
                kept = bool(welcome) and hand.add(piece)
                self._born = piece.born if kept else self._born
            if kept:
                self._means.attend()
                return 1, True
            if not welcome or piece.low >= hand.issued:
                yield from self._give_back((piece,), piece.low)
                return 0, True
            granted = piece.low + 1
            # Late, and direct segments were served meanwhile; or Redis went back in time. In doubt it is a gap.
        raise CorruptState(
            f"Redis key {self.key} grants {granted}, below {hand.issued}, which this process has issued: it went "
            f"back in time; run `issuer recover {self.tag}`",
            tag=self.tag,
        )

    def _drawn_ahead(self, size: int, deadline: Deadline) -> Steps[Lease]:
        while True:
            yield from self.refuse_foreign(probe=False)
            drawn = yield from send(gateway.lease(self.key, size, self.window, self.scheme_id), probe=False)
            if drawn.status == "ok":
                break
            if drawn.status in ("notmaster", "corrupt"):
                raise refused(drawn, self.tag, self.key)
            if drawn.status == "scheme":
                yield from self.learn()
            yield from self.await_segment(deadline)
        if drawn.extend:
            self.elected()
        if drawn.born != self._born:
            yield from self._learn_again()
        return Lease(drawn.low, drawn.high, drawn.fence, drawn.born, drawn.backs)

    def _learn_again(self) -> Steps[None]:
        """Read the record under which leases come: the hash was armed anew.

        Perhaps the tag was deleted and made again, as a strict one. What can't be read is not leased.
        """
        try:
            yield from self.learn()
        except Unavailable:
            with self._mode_lock:
                self._record = None
                self._settle()
