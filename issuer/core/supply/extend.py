"""Loads the next segment of a tag from the store into Redis, in the order open, reserve, load.

`open` elects one loader among the processes. It returns the hash's term (the time of one master without a restart) and
its `born` id (random, new for each new hash). `reserve` reserves the range in the store. `load` is rejected if term
or born have changed. `load` is sent only once, whatever the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from issuer.clock import monotonic
from issuer.core import scheme_record
from issuer.core.error_mapping import refused
from issuer.core.events import Emit, ReservationFailed, Reserved, unobserved
from issuer.core.floor import floor
from issuer.core.periods import PERIOD_BITS
from issuer.core.record import read_record
from issuer.core.scheme_record import last_counter
from issuer.core.steps import Steps, ask, send
from issuer.core.supply.adapt import adapt, size
from issuer.core.supply.local_buffer import share_at_refill, threshold
from issuer.errors import ConfigurationError, ForeignHash, IssuerError, StoreBehind
from issuer.gateway import tag_scripts
from issuer_persistence.contract import Store
from issuer_persistence.errors import Halted, LimitHit, MaxBehind, Misconfigured, StoreError, TagMissing
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.records import HIGHEST, Tag, TagChanges, fresh_version

#: How many attempts `extend` makes. An attempt fails if its load comes too late: this costs a gap of one segment. The
#: start of a period also takes one attempt.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Extension:
    """The outcome of `extend`.

    "loaded": (low, high] is in Redis, and `cur` was the last number issued before the load. "ready": no segment was
    needed. "elsewhere": another process is the loader. "stale": all loads came too late. `tag`: new record, or None.
    """

    outcome: Literal["loaded", "ready", "elsewhere", "stale"]
    tag: Tag | None = None
    low: int = 0
    high: int = 0
    cur: int = 0


def extend(
    record: Tag,
    key: str,
    *,
    store_id: str,
    seen: int,
    window: float,
    claimant: str,
    wanted: int = 0,
    application: str = "",
    emit: Emit = unobserved,
) -> Steps[Extension]:
    """Load one segment, if one is due and this process is elected.

    Args:
        record: The tag's record, as this process last read it.
        key: Key of the tag's hash in Redis.
        store_id: Id of the store, as this process last read it.
        seen: Highest number that this process has seen. If the store's `max` is lower, the store has gone back in time.
        window: Duration of an election in seconds.
        claimant: Digits that name this process in elections. A draw of this name may have won one.
        wanted: How many numbers a caller wants. If more than a segment, the segment gets this size.
        application: Name of the service, for the ledger.
        emit: Receives the events of reservations.
    """
    for _ in range(ATTEMPTS):
        record, opened = yield from _opened(record, key, store_id, window, "claim", claimant=claimant)
        if not opened.due:
            return Extension("ready")
        if not opened.elected:
            return Extension("elsewhere")
        try:
            if opened.over is not None:
                # The new period ends all elections. So claim again: another process may be elected by then.
                record = yield from begin_period(record, key, store_id, opened.over)
                continue
            try:
                extension = yield from reserve_and_load(
                    record,
                    key,
                    opened,
                    store_id=store_id,
                    at_least=max(opened.top, seen),
                    wanted=wanted,
                    application=application,
                    emit=emit,
                )
            except MaxBehind as error:
                if error.certain:
                    yield from behind(tag=record.tag, stands_at=error.max, taken=error.at_least)
                yield from confirm_behind(record, key, store_id, opened, error.max, seen=seen)
                continue
        except (TagMissing, LimitHit, Halted, Misconfigured, StoreBehind):
            # Resign as loader at once: a process that repairs the tag should not wait until this election times out.
            # Until then, callers of other processes would wait for a segment, and not learn what is wrong.
            with suppress(IssuerError, StoreError):
                yield from _opened(record, key, store_id, window, "resign", claimant=claimant)
            raise
        if extension.outcome != "stale":
            return extension
        record = extension.tag or record
    return Extension("stale", record)


def _opened(
    record: Tag, key: str, store_id: str, window: float, role: tag_scripts.Role, *, claimant: str = ""
) -> Steps[tuple[Tag, tag_scripts.Opened]]:
    """Send `open` with this role. Return the record and the reply.

    If the hash has another scheme than the record, read the record again, and repeat the call.
    """
    attempt = 0
    while True:
        until = scheme_record.until(record)
        born, scheme = fresh_version(), record.scheme_id
        opened = yield from send(
            tag_scripts.open(key, born, store_id, window, role, scheme=scheme, until=until, claimant=claimant)
        )
        if opened.status == "open":
            return record, opened
        attempt += 1
        if opened.status != "otherscheme" or attempt == ATTEMPTS:
            raise refused(opened, record.tag, key, store_id)
        record = yield from _caught_up(record.tag, key, store_id, opened.scheme)


def _caught_up(tag: str, key: str, store_id: str, found: str) -> Steps[Tag]:
    """Read the record again, because the hash has another scheme, `found`. If `found` is older, update the hash.

    If the two schemes convert counters differently, the update drops the hash's segments. Their numbers are a gap.
    """
    record = yield from read_record(tag)
    if scheme_record.turn(record.scheme_id) < scheme_record.turn(found):
        # A new scheme is written to the store first, then to the hash. So this store, with the older scheme, has gone
        # back in time.
        yield from ask(lambda store, timeout: store.halt(tag, timeout=timeout))
        raise StoreBehind(tag, max=record.max, scheme=found)
    if record.scheme_id != found:
        yield from floor(tag, key, 0, "keep", store_id, scheme=record.scheme_id, until=scheme_record.until(record))
    return record


def begin_period(record: Tag, key: str, store_id: str, clock: int) -> Steps[Tag]:
    """Begin the period that contains `clock`, Redis's time in ms since 1970. Returns the new record.

    The store is changed first, then the hash. If Redis's clock went back, the later period of the store stays.
    """
    periods = scheme_record.periods(record)
    if periods is None:
        raise ConfigurationError(
            f"tag {record.tag!r} has no periods, but its hash in Redis has periods", tag=record.tag
        )
    begun = periods.index(clock) << PERIOD_BITS
    after = yield from ask(
        lambda store, timeout: store.configure(record.tag, TagChanges(raise_to=begun), timeout=timeout)
    )
    index = after.max >> PERIOD_BITS
    ends = periods.end_ms(index)
    at = index << PERIOD_BITS
    yield from floor(record.tag, key, at, "keep", store_id, scheme=after.scheme_id, until=ends)
    return after


def _within_limit(record: Tag, at_least: int, n: int | None) -> tuple[int | None, int]:
    """Return how many numbers to reserve (None as in `size`), and the highest one that may be used in this period.

    The store does not know a period's limit. Numbers reserved beyond the limit would be lost when the limit is raised.
    Raises LimitHit. If the tag is halted, or its `max` is below `at_least`, nothing is raised here: the reservation
    follows, and the store raises the error. `n`: how many numbers to reserve without such a limit.
    """
    last = last_counter(record)
    if last is None or record.halted or record.max < at_least:
        return n, HIGHEST
    left = last - record.max
    if left <= 0:
        limit = scheme_record.reserved(record)[1]
        raise LimitHit(record.tag, limit, limit)
    return min(n or record.segment, left), last


def observed(tag: str, reason: str, emit: Emit, question: Callable[[Store, float], Reservation]) -> Steps[Reservation]:
    """Request a reservation from the store, and emit an event with its outcome.

    `reason`: purpose of the range, for the event. `question`: the call of the store.
    """
    began = monotonic()
    try:
        reserved = yield from ask(question)
    except Exception as error:
        emit(ReservationFailed(tag, reason, error, monotonic() - began))
        raise
    emit(Reserved(tag, reason, reserved.low, reserved.high, monotonic() - began))
    return reserved


def reserve_and_load(
    record: Tag,
    key: str,
    opened: tag_scripts.Opened,
    *,
    store_id: str,
    at_least: int,
    wanted: int,
    application: str,
    emit: Emit,
) -> Steps[Extension]:
    """Reserve a segment in the store, and load it into the tag's hash. `opened`: the reply of `open` for this hash.

    Raises ForeignHash if another store has replaced the store that the hash belongs to. The reserved numbers are a gap.
    """
    tag, last = record.tag, HIGHEST
    rate = yield from adapt(record, (lambda entry: entry.born == opened.born) if opened.top else None)
    n = size(record, wanted)
    if last_counter(record) is not None:
        found = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
        if found is None or found.deleted:
            raise TagMissing(tag)
        if found.scheme_id != record.scheme_id:
            return Extension("stale", found)
        n, last = _within_limit(found, at_least, size(found, wanted))
    reserved = yield from observed(
        tag,
        "load",
        emit,
        lambda store, timeout: store.reserve(
            tag, n, purpose=Purpose("load", application, opened.born), at_least=at_least, timeout=timeout
        ),
    )
    if reserved.store_id != store_id:
        raise ForeignHash(tag, key=key, owner=store_id, store=reserved.store_id, taken=opened.top)
    low, high = reserved.low, min(reserved.high, last)
    if reserved.tag.scheme_id != record.scheme_id or low >= high:
        # Do not load the range: the period has ended, or has no numbers left, or the scheme was changed. After a change
        # other processes would convert these counters differently.
        return Extension("stale", reserved.tag)
    mark = threshold(low, high, share_at_refill(reserved.tag, high - low, rate))
    loaded = yield from send(tag_scripts.load(key, low, high, mark, reign=opened.reign, born=opened.born))
    match loaded.status:
        case "current" | "next":
            return Extension("loaded", reserved.tag, low, high, opened.cur)
        case "full":
            return Extension("ready", reserved.tag)
        case "stale":
            return Extension("stale", reserved.tag)
    raise refused(loaded, tag, key)


def confirm_behind(
    record: Tag, key: str, store_id: str, opened: tag_scripts.Opened, stands_at: int, *, seen: int
) -> Steps[None]:
    """If the store has gone back in time, halt the tag and raise StoreBehind.

    Otherwise return: it only seemed so, because other processes changed the hash between the two reads.

    `stands_at`: the store's `max`. If this process has seen a higher number, `seen`, the store has surely gone back.
    Otherwise the hash is read again. If it still has the same term and `born` id, and numbers above `stands_at`, no
    numbers were returned between the two reads: the store has gone back in this case, too.
    """
    tag, taken = record.tag, seen
    if stands_at >= seen:
        _, again = yield from _opened(record, key, store_id, 0, "look")
        if (again.reign, again.born) != (opened.reign, opened.born) or again.top <= stands_at:
            return
        taken = again.top
    yield from behind(tag, stands_at=stands_at, taken=taken)


def behind(tag: str, *, stands_at: int, taken: int) -> Steps[None]:
    """Halt the tag and raise StoreBehind: number `taken` was issued, but the store's `max` (`stands_at`) is lower.

    If the store finds that `max` is not lower, this returns without an error: an outdated server of the store had
    answered, or `recover` was run.
    """
    if (yield from ask(lambda store, timeout: store.halt(tag, below=taken, timeout=timeout))):
        raise StoreBehind(tag, max=stands_at, taken=taken)
