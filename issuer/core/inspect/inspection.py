"""Inspection of a tag: its state in the store and in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from issuer import gateway
from issuer.core import arithmetic, parts, scheme_record
from issuer.core.record import read_record
from issuer.core.requests import whole
from issuer.core.steps import Steps, ask, masters, public, send, visit
from issuer.errors import CorruptState, FenceError, InvalidArgument, IssuerError, RedisUnavailable, brief
from issuer.gateway.keys import check_found
from issuer.persistence.records import HIGHEST, LedgerEntry, LedgerPage, Order, Position, StepMode, Tag, now_ms

#: The most ledger entries of a page.
PAGE_MOST = 1000

#: How many of the newest reservations tell the rate.
RATE_FROM = 5

#: And how many tell the waste: a keeper looks at a tag every two seconds.
WASTE_FROM = 100


@dataclass(frozen=True, slots=True)
class StoreState:
    """A tag by the store: max is the highest number reserved, a segment holds step x ahead; times in ms since 1970.

    `step_mode`: "auto" if no step was set, else "fixed".
    """

    max: int
    step: int
    step_mode: StepMode
    ahead: int
    timestamp: int
    created: int
    halted: bool


@dataclass(frozen=True, slots=True)
class RedisState:
    """The tag's hash. None stands for a field that isn't there, as in a tag that was never drawn from."""

    cur: int | None
    max: int | None
    mark: int | None
    next_cur: int | None
    next_max: int | None
    fence: str | None
    born: str | None


@dataclass(frozen=True, slots=True)
class Waste:
    """Numbers up to the store's max that no ledger entry holds, so that no caller ever gets them; there may be more.

    Skipped by `recover` or a raised start, or handed back when others had reserved already. What Redis lost or a killed
    process held can't be told from what was issued: its segment is in the ledger either way. A reservation or hand back
    that is under way counts for a moment. `numbers` of the newest `of` were wasted, in the newest 100 reservations;
    `since`: when the oldest of these was made, in ms since 1970.
    """

    numbers: int
    of: int
    since: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of an issuer, as `ready` found it.

    `store`, `redis`: the error that kept each from being looked at; None: it answers, or there is no Redis. `halted`:
    the tags whose reservations are stopped until `recover`.
    """

    store: IssuerError | None = None
    redis: IssuerError | None = None
    halted: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.store is None and self.redis is None and not self.halted


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is to be seen of a tag.

    `redis`: None in direct mode, and when Redis can't be reached (then `redis_error` says why). `lease`: numbers that
    each process draws ahead, 0: none; None: the tag says nothing, so each process's settings do. `remaining`: numbers
    in both buffers, None in direct mode. `rate`: numbers per second, from the newest reservations; `runway`: seconds
    that `remaining` lasts at that rate; None where unknown. `last_extension`: when the newest segment in the ledger was
    reserved, for Redis or by a process for itself, in ms since 1970; None: never, as with `waste`. `waiting`: callers
    of this issuer, in this process, that wait for a number just now.

    `limit`: the last number that users will see. `scheme`: what makes the tag's numbers, as the store keeps it: names
    and fingerprints of keys, no secrets; empty if they are its counter. max and the buffers count before any of that.
    `parts`: how many tags its numbers are in, one for each shard or restart key; None: they are in its own. `period`:
    the present one by Redis's clock, as in "2026-11-21"; None without periods, and if Redis can't be reached.
    """

    tag: str
    store: StoreState
    redis: RedisState | None
    order: Order
    limit: int
    lease: int | None
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


def tags() -> Steps[list[Tag]]:
    """Return all tags of the store, by name."""
    return [
        scheme_record.in_true_order(each) for each in (yield from ask(lambda store, left: store.tags(timeout=left)))
    ]


def inspect(tag: str, key: str | None, *, deleted: bool = False) -> Steps[Inspection]:
    """Read the store's record and, unless `key` is None, the tag's hash. `deleted`: of a tag that was deleted."""
    record = yield from read_record(tag, deleted=deleted)
    ledger = yield from ask(lambda store, timeout: store.ledger(tag, newest=WASTE_FROM, timeout=timeout))
    state, remaining, trouble, period = None, None, None, None
    if key is not None:
        try:
            hash = yield from send(gateway.read_hash(key))
            period = yield from _period(record, key)
        except RedisUnavailable as error:
            trouble = str(error)
        else:
            if hash.corrupt:
                problem = f"Redis key {key}: field {hash.corrupt} is no whole number"
                raise CorruptState(problem, tag=tag, advice="corrupt_state.recover")
            state = RedisState(hash.cur, hash.max, hash.mark, hash.next_cur, hash.next_max, hash.fence, hash.born)
            remaining = (hash.max or 0) - (hash.cur or 0) + (hash.next_max or 0) - (hash.next_cur or 0)
    rate = arithmetic.rate(ledger[:RATE_FROM], now_ms())
    return Inspection(
        tag=tag,
        store=StoreState(**{each.name: getattr(record, each.name) for each in fields(StoreState)}),
        redis=state,
        order=scheme_record.in_true_order(record).order,
        limit=scheme_record.last_value(record.scheme, record.limit),
        lease=record.lease,
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
    """Return where a page ended; InvalidArgument if no page can have ended there."""
    try:
        high, low, id = beyond
    except (TypeError, ValueError) as error:
        problem = f"is the `last` of a page, not {brief(beyond)}"
        raise InvalidArgument(problem, tag=tag, value=beyond, argument="beyond") from error
    if not isinstance(id, str):
        problem = f"is the `last` of a page, not {brief(beyond)}"
        raise InvalidArgument(problem, tag=tag, value=beyond, argument="beyond")
    return whole(high, "beyond", 0, HIGHEST), whole(low, "beyond", -1, HIGHEST), id


def look_at_store(found: Readiness) -> Steps[Readiness]:
    """Return what is to be seen of the store, beside what was found before."""
    try:
        halted = [each.tag for each in (yield from public(tags(), None)) if each.halted]
    except IssuerError as error:
        return replace(found, store=error)
    return replace(found, halted=halted)


def look_at_redis(found: Readiness) -> Steps[Readiness]:
    """Return whether each server that issues numbers answers, and as a master, beside what was found before."""
    try:
        for server in (yield from masters()):
            info = yield from visit(server, gateway.replication_info(""))
            if info.get("role") != "master":
                return replace(found, redis=FenceError("this Redis is no master: point the issuer at the master"))
    except IssuerError as error:
        return replace(found, redis=error)
    return found


def _period(record: Tag, key: str) -> Steps[str | None]:
    """Return the name of the present period, None if the tag has none."""
    periods = scheme_record.periods(record)
    if periods is None:
        return None
    return periods.name(periods.index((yield from send(gateway.server_time(key)))))


def _waste(ledger: Sequence[LedgerEntry], maximum: int) -> Waste | None:
    """Add up the holes in the ledger below the store's max."""
    if not ledger:
        return None
    wasted, below = 0, maximum
    for entry in ledger:
        wasted += max(0, below - entry.high)
        below = min(below, entry.low)
    return Waste(wasted, max(0, maximum - below), ledger[-1].time)
