"""`verify` compares the ledger (the list of reservations), the store and Redis. `who` finds a number in the ledger.

Both change nothing.

In a healthy system under load, `verify` must report nothing. Data that is read at two moments can differ without a
fault, so everything that looks wrong is read again. The order of the reads proves the fault:

* Overlaps: when a process returns numbers, their ledger entry is shortened first, and then `max` is lowered. Only then
  can these numbers be reserved again. So if two entries still overlap when they are read again, this is a fault.
* Entries above `max`: in a sound store no entry ends above `max`, and entries only get shorter. The entry is read, then
  `max`, then the entry again. If the entry still ends above this `max`, this is a fault.
* Hashes: a tag's hash in Redis contains `born`, a random id of the hash, and `fence`, the master's replication id. If
  both are the same when the hash is read again, no process has reset the hash between the two reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from issuer.care.discrepancies import Discrepancy, Kind, Turns, damaged, described
from issuer.care.inspection import WASTE_FROM
from issuer.core.record import read_record
from issuer.core.requests import whole
from issuer.core.steps import Steps, ask, send, sleep
from issuer.errors import CorruptState, RedisUnavailable
from issuer.gateway import tag_scripts
from issuer.gateway.keys import check_found
from issuer_persistence.errors import Corrupt
from issuer_persistence.ledger import LEDGER_KEPT, LedgerEntry, LedgerPage, Position
from issuer_persistence.reads import ReadSegments
from issuer_persistence.records import HIGHEST, Tag, now_ms

#: If the store's `max` is lower than the highest number in the journal, `max` is read again after this many seconds.
SECOND_LOOK = 0.2

#: Ledger entries per request. 2000 entries take about 10 ms in SQLite, and 20 ms in Python.
PAGE = 2000

#: The check of a tag ends after this many findings, because an operator must act anyway.
MOST = 100

#: Ledger entries are deleted when they are 90 days old. An entry that was made less than this many ms ago must still be
#: in the ledger: if it is missing, it was lost. The limit is one day less than 90 days, because clocks can differ.
CERTAIN = LEDGER_KEPT - 24 * 3600 * 1000

#: Pairs of fields of a hash. In a sound hash, the first field of a pair is never higher than the second field.
ORDERED = (("cur", "max"), ("mark", "max"), ("max", "next_cur"), ("next_cur", "next_max"), ("next_mark", "next_max"))

#: `who` searches the ledger for a number. It reads the entries that end at the number or above it, the lowest first,
#: until this many of them do not contain the number. In a sound ledger, one would be enough: if the first entry that is
#: not empty does not contain the number, no entry does. More are read to find overlaps.
NEAR = 100


@dataclass(slots=True)
class _Buffer:
    """A buffer of a tag's hash: the numbers low + 1 .. high. The ledger must contain the reservation of each number.

    `number`: 1 for the current segment, 2 for the next one. `open`: the numbers above it were found in the ledger.
    """

    number: int
    low: int
    high: int
    open: int
    #: True if the ledger has no reservation of these numbers, but should have: the reservation is too young to be
    #: deleted for its age. False if the reservation may have been deleted. None if this is not known yet.
    missing: bool | None = None


class Audit:
    """Verification of one tag, page by page. Each page takes limited time and memory, even if the ledger is long."""

    def __init__(self, tag: str, key: str | None, store_id: str, record: Tag | None = None) -> None:
        """`key`: key of the tag's hash, or None without Redis. `record`: the tag's record, if it was just read."""
        self.findings: list[Discrepancy] = []
        #: The tag's hash in Redis, without the numbers of another term. None if it was not read, or is damaged.
        self.hash: tag_scripts.Hash | None = None
        #: The newest entries of the ledger, the highest numbers first.
        self.newest: list[LedgerEntry] = []
        self._tag = tag
        self._key = key
        self._store_id = store_id
        self._record = record
        self._max = 0
        self._created = 0
        #: The earlier ledger entry with the lowest `low`. An entry contains the numbers low + 1 .. high. Entries are
        #: read in falling order of `high`. So the next entry overlaps an earlier one exactly if the `high` of the next
        #: entry is above the `low` of the earlier one. It is enough to compare the next entry with the entry that has
        #: the lowest `low`, so only that one is kept.
        self._lowest: LedgerEntry | None = None
        self._buffers: list[_Buffer] = []
        #: Detects that segments of a strict tag are loaded into two Redis hashes in turns. None if the tag is not
        #: strict. Also None after two hashes were reported, so that they are reported once.
        self._turns: Turns | None = None

    def whole(self) -> Steps[list[Discrepancy]]:
        """Verify the tag: the journal, Redis, and the ledger page by page. Return the findings."""
        try:
            record = self._record or (yield from read_record(self._tag))
        except Corrupt as error:
            return [damaged(error)]
        self._max, self._created = record.max, record.created
        self._turns = Turns() if record.order == "strict" else None
        yield from self._check_journal()
        if self._key is not None:
            yield from self._with_redis(self._check_hash(self._key), self._key)
        page = yield from self._check_page(None)
        while page.last is not None and len(self.findings) < MOST:
            page = yield from self._check_page(page.last)
        del self.findings[MOST:]
        if self._key is not None and page.last is None:
            yield from self._with_redis(self._check_buffers(self._key), self._key)
        return self.findings

    def _check_page(self, beyond: Position | None) -> Steps[LedgerPage]:
        page = yield from ask(ReadSegments(self._tag, PAGE, beyond))
        self.newest += page.entries[: WASTE_FROM - len(self.newest)]
        for error in page.damaged:
            self._report("damaged entry", f"the ledger: {error.problem}")
        segments = [entry for entry in page.entries if entry.low < entry.high]
        yield from self._check_against_max(segments)
        yield from self._check_overlaps(segments)
        self._check_turns(segments)
        for buffer in self._buffers:
            self._look_for(buffer, segments)
        return page

    def _report(
        self,
        kind: Kind,
        problem: str,
        *entries: LedgerEntry,
        numbers: tuple[int, int] | None = None,
        **values: str | int,
    ) -> None:
        self.findings.append(Discrepancy(self._tag, kind, problem, numbers, entries, values))

    def _read_max(self) -> Steps[None]:
        self._max = (yield from read_record(self._tag)).max

    def _check_turns(self, segments: Iterable[LedgerEntry]) -> None:
        for entry in segments:
            both = self._turns.found(entry) if self._turns is not None else None
            if both is not None:
                loads = "; ".join(map(described, both))
                problem = f"the tag is strict, but its segments are loaded into two hashes in Redis in turns: {loads}"
                self._report("two hashes in Redis", problem, *both)
                self._turns = None

    def _check_journal(self) -> Steps[None]:
        self._max, taken = yield from _compared(self._tag, self._max)
        if taken > self._max:
            problem = (
                f"the store's max is {self._max}, but its journal records numbers up to {taken} as reserved: the store "
                "has lost changes"
            )
            self._report("below the journal", problem, numbers=(self._max + 1, taken), max=self._max, taken=taken)

    def _with_redis(self, steps: Steps[None], key: str) -> Steps[None]:
        """Run the steps. If Redis is unavailable, report a finding, and continue without Redis."""
        try:
            yield from steps
        except RedisUnavailable as error:
            self._key = None
            self._report("Redis not looked at", f"Redis key {key} could not be read: {error}", key=key, why=str(error))

    def _check_hash(self, key: str) -> Steps[None]:
        try:
            hash, live = yield from send(tag_scripts.read_both(key))
        except CorruptState as error:  # the key has a value that is not a hash
            self._report("damaged hash", f"Redis key {key}: {error.args[0]}", key=key)
            return
        problem = damage(hash)
        if problem is not None:
            self._report("damaged hash", f"Redis key {key}: {problem}", key=key)
            return
        if hash.store is not None and hash.store != self._store_id:
            if hash.names_store:
                problem = f"Redis key {key} belongs to store {hash.store}, this one is {self._store_id}"
                self._report("another store's hash", problem, key=key, store=hash.store, expected=self._store_id)
            else:
                problem = f"Redis key {key}: field store is not the id of a store: {hash.store!r}"
                self._report("damaged hash", problem, key=key)
            return
        # Every draw from a hash of another term is rejected, so its numbers are not searched in the ledger.
        self.hash = live
        for number, low, high in ((1, live.cur, live.max), (2, live.next_cur, live.next_max)):
            if low is not None and high is not None and low < high:
                self._buffers.append(_Buffer(number, low, high, high))
        if hash.top > self._max:
            yield from self._read_max()  # the numbers may have been reserved since the last look
            yield from self._check_top(key, hash)

    def _check_top(self, key: str, hash: tag_scripts.Hash) -> Steps[None]:
        """Check that no number in the hash is above the store's `max`, which was read after the hash."""
        fields = {"cur": hash.cur, "max": hash.max, "next_max": hash.next_max}
        above = {name: value for name, value in fields.items() if value is not None and value > self._max}
        if above and (yield from self._unmoved(key)):
            for name, value in above.items():
                problem = f"Redis key {key}: {name} is {value}, above the store's max {self._max}"
                values: dict[str, str | int] = {"key": key, "field": name, "value": value, "max": self._max}
                self._report("Redis above store max", problem, numbers=(self._max + 1, value), **values)

    def _unmoved(self, key: str) -> Steps[bool]:
        """Return True if no process has reset the hash since it was read."""
        again = yield from send(tag_scripts.read_hash(key))
        return self.hash is not None and (again.fence, again.born) == (self.hash.fence, self.hash.born)

    def _look_for(self, buffer: _Buffer, segments: Iterable[LedgerEntry]) -> None:
        """Lower `buffer.open` below the numbers that these ledger entries contain. `segments`: highest entry first."""
        for entry in segments:
            if buffer.open <= buffer.low or buffer.missing is not None:
                return
            if entry.high >= buffer.open:
                buffer.open = min(buffer.open, max(entry.low, buffer.low))
            else:
                # This entry ends below `open`, and the next entries are lower still. So no entry contains the number
                # `open`. It was reserved after this entry, because it is higher.
                buffer.missing = self._certain(entry.time)

    def _check_buffers(self, key: str) -> Steps[None]:
        for buffer in self._buffers:
            if buffer.open > buffer.low and buffer.missing is None:
                buffer.missing = self._certain(0)
        missing = [buffer for buffer in self._buffers if buffer.missing]
        # After the hash was read, its numbers may have been returned, and their entry shortened. This is no fault. So
        # read the hash again, and report nothing if it was reset.
        if missing and (yield from self._unmoved(key)):
            for each in missing:
                numbers = each.low + 1, each.high
                problem = (
                    f"Redis key {key}: buffer {each.number} holds {numbers[0]}..{numbers[1]}, but the ledger does not "
                    "have reservations of all of them"
                )
                self._report("not in the ledger", problem, numbers=numbers, key=key, buffer=each.number)

    def _certain(self, time: int) -> bool:
        """Return False if a reservation after `time` (in ms since 1970) could be so old that it was deleted."""
        return now_ms() - max(time, self._created) < CERTAIN

    def _check_against_max(self, segments: Iterable[LedgerEntry]) -> Steps[None]:
        above = [entry for entry in segments if entry.high > self._max]
        if above:
            yield from self._read_max()  # another process may have reserved numbers in the meantime
            above = [entry for entry in above if entry.high > self._max]
        if above:
            now = yield from self._again(above[:MOST])
            for entry in now.values():
                if entry.high > self._max:
                    numbers = max(entry.low, self._max) + 1, entry.high
                    problem = (
                        f"{numbers[0]}..{numbers[1]} are reserved, but the store's max is {self._max}: "
                        f"{described(entry)}"
                    )
                    self._report("above store max", problem, entry, numbers=numbers, max=self._max)

    def _check_overlaps(self, segments: Iterable[LedgerEntry]) -> Steps[None]:
        pairs = []
        for entry in segments:
            lowest = self._lowest
            if lowest is not None and lowest.low < entry.high and lowest.id != entry.id:
                pairs.append((lowest, entry))
            if lowest is None or entry.low < lowest.low:
                self._lowest = entry
        if not pairs:
            return
        del pairs[MOST:]
        now = yield from self._again(entry for pair in pairs for entry in pair)
        for pair in pairs:
            if all(entry.id in now for entry in pair):
                one, other = sorted((now[entry.id] for entry in pair), key=lambda entry: (entry.time, entry.low))
                first, last = max(one.low, other.low) + 1, min(one.high, other.high)
                if first <= last:
                    problem = f"{first}..{last} were reserved twice: {described(one)}; {described(other)}"
                    self._report("overlap", problem, one, other, numbers=(first, last))

    def _again(self, entries: Iterable[LedgerEntry]) -> Steps[dict[str, LedgerEntry]]:
        ids = {entry.id for entry in entries}
        found = yield from ask(lambda store, timeout: store.entries(self._tag, ids, timeout=timeout))
        return {entry.id: entry for entry in found}


def damage(hash: tag_scripts.Hash) -> str | None:
    """Return a text about the damage of the hash. None if the hash obeys the rules of lua/include/hash.lua."""
    if hash.corrupt is not None:
        return f"field {hash.corrupt} is not a whole number in 0..2^63-1"
    first = {"cur": hash.cur, "max": hash.max, "mark": hash.mark}
    second = {"next_cur": hash.next_cur, "next_max": hash.next_max, "next_mark": hash.next_mark}
    unused = all(value is None for value in second.values())
    if hash.cur is None and hash.max is None and unused:
        return None
    fields = first if unused else {**first, **second}
    absent = next((name for name, value in fields.items() if value is None), None)
    if absent is not None:
        return f"field {absent} is missing"
    known = {name: value for name, value in fields.items() if value is not None}
    for lower, upper in ORDERED:
        if lower in known and upper in known and known[lower] > known[upper]:
            return f"{lower} {known[lower]} is above {upper} {known[upper]}"
    if not unused and hash.next_cur == hash.next_max:
        return f"buffer 2 is empty: next_cur and next_max are {hash.next_cur}"
    return None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a number, from the ledger, the store and Redis.

    Attributes:
        tag: Name of the tag.
        number: The number for which `who` was called, as a value of the tag's counter.
        entries: Ledger entries that contain the number, the oldest first. More than one entry contains the number only
            if segments overlap.
        below: The highest ledger entry that ends below the number, or None. This entry may have contained the number
            before unused numbers were returned.
        oldest: Entry with the lowest numbers in the tag's ledger. None if the ledger is empty.
        max: Highest reserved number in the store's record.
        in_redis: True if the number is in Redis and not yet issued. None if the issuer has no Redis, or Redis cannot be
            reached.
        taken: Highest reserved number in the store, Redis and the journal. If it is higher than `max`, the store has
            lost reservations.
    """

    tag: str
    number: int
    entries: list[LedgerEntry]
    below: LedgerEntry | None
    oldest: LedgerEntry | None
    max: int
    in_redis: bool | None
    taken: int


def who(key_of: Callable[[str], str | None], tag: str, number: int) -> Steps[Provenance]:
    """Return the origin of a number; see Issuer.who.

    `key_of` returns the key of a tag's hash in Redis, or None if there is no Redis.
    """
    number, key = whole(number, "number", 1, HIGHEST), key_of(check_found(tag))
    hash = None
    if key is not None:
        with suppress(RedisUnavailable):
            hash = yield from send(tag_scripts.read_hash(key))
    record = yield from read_record(tag)
    position: Position = (number, -1, "")
    at: Position | None = position
    holding: list[LedgerEntry] = []
    others = 0
    while others < NEAR and at is not None:
        beyond = at
        page = yield from ask(
            lambda store, timeout: store.segments(tag, beyond=beyond, upward=True, count=NEAR, timeout=timeout)  # noqa: B023 - called at once
        )
        holding += [entry for entry in page.entries if entry.holds(number)]
        others += sum(entry.low < entry.high and not entry.holds(number) for entry in page.entries)
        at = page.last
    highest = taken = record.max
    if number > highest:
        highest, taken = yield from _compared(tag, highest, 0 if hash is None else hash.top)
    below = yield from _below(tag, position)
    oldest = yield from ask(lambda store, timeout: store.segments(tag, upward=True, count=1, timeout=timeout))
    return Provenance(
        tag=tag,
        number=number,
        entries=sorted(holding, key=lambda entry: (entry.time, entry.low)),
        below=below,
        oldest=next(iter(oldest.entries), None),
        max=highest,
        in_redis=None if hash is None else _waits(hash, number),
        taken=max(taken, highest),
    )


def _compared(tag: str, highest: int, in_redis: int = 0) -> Steps[tuple[int, int]]:
    """Return the store's `max`, which was `highest`, and the highest number in its journal or in Redis.

    When numbers are returned, the store lowers its `max` first, and writes this to the journal a moment later. In this
    moment the journal has the higher number without a fault. So compare a second time.
    """
    taken = 0
    for _ in range(2):
        tops = yield from ask(lambda store, timeout: store.witnessed(timeout=timeout))
        taken = max(tops.get(tag, 0), in_redis)
        if taken <= highest:
            break
        yield from sleep(SECOND_LOOK)
        highest = (yield from read_record(tag)).max
    return highest, taken


def _below(tag: str, at: Position | None) -> Steps[LedgerEntry | None]:
    """Return the highest ledger entry below the position `at` that still contains numbers. None if there is none."""
    while at is not None:
        beyond = at
        page = yield from ask(
            lambda store, timeout: store.segments(tag, beyond=beyond, count=NEAR, timeout=timeout)  # noqa: B023 - called at once
        )
        found = next((entry for entry in page.entries if entry.low < entry.high), None)
        if found is not None:
            return found
        at = page.last
    return None


def _waits(hash: tag_scripts.Hash, number: int) -> bool:
    buffers = ((hash.cur, hash.max), (hash.next_cur, hash.next_max))
    return any(low is not None and high is not None and low < number <= high for low, high in buffers)
