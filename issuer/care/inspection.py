"""Inspection of a tag: its state in the store and in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from issuer.core import arithmetic, parts, scheme_record
from issuer.core.record import PAGE, page_of_tags, read_record
from issuer.core.requests import whole
from issuer.core.steps import Steps, ask, masters, public, send, visit
from issuer.errors import CorruptState, FenceError, InvalidArgument, IssuerError, RedisUnavailable, brief
from issuer.gateway import server_commands, tag_scripts
from issuer.gateway.keys import check_found
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position
from issuer_persistence.reads import ReadLedger
from issuer_persistence.records import HIGHEST, LeaseMode, Order, StepMode, Tag, now_ms

#: Maximum number of ledger entries per page.
PAGE_MOST = 1000

#: The rate (numbers per second) is computed from this many of the newest reservations.
RATE_FROM = 5

#: The waste (see Waste) is computed from this many of the newest reservations. A higher value would make inspections
#: too slow: some processes inspect each tag every two seconds.
WASTE_FROM = 100


@dataclass(frozen=True, slots=True)
class StoreState:
    """State of a tag in the store. A segment holds `step` x `ahead` numbers.

    Attributes:
        max: Highest number reserved.
        step: Size of a step in numbers.
        step_mode: "fixed" if the step was set, "auto" if the issuer adapts it.
        target: How long a step should last if the issuer adapts it, in seconds.
        min_step: Lowest step that the issuer chooses.
        max_step: Highest step that the issuer chooses.
        ahead: Steps per segment.
        refill_at: Share of a segment that is used when the next one is fetched.
        survive: Duration of an outage of the store, in seconds. The reserved numbers should last longer than such an
            outage. 0 if there is no such requirement.
        drain: False if processes keep their unused numbers, also if nobody uses the tag for a long time.
        timestamp: Time of the last change, in ms since 1970.
        created: Time of creation, in ms since 1970.
        halted: True if reservations are stopped until `recover`.
    """

    max: int
    step: int
    step_mode: StepMode
    target: int
    min_step: int
    max_step: int
    ahead: int
    refill_at: float
    survive: int
    drain: bool
    timestamp: int
    created: int
    halted: bool


@dataclass(frozen=True, slots=True)
class RedisState:
    """State of a tag in Redis. A field that is not set is None. For example, all fields are None before the first draw.

    After a restart or failover of Redis, the numbers of the old segments cannot be drawn. So their fields are None
    until the next segment is loaded.

    Attributes:
        cur: Last number issued.
        max: Last number of the current segment.
        mark: Threshold of the current segment. The draw that reaches this number starts loading the next segment.
        next_cur: The number before the first number of the next segment.
        next_max: Last number of the next segment.
        fence: Replication id of the master that the segment was loaded into. Draws from any other master are rejected.
        born: Random id of the hash. A segment that was reserved for a hash with another id is not loaded.
    """

    cur: int | None
    max: int | None
    mark: int | None
    next_cur: int | None
    next_max: int | None
    fence: str | None
    born: str | None


@dataclass(frozen=True, slots=True)
class Waste:
    """Waste: numbers up to the store's `max` that belong to no ledger entry. No caller ever receives them.

    `recover` or a raised `start` skipped these numbers, or a process returned these numbers after another process had
    reserved higher ones. Numbers that Redis or a killed process lost are not included, because the ledger still
    contains them. Numbers of a reservation that is in progress are included for a moment.

    Attributes:
        numbers: How many of the `of` examined numbers are waste.
        of: How many numbers were examined. These are the numbers of the newest 100 reservations.
        since: Time of the oldest of these reservations, in ms since 1970.
    """

    numbers: int
    of: int
    since: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """Result of `ready`. In an `if`, it counts as true if the store and Redis answer and no tag is halted.

    Attributes:
        store: Error of the request to the store. None if the store answers.
        redis: Error of the request to Redis. None if Redis answers, or the issuer has no Redis.
        halted: Names of halted tags. Their reservations are stopped until `recover`.
    """

    store: IssuerError | None = None
    redis: IssuerError | None = None
    halted: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.store is None and self.redis is None and not self.halted


@dataclass(slots=True)
class HaltedTags:
    """The halted tags of a store, as the pages of its tags showed them. `after`: last tag of the page read last."""

    names: set[str] = field(default_factory=set)
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """State of a tag. Numbers in `store` and `redis` are values of the tag's counter. `limit` is a number for users.

    Attributes:
        tag: Name of the tag.
        store: State in the store.
        redis: State in Redis. None if the issuer has no Redis, or Redis cannot be reached.
        order: "strict" or "trend".
        limit: Last number that may be issued.
        lease: How many numbers each process draws in advance, 0 or more. None if each process uses its own setting.
        lease_mode: "set" if `lease` applies, "auto" if each process adapts the number to its rate of use.
        description: Text for operators.
        remaining: How many numbers are left in Redis. None if the issuer has no Redis, or Redis cannot be reached.
        rate: Numbers per second, estimated from the newest reservations. None if unknown.
        runway: How long `remaining` lasts at this rate, in seconds. None if unknown.
        last_extension: Time of the newest reservation, in ms since 1970. None if there was none.
        waste: Waste among the newest reservations. None if there was no reservation.
        waiting: How many callers of this issuer are waiting for a number now.
        redis_error: Why Redis cannot be reached, as text. None if Redis answered, or the issuer has no Redis.
        scheme: The tag's scheme. Secrets appear only as names and fingerprints. Empty if numbers are counter values.
        parts: How many shards or series the tag has. None for tags without parts.
        period: Current period by the clock of Redis, such as "2026-11-21". None if the tag has no periods, or the
            period is unknown.
        shared_with: Program that draws from the table of the store, too, such as "Leaf". "" if there is none.
    """

    tag: str
    store: StoreState
    redis: RedisState | None
    order: Order
    limit: int
    lease: int | None
    lease_mode: LeaseMode
    description: str
    remaining: int | None
    rate: float | None
    runway: float | None
    last_extension: int | None = None
    waste: Waste | None = None
    waiting: int = 0
    redis_error: str | None = None
    scheme: Mapping[str, Any] = field(default_factory=dict)
    parts: int | None = None
    period: str | None = None
    shared_with: str = ""


def inspect(tag: str, key: str | None, known: Tag | None = None, *, deleted: bool = False) -> Steps[Inspection]:
    """Return the state of a tag in the store and in Redis. `key` is the tag's Redis key, or None without Redis.

    `known`: record of the tag, if it was read a moment ago. If `deleted` is True, the tag must be a deleted one. If
    `deleted` is False, a deleted tag raises UnknownTag.
    """
    record = known or (yield from read_record(tag, deleted=deleted))
    ledger = yield from ask(ReadLedger(tag, WASTE_FROM))
    shared_with = yield from ask(lambda store, timeout: store.shared_with(timeout=timeout))
    state, remaining, trouble, period = None, None, None, None
    if key is not None:
        try:
            hash = yield from send(tag_scripts.read_hash(key))
            period = yield from _period(record, key)
        except RedisUnavailable as error:
            trouble = str(error)
        else:
            if hash.corrupt:
                problem = f"Redis key {key}: field {hash.corrupt} is not a whole number"
                raise CorruptState(problem, tag=tag, advice="corrupt_state.recover")
            state = RedisState(hash.cur, hash.max, hash.mark, hash.next_cur, hash.next_max, hash.fence, hash.born)
            remaining = hash.remaining
    rate = arithmetic.rate(ledger[:RATE_FROM], now_ms())
    return Inspection(
        tag=tag,
        store=StoreState(**{each.name: getattr(record, each.name) for each in fields(StoreState)}),
        redis=state,
        order=scheme_record.in_true_order(record).order,
        limit=scheme_record.last_value(record.scheme, record.limit),
        lease=record.lease,
        lease_mode=record.lease_mode,
        description=record.description,
        remaining=remaining,
        rate=rate,
        runway=arithmetic.runway(remaining, rate),
        last_extension=ledger[0].time if ledger else None,
        waste=_waste(ledger, record.max),
        redis_error=trouble,
        scheme=dict(record.scheme),
        parts=len((yield from parts.of(record))) if parts.has_parts(record) else None,
        period=period,
        shared_with=shared_with,
    )


def segments(tag: str, count: int, beyond: Position | None, *, upward: bool) -> Steps[LedgerPage]:
    """Return a page of the tag's ledger; see Issuer.segments."""
    check_found(tag)
    most, at = whole(count, "count", 1, PAGE_MOST), None if beyond is None else _position(tag, beyond)
    yield from read_record(tag)
    return (
        yield from ask(
            lambda store, timeout: store.segments(tag, beyond=at, upward=upward, count=most, timeout=timeout)
        )
    )


def _position(tag: str, beyond: Position) -> Position:
    match beyond:
        case high, low, str(id):
            return whole(high, "beyond", 0, HIGHEST), whole(low, "beyond", -1, HIGHEST), id
    problem = f"must be the `last` of a page, not {brief(beyond)}"
    raise InvalidArgument(problem, tag=tag, value=beyond, argument="beyond")


def look_at_store(halted: HaltedTags) -> Steps[IssuerError | None]:
    """Look for halted tags on the next page of the tags. Return the error if the store does not answer."""
    after, names = halted.after, halted.names
    try:
        page = yield from public(page_of_tags(after, PAGE), None)
    except IssuerError as error:
        return error
    halted.after = end = page[-1].tag if len(page) == PAGE else None
    names = {name for name in names if name <= (after or "") or (end is not None and name > end)}
    halted.names = names | {each.tag for each in page if isinstance(each, Tag) and each.halted}
    return None


def look_at_redis() -> Steps[IssuerError | None]:
    """Check that each Redis server answers and is a master. Return the error if one does not."""
    try:
        for server in (yield from masters()):
            info = yield from visit(server, server_commands.replication_info(""))
            if info.get("role") != "master":
                return FenceError("this Redis is not a master: configure the address of the master")
    except IssuerError as error:
        return error
    return None


def _period(record: Tag, key: str) -> Steps[str | None]:
    periods = scheme_record.periods(record)
    if periods is None:
        return None
    return periods.name(periods.index((yield from send(server_commands.server_time(key)))))


def _waste(ledger: Sequence[LedgerEntry], maximum: int) -> Waste | None:
    """Add up the numbers below the store's `max` that are missing in the ledger."""
    if not ledger:
        return None
    wasted, below = 0, maximum
    for entry in ledger:
        wasted += max(0, below - entry.high)
        below = min(below, entry.low)
    return Waste(wasted, max(0, maximum - below), ledger[-1].time)
