"""Fetching of the next segment or lease: one caller or the scheduler fetches it, the others wait for that."""

from __future__ import annotations

from collections.abc import Callable

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.error_mapping import refused
from issuer.core.events import (
    CallersServed,
    CallersWait,
    ElectionWon,
    ExtensionLate,
    Failed,
    FenceTripped,
    LeaseDrawn,
    NumbersLost,
    RedisBack,
    RedisSilent,
    SegmentLoaded,
    StoreBack,
    StoreSilent,
)
from issuer.core.scheme_record import countable
from issuer.core.single_flight import Flight, SingleFlight, renewed
from issuer.core.steps import Steps, send, sleep, wait
from issuer.core.supply import direct
from issuer.core.supply.extend import Extension, extend, size
from issuer.core.supply.lease import Lease
from issuer.core.supply.source import Source
from issuer.errors import (
    ConfigurationError,
    CorruptState,
    IssuerError,
    RedisUnavailable,
    StoreUnavailable,
    Unavailable,
)
from issuer.persistence.records import LEASE_MOST

#: If the scheduler has not begun a flight after this many seconds, a caller that waits for it flies it.
UNCLAIMED = 0.25

#: A store that gave no answer in less is perhaps only slow: a caller in a hurry must not keep others from it.
EVIDENCE = 0.25

#: Once callers have waited for this many seconds observers hear of it, whatever they wait for.
NOTABLE = 1.0

#: How many leases below the numbers already issued are thrown away before Redis counts as gone back in time.
ATTEMPTS = 2


class Refill(Source):
    """Fetches segments and leases, one of each at a time."""

    #: Since when callers have waited in vain, and whether observers have heard of it.
    _lacking_since: float | None = None
    _lack_told = False
    #: Why Redis has lost this tag's numbers, until they come again: what it answered to a draw.
    _loss = ""
    #: The highest number seen when a caller found all segments used up.
    _ran_out_at = 0

    def accept(self, drawn: gateway.Drawn, n: int) -> range | None:
        """Take note of what a draw of n brought; None if a segment has to come first.

        Raises FenceError, CorruptState.
        """
        if drawn.status == "ok":
            self._tell_loss(drawn.low)
            self.seen = max(self.seen, drawn.high)
            if drawn.extend or n > 1:  # a sweep looks as well
                self.warn_if_near(drawn.high)
            if drawn.extend:
                self.elected(n - (drawn.high - drawn.low))
            return range(drawn.low + 1, drawn.high + 1)
        if drawn.status in ("notmaster", "corrupt"):
            raise refused(drawn, self.tag, self.key)
        self._note_none(drawn.status)
        return None

    def elected(self, wanted: int = 0) -> None:
        """Take note that a draw has elected this process to load the next segment. `wanted`: of it, by the caller."""
        self._election.won += 1
        self._runtime.emit(ElectionWon(self.tag))
        self.prefetch_segment(wanted)

    # ------------------------------------------------------------------ waiting for a segment or a lease

    def await_segment(self, deadline: Deadline, wanted: int = 0) -> Steps[bool]:
        """Wait until a segment may have come, or fetch it if no other caller does. Returns whether one has come.

        `wanted`: how many numbers the caller wants. Raises at the deadline. If the store has been away for longer than
        a caller shall insist, and another caller or job finds out when it is back, raises at once.
        """
        board = self._segments
        if self.given_up and self.prefetch_segment(wanted):
            raise self._late(board)
        flight, leads = board.enter()
        flight.want(wanted)
        try:
            if leads:
                yield from self._lead(flight, deadline)
            if not flight.claimed:
                yield from self._take_over(flight, deadline, lambda flight: self._fly(flight, deadline))
        except BaseException:
            # Interrupted: the others must not wait for us.
            if flight.ours or not flight.claimed:
                board.land(flight, progress=False)
            raise
        return (yield from self._outcome(board, flight, deadline))

    @property
    def given_up(self) -> bool:
        """Whether the store has been away for longer than callers wait for it."""
        silence = self._segments.silence
        return silence is not None and silence >= self._runtime.insist

    def _outcome(self, board: SingleFlight, flight: Flight, deadline: Deadline) -> Steps[bool]:
        landed = yield from wait(flight, min(deadline.left(), board.left(flight)))
        if not landed and deadline.left() <= 0:
            raise self._late(board)
        verdict = flight.verdict()
        if verdict is not None:
            raise verdict
        if not flight.progress:
            if isinstance(flight.error, RedisUnavailable) and not self._direct:
                self._note_redis(flight.error)
                if (yield from self._go_direct(deadline)):
                    return False
            if deadline.left() <= 0 or self.given_up:
                raise self._late(board)
            self._note_lack(flight.error or board.trouble, flight.begun)
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
                yield from self._fly(flight, deadline)
            else:
                flight.land(progress=False)

    def _take_over(self, flight: Flight, deadline: Deadline, fetch: Callable[[Flight], Steps[object]]) -> Steps[None]:
        """If the scheduler hasn't begun the flight after 0.25 s (pool full, interpreter exiting), fly it here.

        A caller without time left doesn't: it would fail the flight for those that have more.
        """
        landed = yield from wait(flight, min(UNCLAIMED, deadline.left()))
        if not landed and deadline.left() > 0 and flight.claim():
            yield from fetch(flight)

    def await_lease(self, deadline: Deadline, wanted: int = 0) -> Steps[None]:
        """Wait until a lease may have come; if no other caller fetches it, do it here: it is one round trip.

        `wanted`: how many numbers the caller wants.
        """
        board = self._leases
        flight, leads = board.enter()
        flight.want(wanted)
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

    def _late(self, board: SingleFlight) -> IssuerError:
        if board is self._leases and isinstance(board.trouble, StoreUnavailable):
            # It waited for a segment itself, and says what for.
            return renewed(board.trouble)
        trouble = self._segments.trouble or board.trouble
        if isinstance(trouble, RedisUnavailable):
            late: Unavailable = RedisUnavailable(str(trouble), tag=self.tag, retry_after=trouble.retry_after)
        else:
            reason = str(trouble) if trouble else f"no segment came from the store {self._runtime.store}"
            silence = self._segments.silence
            when = "at the deadline" if silence is None else f"and the store has been away for {silence:.3g} s"
            late = StoreUnavailable(
                f"tag {self.tag!r}: nothing left in hand {when}: {reason}",
                tag=self.tag,
                retry_after=self._segments.retry_after(),
            )
        late.__cause__ = trouble
        self._note_lack(trouble, monotonic(), late=trouble is not None)
        return late

    # ------------------------------------------------------------------ what observers hear of waiting and of losses

    def _note_lack(self, why: IssuerError | None, since: float, *, late: bool = False) -> None:
        """Say why callers wait, once an outage: the loader may be another process, which says it elsewhere.

        `since`: when they began to, on the monotonic clock; `late`: one of them waits no longer.
        """
        if not self.waiting:
            return
        if self._lacking_since is None:
            self._lacking_since = since
        if not self._lack_told and (late or monotonic() - self._lacking_since >= NOTABLE):
            self._lack_told = True
            cause = why or f"no segment came from the store {self._runtime.store}, which another process may be asking"
            self._runtime.emit(CallersWait(self.tag, str(cause)))

    def supplied(self) -> None:
        """Take note that a caller has got numbers; say it if observers have heard that callers wait."""
        since, told = self._lacking_since, self._lack_told
        if since is not None:
            self._lacking_since, self._lack_told = None, False
            if told:
                self._runtime.emit(CallersServed(self.tag, monotonic() - since))

    def _note_none(self, status: str) -> None:
        """Say why a draw brought no numbers, though this process has seen some: they are used up, or Redis lost them.

        Lost: the hash is gone, or of another reign.
        """
        taken = self.taken()
        if status == "exhausted" and taken > self._ran_out_at:
            self._ran_out_at = taken
            self._runtime.emit(ExtensionLate(self.tag, taken))
        elif status in ("empty", "fenced") and taken and not self._loss:
            self._loss = status
            self._runtime.emit(FenceTripped(self.tag, status))

    def _tell_loss(self, low: int) -> None:
        """Say what the loss has cost, once numbers above `low` come."""
        if self._loss:
            loss, self._loss = self._loss, ""
            seen = self.taken()
            self._runtime.emit(NumbersLost(self.tag, loss, low, seen, max(0, low - seen)))

    def _note_redis(self, error: RedisUnavailable | None) -> None:
        """Take note of what Redis answers to draws: `error`, or None once it does; say it when that changes."""
        if error is not None:
            fresh = not self._redis_trouble
            self._redis_retry, self._redis_trouble = error.retry_after, str(error)
            if fresh:
                self._redis_silent_since = monotonic()
                self._runtime.emit(RedisSilent(self.tag, error))
        elif self._redis_trouble:
            self._redis_trouble = ""
            self._runtime.emit(RedisBack(self.tag, monotonic() - self._redis_silent_since))

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
            self.warn_if_near(0)
            return self.hand is not None and self.hand.due
        hash = yield from self.look()
        self.warn_if_near(hash.cur or 0)
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

    def prefetch(self, wanted: int = 0) -> None:
        """Fetch the next piece for the hand in the background, if a scheduler is there to do it. Never waits.

        `wanted`: how many numbers a caller wants of it.
        """
        if self._direct:
            self.prefetch_segment(wanted)
        else:
            self._ahead(self._leases, self._fetch_lease, wanted)

    def prefetch_segment(self, wanted: int = 0) -> bool:
        """Fetch the next segment in the background, if a scheduler is there to do it. Never waits.

        Returns whether one comes without the caller's doing: it is being fetched, or will be after a pause, or begins
        to be.
        """
        return self._ahead(self._segments, lambda flight, _: self._fly(flight), wanted)

    def _ahead(self, board: SingleFlight, fetch: Callable[[Flight, Deadline], Steps[object]], wanted: int) -> bool:
        if board.flight is not None or board.pause():
            return True
        if not self._runtime.scheduled:
            return False
        flight, leads = board.enter()
        flight.want(wanted)
        if leads and not self._depart(flight, fetch):
            flight.land(progress=False)
            return False
        return True

    def _depart(self, flight: Flight, fetch: Callable[[Flight, Deadline], Steps[object]] | None = None) -> bool:
        """Hand the flight to the scheduler; False if there is none alive."""

        def job(deadline: Deadline) -> Steps[object]:
            if flight.claim():
                yield from fetch(flight, deadline) if fetch else self._fly(flight)
            return None

        return self._runtime.background(job)

    # ------------------------------------------------------------------ flights: one at a time for each thing

    def _fly(self, flight: Flight, deadline: Deadline | None = None) -> Steps[int]:
        """Get a segment and land the flight, also after an error. Returns how many were loaded.

        `deadline`: of the caller, if it flies in person.
        """
        return (yield from self._flown(self._segments, flight, self._segment(flight), deadline))

    def _flown(
        self, board: SingleFlight, flight: Flight, steps: Steps[tuple[int, bool]], deadline: Deadline | None = None
    ) -> Steps[int]:
        loaded = 0
        away = isinstance(board.trouble, StoreUnavailable)
        try:
            loaded, progress = yield from steps
        except IssuerError as error:
            if isinstance(error, StoreUnavailable) and not away:
                self._runtime.emit(StoreSilent(self.tag, error, self._runtime.scheduled))
            elif away and not isinstance(error, Unavailable):
                self._runtime.emit(StoreBack(self.tag, error))
            self._runtime.emit(Failed(self.tag, "fetch", error))
            in_a_hurry = deadline is not None and deadline.left() <= 0 and monotonic() - flight.begun < EVIDENCE
            board.land(flight, progress=False, error=error, in_a_hurry=in_a_hurry)
        except Exception as error:
            unforeseen = IssuerError(f"tag {self.tag!r}: extension failed: {error!r}", tag=self.tag)
            unforeseen.__cause__ = error
            board.land(flight, progress=False, error=unforeseen)
            raise
        except BaseException:
            # An interrupt is this thread's own affair: the waiters try again.
            board.land(flight, progress=False)
            raise
        else:
            board.land(flight, progress=progress)
            if away and progress:
                self._runtime.emit(StoreBack(self.tag, None))
        return loaded

    def _segment(self, flight: Flight) -> Steps[tuple[int, bool]]:
        if self._direct:
            return int((yield from self._reserve_own(flight))), True
        extension = yield from self._extend(flight.wanted)
        return int(extension.outcome == "loaded"), extension.outcome in ("loaded", "ready")

    def _extend(self, wanted: int) -> Steps[Extension]:
        record = yield from self.counted()
        steps = extend(
            record,
            self.key,
            seen=self.taken(),
            window=self._runtime.window,
            election=self._election,
            wanted=wanted,
            application=self._runtime.application,
            emit=self._runtime.emit,
        )
        extension = yield from self._public(steps)
        self.owned = True  # `open` refuses every other store's
        if extension.tag is not None:
            self.record = extension.tag
        if extension.outcome == "loaded":
            scheme = (extension.tag or record).scheme
            self._runtime.emit(SegmentLoaded(self.tag, extension.low, extension.high, extension.cur, scheme))
        return extension

    def _reserve_own(self, flight: Flight) -> Steps[bool]:
        record = yield from self.counted()
        if record.order == "strict" and not self._runtime.redis:
            raise ConfigurationError(
                f"tag {self.tag!r} is strict: its numbers come through Redis only, and none is set: name Redis",
                tag=self.tag,
            )
        hand = self.hand
        if hand is None or not hand.due:
            return False
        n, runtime = size(record, flight.wanted), self._runtime
        steps = direct.reserve(self.tag, seen=self.taken(), n=n, application=runtime.application, emit=runtime.emit)
        reserved = yield from self._public(steps)
        try:
            self.record = reserved.tag
        except IssuerError:
            # It can't make numbers of it here. Each call would reserve another one.
            yield from self._give_back((reserved,), reserved.low)
            raise
        with self._mode_lock:
            # A flight that counted as lost, or finds a tag that was made again as strict, has come too late.
            welcome = (
                self._direct
                and self.ended is None
                and self.hand is hand
                and self._segments.is_current(flight)
                and reserved.tag.order == "trend"
            )
            kept = welcome and hand.add(reserved)
            if reserved.tag.order == "strict" and self._runtime.redis:
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
        hand, ahead = self.hand, self._lease_size()
        if hand is None or self._direct or not hand.due:
            return 0, True
        if not ahead:  # the tag is leased no more
            with self._mode_lock:
                self._settle()
            return 0, True
        granted = 0
        for _ in range(ATTEMPTS):
            piece = yield from self._drawn_ahead(ahead, min(flight.wanted, LEASE_MOST), deadline)
            with self._mode_lock:
                welcome = (
                    self.ended is None and self._lease_size() and self.hand is hand and self._leases.is_current(flight)
                )
                kept = bool(welcome) and hand.add(piece)
                self._born = piece.born if kept else self._born
            if kept:
                self._leased()
                self._runtime.emit(LeaseDrawn(self.tag, piece.low, piece.high))
                self._runtime.attend()
                return 1, True
            if not welcome or piece.low >= hand.issued:
                yield from self._give_back((piece,), piece.low)
                return 0, True
            granted = piece.low + 1
            # Late, and direct segments were served meanwhile; or Redis went back in time. In doubt it is a gap.
        raise CorruptState(
            f"Redis key {self.key} grants {granted}, below {hand.issued}, which this process has issued: it went "
            "back in time",
            tag=self.tag,
            advice="corrupt_state.recover",
        )

    def _drawn_ahead(self, ahead: int, wanted: int, deadline: Deadline) -> Steps[Lease]:
        """Draw a lease of `ahead` numbers, more if a caller wants more."""
        n = max(ahead, wanted)
        while True:
            yield from self.refuse_foreign(probe=False)
            drawn = yield from send(gateway.lease(self.key, n, self.window, self.scheme_id), probe=False)
            if drawn.status == "ok":
                break
            if drawn.status in ("notmaster", "corrupt"):
                raise refused(drawn, self.tag, self.key)
            if drawn.status == "scheme":
                yield from self.learn()
            self._note_none(drawn.status)
            yield from self.await_segment(deadline, wanted)
        self._tell_loss(drawn.low)
        if drawn.extend:
            self.elected(wanted - (drawn.high - drawn.low))
        if drawn.born != self._born:
            yield from self._learn_again()
        return Lease(drawn.low, drawn.high, drawn.fence, drawn.born, drawn.backs)

    def _learn_again(self) -> Steps[None]:
        """Read the record under which leases come: the hash was armed again.

        Perhaps the tag was deleted and made again, as a strict one. What can't be read is not leased.
        """
        try:
            yield from self.learn()
        except Unavailable:
            with self._mode_lock:
                self._record = None
                self._settle()
