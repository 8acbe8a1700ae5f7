"""A tag as this process knows it: its record, whether its numbers come from Redis or from the process's own hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from issuer import gateway
from issuer.clock import LONGEST_PAUSE, Deadline, monotonic
from issuer.core import arithmetic
from issuer.core.arithmetic import spent
from issuer.core.events import Emit, LimitNear, NotGivenBack, WentDirect
from issuer.core.periods import PERIOD_BITS, SEQ_MOST
from issuer.core.record import known
from issuer.core.recovery import identity
from issuer.core.scheme_record import (
    PARTS,
    SEGMENT,
    OtherStrategyError,
    Scheme,
    countable,
    last_value,
    periods,
    reserved,
    strategy,
    turn,
    without_raising,
)
from issuer.core.single_flight import Flight, SingleFlight, renewed
from issuer.core.steps import Steps, hurried, public, send
from issuer.core.supply import direct, lease, ownership
from issuer.core.supply.extend import Election
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import BUFFERS, LocalBuffer
from issuer.core.supply.ownership import PATIENCE, PATIENCE_ALONE, Identity
from issuer.errors import CorruptState, ForeignHash, InvalidArgument, IssuerError, LimitReached, Unavailable, UnknownTag
from issuer.forks import under_way
from issuer.persistence.records import Reservation, Tag

T = TypeVar("T")

#: A job of the scheduler: steps to run, by the deadline that it is given.
Job = Callable[[Deadline], Steps[object]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Services and settings that the supplies of an issuer share.

    `redis`: whether there is one. `store`: the store's URL, for messages. `background` runs a job on the scheduler,
    and returns False if no scheduler is alive; `scheduled`: whether there should be one. `flight` makes a flight for
    this driver. `attend`: has the scheduler sweep from now on. `window`: how long an elected loader has, in seconds.
    `auto_create`: make a tag at its first use. `lease`: how many numbers of a trend tag are drawn ahead if the tag
    doesn't say so itself. `open`: the place for open numbers. `scheme` returns the scheme that makes a tag's numbers of
    its counter; None: they are the counter. It raises ConfigurationError where that can't be done here. `identity`: the
    store's. `insist`: during an outage of the store callers wait for it this many seconds; after that they are refused
    at once. `emit` delivers an event to the observers. `application`: the service's label, for the ledger.
    """

    redis: bool
    store: str
    background: Callable[[Job], bool]
    scheduled: bool
    flight: Callable[[], Flight]
    attend: Callable[[], None]
    window: float
    auto_create: bool
    lease: int
    open: MutableMapping[str, Iterator[int]]
    scheme: Callable[[Tag], Scheme | None]
    identity: Identity
    insist: float
    emit: Emit
    application: str = ""


class Source:
    """State of a tag in this process: what it knows of the tag, and the numbers that it holds."""

    def __init__(self, tag: str, key: str, runtime: Runtime) -> None:
        """`key` is the tag's hash in Redis."""
        self.tag = tag
        self.key = key
        #: When it was last asked for numbers the long way, on the monotonic clock.
        self.used_at = monotonic()
        #: Extended by every sweep, used or not.
        self.kept = False
        #: How many numbers a stream has asked to draw ahead, of a trend tag for which neither tag nor issuer says it:
        #: the least, and the present number.
        self._ahead_least = 0
        self.ahead = 0
        #: When the last lease came, on the monotonic clock.
        self._leased_at = 0.0
        #: The highest number that this process has seen issued by Redis.
        self.seen: int = 0
        #: The highest number that it has reserved for a caller: past both buffers, so that Redis issues lower ones yet.
        self._reserved = 0
        #: The buffer that this process serves itself from; None while each draw goes to Redis.
        self.hand: LocalBuffer[Lease | Reservation] | None = None
        self._runtime = runtime
        #: The scheme that makes its numbers of its counter, and its id: None and "" if they are the counter.
        self.scheme: Scheme | None = None
        self.scheme_id = ""
        #: The limit, and the period, of which observers have heard that it is near.
        self._warned_of: tuple[int, int] | None = None
        self._draws: Iterator[int] | None = None
        self._noticed = 0
        #: How long an election that a draw wins shall stand; None: don't elect this process, it couldn't load.
        self.window = runtime.window if runtime.scheduled else None
        self._record: Tag | None = None
        self._learnt_at = 0.0
        #: Whether the tag's hash was seen to be this store's. Until then each draw goes the long way, and looks.
        self.owned = False
        #: The born that leases came under when the record was read last.
        self._born = ""
        #: When it made sense to ask Redis again, when it was asked last in vain.
        self._redis_retry = LONGEST_PAUSE
        #: Why Redis gave nothing when it was asked last; "" if it did, or wasn't asked yet. And since when it doesn't.
        self._redis_trouble = ""
        self._redis_silent_since = 0.0
        #: The error that callers get, once this process serves nothing of the tag any more.
        self.ended: IssuerError | None = None
        #: The deadlines of callers that wait for numbers. A driver adds those that wait for another's.
        self.waiting: set[Deadline] = set()
        #: Whether the hand is filled with segments of our own: there is no Redis, or it is away.
        self._direct = not runtime.redis
        self._segments = SingleFlight(runtime.flight, longest=runtime.window + 1)
        self._leases = SingleFlight(runtime.flight, longest=runtime.window + 1)
        self._mode_lock = threading.Lock()
        self._election = Election()
        self._settle()

    def lay_open(self, draws: Iterator[int]) -> None:
        """Let `next` find these in `open` while each draw goes to Redis."""
        with self._mode_lock:
            self._draws = draws
            self._settle()

    def notice_use(self) -> None:
        """Take note of draws since the last time, which don't look at the clock themselves."""
        if self.seen != self._noticed:
            self._noticed, self.used_at = self.seen, monotonic()

    @property
    def open(self) -> Iterable[int]:
        """The numbers that are laid open, perhaps none."""
        return () if self.hand is None else self.hand.open

    # ------------------------------------------------------------------ the record

    @property
    def record(self) -> Tag | None:
        """The tag's record as this process saw it last, None if it never did."""
        return self._record

    @record.setter
    def record(self, record: Tag) -> None:
        scheme = self._runtime.scheme(record)  # first, as it may refuse
        with self._mode_lock:
            if turn(record.scheme_id) < turn(self.scheme_id):
                # Read before a change, and come after it. With the scheme from before, the counters that were reserved
                # since would have the values of others (seen: 2 repeats in 533 numbers).
                return
            before, self._record = self._record, record
            self._learnt_at = monotonic()
            self.scheme, self.scheme_id = scheme, record.scheme_id
            self._settle()
        # A period may be over if nothing was reserved meanwhile.
        if periods(record) is None or (before is not None and record.max > before.max):
            self._warn_if_near(record, 0)

    def warn_if_near(self, cur: int) -> None:
        """Say once that few numbers are left, if the tag has no periods. `cur`: the last one that Redis has issued."""
        record = self._record
        if record is not None and periods(record) is None:
            self._warn_if_near(record, cur)

    def _warn_if_near(self, record: Tag, cur: int) -> None:
        """Say once that few numbers are left, in the period if the tag has any.

        Those that were issued count, as far as that is known: a tag whose limit is no more than two segments has all of
        its numbers reserved with the first. What lies in both buffers may be unused.
        """
        restarts = periods(record) is not None
        taken, last = reserved(record)
        seen = max(cur, self.taken())
        if restarts:
            seen = seen & SEQ_MOST if seen >> PERIOD_BITS == record.max >> PERIOD_BITS else 0
        used = min(last, max(seen, taken - BUFFERS * record.segment))
        where = last, record.max >> PERIOD_BITS if restarts else 0
        told, near = self._warned_of == where, spent(used, last)
        self._warned_of = where if near or told else None
        if near and not told:
            limit = last_value(record.scheme, last)
            self._runtime.emit(LimitNear(self.tag, used, last, limit, restarts, record.scheme))

    def value(self, counter: int) -> int:
        """Return the number that users see. Raises LimitReached."""
        return counter if self.scheme is None else self.scheme.value(counter)

    def counted(self) -> Steps[Tag]:
        """Return the record, read if need be, of a tag whose numbers come of its counter. Raises OtherStrategyError."""
        record = self._record or (yield from self.learn())
        if strategy(record.scheme) != SEGMENT:
            raise OtherStrategyError(f"tag {self.tag!r} has no counter", tag=self.tag)
        for setting, key in PARTS.items():
            if record.scheme.get(setting):
                problem = f"is needed: the numbers of tag {self.tag!r} are in parts"
                raise InvalidArgument(problem, tag=self.tag, argument=key)
        return record

    def learn(self, *, make: bool = True) -> Steps[Tag]:
        """Read the tag's record, making the tag if that is allowed, here and in general. Raises UnknownTag."""
        yield from self._identity()
        try:
            self.record = record = yield from self._public(known(self.tag, make=make and self._runtime.auto_create))
        except UnknownTag:
            if self._runtime.redis:
                with suppress(Unavailable):  # whose hash it is tells more
                    yield from self.look(probe=False)
            raise
        return record

    def _try_to_learn(self, deadline: Deadline, within: float | None = None) -> Steps[bool]:
        if deadline.left() <= 0:
            return False
        try:
            yield from self.learn() if within is None else hurried(self.learn(), within)
        except Unavailable:
            return False
        return True

    def _public(self, steps: Steps[T]) -> Steps[T]:
        try:
            return (yield from public(steps, self.tag))
        except LimitReached as error:
            if self._record is None:
                raise
            scheme, limit, value = self._record.scheme, error.limit, error.value
            if "stride" in scheme:
                # The store has counted; the error has the numbers that users see, and have set a limit to.
                limit, value = last_value(scheme, self._record.limit), self.value(value)
            advice = without_raising(scheme, limit)
            raise LimitReached(self.tag, limit=limit, value=value, advice=advice) from error.__cause__
        except UnknownTag:
            # Deleted: what is in hand of it goes too, or it would be served to its end, unchecked.
            with self._mode_lock:
                self._record = None
                self._empty_hand()
            raise
        except ForeignHash:
            with self._mode_lock:
                self.owned = False
                self._empty_hand()
            raise

    def _empty_hand(self) -> None:
        if self.hand is not None:
            self.hand.empty()
        self._settle()

    # ------------------------------------------------------------------ whose hash it is

    def _identity(self) -> Steps[str]:
        """Return the store's id, waiting for it if need be."""
        store = self._runtime.identity
        store.known = store.known or (yield from self._public(identity()))
        return store.known

    def _identity_soon(self) -> Steps[str]:
        """Return the store's id, "" if it isn't known and the store doesn't say it soon."""
        store = self._runtime.identity
        if store.wanted:
            began, patience = monotonic(), PATIENCE if self._runtime.scheduled else PATIENCE_ALONE
            try:
                yield from hurried(self._identity(), patience)
            except Unavailable:
                if monotonic() - began > patience / 2:  # not a caller without time, or an answer that came at once
                    store.in_vain()
        return store.known

    def refuse_foreign(self, *, probe: bool) -> Steps[None]:
        """Before a draw: raise ForeignHash if the tag's hash was armed for another store. `probe`: see Send.

        Once the hash was seen to be ours, this does nothing: from then on the sweep looks. The sweep looks as well if
        the store has not said its id soon, as the numbers in Redis don't wait for a store that hangs.
        """
        if self.owned:
            return
        if (yield from self._identity_soon()):
            yield from self.look(probe=probe)
        self._runtime.attend()

    def look(self, *, probe: bool = True) -> Steps[gateway.Hash]:
        """Return the tag's hash. Raises ForeignHash if it isn't ours, as far as the store's id is known."""
        return (yield from self._public(self._looked(probe)))

    def _looked(self, probe: bool) -> Steps[gateway.Hash]:  # noqa: FBT001 - of `look`
        hash = yield from send(gateway.read_hash(self.key), probe=probe)
        if self._runtime.identity.known:
            self.owned = ownership.check(self.tag, self.key, hash, self._runtime.identity.known)
        return hash

    # ------------------------------------------------------------------ where the numbers come from

    def draw_ahead(self, n: int) -> Steps[None]:
        """From now on draw n numbers ahead, if it is a trend tag and neither the tag nor the issuer says how many.

        More while they are used up quickly; see arithmetic.drawn_ahead.
        """
        if self._ahead_least != n:
            if self._record is None:
                yield from self.learn()
            with self._mode_lock:
                self.ahead = self._ahead_least = n
                self._settle()

    def settle(self) -> None:
        """Lay open again what was put away."""
        with self._mode_lock:
            self._settle()

    def _settle(self) -> None:
        """Create or drop the local buffer to match the mode: it exists only where own segments or leases fill it."""
        if self.ended is not None:
            return
        if self._direct or self._lease_size():
            # Leases have to be looked at every second, and without a scheduler only the caller can do that.
            laid_open = self._runtime.open if self._runtime.scheduled or not self._runtime.redis else None
            self.hand = self.hand or LocalBuffer(self.tag, laid_open)
            if self.scheme is not None:
                self.hand.close_up()
            if self._draws is not None and self._runtime.open.get(self.tag) is self._draws:
                self._runtime.open.pop(self.tag, None)
        elif self.hand is None or not self.hand.held:
            if self.hand is not None:
                self.seen = max(self.seen, self.hand.issued)
            self.hand = None
            if self.scheme is not None:
                self._runtime.open.pop(self.tag, None)
            elif self._draws is not None and not under_way():
                self._runtime.open[self.tag] = self._draws
                if self.ended is not None:  # looked at last: `close` may run beside this
                    self._runtime.open.pop(self.tag, None)

    def _leased(self) -> None:
        """Take note of a lease that has come: how long the one before has lasted tells how long the next should be."""
        now = monotonic()
        lasted, self._leased_at = now - self._leased_at, now
        if self._ahead_least and self._record is not None:
            least, segment = self._ahead_least, self._record.segment
            self.ahead = arithmetic.drawn_ahead(self.ahead, lasted, least=least, segment=segment)

    def _lease_size(self) -> int:
        """How many numbers to draw ahead; 0: none."""
        record = self._record
        if record is None or record.order == "strict" or not countable(record.scheme):
            return 0
        return record.lease if record.lease is not None else self._runtime.lease or self.ahead

    def _go_direct(self, deadline: Deadline) -> Steps[bool]:
        """Redis is away: a trend tag goes on with segments of its own. False for a strict one.

        Raises OtherStrategyError, whatever the order, for a tag that has no use for Redis here.
        """
        if self._record is None and not (yield from self._try_to_learn(deadline)):
            return False
        if (yield from self.counted()).order == "strict":
            return False
        with self._mode_lock:
            went = not self._direct
            if went:
                self._direct = True
                self._settle()
        if went:
            self._runtime.emit(WentDirect(self.tag))
        return True

    def closed_error(self) -> IssuerError:
        """Return the error for callers once the issuer is closed."""
        return IssuerError(f"tag {self.tag!r}: this issuer is closed", tag=self.tag)

    def taken(self) -> int:
        """Return the highest number that this process has seen issued: no process lowers the store's `max` below it.

        Not what it holds: another thread may be handing that back.
        """
        hand = self.hand
        return max(self.seen, self._reserved, 0 if hand is None else hand.issued)

    @property
    def strict(self) -> bool:
        """Whether its numbers increase across all processes, as far as this one knows."""
        return self._record is None or self._record.order == "strict"

    def went_back(self, low: int, before: int) -> bool:
        """Whether a strict tag's draw began below `before`, the highest number seen when it was sent.

        Within a reign Redis counts upwards: another hash was put in the place of the tag's (RENAME, MOVE, COPY, SWAPDB,
        RESTORE), an older one with the same fence, or another store's. What was drawn may be another caller's.
        """
        return low < before and self.strict

    def refuse_backwards(self, low: int, before: int) -> Steps[None]:
        """Raise ForeignHash or CorruptState if a draw went back."""
        if self.went_back(low, before):
            self.owned = False
            yield from self.refuse_foreign(probe=True)
            raise CorruptState(
                f"Redis key {self.key} went back: after {before} it gave numbers from {low + 1}. An older hash was put "
                "in its place",
                tag=self.tag,
                advice="corrupt_state.older_hash",
            )

    # ------------------------------------------------------------------ giving back

    def retire(self, why: IssuerError) -> tuple[tuple[Lease | Reservation, ...], int]:
        """Serve nothing any more: what is laid open is spent, what still comes is given back, callers get `why`.

        Returns what was held, oldest first, and the last number used of the first of them.
        """
        with self._mode_lock:
            self.ended = why
            hand, self.hand = self.hand, None
        return ((), 0) if hand is None else hand.empty()

    def _refuse_if_ended(self) -> None:
        if self.ended is not None:
            raise renewed(self.ended)

    def _give_back(self, held: Sequence[Lease | Reservation], used: int) -> Steps[None]:
        """Give what is left above `used` back to where it came from: leases to Redis, segments to the store."""
        if not held:
            return
        leases, reservations = lease.parted(held)
        try:
            # The higher ones first: both go back from the end.
            if reservations:
                yield from self._public(direct.hand_back(reservations, used))
            if leases:
                yield from lease.give_back(self.key, leases, used)
        except IssuerError as error:
            self._runtime.emit(NotGivenBack(self.tag, used, error))
