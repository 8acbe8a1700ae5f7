"""The mode of a tag in this process: its numbers are drawn from Redis, leased from it, or reserved in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from math import inf
from typing import TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core.events import NotGivenBack, NumbersWasted, WentDirect
from issuer.core.record import ASK_AGAIN, PATIENCE, PATIENCE_ALONE, check_owner, identity, read_record
from issuer.core.scheme_record import (
    PARTS,
    SEGMENT,
    countable,
    last_value,
    strategy,
    turn,
    without_raising,
)
from issuer.core.steps import Steps, kept, public, send
from issuer.core.supply import direct, lease
from issuer.core.supply.extend import behind
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import LocalBuffer, stream_lease, unused
from issuer.core.supply.pace import KEPT, Pace, auto_lease
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.source import TagSource
from issuer.core.supply.state import WARN_AT, TagState
from issuer.errors import CorruptState, ForeignHash, InvalidArgument, IssuerError, LimitReached, Unavailable, UnknownTag
from issuer.forks import under_way
from issuer.gateway import tag_scripts
from issuer.reentry import CallLock
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import Tag

T = TypeVar("T")


class Mode(Enum):
    """The source of a tag's numbers in this process: Redis, or a local buffer with leases or with own segments."""

    REDIS = "redis"
    LEASED = "leased"
    DIRECT = "direct"


class Origin:
    """Controls a tag's mode in this process, and its local buffer. Checks which store the tag's hash belongs to.

    When the tag's record is read again from the store, the mode may change, for example because the order or the lease
    was changed. If the tag is gone, or the hash belongs to another store, the buffer is emptied.
    """

    def __init__(self, state: TagState, runtime: Runtime) -> None:
        self.mode = Mode.REDIS if runtime.redis else Mode.DIRECT
        #: Held while the mode changes, or while a range is added to the local buffer.
        self.lock = CallLock()
        #: The random id of the hash (its field `born`) when the record was last read for a lease. If a later lease
        #: comes from a hash with another id, the record is read again.
        self.born = ""
        #: A stream draws leases even if no setting has their size. `_stream_least`: their minimum size. `stream_lease`:
        #: their current size. Both are 0 without such a stream.
        self._stream_least = 0
        self.stream_lease = 0
        #: Size of leases that this process adapts to its rate of use. 0: too few numbers are used for leases.
        self.auto = 0
        self._pace = Pace()
        #: When the last lease was drawn, on the monotonic clock, and how many seconds the one before it lasted.
        self._leased_at = 0.0
        self.lasted = inf
        self._draws: Iterator[int] | None = None
        self.tag = state.tag
        self._state = state
        self._runtime = runtime
        self._settle()

    # ------------------------------------------------------------------ the fast path

    def publish(self, draws: Iterator[int] | None = None) -> None:
        """Let `next` take numbers from this iterator, which draws each from Redis. None: the one of an earlier call."""
        with self.lock.thread, self.lock.call():
            self._draws = self._draws if draws is None else draws
            self._settle()

    def _settle(self) -> None:
        """Create or drop the local buffer to match the mode: only leases and direct mode need one."""
        state, runtime = self._state, self._runtime
        if state.ended is not None:
            return
        if state.elsewhere:
            self._yield_to_server()
        elif state.source is not None:
            state.buffer = None
            self._publish(state.source.ready)
        elif self.mode is Mode.DIRECT or self.lease_size():
            # Leases must be checked every second. Without a scheduler only callers check them: publish no numbers, as
            # callers would take them without a check.
            fast_path = runtime.fast_path if runtime.scheduled or not runtime.redis else None
            state.buffer = state.buffer or LocalBuffer(state.tag, fast_path)
            state.buffer.refill_at = state.refill_at
            self.mode = self.mode if self.mode is Mode.DIRECT else Mode.LEASED
            if state.scheme is not None:
                state.buffer.stop_publishing()
            if self._draws is not None:
                runtime.fast_path.unpublish(state.tag, self._draws)
        elif state.buffer is None or not state.buffer.held:
            if state.buffer is not None:
                state.seen = max(state.seen, state.buffer.issued)
                state.numbers += state.buffer.count
            state.buffer, self.mode = None, Mode.REDIS
            if state.scheme is not None:
                runtime.fast_path.unpublish(state.tag)
            else:
                self._publish(self._draws)

    def _yield_to_server(self) -> None:
        """Drop the numbers in memory: the tag has got a scheme, and the server draws its numbers from now on."""
        buffer, self._state.buffer = self._state.buffer, None
        if buffer is not None:
            wasted = unused(*buffer.empty())
            self._state.numbers += buffer.count
            if wasted:
                self._runtime.emit(NumbersWasted(self.tag, wasted))
        self._runtime.fast_path.unpublish(self.tag)

    def _publish(self, numbers: Iterator[int] | None) -> None:
        state, fast_path = self._state, self._runtime.fast_path
        if numbers is not None and not under_way():
            fast_path.publish(state.tag, numbers)
            if state.ended is not None:  # `close` may have run since the last check
                fast_path.unpublish(state.tag)

    def lease_size(self) -> int:
        """Return how many numbers to draw in advance: the size of a lease. 0: no leases."""
        record = self._state.record
        if record is None or record.order == "strict" or not countable(record.scheme):
            return 0
        if record.lease_mode == "auto" and self._runtime.settings.sources["lease"] == "default":
            return max(self.auto, self.stream_lease)
        return record.lease if record.lease is not None else self._runtime.settings.lease or self.stream_lease

    def pace(self, cur: int) -> Steps[None]:
        """Adapt leases to the rate of use. If it has fallen, return the unused numbers.

        Each sweep calls this. `cur`: last number that Redis has issued, 0 if unknown.
        """
        state, record = self._state, self._state.record
        rate = self._pace.rate(state.issued - state.bulk)
        if record is None or record.lease_mode != "auto" or self.mode is Mode.DIRECT:
            size = 0
        else:
            used, last = state.used(record, cur)
            size = 0 if used * 100 >= last * WARN_AT else auto_lease(rate, record.segment)
        before, self.auto = self.auto, size
        if bool(before) != bool(size):
            self.publish()
        buffer = state.buffer if before and self.mode is Mode.LEASED else None
        if buffer is not None and buffer.left > KEPT * size:
            yield from self.give_back(*buffer.empty())
            self.publish()

    def lease_for_stream(self, n: int) -> Steps[None]:
        """Draw n numbers in advance from now on, if neither the trend tag nor the issuer sets the size of leases.

        The size grows while leases are used up quickly, up to a fifth of a segment.
        """
        if self._stream_least != n:
            if self._state.record is None:
                yield from self.read()
            with self.lock.thread, self.lock.call():
                self.stream_lease = self._stream_least = n
                self._settle()

    def leased(self) -> None:
        """Record that a lease was drawn. The time since the last one determines the size of a stream's next lease."""
        now, record = monotonic(), self._state.record
        self.lasted, self._leased_at = now - self._leased_at, now
        if self._stream_least and record is not None:
            least = self._stream_least
            self.stream_lease = stream_lease(self.stream_lease, self.lasted, least=least, segment=record.segment)

    # ------------------------------------------------------------------ the record

    def use(self, record: Tag) -> None:
        """Use this record from now on. Raises ConfigurationError if its scheme is not available here."""
        state, elsewhere = self._state, self._runtime.elsewhere(record)
        counts = strategy(record.scheme) == SEGMENT and not elsewhere
        scheme = self._runtime.scheme(record) if record.scheme_id and counts else None  # first, as it may raise
        with self.lock.thread, self.lock.call():
            if turn(record.scheme_id) < turn(state.scheme_id):
                # This record is outdated and arrived late. Its scheme would convert newer counters to numbers that were
                # already issued (seen: 2 repeats in 533 numbers).
                return
            near = state.use(record, scheme, elsewhere=elsewhere)
            self._settle()
        if near is not None:
            self._runtime.emit(near)

    def forget_record(self) -> None:
        """Draw no lease until the record has been read again."""
        with self.lock.thread, self.lock.call():
            self._state.record = None
            self._settle()

    def read(self, *, make: bool = True, within: float = inf, found: Steps[Tag] | None = None) -> Steps[Tag]:
        """Read the tag's record. Create the tag if `make` and the settings allow it. Raises UnknownTag.

        `within`: the longest duration of each call of the store, in seconds. `found`: steps that return the record.
        """
        runtime, state = self._runtime, self._state
        if not runtime.identity.id:
            yield from self.identity(within)
        try:
            found = found or read_record(state.tag, make=make and runtime.makes, within=within)
            record = yield from self.public(found)
            self.use(record)
        except UnknownTag:
            if self._runtime.redis:
                with suppress(Unavailable):  # if the hash belongs to another store, raise ForeignHash instead
                    yield from self.look(probe=False)
            raise
        return record

    def try_to_read(self, deadline: Deadline, within: float = inf) -> Steps[bool]:
        """Read the record if the store answers, and return whether it did.

        `within`: the longest duration of each call of the store, in seconds.
        """
        if deadline.left() <= 0:
            return False
        with suppress(Unavailable):
            yield from self.read(within=within)
            return True
        return False

    def counted(self) -> Steps[Tag]:
        """Return the tag's record, read if necessary. Raises InvalidArgument if only the tag's parts issue numbers."""
        tag, record = self._state.tag, self._state.record or (yield from self.read())
        for setting, key in PARTS.items():
            if record.scheme.get(setting):
                problem = f"is required: tag {tag!r} has shards or is keyed"
                raise InvalidArgument(problem, tag=tag, argument=key)
        return record

    def public(self, steps: Steps[T]) -> Steps[T]:
        """Run the steps, and convert errors to public ones. UnknownTag and ForeignHash also empty the buffer."""
        state = self._state
        try:
            return (yield from public(steps, state.tag))
        except LimitReached as error:
            if state.record is None:
                raise
            scheme, limit, value = state.record.scheme, error.limit, error.value
            if "stride" in scheme:
                # The store reports counters. Report the limit and the number as users see them.
                limit, value = last_value(scheme, state.record.limit), state.value(value)
            advice = without_raising(scheme, limit)
            raise LimitReached(state.tag, limit=limit, value=value, advice=advice) from error.__cause__
        except (UnknownTag, ForeignHash) as error:
            self._drop(error)
            raise

    def _drop(self, why: UnknownTag | ForeignHash) -> None:
        """Drop the buffered numbers of a tag that is deleted or has a foreign hash: nothing else drops them later."""
        state = self._state
        with self.lock.thread, self.lock.call():
            if isinstance(why, ForeignHash):
                state.owned = False
            else:
                state.record = None
            if state.buffer is not None:
                state.buffer.empty()
            self._settle()

    # ------------------------------------------------------------------ owner of the hash

    def identity(self, within: float = inf) -> Steps[str]:
        """Return the store's id, waiting for it at most `within` seconds. "" if the store is empty."""
        store = self._runtime.identity
        if not store.id:
            store.id = yield from self.public(identity(within))
            store.empty = not store.id
        return store.id

    def identity_soon(self) -> Steps[str]:
        """Return the store's id. "" if it is unknown and the store does not answer soon."""
        store = self._runtime.identity
        began = monotonic()
        if not store.id and began - store.missed_at > ASK_AGAIN:
            patience = PATIENCE if self._runtime.scheduled else PATIENCE_ALONE
            try:
                yield from self.identity(patience)
            except Unavailable:
                if monotonic() - began > patience / 2:  # the store had time to answer, so do not wait for it again soon
                    store.missed_at, store.empty = monotonic(), False
        return store.id

    def refuse_foreign(self, *, probe: bool) -> Steps[None]:
        """Before a draw: raise ForeignHash if the tag's hash belongs to another store.

        `probe`: whether the call may test a Redis that did not answer earlier calls (see Send in core/steps.py).

        If the hash is known to belong to this store, this does nothing: the sweep in the background checks it again. If
        the store does not return its id soon, the check is left to the sweep: Redis may have numbers, even if the store
        hangs.
        """
        if self._state.owned:
            return
        if (yield from self.identity_soon()) or self._runtime.identity.empty:
            yield from self.look(probe=probe)
        self._runtime.attend()

    def look(self, *, probe: bool = True) -> Steps[tag_scripts.Hash]:
        """Read and return the tag's hash. Raises ForeignHash if the hash is known to belong to another store."""
        hash = yield from send(tag_scripts.read_hash(self._state.key), probe=probe)
        yield from self.looked(hash)
        return hash

    def looked(self, hash: tag_scripts.Hash) -> Steps[None]:
        """Remember the tag's hash, which was just read. Raises ForeignHash if it surely belongs to another store."""
        state, store = self._state, self._runtime.identity
        state.hash, state.looked_at = hash, monotonic()
        if store.empty:  # another process may have written to the store and created the hash since
            yield from self.identity()
        if store.id or store.empty:
            try:
                state.owned = check_owner(state.tag, state.key, hash, store.id)
            except ForeignHash as error:
                self._drop(error)
                raise

    def refuse_backwards(self, low: int, before: int) -> Steps[None]:
        """Reject a draw: it returned numbers from low + 1 on, but `before` was already seen. Raises an error.

        The error is ForeignHash if the hash belongs to another store, otherwise CorruptState.
        """
        state = self._state
        state.owned = False
        yield from self.refuse_foreign(probe=True)
        raise CorruptState(
            f"Redis key {state.key} went back in time: after {before} it returned numbers from {low + 1}, so an "
            "older hash has replaced it",
            tag=state.tag,
            advice="corrupt_state.older_hash",
        )

    def above_seen(self, draw: Steps[T], numbers: Callable[[T], Sequence[int]], *, old: bool = False) -> Steps[T]:
        """Run a draw at the server of this client. Raise StoreBehind if its numbers are not above all earlier ones.

        The store and Redis of the server may have been restored from a backup. Only numbers that must increase are
        checked, see `TagState.climbs`.

        Args:
            draw: The steps of the draw.
            numbers: Returns the numbers in the result of the draw.
            old: Whether the numbers may be those of an earlier call.
        """
        state, before = self._state, self._state.seen
        drawn = yield from draw
        found = numbers(drawn) if state.climbs else ()
        if not old and any(low >= high for low, high in pairwise((before, *found))):
            yield from self.read()  # the tag may have another order or scheme now
            if state.climbs:
                yield from self.public(behind(self.tag, stands_at=min(found) - 1, taken=before))
                problem = (
                    f"tag {self.tag!r}: after {before} the server issued {min(found)}, so its Redis went back in time"
                )
                raise CorruptState(problem, tag=self.tag, advice="corrupt_state.recover")
        if state.climbs:
            state.seen = max((state.seen, *found))
        return drawn

    # ------------------------------------------------------------------ direct mode, and the return to Redis

    def go_direct(self, deadline: Deadline) -> Steps[bool]:
        """Redis is down: serve a trend tag from segments of this process. Returns True if this is possible.

        It is not possible if the tag is strict, or if its record is unknown and the store does not answer. A tag
        without a counter needs no such segments.
        """
        if self._state.record is None and not (yield from self.try_to_read(deadline)):
            return False
        if not self._state.counts:
            return True
        if (yield from self.counted()).order == "strict":
            return False
        with self.lock.thread, self.lock.call():
            went = self.mode is not Mode.DIRECT
            if went:
                self.mode = Mode.DIRECT
                self._settle()
        if went:
            self._runtime.emit(WentDirect(self._state.tag))
        return True

    def source(self) -> Steps[TagSource]:
        """Return the source of a tag that has no counter. Raises ConfigurationError, StrategyFailed."""
        state = self._state
        record = state.record or (yield from self.read())
        if state.source is not None and state.ended is None:
            return state.source
        made = self._runtime.source()  # before the lock: who imports may wait for a call that waits for the lock
        with self.lock.thread, self.lock.call():
            state.refuse_if_ended()  # with the lock: a source that is made after the end would never be closed
            if state.source is None:
                state.source = made(record)
                self._settle()
            return state.source

    def leave_direct(self) -> None:
        """End direct mode: draw from Redis again after the buffer is used up. The caller must hold `lock`."""
        self.mode = Mode.LEASED
        self._settle()

    # ------------------------------------------------------------------ giving back

    def retire(self, why: IssuerError) -> tuple[tuple[Lease | Reservation, ...], int]:
        """Issue no more numbers: drop the published ones. From now on callers get the error `why`.

        Numbers that arrive later are returned.

        Returns the ranges of the buffer, oldest first, and the last number that was issued from the first of them.
        """
        with self.lock.thread, self.lock.call():
            self._state.ended = kept(why)
            buffer, self._state.buffer = self._state.buffer, None
        if buffer is None:
            return (), 0
        held = buffer.empty()
        self._state.numbers += buffer.count
        return held

    def give_back(self, held: Sequence[Lease | Reservation], used: int) -> Steps[None]:
        """Return the numbers above `used`: leases to Redis, segments to the store."""
        if not held:
            return
        leases, reservations = lease.parted(held)
        wasted = unused(held, used)
        try:
            # Return the highest numbers first: store and Redis take numbers back only from the end.
            if reservations:
                wasted -= yield from self.public(direct.hand_back(reservations, used))
            if leases:
                wasted -= yield from lease.give_back(self._state.key, leases, used)
        except IssuerError as error:
            self._runtime.emit(NotGivenBack(self._state.tag, used, error))
        if wasted:
            self._runtime.emit(NumbersWasted(self._state.tag, wasted))
