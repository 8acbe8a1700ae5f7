"""Refills a tag: fetches segments and leases."""

from __future__ import annotations

from functools import partial

from issuer.clock import Deadline
from issuer.core.error_mapping import refused
from issuer.core.events import ElectionWon, Failed, LeaseDrawn, LeaseDropped, NumbersWasted, SegmentLoaded
from issuer.core.scheme_record import countable
from issuer.core.steps import Flight, Steps, send
from issuer.core.supply import direct, lease
from issuer.core.supply.adapt import adapt, size
from issuer.core.supply.extend import behind, extend
from issuer.core.supply.fetcher import Fetcher, Shortage
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import unused
from issuer.core.supply.mode import Mode, Origin
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import Buffer, TagState
from issuer.errors import ConfigurationError, CorruptState, FenceError, ForeignHash, IssuerError, Unavailable
from issuer.gateway import tag_scripts
from issuer_persistence.records import LEASE_MOST

#: If this many leases in a row have numbers below issued ones, Redis counts as having gone back in time.
ATTEMPTS = 2


class Refill:
    """Fetches segments and leases of a tag, one of each at a time."""

    def __init__(self, state: TagState, runtime: Runtime, origin: Origin, shortage: Shortage) -> None:
        #: Seconds in which an elected process must load the segment; then another process can be elected. None: draws
        #: never elect this process, because it has no scheduler.
        self.window = runtime.window if runtime.scheduled else None
        #: Names this object in elections. Redis keeps the name, so a claim whose reply was lost is not another's claim.
        self.claimant = tag_scripts.fresh_claimant()
        self.segments = Fetcher(runtime, origin, shortage, self._segment)
        self.leases = Fetcher(runtime, origin, shortage, self._lease, self.segments)
        self._state = state
        self._runtime = runtime
        self._origin = origin
        self._shortage = shortage

    def draws(self, scheme: str) -> tag_scripts.Draws:
        """Return the packed draws of this process with this scheme."""
        return tag_scripts.Draws(self._state.key, self.window, scheme, self.claimant)

    def elected(self, wanted: int = 0) -> None:
        """Load the next segment: a draw has elected this process. `wanted`: how many numbers the caller wants."""
        self._runtime.emit(ElectionWon(self._state.tag))
        self.segments.prefetch(wanted)

    @property
    def of_buffer(self) -> Fetcher:
        """The fetcher that fills the local buffer."""
        return self.segments if self._origin.mode is Mode.DIRECT else self.leases

    def due(self, hash: tag_scripts.Hash | None) -> bool:
        """Whether a segment should be fetched now. `hash`: the tag's hash, None if it was not read."""
        state = self._state
        if state.record is not None and not countable(state.record.scheme):
            return False
        if self._origin.mode is Mode.DIRECT:
            self.warn_if_near(0)
            return state.buffer is not None and state.buffer.due
        if hash is None:
            return False
        self.warn_if_near(hash.cur or 0)
        return hash.due

    def warn_if_near(self, cur: int) -> None:
        """Emit LimitNear if at least 80 % of the numbers are used and it was not sent yet.

        `cur`: last number that Redis has issued, 0 if unknown.
        """
        if near := self._state.near_limit(cur):
            self._runtime.emit(near)

    # ------------------------------------------------------------------ segments

    def _segment(self, flight: Flight, _: Deadline) -> Steps[tuple[int, bool]]:
        """Return how many ranges were fetched (0 or 1), and whether callers may retry now."""
        if self._origin.mode is Mode.DIRECT:
            return int((yield from self._reserve_own(flight))), True
        state, runtime = self._state, self._runtime
        record = yield from self._origin.counted()
        if not state.counts:
            return 0, True
        steps = extend(
            record,
            state.key,
            store_id=runtime.identity.id or (yield from self._origin.identity()),
            seen=state.taken(),
            window=runtime.window,
            claimant=self.claimant,
            wanted=flight.wanted,
            application=runtime.application,
            emit=runtime.emit,
        )
        try:
            extension = yield from self._origin.public(steps)
        except ForeignHash as error:
            runtime.identity.id = error.store  # the id of the store that answers now, in place of the old one
            raise
        state.owned = True  # `open` rejects the hash of any other store
        if extension.tag is not None:
            self._origin.use(extension.tag)
        if extension.outcome == "loaded":
            scheme = (extension.tag or record).scheme
            runtime.emit(SegmentLoaded(state.tag, extension.low, extension.high, extension.cur, scheme))
        return int(extension.outcome == "loaded"), extension.outcome in ("loaded", "ready")

    def _reserve_own(self, flight: Flight) -> Steps[bool]:
        state, runtime, origin = self._state, self._runtime, self._origin
        record = yield from origin.counted()
        if not state.counts:
            return False
        if record.order == "strict" and not runtime.redis:
            raise ConfigurationError(
                f"tag {state.tag!r} is strict and needs Redis, but no Redis is configured: set its URL",
                tag=state.tag,
            )
        buffer = state.buffer
        if buffer is None or not buffer.due:
            return False
        used = buffer.issued > 0
        state.rate = yield from origin.public(adapt(record, (lambda _: True) if used else None))
        n = size(record, flight.wanted, used=used)
        steps = direct.reserve(
            state.tag,
            seen=state.taken(),
            store_id=runtime.identity.id,
            n=n,
            application=runtime.application,
            emit=runtime.emit,
        )
        reserved = yield from origin.public(steps)
        try:
            origin.use(reserved.tag)
        except IssuerError:
            # The scheme is not available here. Without this return, each call would reserve another segment.
            yield from origin.give_back((reserved,), reserved.low)
            raise
        with origin.lock.thread, origin.lock.call():
            # The segment may come too late: the flight counts as lost by now, or the tag has become strict. Then the
            # segment is given back to the store.
            welcome = (
                origin.mode is Mode.DIRECT
                and state.ended is None
                and state.buffer is buffer
                and self.segments.flights.is_current(flight)
                and reserved.tag.order == "trend"
            )
            kept = welcome and buffer.add(reserved)
            if reserved.tag.order == "strict" and runtime.redis:
                origin.leave_direct()
        if not kept:
            yield from origin.give_back((reserved,), reserved.low)
        if welcome and not kept and reserved.low < buffer.highest:
            yield from origin.public(behind(state.tag, stands_at=reserved.low, taken=buffer.highest))
        return kept

    # ------------------------------------------------------------------ leases

    def begin(self, n: int) -> tuple[Flight, Buffer, int] | None:
        """Begin to refill the buffer from Redis, for callers that want n numbers.

        Returns the flight, the buffer, and the size of the lease, or 0 if the callers use up a whole lease. The caller
        draws the lease itself, with one call, and passes the reply to `landed`. For 0 it draws n numbers, and passes
        the reply to `Supply.passed`. None: it must use `obtain`.
        """
        state, origin, flights = self._state, self._origin, self.leases.flights
        buffer, least = state.buffer, origin.lease_size()
        if not least or buffer is None or origin.mode is Mode.DIRECT or not state.owned or flights.failures:
            return None
        flight, leads = flights.join(n)
        if not (leads or flight.ours) or not flight.start():  # it is ours if an interrupt ended the call that began it
            return None
        if state.record is None or not buffer.due:  # another caller has refilled it
            flights.finish(flight, progress=True)
            return None
        return flight, buffer, least if least > n else 0

    @property
    def begun(self) -> Flight | None:
        """The flight that this caller has begun. If it is not under way, an interrupt has ended its call."""
        flight = self.leases.flights.flight
        return flight if flight is not None and flight.ours else None

    def leave(self) -> None:
        """End the flight of this caller, which was interrupted. The other callers begin a flight of their own."""
        flight = self.begun
        if flight is not None:
            flight.finish(progress=False)

    def landed(self, flight: Flight, buffer: Buffer, drawn: tag_scripts.Leased) -> bool:
        """Put a lease that was just drawn into the buffer, and end the flight. False: `land` must do that.

        The reply is not the usual one: it has no numbers, or its hash is new.
        """
        if drawn.status != "ok" or drawn.born != self._origin.born:
            return False
        _, kept = self._kept(flight, buffer, self._granted(drawn, 0))
        if kept:
            self.leases.flights.finish(flight, progress=True)
        return kept

    def land(
        self, flight: Flight, buffer: Buffer, first: tag_scripts.Leased | Unavailable | None, deadline: Deadline
    ) -> Steps[int]:
        """Go on with a flight that `begin` returned. `first`: the reply or error of the draw. None: draw the lease."""
        fetch = partial(self._lease, buffer=buffer, first=first)
        return self.leases.fly(flight, deadline, in_person=True, fetch=fetch)

    def _lease(
        self,
        flight: Flight,
        deadline: Deadline,
        buffer: Buffer | None = None,
        first: tag_scripts.Leased | Unavailable | None = None,
    ) -> Steps[tuple[int, bool]]:
        """Return how many leases were drawn (0 or 1), and whether callers may retry now. For the rest see `land`."""
        state, origin = self._state, self._origin
        buffer, least = buffer or state.buffer, origin.lease_size()
        if buffer is None or (first is None and (origin.mode is Mode.DIRECT or not buffer.due)):
            return 0, True
        if first is None and not least:  # the tag's lease was set to 0
            origin.publish()
            return 0, True
        granted = 0
        for _ in range(ATTEMPTS):
            piece = yield from self._drawn_lease(least, min(flight.wanted, LEASE_MOST), deadline, first)
            first = None
            welcome, kept = self._kept(flight, buffer, piece)
            if kept:
                self._runtime.attend()
                return 1, True
            if not welcome or piece.low >= buffer.issued:
                yield from origin.give_back((piece,), piece.low)
                return 0, True
            granted = piece.low + 1
            # Higher numbers were issued before the lease came, or Redis went back in time. The lease is a gap.
            self._runtime.emit(NumbersWasted(state.tag, piece.high - piece.low))
        raise CorruptState(
            f"Redis key {state.key} went back in time: it returned {granted}, which is below {buffer.issued}, a number "
            "that this process has issued",
            tag=state.tag,
            advice="corrupt_state.recover",
        )

    def _kept(self, flight: Flight, buffer: Buffer, piece: Lease) -> tuple[bool, bool]:
        """Put the lease into the buffer. Returns whether the tag still wants it, and whether it was put there."""
        state, origin = self._state, self._origin
        with origin.lock.thread, origin.lock.call():
            welcome = (
                state.ended is None
                and origin.lease_size() > 0
                and state.buffer is buffer
                and self.leases.flights.is_current(flight)
            )
            kept = welcome and buffer.add(piece)
            origin.born = piece.born if kept else origin.born
        if kept:
            origin.leased()
            self._runtime.emit(LeaseDrawn(state.tag, piece.low, piece.high))
        return welcome, kept

    def _granted(self, drawn: tag_scripts.Leased, wanted: int) -> Lease:
        """Return the lease of a reply. If it elects this process, load the next segment."""
        if self._shortage.loss:
            self._shortage.loss_over(drawn.low)
        if drawn.extend:
            self.elected(wanted - (drawn.high - drawn.low))
        return Lease(drawn.low, drawn.high, drawn.fence, drawn.born, drawn.backs)

    def _drawn_lease(
        self, least: int, wanted: int, deadline: Deadline, first: tag_scripts.Leased | Unavailable | None
    ) -> Steps[Lease]:
        """Draw a lease of `least` numbers, or of `wanted` numbers if a caller wants more. `first`: see `land`."""
        n, state, origin = max(least, wanted), self._state, self._origin
        while True:
            if isinstance(first, Unavailable):
                raise first
            drawn, first = first, None
            if drawn is None:
                yield from origin.refuse_foreign(probe=False)
                call = tag_scripts.lease(state.key, n, self.window, state.scheme_id, self.claimant)
                drawn = yield from send(call, probe=False)
            if drawn.status == "ok":
                break
            if drawn.status in ("notmaster", "corrupt"):
                raise refused(drawn, state.tag, state.key)
            if drawn.status == "scheme":
                yield from origin.read()
            self._shortage.none_drawn(drawn.status)
            yield from self.segments.wait_for(deadline, wanted)
        granted = self._granted(drawn, wanted)
        if drawn.born != origin.born:
            # The hash is new: the tag may have been deleted and created again, as strict, and then has no leases. So
            # read its record. If the store does not answer, draw no more leases until the record is read.
            try:
                yield from origin.read()
            except Unavailable:
                origin.forget_record()
        return granted

    def check(self, buffer: Buffer, *, probe: bool) -> Steps[None]:
        """Drop the leases if the tag's hash was replaced since they were drawn. For `probe` see `Supply`."""
        leases, _ = lease.parted(buffer.held)
        if not leases:
            return
        try:
            store_id = yield from self._origin.identity()
            state = self._state
            steps = lease.moved(state.tag, state.key, leases, store_id, scheme=state.scheme_id, probe=probe)
            gone = yield from self._origin.public(steps)
        except FenceError:
            gone = True
        except Unavailable as error:
            self._runtime.emit(Failed(self._state.tag, "check", error))
            return
        if gone:
            wasted = unused(*buffer.empty())
            self._runtime.emit(LeaseDropped(self._state.tag))
            if wasted:
                self._runtime.emit(NumbersWasted(self._state.tag, wasted))
