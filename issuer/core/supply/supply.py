"""A draw's cold half, for threads and tasks alike: all that isn't one round trip to Redis, or a number out of hand."""

from __future__ import annotations

from contextlib import suppress

from issuer import gateway
from issuer.clock import Deadline, monotonic, pause
from issuer.core.error_mapping import refused
from issuer.core.events import Failed, LeaseDropped, Rejoined
from issuer.core.recovery import floor
from issuer.core.requests import check_reserving
from issuer.core.scheme_record import turn
from issuer.core.steps import Steps, send, sleep, wait
from issuer.core.supply import direct, lease
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import LocalBuffer, Place
from issuer.core.supply.peek import upcoming
from issuer.core.supply.refill import Refill
from issuer.core.supply.source import Runtime
from issuer.errors import (
    ConfigurationError,
    FenceError,
    InvalidArgument,
    IssuerError,
    RedisUnavailable,
    StoreBehind,
    Unavailable,
)
from issuer.persistence.records import Reservation

#: When the last check of the leases against the hash is this many seconds old, the caller checks them before more of
#: them is served, and waits for it. Where a scheduler sweeps every second, the caller checks only if that is a second
#: late.
CHECK_AFTER = 1.0
CHECK_LATE = 2.0

#: How long the first caller of a tag that may be leased waits for its record, while Redis may have numbers.
HURRY = 0.05

#: The record is read again after this many seconds, so that a change of `lease` reaches processes that reserve nothing.
LEARN_AFTER = 60.0


class Supply(Refill):
    """Hands out a tag's numbers where one round trip won't do, and looks after what the process holds of it."""

    def __init__(self, tag: str, key: str, runtime: Runtime) -> None:
        """`key` is the tag's hash in Redis."""
        super().__init__(tag, key, runtime)
        self._checked_at = 0.0
        self._unknown_until = 0.0
        self._swept_at = -1
        self._left: tuple[tuple[Lease | Reservation, ...], int] = ((), 0)

    # ------------------------------------------------------------------ drawing

    def obtain(self, n: int, deadline: Deadline, first: gateway.Drawn | Unavailable | None = None) -> Steps[range]:
        """Draw up to n numbers, at least one, waiting until the deadline.

        `first`: what a draw of n from Redis has brought already.
        """
        self.used_at = monotonic()
        self.waiting.add(deadline)
        try:
            if (
                self._record is None
                and self._runtime.lease
                and self._runtime.redis
                and monotonic() > self._unknown_until
            ):
                # In a hurry: Redis may hold numbers, and they don't wait for a store that hangs.
                known = yield from self._identity_soon()
                learnt = known and (yield from self._try_to_learn(deadline, within=HURRY))
                if not learnt:
                    self._unknown_until = monotonic() + CHECK_AFTER
                    self._runtime.attend()  # a sweep has more time for it
            numbers = yield from self._obtained(n, deadline, first)
        finally:
            self.waiting.discard(deadline)
        if self._lacking_since is not None:
            self.supplied()
        return numbers

    def _obtained(self, n: int, deadline: Deadline, first: gateway.Drawn | Unavailable | None) -> Steps[range]:
        while True:
            self._refuse_if_ended()
            hand = self.hand
            if hand is None or isinstance(first, gateway.Drawn):
                drawn = yield from self._from_redis(n, deadline, first)
                first = None
                if drawn is not None:
                    return drawn
                if self.hand is None:
                    yield from self.await_segment(deadline, n)
                continue
            numbers = yield from self._from_buffer(hand, n, deadline)
            if numbers is not None:
                return numbers

    def _from_buffer(self, hand: LocalBuffer[Lease | Reservation], n: int, deadline: Deadline) -> Steps[range | None]:
        """Draw from the local buffer, waiting in its row for a piece; None: the process has another one by now."""
        place, taken = None, None
        try:
            while taken is None and self.hand is hand:
                self._refuse_if_ended()
                if not self._direct and monotonic() - self._checked_at > (
                    CHECK_LATE if self._runtime.scheduled else CHECK_AFTER
                ):
                    yield from self._check(hand, probe=False)
                taken = hand.take(n, place)
                if taken is None and place is None:
                    place = Place(n)
                elif taken is None and place is not None:
                    yield from self.await_segment(deadline, n) if self._direct else self.await_lease(deadline, n)
                    # Also if the issuer was closed meanwhile, or Redis came back: what was put aside counts as issued.
                    taken = place.taken
        except IssuerError:
            taken = None if place is None else place.taken
            if taken is None:
                raise
        finally:
            if place is not None:
                hand.leave(place)
        if taken is None:
            return None
        if self.hand is hand and hand.due:
            self.warn_if_near(taken[1])
            self.prefetch(n - (taken[1] - taken[0]))
        return range(taken[0] + 1, taken[1] + 1)

    def _from_redis(self, n: int, deadline: Deadline, first: gateway.Drawn | Unavailable | None) -> Steps[range | None]:
        attempt, drawn_as = 0, None
        while self.hand is None or isinstance(first, gateway.Drawn):
            self._refuse_if_ended()
            try:
                if isinstance(first, Unavailable):
                    raise first
                if first is None or first.status == "notmaster":  # perhaps another server is, meanwhile
                    # Trend tags can serve direct, so their first try never acts as the breaker's probe.
                    probe = attempt > 0 or (self._record is not None and self._record.order == "strict")
                    yield from self.refuse_foreign(probe=probe)
                    drawn_as, before = self.scheme_id, self.seen
                    first = yield from send(gateway.draw(self.key, n, self.window, drawn_as), probe=probe)
                    if first.status == "ok":
                        yield from self.refuse_backwards(first.low, before)
                drawn = first
                self._note_redis(None)
            except RedisUnavailable as error:
                first = None
                self._note_redis(error)
                if not (yield from self._go_direct(deadline)):
                    self._note_lack(error, monotonic())
                    # A strict tag waits for Redis: a failover takes 2-3 s.
                    yield from sleep(min(pause(attempt), deadline.left()))
                    attempt += 1
                    if deadline.left() <= 0:
                        late = RedisUnavailable(str(error), tag=self.tag, retry_after=error.retry_after)
                        raise late from error
                continue
            if drawn.status == "scheme":
                # Changed, or not known here yet. Only if the store says what was said is it the hash that lags behind.
                yield from self.learn()
                if self.scheme_id != drawn_as:
                    first = None
                    continue
            return self._unless_in_hand(drawn, n)
        return None

    def _unless_in_hand(self, drawn: gateway.Drawn, n: int) -> range | None:
        """Return what a draw of n brought, None if that is a gap: by now there are numbers in hand.

        They may have been drawn before it, and the next caller would get lower ones than this one.
        """
        numbers, hand = self.accept(drawn, n), self.hand
        if numbers is None or hand is None or hand.pass_by(drawn.low, drawn.high):
            return numbers
        return None

    def once(self, kept: str, ttl: float, deadline: Deadline) -> Steps[int]:
        """Draw one number for a caller's key, the same whenever the key comes again within `ttl` seconds.

        `kept`: the Redis key of the caller's. Where numbers are drawn ahead, this one is drawn from Redis all the same:
        only there every process can see what the key has had.
        """
        if not self._runtime.redis:
            way_out = "name Redis, or leave the key out"
            problem = f"tag {self.tag!r}: the number of a key is kept in Redis, and none is set: {way_out}"
            raise ConfigurationError(problem, tag=self.tag)
        self.used_at = monotonic()
        self.waiting.add(deadline)
        attempt = 0
        try:
            while True:
                self._refuse_if_ended()
                try:
                    number = yield from self._once(kept, ttl, deadline)
                except RedisUnavailable as error:
                    if deadline.left() <= 0:
                        raise RedisUnavailable(str(error), tag=self.tag, retry_after=error.retry_after) from error
                else:
                    if number is not None:
                        self.supplied()
                        return number
                    if not self._direct:
                        continue
                # Redis is away, or back, but no segment comes to it before this process has rejoined it.
                yield from sleep(min(pause(attempt), deadline.left()))
                attempt += 1
        finally:
            self.waiting.discard(deadline)

    def _once(self, kept: str, ttl: float, deadline: Deadline) -> Steps[int | None]:
        """Draw for the key; None: now it makes sense to ask again."""
        yield from self.refuse_foreign(probe=True)
        drawn_as, before = self.scheme_id, self.seen
        seen = before if self.strict else 0
        call = gateway.once(self.key, kept, self.window, scheme=drawn_as, ttl=ttl, seen=seen)
        drawn = yield from send(call)
        if turn(drawn.scheme) > turn(self.scheme_id):
            # Drawn by a process that knows a later scheme: with ours it would have the value of another number.
            record = yield from self.learn()
            if turn(drawn.scheme) > turn(self.scheme_id):
                raise StoreBehind(self.tag, max=record.max, scheme=drawn.scheme)
        if drawn.status == "older":
            yield from self.refuse_backwards(drawn.number, before)
        if drawn.status in ("again", "ok"):
            self.seen = max(self.seen, drawn.number)
            if drawn.extend:
                self.elected()
            return drawn.number
        if drawn.status in ("notmaster", "corrupt"):
            raise refused(drawn, self.tag, self.key)
        if drawn.status == "scheme":
            yield from self.learn()
            if self.scheme_id != drawn_as:
                return None
        if self._direct:
            yield from self.rejoin()
        yield from self.await_segment(deadline)
        return None

    def upcoming(self) -> Steps[int]:
        """Return the counter that the next draw will bring, if no other caller draws before. Consumes nothing."""
        hand = self.hand
        held = None if hand is None else hand.upcoming
        if held is not None:
            return held
        record = yield from self.counted()
        if self._runtime.redis:
            yield from self.refuse_foreign(probe=True)
        return (yield from self._public(upcoming(record, self.key if self._runtime.redis else None)))

    def reserve(self, n: int) -> Steps[range]:
        """Reserve exactly n numbers of a trend tag in the store for the caller alone, past both buffers."""
        check_reserving(self._record or (yield from self.learn()), n)
        reserved = yield from self._public(
            direct.reserve(
                self.tag,
                seen=self.taken(),
                n=n,
                exact=True,
                reason="reserve",
                application=self._runtime.application,
                emit=self._runtime.emit,
            )
        )
        try:
            check_reserving(reserved.tag, n)
        except InvalidArgument:
            # Changed since the record was read: these counters are no numbers that users may see.
            yield from self._give_back((reserved,), reserved.low)
            raise
        self._reserved = max(self._reserved, reserved.high)
        return range(reserved.low + 1, reserved.high + 1)

    def warm(self, deadline: Deadline) -> Steps[None]:
        """Return when there are numbers to draw."""
        if self._record is None:
            yield from self.learn()
        if self._has_numbers():
            return
        while not (yield from self.await_segment(deadline)):
            if self._has_numbers():
                return

    def _has_numbers(self) -> bool:
        return self._direct and self.hand is not None and not self.hand.due

    def _check(self, hand: LocalBuffer[Lease | Reservation], *, probe: bool = True) -> Steps[None]:
        """Drop the leases if the hash has moved since they were drawn.

        What can't be checked is served all the same: its numbers are this process's alone.
        """
        self._checked_at = monotonic()
        leases, _ = lease.parted(hand.held)
        if not leases:
            return
        try:
            store_id = yield from self._identity()
            steps = lease.moved(self.tag, self.key, leases, store_id, scheme=self.scheme_id, probe=probe)
            gone = yield from self._public(steps)
        except FenceError:
            gone = True
        except Unavailable as error:
            self._runtime.emit(Failed(self.tag, "check", error))
            return
        if gone:
            hand.empty()
            self._runtime.emit(LeaseDropped(self.tag))

    # ------------------------------------------------------------------ what the scheduler does

    def sweep(self) -> Steps[None]:
        """Look after the tag: its leases, the way back to Redis, and what is due in the background.

        Of the store it asks nothing that Redis alone could tell: the store may be away.
        """
        if self._direct and self._runtime.redis:
            yield from self.rejoin()
        elif self._runtime.redis and self.hand is not None:
            yield from self._sweep_leases(self.hand)
        if (yield from self._due()):
            self.prefetch_segment()

    def refresh(self) -> Steps[None]:
        """Read the tag's record, if that was long ago, and the store's id, if it isn't known."""
        if self.stale:
            yield from self.learn()

    @property
    def stale(self) -> bool:
        """Whether the tag's record should be read, or the store asked for its id."""
        return self._record is None or not self._runtime.identity.known or monotonic() - self._learnt_at > LEARN_AFTER

    def _sweep_leases(self, hand: LocalBuffer[Lease | Reservation]) -> Steps[None]:
        """Check the leases of a tag in use; those of a quiet one when it is used again."""
        issued = hand.issued
        if issued == self._swept_at:
            hand.shut()
        else:
            self.used_at = monotonic()
            yield from self._check(hand)
        self._swept_at = issued

    def rejoin(self) -> Steps[None]:
        """Redis is back: skip there what was issued here, draw from Redis again, and give back what is left."""
        hand = self.hand
        if not self._direct or not self._runtime.redis or hand is None:
            return
        flight, leads = self._segments.enter()
        mine = leads and flight.claim()
        if not mine and hand.held:
            return
        # If it isn't mine, another caller asks the store for a segment, and has nothing to serve meanwhile. Should it
        # come after all, Redis being back, it is given back.
        left: tuple[tuple[Lease | Reservation, ...], int] = (), 0
        refusal: IssuerError | None = None
        rejoined = False
        try:
            store_id = yield from self._identity()
            # Redis must take a write before anything is given up for it: out of memory, or short of replicas, it still
            # answers reads.
            yield from self._public(floor(self.tag, self.key, hand.issued, "keep", store_id))
            left = hand.empty()
            issued = hand.issued
            yield from self._public(floor(self.tag, self.key, issued, "keep", store_id))
            with self._mode_lock:
                current = self._segments.is_current(flight) or not mine
                if current and not hand.held and hand.issued == issued:
                    self.seen = max(self.seen, issued)
                    self._direct = False
                    self._settle()
                    rejoined = True
            if rejoined:
                self._note_redis(None)
                self._runtime.emit(Rejoined(self.tag, issued))
        except RedisUnavailable as error:
            self._runtime.emit(Failed(self.tag, "rejoin", error))
        except IssuerError as error:  # its hash is corrupt or another store's by now, or the store is away
            refusal = error
        finally:
            if mine or not self._direct:
                self._segments.land(flight, progress=True)
        # Last: callers that draw from Redis by now don't wait for a store that may be away.
        yield from self._give_back(*left)
        if refusal is not None:
            raise refusal

    # ------------------------------------------------------------------ the end

    @property
    def disposable(self) -> bool:
        """Whether nothing is lost with it: the tag was never seen, no caller waits, no flight may bring it numbers."""
        busy = self.waiting or self._segments.flight or self._leases.flight
        return self._record is None and not busy and (self.hand is None or not self.hand.held)

    @property
    def idle(self) -> bool:
        """Whether this process holds nothing of the tag, and no caller waits for any: all its numbers are in Redis."""
        busy = self.waiting or self._segments.flight or self._leases.flight or self._election.mine
        return not busy and self.hand is None

    def end(self) -> None:
        """Serve nothing from now on; `close` gives back what is held now.

        At once, not when the flights have ended: meanwhile another thread may fork, and parent and child would both go
        on with a stream of what lies open (seen).
        """
        if self.ended is None:
            self._left = self.retire(self.closed_error())

    def close(self, deadline: Deadline) -> Steps[None]:
        """End the flights under way, which give back what they bring, then give back what this process held."""
        self.end()
        for board in (self._segments, self._leases):
            flight = board.flight
            if flight is None:
                continue
            if flight.claim():
                # Its job has not begun, and finds nothing to do now.
                flight.land(progress=False)
            else:
                yield from wait(flight, deadline.left())
        if self._election.mine and deadline.left() > 0:
            # Won by a draw, and its flight was cancelled or never began. Left alone it would stand for the window, and
            # the next caller that runs out of numbers would wait for it.
            with suppress(IssuerError):
                yield from self.fetch()
        held, used = self._left
        yield from self._give_back(held, used)
