"""A store on the table of another program that goes on drawing numbers from it: Leaf, its Go port, or tinyid.

Both programs move the same row. The row contains the tag's name, `max`, step and description. If this store adapts the
step, the row keeps the lowest step, with which the other program begins. All other fields of the tag are in the store's
own table, in a row of the same tag. There, `max` is the highest number that this store knows to be reserved (`seen` in
this module). Numbers above it up to the `max` of the shared row belong to the other program.

Each transaction locks the shared row before the own row, and reads only what it has locked. The other program locks
only the shared row, so there is no deadlock with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from issuer_persistence.contract import CallDeadline, Store, in_turn
from issuer_persistence.errors import Corrupt, LimitHit, MaxBehind, Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.facts import Sharing, StoreFacts
from issuer_persistence.ledger import FOREIGN, LedgerEntry
from issuer_persistence.records import DEFAULT_MAX_STEP, HIGHEST, Tag, TagChanges, check_argument, now_ms, number, tried
from issuer_persistence.sql.connections import SQLLink
from issuer_persistence.sql.layouts import LAYOUTS, SharedStatements, SharedTable, problems
from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.tables import PREFIX, TAG_COLUMNS
from issuer_persistence.sql.transaction import Conflict, SQLTransaction, record, row
from issuer_persistence.urls import parameters

T = TypeVar("T")

#: Highest step that the other program's column can contain.
STEP_MOST = 2**31 - 1

#: How many characters of a description the other program's column can contain.
DESCRIPTION_MOST = 256

#: Version of a tag that has no row in the store's own table yet.
_NO_VERSION = "0" * 24

#: Error code of the server: a column's character set lacks a letter of the text that it is compared with.
_NO_SUCH_LETTER = 1267

#: How many tags are adopted per page.
_PAGE = 1000


@dataclass(slots=True)
class Row:
    """A row of the other program, as this transaction has read it."""

    tag: str
    max_id: int
    step: object
    description: str | None
    #: Time of the server, in ms since 1970.
    now: int
    #: Highest reserved number.
    top: int
    #: Highest number that this store knows to be reserved.
    seen: int = 0
    #: Whether this store's tag was deleted.
    deleted: bool = False


class SharedRowTransaction(SQLTransaction):
    """One transaction on the row of the other program and the row of this store."""

    statements: SharedStatements

    def __init__(self, link: SQLLink, statements: SharedStatements, *, writes: bool, strangers: set[str]) -> None:
        """`strangers`: tags that have no row of this store yet. All transactions of a process share this set."""
        super().__init__(link, statements, writes=writes)
        self._rows: dict[str, Row] = {}
        self._strangers = strangers

    # ------------------------------------------------------------------ reading

    def look(self, tag: str) -> Row | None:
        """Read, and lock, the row of the other program. It comes before the row of this store."""
        self._rows.pop(tag, None)
        try:
            found = self.rows(f"{self.statements.one_of_theirs}{self._lock}", (tag,))
        except Exception as error:
            if error.args[:1] != (_NO_SUCH_LETTER,):
                raise
            return None
        if not found or found[0][0] != tag:  # the table's collation may take `Orders` and `orders ` for `orders`
            return None
        if self._writes and tag in self._strangers:
            self.cursor.execute(self.statements.insert_ours, row(self._new(tag, now_ms())))
        return self._noted(found[0])

    def _noted(self, found: Sequence[Any]) -> Row:
        tag, max_id, step, description, fits, now = found
        layout = self.statements.layout
        if not fits:
            raise Corrupt(tag, f"its row of {layout.table} cannot be shared, because it must have {layout.fits}")
        if max_id < 0:
            raise Corrupt(tag, f"max_id of {layout.table} must be an integer in 0..2^63-1, not {max_id}")
        self._rows[tag] = Row(tag, max_id, step, description, now, top=max(max_id - layout.ahead, 0))
        return self._rows[tag]

    def record(self, row: Sequence[object]) -> Tag:
        """Return the record whose row of this store is `row`. The row of the other program was read before."""
        fields: dict[str, Any] = dict(zip(TAG_COLUMNS, row, strict=True))
        tag = str(fields["tag"])
        theirs = self._rows.get(tag)
        if theirs is None:
            # The other program's row was deleted. If the tag is created again, it starts after its old numbers.
            fields["deleted"] = True
        else:
            theirs.seen, theirs.deleted = number(tag, fields, "max"), bool(fields["deleted"])
            fields["max"] = max(theirs.top, theirs.seen) if theirs.deleted else theirs.top
            if fields["step_mode"] == "auto":
                least = number(tag, {"step": theirs.step}, "step", 1)
                fields["min_step"], fields["max_step"] = least, max(fields["max_step"] or DEFAULT_MAX_STEP, least)
            if fields["step_mode"] != "auto" or fields["version"] == _NO_VERSION:
                fields["step"] = theirs.step
            described, found = bool(self.statements.layout.description), theirs.description or ""
            if described and str(fields["description"])[:DESCRIPTION_MOST] != found:
                fields["description"] = found
        return record([*fields.values()])

    def read(self, tag: str) -> Tag | None:
        theirs = self.look(tag)
        found = super().read(tag)
        return self._stranger(theirs) if found is None and theirs is not None else found

    def _stranger(self, theirs: Row) -> Tag:
        """Return the record of a tag that has only a row of the other program."""
        if self._writes:
            # To insert the row now could end in a deadlock, because this transaction has locked the gap.
            self._strangers.add(theirs.tag)
            raise Conflict
        return self.record(row(self._new(theirs.tag, 0)))

    def _new(self, tag: str, created: int) -> Tag:
        """Return the own row of a tag that has only a row of the other program. Nothing is known to be reserved."""
        return Tag(
            tag=tag, max=0, order="trend", lease_mode="auto", **self.statements.layout.settings, created=created,
            timestamp=created, version=_NO_VERSION,
        )  # fmt: skip

    def read_for_reservation(self, tag: str, at_least: int) -> tuple[Tag, int | None, str]:
        """See `SQLTransaction`. Numbers that the other program has taken are entered into the ledger."""
        theirs = self.look(tag)
        if theirs is None:
            raise TagMissing(tag)
        self._there.pop(tag, None)
        try:
            before, taken, store_id = super().read_for_reservation(tag, at_least)
        except TagMissing:
            if tag not in self._there:
                self._stranger(theirs)
            raise
        return before, self._taken(before, taken, at_least), store_id

    def inspect(self, record: Tag) -> None:
        super().inspect(record)
        if (taken := self._taken(record, None)) is not None:
            raise MaxBehind(record.tag, record.max, taken, certain=True)

    def _taken(self, record: Tag, taken: int | None, at_least: int = 0) -> int | None:
        """Check both rows before a reservation, and enter what the other program has taken into the ledger.

        If the shared row is lower than this store knows, return the known number. `taken`: highest number in the ledger
        above the row of this store, or None. `at_least`: number of this store that a process has seen. If this store
        does not know it, its tables were restored: then `max` may be higher only because the other program goes on.
        """
        theirs, layout = self._rows[record.tag], self.statements.layout
        known = max(theirs.seen, taken or 0)
        if theirs.top < known:
            return known
        pause = int(layout.pause * 1000)
        if 0 < (wait := record.timestamp + pause - theirs.now) <= pause:
            raise Conflict(wait / 1000)
        if known < at_least:
            raise MaxBehind(record.tag, known, at_least)
        theirs.seen = known
        self.claim(record.tag)
        return None

    def adopted(self) -> bool:
        """Return whether the other program should no longer draw, see `Store.adopt`."""
        return bool(self.rows(self.statements.adopted)[0][0])

    def read_many(self, tags: Collection[str]) -> dict[str, Tag]:
        theirs = [self.look(tag) for tag in sorted(tags)]
        found = super().read_many(tags)
        return found | {each.tag: self._stranger(each) for each in theirs if each and each.tag not in found}

    def page(self, after: str | None, count: int) -> list[Tag | Corrupt]:
        """Return a page of the tags, sorted by the UTF-8 bytes of their names."""
        rows = self.rows(self.statements.page_of_theirs, (after or "", count))
        ours = self.rows_of([each[0] for each in rows])

        def listed(row: Sequence[Any]) -> Tag:
            theirs = self._noted(row)
            return self.record(ours[theirs.tag]) if theirs.tag in ours else self._stranger(theirs)

        return [tried(listed, each) for each in rows]

    def known(self, tag: str) -> int:
        """Return the highest number of a tag that this store knows to be reserved. The tag was read before."""
        return self._rows[tag].seen

    # ------------------------------------------------------------------ writing

    def take_over(self, tag: str) -> int:
        """Enter what the other program has taken into the ledger. Return the highest number known to be reserved."""
        theirs = self._rows[tag]
        if theirs.top > theirs.seen:
            self.enter(LedgerEntry(tag=tag, low=theirs.seen, high=theirs.top, reason=FOREIGN, host="", pid=0))
            theirs.seen = theirs.top
        return theirs.seen

    def claim(self, tag: str) -> None:
        """Do as `take_over`. If the other program should no longer draw, but has, raise Misconfigured."""
        theirs, layout = self._rows[tag], self.statements.layout
        if theirs.top > theirs.seen and self.adopted():
            raise Misconfigured(
                f"tag {tag!r}: {layout.table} was adopted, but another program has taken "
                f"{theirs.seen + 1}..{theirs.top} since then: stop {layout.program}, then run `issuer recover {tag}`"
            )
        self.take_over(tag)

    def write_many(self, records: Sequence[Tag]) -> list[Tag]:
        written, seen = [], []
        self._strangers.difference_update(each.tag for each in records)
        for each in records:
            theirs = self._rows.get(each.tag)
            if not each.deleted:
                self._check(each)
            if theirs is not None:
                seen.append(self._update(each, theirs))
                # Processes on several machines take turns by the clock of the server.
                written.append(replace(each, timestamp=theirs.now) if self.statements.layout.pause else each)
            else:
                if not each.deleted:
                    self._insert(each)
                seen.append(each.max)
                written.append(each)
        super().write_many([replace(each, max=highest) for each, highest in zip(written, seen, strict=True)])
        return written

    def _check(self, record: Tag) -> None:
        tag, layout = record.tag, self.statements.layout
        if record.scheme:
            problem = "a scheme, but the other program draws plain numbers"
        elif _column(record) > STEP_MOST:
            problem = f"the step {_column(record)}, but the table's column ends at {STEP_MOST}"
        elif len(tag) > layout.name_most:
            problem = f"a name of {len(tag)} characters, but the table's column has {layout.name_most}"
        else:
            problem = ""
        if problem:
            raise Misconfigured(f"{layout.table}: tag {tag!r} would have {problem}; use a store of its own for it")
        if record.max + layout.ahead > HIGHEST:
            raise LimitHit(tag, HIGHEST - layout.ahead, record.max)

    def _update(self, record: Tag, theirs: Row) -> int:
        """Write a record into the row of the other program. Return the highest number known to be reserved."""
        layout, changes = self.statements.layout, dict[str, object]()
        if record.deleted and not self.adopted():
            raise Misconfigured(
                f"tag {record.tag!r} cannot be deleted while {layout.program} draws from {layout.table}, too, because "
                f"nothing stops it: stop {layout.program}, then run `issuer adopt`"
            )
        if record.max > theirs.top or (theirs.deleted and not record.deleted):
            self.take_over(record.tag)
            theirs.seen = max(theirs.seen, record.max)
        elif record.max < theirs.top:  # numbers were handed back
            theirs.seen = record.max
        if record.max != theirs.top:
            changes["max_id"] = record.max + layout.ahead
        if _column(record) != theirs.step:
            changes["step"] = _column(record)
        description = record.description[:DESCRIPTION_MOST]
        if layout.description and description != (theirs.description or ""):
            changes[layout.description] = description
        if changes:
            statement = self.statements.update_theirs % ", ".join(f'"{each}" = %s' for each in changes)
            self.cursor.execute(statement, [*changes.values(), record.tag, theirs.max_id])
            if self.cursor.rowcount != 1:
                raise Unconfirmed(f"tag {record.tag!r}: its row in {layout.table} has changed in spite of the lock")
        return theirs.seen

    def _insert(self, record: Tag) -> None:
        layout = self.statements.layout
        values: list[object] = [record.tag, record.max + layout.ahead, _column(record)]
        values += [record.description[:DESCRIPTION_MOST]] if layout.description else []
        self.cursor.execute(self.statements.insert_theirs, values)
        if self.cursor.rowcount != 1:
            [(name, *_)] = self.rows(f"{self.statements.one_of_theirs} FOR UPDATE", (record.tag,))
            if name == record.tag:
                raise Conflict  # another process has just created it
            raise Misconfigured(
                f"tag {record.tag!r}: for {layout.table} it is the same name as {name!r}, by the collation of the table"
            )


def _column(record: Tag) -> int:
    """Return the step in the shared row."""
    return record.min_step if record.step_mode == "auto" else record.step


class SharedRowStore(MySQLStore):
    """A store whose tags are rows of another program's table. See the top of this module."""

    parameters = frozenset({"layout"})
    statements: SharedStatements

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        super().__init__(url, prefix=prefix)
        name = parameters(url)[1].get("layout", "")
        if name not in LAYOUTS:
            raise Misconfigured(f"{self.url}: layout must be one of {', '.join(LAYOUTS)}, not {name!r}")
        self.layout_name = name
        self.statements = SharedStatements(prefix, self.types.schema, LAYOUTS[name])
        self._strangers: set[str] = set()

    @property
    def layout(self) -> SharedTable:
        """The table of the other program."""
        return self.statements.layout

    def within(self, link: SQLLink, *, writes: bool) -> SharedRowTransaction:
        return SharedRowTransaction(link, self.statements, writes=writes, strangers=self._strangers)

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[SharedRowTransaction]:
        """See `SQLStore.transaction`. The first transaction creates the store's own tables, also if it only reads."""
        deadline = CallDeadline(timeout)
        if self._batch is None and not self._ready:
            self._prepare(deadline)
        with super().transaction(deadline.left(), writes=writes) as found:
            yield cast("SharedRowTransaction", found)

    def make_tables(self, transaction: SQLTransaction) -> None:
        if wrong := problems(self.layout, transaction.rows):
            raise Misconfigured(f"{self.url}: {wrong[0]}")
        super().make_tables(transaction)

    def unsafe_tables(self, transaction: SQLTransaction) -> list[str]:
        return super().unsafe_tables(transaction) + problems(self.layout, transaction.rows)

    # ------------------------------------------------------------------ the contract

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        """See `Store.tags`. A page reads all names, because the other program has no index in this order."""
        check_argument("count", count, 1)
        look = lambda found: cast("SharedRowTransaction", found).page(after, count)  # noqa: E731
        return self._looked(timeout, look, list[Tag | Corrupt]())

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """See `Store.configure`. A raised `max` is known to be reserved, also if the other program had reached it."""

        def configure(left: float) -> Tag:
            with self.transaction(left) as transaction:
                found = transaction.live(tag).configured(changes)
                if changes.raise_to is not None:
                    transaction.claim(tag)
                return transaction.write(found)

        return self._repeated(timeout, configure)

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """See `Store.halt`. `below` is compared with what this store knows to be reserved, too, see `_taken`."""
        if below is not None:
            check_argument("below", below)

        def halt(left: float) -> bool:
            with self.transaction(left) as transaction:
                found = transaction.live(tag)
                behind = below is not None and transaction.known(tag) < below
                return transaction.write(found.stopped(None if behind else below)).halted

        return self._repeated(timeout, halt)

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """See `Store.recover`. What the other program has taken until now is entered into the ledger."""
        check_argument("at_least", at_least)
        return self._repeated(timeout, partial(self._take_over, tag, at_least))

    def _take_over(self, tag: str, at_least: int, timeout: float) -> Tag:
        with self.transaction(timeout) as transaction:
            found = transaction.live(tag)
            return transaction.write(found.recovered(max(at_least, transaction.take_over(tag))))

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """See `Store.batch`. If reservations must wait for their turn, each call has a transaction of its own."""
        return in_turn(self, calls, timeout) if self.layout.pause else super().batch(calls, timeout=timeout)

    # ------------------------------------------------------------------ the end of sharing

    def shared_with(self, *, timeout: float) -> str:
        adopted = self._looked(timeout, lambda found: cast("SharedRowTransaction", found).adopted(), nothing=False)
        return "" if adopted else self.layout.program

    def adopt(self, *, timeout: float) -> int:
        deadline, count, after, damaged = CallDeadline(timeout), 0, None, list[Corrupt]()
        while page := self.tags(after=after, count=_PAGE, timeout=deadline.left()):
            damaged += [each for each in page if isinstance(each, Corrupt)]
            for each in page:
                if isinstance(each, Tag):
                    self._repeated(deadline.left(), partial(self._adopt, each.tag))
            count, after = count + len(page), page[-1].tag
        if damaged:  # the others are taken over
            raise damaged[0]
        self._repeated(deadline.left(), self._mark)
        return count

    def _adopt(self, tag: str, timeout: float) -> None:
        with self.transaction(timeout) as transaction:
            if (found := transaction.read(tag)) is not None and not found.deleted:
                transaction.take_over(tag)
                transaction.write(found.changed())

    def _mark(self, timeout: float) -> None:
        with self.transaction(timeout) as transaction:
            transaction.cursor.execute(self.statements.adopt, ("adopted", str(now_ms())))

    def examine(self, *, timeout: float) -> StoreFacts:
        deadline = CallDeadline(timeout)
        facts, adopted, moved = super().examine(timeout=deadline.left()), False, tuple[str, ...]()
        if facts.schema:
            adopted, moved = self._looked(deadline.left(), self._moved, (adopted, moved))
        return replace(facts, sharing=Sharing(self.layout.program, self.layout.table, adopted, moved))

    def _moved(self, transaction: SQLTransaction) -> tuple[bool, tuple[str, ...]]:
        """Return whether the table was adopted, and the tags from which another program has drawn since then."""
        adopted = cast("SharedRowTransaction", transaction).adopted()
        return adopted, tuple(tag for (tag,) in transaction.rows(self.statements.moved)) if adopted else ()
