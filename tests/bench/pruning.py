"""The deletion of old ledger entries: how fast it is while nobody draws, and how long draws wait beside it."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from issuer import connect
from issuer.api.blocking import Issuer
from issuer_persistence.ledger import LEDGER_KEPT, LedgerEntry
from issuer_persistence.mongodb.call import entry_document
from issuer_persistence.records import now_ms
from issuer_persistence.sql.tables import ENTRY_COLUMNS
from issuer_persistence.sqlite.store import SQLiteStore
from tests.bench.figures import Bound, Figure, missing
from tests.bench.rounds import Effort
from tests.bench.servers import TAG
from tests.servers.mariadb import SYNCED, MariaDBServer, find_mariadb
from tests.servers.mongo import Client, MongoServers, find_mongod
from tests.servers.postgres import PostgresServer, find_postgres

#: Rows for each call of a bench, and seconds for each of its seconds: a million rows, and three minutes, half of them
#: without draws.
MORE_ROWS, LONGER = 100, 60
#: Pause between two draws, and the longest wait for one, in seconds.
PAUSE, PATIENCE = 0.01, 30.0
#: Rows that are written at once.
TOGETHER = 5000


@dataclass(frozen=True, slots=True)
class _Ledger:
    url: str
    write: Callable[[list[LedgerEntry]], object]
    count: Callable[[], int]


def prune(effort: Effort) -> Iterator[Figure]:
    """Deletion of old ledger entries on each store, beside draws that need the store."""
    for name, opened in STORES.items():
        for tags in (1, 10_000):
            with ExitStack() as ends:
                ledger = opened(ends)
                what = f"{name}, {tags} tag{'s' * (tags > 1)}"
                yield from (
                    [missing(what, f"no {name} here")] if ledger is None else _measured(what, ledger, tags, effort)
                )


def _measured(what: str, ledger: _Ledger, tags: int, effort: Effort) -> Iterator[Figure]:
    with connect(redis="none", store=ledger.url, lease=0, scheduler=None) as ids:
        ids.create(TAG, step=1, order="trend")
        old = _old(effort.calls * MORE_ROWS, tags)
        while part := [*islice(old, TOGETHER)]:
            ledger.write(part)
        yield Figure(f"{what}: worst next alone", (_worst(ids, effort.seconds * LONGER / 6),), "s")
    with connect(redis="none", store=ledger.url, lease=0) as ids:
        before, began = ledger.count(), time.monotonic()
        ids.next(TAG)  # the scheduler begins
        time.sleep(effort.seconds * LONGER)
        left, took = ledger.count(), time.monotonic() - began
        yield Figure(f"{what}: rows a second", ((before - left) / took,), "/s", Bound(1000, least=True))
        began = time.monotonic()
        yield Figure(f"{what}: worst next", (_worst(ids, effort.seconds * LONGER),), "s", Bound(0.1))
        yield Figure(f"{what}: rows beside", ((left - ledger.count()) / (time.monotonic() - began),), "/s")


def _old(rows: int, tags: int) -> Iterator[LedgerEntry]:
    """Yield entries that are older than they are kept, in the order in which they were made."""
    first = now_ms() - 4 * LEDGER_KEPT
    for each in range(rows):
        low, time_ = each // tags * 10, first + each * LEDGER_KEPT // rows
        yield LedgerEntry(tag=f"t{each % tags:05}", low=low, high=low + 10, reason="load", time=time_, host="h", pid=1)


def _worst(ids: Issuer, seconds: float) -> float:
    end, worst = time.monotonic() + seconds, 0.0
    while (began := time.monotonic()) < end:
        ids.next(TAG, timeout=PATIENCE)
        worst = max(worst, time.monotonic() - began)
        time.sleep(PAUSE)
    return worst


def _sqlite(ends: ExitStack) -> _Ledger:
    store = SQLiteStore(ends.enter_context(tempfile.TemporaryDirectory()) + "/ids.db")

    def write(entries: list[LedgerEntry]) -> None:
        with store.transaction(PATIENCE) as transaction:
            for each in entries:
                transaction.enter(each)

    def count() -> int:
        with store.transaction(PATIENCE, writes=False) as transaction:
            return int(transaction.connection.execute("SELECT count(*) FROM segments").fetchone()[0])

    return _Ledger(store.url, write, count)


def _postgres(ends: ExitStack) -> _Ledger | None:
    if (found := find_postgres()) is None:
        return None
    import psycopg

    url = ends.enter_context(PostgresServer(found)).url
    return _sql(url, lambda: psycopg.connect(url))


def _mariadb(ends: ExitStack) -> _Ledger | None:
    if (found := find_mariadb()) is None:
        return None
    import pymysql

    server = ends.enter_context(MariaDBServer(found, **SYNCED, **{"innodb-buffer-pool-size": "512M"}))
    at: Any = {"host": "127.0.0.1", "port": server.port, "user": "tester", "database": "issuer"}
    return _sql(server.url, lambda: pymysql.connect(**at))


def _sql(url: str, opened: Callable[[], Any]) -> _Ledger:
    marks = ", ".join(["%s"] * len(ENTRY_COLUMNS))
    insert = f"INSERT INTO issuer_segments ({', '.join(ENTRY_COLUMNS)}) VALUES ({marks})"  # noqa: S608 - no foreign text

    def write(entries: list[LedgerEntry]) -> None:
        with closing(opened()) as connection, closing(connection.cursor()) as cursor:
            cursor.executemany(insert, [[getattr(each, name) for name in ENTRY_COLUMNS] for each in entries])
            connection.commit()

    def count() -> int:
        with closing(opened()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("SELECT count(*) FROM issuer_segments")
            return int(cursor.fetchone()[0])

    return _Ledger(url, write, count)


def _mongo(ends: ExitStack) -> _Ledger | None:
    if (found := find_mongod()) is None:
        return None
    url = ends.enter_context(MongoServers(found)).url
    segments = ends.enter_context(Client(url, directConnection=True))["bench"]["issuer_segments"]

    def write(entries: list[LedgerEntry]) -> None:
        segments.insert_many(map(entry_document, entries), ordered=False)

    return _Ledger(f"{url}/bench?directConnection=true", write, lambda: segments.count_documents({}))


STORES: dict[str, Callable[[ExitStack], _Ledger | None]] = {
    "SQLite": _sqlite,
    "PostgreSQL": _postgres,
    "MariaDB": _mariadb,
    "MongoDB": _mongo,
}
