"""Reads the tables of other issuers in an SQL database. For a split, it also raises their numbers."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Final

from issuer.care.importing.layouts import Choice, ImportedTag, ImportLayout, Query, Reading
from issuer.errors import ConfigurationError, StoreUnavailable
from issuer_persistence.errors import Misconfigured
from issuer_persistence.opening import store_class
from issuer_persistence.sql.store import NoTables, SQLStore

#: Longest duration of a transaction, in seconds.
TIMEOUT: Final = 60.0


class ImportDatabase:
    """The database of another issuer."""

    def __init__(self, url: str) -> None:
        """`url`: mysql://, mariadb:// or postgresql://. Raises ConfigurationError if it is wrong."""
        try:
            store = store_class(url).open(url)
        except Misconfigured as error:
            raise ConfigurationError(f"--from: {error}") from error
        if not isinstance(store, SQLStore):
            raise ConfigurationError("--from must be the URL of a database: mysql://, mariadb:// or postgresql://")
        self._store = store

    def rows(self, read: Reading, choice: Choice) -> list[tuple[Any, ...]]:
        """Return the rows of a layout. `read`: how they are read, see ImportLayout."""
        with self._transaction(writes=False) as cursor:
            return _rows(cursor, read, choice)

    def split(self, layout: ImportLayout, choice: Choice, by: int, tags: Container[str]) -> list[ImportedTag]:
        """Raise the numbers of these tags in the source, in one transaction. Return the tags as they were before.

        `by`: count of numbers that the source skips. It is rounded up to a multiple of the stride.
        """
        with self._transaction(writes=True) as cursor:
            found = layout.tags(_rows(cursor, layout.read, choice, " FOR UPDATE"), choice)
            found = [each for each in found if each.tag in tags and not each.refusal]
            values = [(each.last + each.span(by) + layout.ahead, each.tag, each.stored) for each in found]
            cursor.executemany(layout.update, values)
            if cursor.rowcount != len(values):
                raise StoreUnavailable("source: not all rows could be changed, so none was changed: run it again")
        return found

    def _check_primary(self, cursor: Any) -> None:
        """Raise ConfigurationError if the server may lack numbers that the source has issued."""
        query = _query(cursor)
        [(version,)] = query("SELECT version()")
        if str(version).startswith("PostgreSQL"):
            signs = ["SELECT 1 WHERE pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool"]
        else:
            # The status is there as well if the replication has stopped, and nothing makes the replica read-only.
            old, maria = str(version).startswith(("5.", "8.0.")), "MariaDB" in str(version)
            status = "ALL SLAVES" if maria else "SLAVE" if old else "REPLICA"
            signs = ["SELECT 1 FROM DUAL WHERE @@read_only NOT IN ('0', 'OFF')", f"SHOW {status} STATUS"]
        if any(map(query, signs)):
            raise ConfigurationError(
                f"source: {self._store.url} is a replica, or read-only. It may lack numbers that the source has "
                "issued, so they would be issued twice. Give the URL of the primary, which accepts writes"
            )

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Any]:
        link = None
        try:
            link = self._store.connect(TIMEOUT)
            with self._store.until(link, TIMEOUT):
                self._store.begin(link, TIMEOUT, writes=writes)
                self._check_primary(link.cursor)
                yield link.cursor
                self._store.commit(link)
        except Exception as error:
            known = self._store.known(error)
            if known is None:
                raise
            if isinstance(known, NoTables):
                raise ConfigurationError(
                    f"source: a table is missing in {self._store.url}: check --layout, --table, and the database"
                ) from error
            kind = ConfigurationError if isinstance(known, Misconfigured) else StoreUnavailable
            raise kind(f"source: {known}") from error
        finally:
            if link is not None:
                link.close()


def _query(cursor: Any) -> Query:
    def query(statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    return query


def _rows(cursor: Any, read: Reading, choice: Choice, lock: str = "") -> list[tuple[Any, ...]]:
    query = _query(cursor)
    return query(read + lock) if isinstance(read, str) else read(query, choice)
