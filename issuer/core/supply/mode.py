"""The mode of a tag in a process: its numbers are drawn from Redis, leased there, or reserved in the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core import arithmetic
from issuer.core.events import NotGivenBack, WentDirect
from issuer.core.floor import identity
from issuer.core.record import read_record
from issuer.core.scheme_record import (
    PARTS,
    SEGMENT,
    OtherStrategyError,
    countable,
    last_value,
    strategy,
    turn,
    without_raising,
)
from issuer.core.steps import Steps, hurried, public, send
from issuer.core.supply import direct, lease, ownership
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import LocalBuffer
from issuer.core.supply.ownership import PATIENCE, PATIENCE_ALONE
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import TagState
from issuer.errors import CorruptState, ForeignHash, InvalidArgument, IssuerError, LimitReached, Unavailable, UnknownTag
from issuer.forks import under_way
from issuer.reentry import CallLock
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import Tag

T = TypeVar("T")


class Mode(Enum):
    """The origin of a tag's numbers: Redis in each draw; leases of it, or segments of our own, in the local buffer."""

    REDIS = "redis"
    LEASED = "leased"
    DIRECT = "direct"


class Origin:
    """A tag's mode in this process, and what goes with it: the local buffer, the open numbers, whose hash it is.

    A record that is read may change the mode. A tag that is gone, or a hash of another store, drops what is held.
    """

    def __init__(self, state: TagState, runtime: Runtime) -> None:
        self.mode = Mode.REDIS if runtime.redis else Mode.DIRECT
        #: Held while the mode changes, or a piece comes into the local buffer.
        self.lock = CallLock()
        #: The born that leases came under when the record was read last.
        self.born = ""
        #: How many numbers a stream has asked to draw ahead, of a trend tag for which neither tag nor issuer says it:
        #: the least, and the present number.
        self._stream_least = 0
        self.stream_lease = 0
        #: When the last lease came, on the monotonic clock.
        self._leased_at = 0.0
        self._draws: Iterator[int] | None = None
        self.tag = state.tag
        self._state = state
        self._runtime = runtime
        self._settle()

    # ------------------------------------------------------------------ the fast path

    def lay_open(self, draws: Iterator[int] | None = None) -> None:
        """Let `next` find these in `open` while each draw goes to Redis; None: what was put away."""
        with self.lock.thread, self.lock.call():
            self._draws = self._draws if draws is None else draws
            self._settle()

    def _settle(self) -> None:
        """Create or drop the local buffer to match the mode: it exists only where own segments or leases fill it."""
        state, runtime = self._state, self._runtime
        if state.ended is not None:
            return
        if self.mode is Mode.DIRECT or self.lease_size():
            # Leases have to be looked at every second, and without a scheduler only the caller can do that.
            fast_path = runtime.fast_path if runtime.scheduled or not runtime.redis else None
            state.hand = state.hand or LocalBuffer(state.tag, fast_path)
            self.mode = self.mode if self.mode is Mode.DIRECT else Mode.LEASED
            if state.scheme is not None:
                state.hand.close_up()
            if self._draws is not None:
                runtime.fast_path.withdraw(state.tag, self._draws)
        elif state.hand is None or not state.hand.held:
            if state.hand is not None:
                state.seen = max(state.seen, state.hand.issued)
                state.numbers += state.hand.count
            state.hand, self.mode = None, Mode.REDIS
            if state.scheme is not None:
                runtime.fast_path.withdraw(state.tag)
            elif self._draws is not None and not under_way():
                runtime.fast_path.lay(state.tag, self._draws)
                if state.ended is not None:  # looked at last: `close` may run beside this
                    runtime.fast_path.withdraw(state.tag)

    def lease_size(self) -> int:
        """How many numbers to draw ahead; 0: none."""
        record = self._state.record
        if record is None or record.order == "strict" or not countable(record.scheme):
            return 0
        return record.lease if record.lease is not None else self._runtime.settings.lease or self.stream_lease

    def lease_for_stream(self, n: int) -> Steps[None]:
        """From now on draw n numbers ahead, if it is a trend tag and neither the tag nor the issuer says how many.

        More while they are used up quickly; see arithmetic.stream_lease.
        """
        if self._stream_least != n:
            if self._state.record is None:
                yield from self.learn()
            with self.lock.thread, self.lock.call():
                self.stream_lease = self._stream_least = n
                self._settle()

    def leased(self) -> None:
        """Take note of a lease that has come: how long the one before has lasted tells how long the next should be."""
        now, record = monotonic(), self._state.record
        lasted, self._leased_at = now - self._leased_at, now
        if self._stream_least and record is not None:
            least = self._stream_least
            self.stream_lease = arithmetic.stream_lease(self.stream_lease, lasted, least=least, segment=record.segment)

    # ------------------------------------------------------------------ the record

    def know(self, record: Tag) -> None:
        """Take the record as the present one. Raises ConfigurationError if its numbers can't be made here."""
        state, scheme = self._state, self._runtime.scheme(record)  # first, as it may refuse
        with self.lock.thread, self.lock.call():
            if turn(record.scheme_id) < turn(state.scheme_id):
                # Read before a change, and come after it. With the scheme from before, the counters that were reserved
                # since would have the values of others (seen: 2 repeats in 533 numbers).
                return
            near = state.know(record, scheme)
            self._settle()
        if near is not None:
            self._runtime.emit(near)

    def forget_record(self) -> None:
        """Lease nothing until the record has been read again."""
        with self.lock.thread, self.lock.call():
            self._state.record = None
            self._settle()

    def learn(self, *, make: bool = True) -> Steps[Tag]:
        """Read the tag's record, making the tag if that is allowed, here and in general. Raises UnknownTag."""
        if not self._runtime.identity.id:
            yield from self.identity()
        try:
            record = yield from self.public(read_record(self._state.tag, make=make and self._runtime.settings.embedded))
            self.know(record)
        except UnknownTag:
            if self._runtime.redis:
                with suppress(Unavailable):  # whose hash it is tells more
                    yield from self.look(probe=False)
            raise
        return record

    def try_to_learn(self, deadline: Deadline, within: float | None = None) -> Steps[bool]:
        """Read the record if the store answers; return whether it did. `within`: the seconds that it has for that."""
        if deadline.left() <= 0:
            return False
        with suppress(Unavailable):
            yield from self.learn() if within is None else hurried(self.learn(), within)
            return True
        return False

    def counted(self) -> Steps[Tag]:
        """Return the record, read if need be, of a tag whose numbers come of its counter. Raises OtherStrategyError."""
        tag, record = self._state.tag, self._state.record or (yield from self.learn())
        if strategy(record.scheme) != SEGMENT:
            raise OtherStrategyError(f"tag {tag!r} has no counter", tag=tag)
        for setting, key in PARTS.items():
            if record.scheme.get(setting):
                problem = f"is required: tag {tag!r} has shards or is keyed"
                raise InvalidArgument(problem, tag=tag, argument=key)
        return record

    def public(self, steps: Steps[T]) -> Steps[T]:
        """Run the steps with errors as users see them. A tag, or hash, that is gone drops what is held of it."""
        state = self._state
        try:
            return (yield from public(steps, state.tag))
        except LimitReached as error:
            if state.record is None:
                raise
            scheme, limit, value = state.record.scheme, error.limit, error.value
            if "stride" in scheme:
                # The store has counted; the error has the numbers that users see, and have set a limit to.
                limit, value = last_value(scheme, state.record.limit), state.value(value)
            advice = without_raising(scheme, limit)
            raise LimitReached(state.tag, limit=limit, value=value, advice=advice) from error.__cause__
        except (UnknownTag, ForeignHash) as error:
            self._drop(error)
            raise

    def _drop(self, why: UnknownTag | ForeignHash) -> None:
        """Drop what is in hand of a tag or hash that is gone: it would be served to its end, unchecked."""
        state = self._state
        with self.lock.thread, self.lock.call():
            if isinstance(why, ForeignHash):
                state.owned = False
            else:
                state.record = None
            if state.hand is not None:
                state.hand.empty()
            self._settle()

    # ------------------------------------------------------------------ whose hash it is

    def identity(self) -> Steps[str]:
        """Return the store's id, waiting for it if need be; "" of a store that is empty."""
        store = self._runtime.identity
        if not store.id:
            store.id = yield from self.public(identity())
            store.empty = not store.id
        return store.id

    def identity_soon(self) -> Steps[str]:
        """Return the store's id, "" if it isn't known and the store doesn't say it soon."""
        store = self._runtime.identity
        if store.wanted:
            began, patience = monotonic(), PATIENCE if self._runtime.scheduled else PATIENCE_ALONE
            try:
                yield from hurried(self.identity(), patience)
            except Unavailable:
                if monotonic() - began > patience / 2:  # not a caller without time, or an answer that came at once
                    store.in_vain()
        return store.id

    def refuse_foreign(self, *, probe: bool) -> Steps[None]:
        """Before a draw: raise ForeignHash if the tag's hash was armed for another store. `probe`: see Send.

        Once the hash was seen to be ours, this does nothing: from then on the sweep looks. The sweep looks as well if
        the store has not said its id soon, as the numbers in Redis don't wait for a store that hangs.
        """
        if self._state.owned:
            return
        if (yield from self.identity_soon()) or self._runtime.identity.empty:
            yield from self.look(probe=probe)
        self._runtime.attend()

    def look(self, *, probe: bool = True) -> Steps[gateway.Hash]:
        """Return the tag's hash. Raises ForeignHash if it isn't ours, as far as the store is known."""
        state, store = self._state, self._runtime.identity
        hash = yield from send(gateway.read_hash(state.key), probe=probe)
        state.look(hash)
        if store.empty:  # another process may have made it since, and then armed the hash
            yield from self.identity()
        if store.id or store.empty:
            try:
                state.owned = ownership.check(state.tag, state.key, hash, store.id)
            except ForeignHash as error:
                self._drop(error)
                raise
        return hash

    def refuse_backwards(self, low: int, before: int) -> Steps[None]:
        """Refuse a draw that went back: raise ForeignHash or CorruptState."""
        state = self._state
        state.owned = False
        yield from self.refuse_foreign(probe=True)
        raise CorruptState(
            f"Redis key {state.key} went back in time: after {before} it returned numbers from {low + 1}, so an "
            "older hash has replaced it",
            tag=state.tag,
            advice="corrupt_state.older_hash",
        )

    # ------------------------------------------------------------------ direct and back

    def go_direct(self, deadline: Deadline) -> Steps[bool]:
        """Redis is away: a trend tag goes on with segments of its own. False for a strict one.

        Raises OtherStrategyError, whatever the order, for a tag that has no use for Redis here.
        """
        if self._state.record is None and not (yield from self.try_to_learn(deadline)):
            return False
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

    def leave_direct(self) -> None:
        """Draw from Redis again, once what is held is used up. The caller holds the lock."""
        self.mode = Mode.LEASED
        self._settle()

    # ------------------------------------------------------------------ giving back

    def retire(self, why: IssuerError) -> tuple[tuple[Lease | Reservation, ...], int]:
        """Serve nothing any more: what is laid open is spent, what still comes is given back, callers get `why`.

        Returns what was held, oldest first, and the last number used of the first of them.
        """
        with self.lock.thread, self.lock.call():
            self._state.ended = why
            hand, self._state.hand = self._state.hand, None
        if hand is None:
            return (), 0
        held = hand.empty()
        self._state.numbers += hand.count
        return held

    def give_back(self, held: Sequence[Lease | Reservation], used: int) -> Steps[None]:
        """Give what is left above `used` back to where it came from: leases to Redis, segments to the store."""
        if not held:
            return
        leases, reservations = lease.parted(held)
        try:
            # The higher ones first: both go back from the end.
            if reservations:
                yield from self.public(direct.hand_back(reservations, used))
            if leases:
                yield from lease.give_back(self._state.key, leases, used)
        except IssuerError as error:
            self._runtime.emit(NotGivenBack(self._state.tag, used, error))
