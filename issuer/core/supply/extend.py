"""Extension: the next segment, from the store into Redis.

open -> reserve -> load, in that order: `open` tells the reign and the born that the load must still find, and elects
one loader among the processes; `reserve` makes the range the loader's; `load` is sent once. A segment that was
sent is spent, whatever the reply.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from issuer import gateway
from issuer.core import scheme_record
from issuer.core.arithmetic import mark
from issuer.core.error_mapping import refused
from issuer.core.events import Emit, unobserved
from issuer.core.floor import floor
from issuer.core.periods import PERIOD_BITS
from issuer.core.record import read_record
from issuer.core.scheme_record import last_counter
from issuer.core.steps import Steps, ask, send
from issuer.core.supply import direct
from issuer.errors import ConfigurationError, IssuerError, StoreBehind
from issuer_persistence.errors import Halted, LimitHit, MaxBehind, TagMissing
from issuer_persistence.ledger import Purpose
from issuer_persistence.records import HIGHEST, Tag, TagChanges, fresh_version

#: How often a load that came too late is followed by another reservation. Each one costs a gap of a segment. A period
#: that begins takes one, too.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Extension:
    """The outcome of an extension.

    "loaded": (low, high] is in Redis, and `cur` was the last number issued when it began. "ready": there was no need.
    "elsewhere": another process was elected. "stale": what was loaded came too late, each time.
    """

    outcome: Literal["loaded", "ready", "elsewhere", "stale"]
    tag: Tag | None = None
    low: int = 0
    high: int = 0
    cur: int = 0


@dataclass(slots=True)
class Election:
    """The election of this process as the tag's loader. It stays elected after a failure, until a segment is there.

    A count, not a flag: a draw may win an election while an extension that knows nothing of it ends. A flag would be
    cleared then, and the tag would wait until the election lapses.
    """

    won: int = 0
    served: int = 0

    @property
    def mine(self) -> bool:
        """Whether an election was won that no extension has served yet."""
        return self.won > self.served


def extend(
    record: Tag,
    key: str,
    *,
    seen: int,
    window: float,
    election: Election,
    wanted: int = 0,
    application: str = "",
    emit: Emit = unobserved,
) -> Steps[Extension]:
    """Load one segment, if one is due and this caller is elected.

    `record` is the tag as this process knows it. `seen` is the highest number of the tag that this process has seen: a
    store that stands below it went back in time. `election` may have been won already, in a draw. `window`: how long an
    election stands, in seconds. `wanted`: how many numbers a caller wants at once. Where that is more than a segment
    holds it is the segment's size, as reserving them piece by piece would take a request to the store for each.
    `application`: the service's label, for the ledger. `emit`: hears of each reservation.
    """
    store_id = yield from ask(lambda store, timeout: store.store_id(timeout=timeout))
    for _ in range(ATTEMPTS):
        won = election.won
        role: Literal["claim", "mine"] = "mine" if election.mine else "claim"
        record, opened = yield from _opened(record, key, store_id, window, role)
        if not opened.due:
            election.served = won
            return Extension("ready")
        if not opened.elected:
            return Extension("elsewhere")
        if not election.mine:
            election.won = won = won + 1
        try:
            if opened.over is not None:
                record = yield from begin_period(record, key, store_id, opened.over)
                # The floor ends every election, and another process may have been elected since. Were both to load, the
                # second to have reserved might come first, and the period would begin with a gap.
                election.served = won
                continue
            extension = yield from reserve_and_load(
                record, key, opened, at_least=max(opened.top, seen), wanted=wanted, application=application, emit=emit
            )
        except MaxBehind as behind:
            if behind.certain:
                yield from direct.behind(tag=record.tag, stands_at=behind.max, taken=behind.at_least)
            yield from confirm_behind(record, key, store_id, opened, behind.max, seen=seen)
            continue
        except (TagMissing, LimitHit, Halted):
            # The tag may be mended by another process: it shall not wait until this election lapses.
            with suppress(IssuerError):
                yield from _opened(record, key, store_id, window, "resign")
            election.served = won
            raise
        if extension.outcome != "stale":
            election.served = won
            return extension
        record = extension.tag or record
    return Extension("stale", record)


def _opened(
    record: Tag, key: str, store_id: str, window: float, role: gateway.Role
) -> Steps[tuple[Tag, gateway.Opened]]:
    """Send `open`; with it comes the record whose scheme the hash has."""
    attempt = 0
    while True:
        until = scheme_record.until(record)
        call = gateway.open(key, fresh_version(), store_id, window, role, scheme=record.scheme_id, until=until)
        opened = yield from send(call)
        if opened.status == "open":
            return record, opened
        attempt += 1
        if opened.status != "otherscheme" or attempt == ATTEMPTS:
            raise refused(opened, record.tag, key, store_id)
        record = yield from _caught_up(record.tag, key, store_id, opened.scheme)


def _caught_up(tag: str, key: str, store_id: str, found: str) -> Steps[Tag]:
    """Read the record of a tag whose hash is of the scheme `found`; if it is the hash that lags behind, floor that.

    What was loaded under the older scheme is dropped then, unless it makes the same values: a gap. Counters that are
    reserved under the new one lie above all of it.
    """
    record = yield from read_record(tag)
    if scheme_record.turn(record.scheme_id) < scheme_record.turn(found):
        # A change is in the store before it is in the hash: this store went back to before it.
        yield from ask(lambda store, timeout: store.halt(tag, timeout=timeout))
        raise StoreBehind(tag, max=record.max, scheme=found)
    if record.scheme_id != found:
        yield from floor(tag, key, 0, "keep", store_id, scheme=record.scheme_id, until=scheme_record.until(record))
    return record


def begin_period(record: Tag, key: str, store_id: str, clock: int) -> Steps[Tag]:
    """Begin the period in which Redis's clock stands; return the record after. `clock`: in ms since 1970.

    First the store, then the hash, as with every floor. If the store's numbers are of a later period already, that one
    goes on: Redis's clock went back, and periods never do.
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


def size(record: Tag, wanted: int) -> int | None:
    """Return how many numbers to reserve: those that are wanted, or None: a segment, if that holds as many."""
    return wanted if wanted > record.segment else None


def _within_limit(record: Tag, at_least: int, wanted: int) -> tuple[int | None, int]:
    """Return how many numbers to reserve, and the last one, so that none lies beyond a period's limit. See `size`.

    The store knows no limit there. Numbers that were reserved beyond it would be missing once it is raised. Raises
    LimitHit; a record that is halted, or behind, is left to the store.
    """
    last = last_counter(record)
    if last is None or record.halted or record.max < at_least:
        return size(record, wanted), HIGHEST
    left = last - record.max
    if left <= 0:
        limit = scheme_record.reserved(record)[1]
        raise LimitHit(record.tag, limit, limit)
    return min(max(record.segment, wanted), left), last


def reserve_and_load(
    record: Tag, key: str, opened: gateway.Opened, *, at_least: int, wanted: int, application: str, emit: Emit
) -> Steps[Extension]:
    """Reserve a segment in the store, and load it into the hash that was opened."""
    tag, n, last = record.tag, size(record, wanted), HIGHEST
    if last_counter(record) is not None:
        found = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
        if found is None or found.deleted:
            raise TagMissing(tag)
        if found.scheme_id != record.scheme_id:
            return Extension("stale", found)
        n, last = _within_limit(found, at_least, wanted)
    reserved = yield from direct.observed(
        tag,
        "load",
        emit,
        lambda store, timeout: store.reserve(
            tag, n, purpose=Purpose("load", application, opened.born), at_least=at_least, timeout=timeout
        ),
    )
    low, high = reserved.low, min(reserved.high, last)
    if reserved.tag.scheme_id != record.scheme_id or low >= high:
        # Changed meanwhile: processes that draw from this hash would make other numbers of them. Or others were
        # reserved up to the limit, or a period was begun.
        return Extension("stale", reserved.tag)
    loaded = yield from send(gateway.load(key, low, high, mark(low, high), reign=opened.reign, born=opened.born))
    match loaded.status:
        case "current" | "next":
            return Extension("loaded", reserved.tag, low, high, opened.cur)
        case "full":
            return Extension("ready", reserved.tag)
        case "stale":
            return Extension("stale", reserved.tag)
    raise refused(loaded, tag, key)


def confirm_behind(
    record: Tag, key: str, store_id: str, opened: gateway.Opened, stands_at: int, *, seen: int
) -> Steps[None]:
    """Tell a store that went back in time from a lost race; if it did, halt the tag and raise StoreBehind.

    Redis, the store and Redis again, with the same reign and born and both tops above: no process emptied the hash
    and handed its numbers back in between. A number that this process itself has seen needs no second look.
    """
    tag, taken = record.tag, seen
    if stands_at >= seen:
        _, again = yield from _opened(record, key, store_id, 0, "look")
        if (again.reign, again.born) != (opened.reign, opened.born) or again.top <= stands_at:
            return
        taken = again.top
    halted = yield from ask(lambda store, timeout: store.halt(tag, below=taken, timeout=timeout))
    if halted:
        raise StoreBehind(tag, max=stands_at, taken=taken)
