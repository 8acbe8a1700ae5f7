"""Base class of the stores in SQL databases: what PostgreSQL and MySQL have in common.

Each change is one transaction: it locks the tag's row, changes the record in Python, and writes the row and the ledger
entry. The store has connections of its own. It never joins a transaction of the caller, which may be rolled back after
its numbers were issued.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from typing import Any, ClassVar, NoReturn, TypeVar
from urllib.parse import urlsplit

from issuer_persistence.contract import CallDeadline, Store, in_turn
from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, Unconfirmed, tls_fails
from issuer_persistence.facts import StoreFacts, StoreSetting, Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation
from issuer_persistence.pruning import Pruned
from issuer_persistence.records import Tag, TagSettings, check_argument, fresh_version, tried
from issuer_persistence.sql.connections import Links, SQLLink
from issuer_persistence.sql.tables import COLUMNS, ENTRY_COLUMNS, PREFIX, SCHEMA, Statements, Types, checked_prefix
from issuer_persistence.sql.transaction import Conflict, SQLTransaction, in_parts, listed, record
from issuer_persistence.transactional import TransactionalStore
from issuer_persistence.urls import flaw, mask, parameters, usual, with_parameters

T = TypeVar("T")

_NO_ROWS: list[tuple[Any, ...]] = []

#: A change is repeated after a conflict. The wait includes a random time of up to this many seconds.
PAUSE = 0.02


#: Classes of SQLSTATE for errors that may end by themselves: connection, state of a transaction, rollback, resources,
#: locks, shutdown, system, unknown. An operator must correct the cause of all others, also in the user's own triggers.
PASSING = ("08", "25", "40", "53", "55", "57", "58", "70", "HY", "XX")


class NoTables(Conflict):
    """The tables do not exist."""


class SQLStore(TransactionalStore):
    """A store in an SQL database.

    Args:
        url: URL of the database.
        prefix: Prefix of the tables' names. Each prefix is a separate store.
    """

    #: Types of the columns.
    types: ClassVar[Types]
    #: Statement that returns the version of the server, and its time in ms since 1970.
    about: ClassVar[str]
    #: The parameter `layout` of the URL, for a store on the table of another program. "" for all other stores.
    layout_name = ""

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        self._address = url
        self.statements = Statements(checked_prefix(prefix), self.types.schema, self.types.limited)
        self._links = Links(self.connect, self.refuses_login)
        self._closed = False
        #: In the copy of this object that the calls of a batch use: the transaction of the batch.
        self._batch: SQLTransaction | None = None
        #: Whether this process has seen the tables, and has checked them.
        self._ready = False

    @classmethod
    def open(cls, url: str) -> SQLStore:
        """Return the store for a URL of the form scheme://user:password@host:port/database.

        Its parameters are those of the driver, and `prefix`, the prefix of the tables' names.
        """
        address, options = parameters(usual(url))
        prefix = options.pop("prefix", PREFIX)
        plain = with_parameters(address, options)
        if wrong := flaw(url) or cls.flaw(plain):
            raise Misconfigured(f"{mask(url)}: {wrong}")
        return cls(plain, prefix=prefix)

    @classmethod
    def open_with(cls, url: str, credentials: Credentials) -> SQLStore:
        store = cls.open(url)
        credentials.forbid(urlsplit(url).password or parameters(url)[1].get("password"), store.url)
        store.log_in_with(credentials)
        return store

    def log_in_with(self, credentials: Credentials) -> None:
        """Use these credentials for each new connection."""
        self._links.credentials = credentials

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return mask(self._address)

    # ------------------------------------------------------------------ what differs between the databases

    @classmethod
    @abstractmethod
    def flaw(cls, url: str) -> str:
        """Return what is wrong with the host, the database or a parameter in a URL, without secrets. "" if nothing."""

    @abstractmethod
    def connect(self, left: float, user: str = "", password: str = "") -> SQLLink:
        """Open a connection within `left` seconds. Without `user` or `password`, those of the URL are used."""

    @staticmethod
    @abstractmethod
    def refuses_login(error: Exception) -> bool:
        """Whether an error of `connect` means that the server does not accept the password, in any language."""

    @abstractmethod
    def begin(self, link: SQLLink, left: float, *, writes: bool) -> None:
        """Begin a transaction. The server ends its statements after `left` seconds."""

    @abstractmethod
    def commit(self, link: SQLLink) -> None:
        """Commit the transaction. Raise Unconfirmed if the server does not promise that the commit lasts."""

    @abstractmethod
    def translated(self, error: Exception) -> Exception | None:
        """Return the error for an error of the driver: a StoreError, Conflict or NoTables. None if it is not one."""

    def locate(self, transaction: SQLTransaction) -> None:
        """Find where the tables are, for this transaction and all further ones. Raise Misconfigured if in doubt."""

    @abstractmethod
    def make_tables(self, transaction: SQLTransaction) -> None:
        """Create the tables that do not exist."""

    @abstractmethod
    def unsafe_tables(self, transaction: SQLTransaction) -> list[str]:
        """Return what is wrong with tables: no primary key, no transactions, or that a crash empties them."""

    @abstractmethod
    def identity(self, transaction: SQLTransaction) -> str:
        """Return a text that changes if another server, or a promoted replica, has the tables."""

    @abstractmethod
    def settings(self, transaction: SQLTransaction) -> list[StoreSetting]:
        """Return the settings of the server that decide whether commits last."""

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[SQLTransaction]:
        """See `TransactionalStore.transaction`. If another transaction is in the way, raise Conflict."""
        if self._batch is not None:
            with self._batch.part(writes=writes):
                yield self._batch
            return
        deadline = CallDeadline(timeout)
        if not self._ready:
            if writes:
                self._prepare(deadline)
            elif not self._schema(deadline):
                raise NoTables
        with self._open(deadline, writes=writes) as transaction:
            yield transaction

    def within(self, link: SQLLink, *, writes: bool) -> SQLTransaction:
        """Return the object for a transaction that has begun."""
        return SQLTransaction(link, self.statements, writes=writes)

    def until(self, link: SQLLink, left: float) -> AbstractContextManager[None]:
        """Return a `with` block for a call to the server. The connection is shut down after `left` seconds."""
        return self._links.until(link, left)

    def _repeated(self, timeout: float, change: Callable[[float], T]) -> T:
        """Make a change. If another transaction was in the way, make it again. `change` gets the seconds left."""
        if self._batch is not None:
            return change(timeout)  # a conflict rolls the whole batch back
        deadline, before = CallDeadline(timeout), ""
        while True:
            try:
                return change(deadline.left())
            except Conflict as conflict:
                if conflict.once and conflict.once == before:  # that of a trigger of the user's own
                    raise Misconfigured(f"{self.url}: {before}") from conflict.__cause__
                before = conflict.once
                self._ready &= not isinstance(conflict, NoTables)
                wait = conflict.wait + random.uniform(0, PAUSE)  # noqa: S311 - not for secrets
                time.sleep(min(wait, deadline.left()))

    def join(self, batch: SQLTransaction) -> None:
        """Make all calls of this object in the transaction of a batch."""
        self._batch = batch

    def _looked(self, timeout: float, look: Callable[[SQLTransaction], T], nothing: T) -> T:
        """Run a function that only reads. If there are no tables, return `nothing`."""

        def looked(left: float) -> T:
            try:
                with self.transaction(left, writes=False) as transaction:
                    return look(transaction)
            except NoTables:
                self._ready = False
                return nothing

        return self._repeated(timeout, looked)

    @contextmanager
    def _open(self, deadline: CallDeadline, *, writes: bool) -> Iterator[SQLTransaction]:
        if self._closed:
            raise Misconfigured("the store was closed")
        link, used = self._linked(deadline, writes=writes)
        done = False
        try:
            with self.until(link, deadline.left()):
                transaction = self.within(link, writes=writes)
                try:
                    yield transaction
                except (StoreError, Conflict) as error:
                    link.connection.rollback()
                    done = not isinstance(error, Misconfigured)  # only new sessions see what is corrected
                    raise
                if writes:
                    used = False  # a commit is never repeated
                    self.commit(link)
                else:
                    link.connection.rollback()
                done = True
        except StoreError:
            raise
        except Exception as error:
            if used and isinstance(self.known(error), Unconfirmed) and deadline.left():
                raise Conflict from error  # the server had closed the connection
            self._fail(error, deadline)
        finally:
            # After any other error, also an interrupt, nobody knows where the connection stands.
            self._links.put_back(link) if done else link.close()

    def _linked(self, deadline: CallDeadline, *, writes: bool) -> tuple[SQLLink, bool]:
        """Return a connection with a new transaction, and whether it was used before.

        Connections that the server has closed are replaced.
        """
        while True:
            try:
                link, used = self._links.take(deadline.left())
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(error, deadline)
            try:
                with self.until(link, deadline.left()):
                    self.begin(link, deadline.left(), writes=writes)
            except BaseException as error:
                link.close()
                if not isinstance(error, Exception):
                    raise
                if not used:
                    self._fail(error, deadline)
            else:
                return link, used

    def known(self, error: Exception) -> Exception | None:
        """Return the error for an error of the driver or of the system. None if it is another one."""
        known = Unconfirmed(f"{self.url}: {error}") if isinstance(error, OSError) else self.translated(error)
        lasts = isinstance(known, Unconfirmed) and tls_fails(str(error))
        return Misconfigured(f"{known}: correct the certificates in the URL, or the server's") if lasts else known

    def _fail(self, error: Exception, deadline: CallDeadline) -> NoReturn:
        """Raise the store's error for an error of the driver. Raise any other error as it is."""
        known = self.known(error)
        if known is None:
            raise error
        if isinstance(known, Unconfirmed):
            deadline.left()  # raises Unconfirmed with the time limit, if the connection was shut down at the deadline
        raise known from error

    # ------------------------------------------------------------------ schema

    def upgrade(self, *, timeout: float) -> Upgrade:
        """See `Store.upgrade`. It also notes which server has the tables, so that `examine` can tell another one."""

        def upgrade(left: float) -> Upgrade:
            deadline = CallDeadline(left)
            done = self._prepare(deadline)
            with self._open(deadline, writes=True) as transaction:
                transaction.cursor.execute(self.statements.note, (self.identity(transaction), "server"))
            return done

        return self._repeated(timeout, upgrade)

    def _prepare(self, deadline: CallDeadline) -> Upgrade:
        before = schema = self._schema(deadline)
        while not schema:
            with suppress(Conflict):  # another process is doing the same
                if schema is None:
                    with self._open(deadline, writes=True) as transaction:
                        self.make_tables(transaction)
                with self._open(deadline, writes=True) as transaction:
                    there = {name for (name,) in transaction.rows(self.statements.meta_names)}
                    values = {"server": self.identity(transaction), "id": fresh_version(), "schema": str(SCHEMA)}
                    values |= {"layout": self.layout_name} if self.layout_name else {}
                    missing = [(name, value) for name, value in values.items() if name not in there]
                    transaction.cursor.executemany(self.statements.put_meta, missing)
            schema = self._schema(deadline)
        return Upgrade(before or 0, SCHEMA)

    def _schema(self, deadline: CallDeadline) -> int | None:
        """Check the tables. Return their schema, 0 if it is not written yet, None if there are no tables."""
        try:
            with self._open(deadline, writes=False) as transaction:
                self.locate(transaction)
                found = dict(transaction.rows(self.statements.schema))
                schema = int(found.get("schema", 0))
                if schema > SCHEMA:
                    raise Misconfigured(
                        f"{self.url}: its tables were made by a newer version of the issuer (schema {schema}; this "
                        f"version knows {SCHEMA}): upgrade this program"
                    )
                self._check_tables(transaction)
                if schema:
                    self._check_layout(found.get("layout", ""))
        except NoTables:
            return None
        self._ready = schema == SCHEMA
        return schema

    def _check_layout(self, layout: str) -> None:
        """If the tables belong to a store with another layout, raise Misconfigured. `layout`: that of the tables.

        Two processes, one with the layout and one without, would reserve from two rows. The other program draws from
        one of them only, so it would take numbers that were reserved in the other row. For the same reason, the layout
        is never added later, not even to tables without tags: a process without it may have checked them before.
        """
        if layout == self.layout_name:
            return
        if layout:
            raise Misconfigured(
                f"{self.url}: the numbers of this store are in the table of another program: the URL must have "
                f"layout={layout}, as in all other processes"
            )
        raise Misconfigured(
            f"{self.url}: the tables {', '.join(self.statements.names)} were made without layout={self.layout_name}, "
            "so processes without it may use them: to get new tables, add a prefix to the URL of all processes, such "
            "as &prefix=shared_"
        )

    def _check_tables(self, transaction: SQLTransaction) -> None:
        """If a column is missing or has another type or collation, or a crash can empty a table, raise Misconfigured.

        Other collations compare `Orders`, `orders` and `orders ` as equal, so that one tag would get the numbers of
        another one.
        """
        known = self.statements
        found: dict[tuple[str, str], tuple[str, str]] = {
            (table, column): (kind, collation or "")
            for table, column, kind, collation in transaction.rows(known.columns, known.names)
        }
        wrong = []
        for name, columns in zip(known.names, COLUMNS.values(), strict=True):
            for column, kind in columns.items():
                actual, needed = found.get((name, column)), self.types.found_as(kind)
                if actual is None:
                    wrong.append(f"column {name}.{column} is missing")
                elif actual[0] != needed[0] or needed[1] not in {"", actual[1]}:
                    wrong.append(f"column {name}.{column} is {' '.join(actual)}, not {' '.join(needed)}")
        wrong += self.unsafe_tables(transaction)
        if wrong:
            raise Misconfigured(f"{self.url}: {'; '.join(wrong[:3])}; compare with `issuer upgrade --sql`")

    def definitions(self) -> list[str]:
        return self.statements.definitions(self.types)

    # ------------------------------------------------------------------ the contract

    def store_id(self, *, timeout: float) -> str:
        return self._looked(timeout, SQLTransaction.read_store_id, "")

    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        def create(left: float) -> list[Tag]:
            with self.transaction(left) as transaction:
                found = transaction.read_many(settings)
                made = [Tag.made(tag, found.get(tag), each) for tag, each in settings.items()]
                return transaction.write_many(made)

        return self._repeated(timeout, create)

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        return self._looked(timeout, lambda transaction: transaction.read(tag), None)

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        check_argument("count", count, 1)
        statement, values = (
            (self.statements.page, (count,)) if after is None else (self.statements.page_after, (after, count))
        )
        rows = self._looked(timeout, lambda transaction: transaction.rows(statement, values), _NO_ROWS)
        return [tried(record, each) for each in rows]

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        return self._repeated(
            timeout,
            lambda left: super(SQLStore, self).reserve_checked(
                tag, n, purpose=purpose, at_least=at_least, exact=exact, timeout=left
            ),
        )

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        return self._repeated(
            timeout, lambda left: super(SQLStore, self).hand_back_checked(held, highs, rest, timeout=left)
        )

    def delete(self, tag: str, *, timeout: float) -> Tag:
        return self._repeated(timeout, lambda left: super(SQLStore, self).delete(tag, timeout=left))

    def change(self, tag: str, timeout: float, change: Callable[[Tag], Tag]) -> Tag:
        return self._repeated(timeout, lambda left: super(SQLStore, self).change(tag, left, change))

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """See `Store.batch`. All calls share one transaction. If another one is in the way, all are made again."""

        def make(left: float) -> list[T | StoreError]:
            within = copy(self)
            with self.transaction(left) as transaction:
                within.join(transaction)
                return in_turn(within, calls, left)

        return self._repeated(timeout, make)

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        statement = self.statements.newest
        rows = self._looked(timeout, lambda transaction: transaction.rows(statement, (tag, newest)), _NO_ROWS)
        return [LedgerEntry.checked(_fields(each)) for each in rows]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        known = self.statements
        statement = (
            (known.oldest if upward else known.newest) if beyond is None else known.above if upward else known.below
        )
        values = (tag, *(beyond or ())[:1], *(beyond or ()), count)
        rows = self._looked(timeout, lambda transaction: transaction.rows(statement, values), _NO_ROWS)
        return LedgerPage.of([_fields(each) for each in rows], count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        def look(transaction: SQLTransaction) -> list[tuple[Any, ...]]:
            return [
                each
                for page in in_parts(list(ids))
                for each in transaction.rows(f"{self.statements.entries}{listed(page)}", (tag, *page))
            ]

        return [LedgerEntry.checked(_fields(each)) for each in self._looked(timeout, look, _NO_ROWS)]

    def prune(self, *, before: int, timeout: float) -> Pruned:
        return self._repeated(timeout, lambda left: super(SQLStore, self).prune(before=before, timeout=left))

    def examine(self, *, timeout: float) -> StoreFacts:
        return self._repeated(timeout, self._examined)

    def _examined(self, left: float) -> StoreFacts:
        deadline = CallDeadline(left)
        schema = self._schema(deadline)
        with self._open(deadline, writes=False) as transaction:
            [(version, milliseconds)] = transaction.rows(self.about)
            settings = self.settings(transaction)
            noted = transaction.rows(self.statements.noted, ("server",)) if schema else []
            if noted:
                server, before = self.identity(transaction), noted[0][0]
                settings.append(
                    StoreSetting(
                        "server", server, server == before,
                        f"The tables were on {before} before. If they were copied, or a replica has taken over, they "
                        "may lack reservations.",
                        "Run `issuer recover --all`, then `issuer upgrade`, which notes the new server.",
                    )
                )  # fmt: skip
        return StoreFacts(
            kind=self._address.partition("://")[0],
            version=str(version),
            time=int(milliseconds),
            lasting=True,
            schema=schema or 0,
            newest_schema=SCHEMA,
            settings=tuple(settings),
        )

    def after_fork(self) -> None:
        self._links.forget()

    def close(self) -> None:
        self._closed = True
        self._links.close()


def _fields(row: Sequence[object]) -> dict[str, object]:
    return dict(zip(ENTRY_COLUMNS, row, strict=True))
