"""Without Redis: segments of the process's own from SQLite, beside a database that is asked for every number."""

import math
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from issuer_persistence.opening import open_store
from tests.bench.figures import Bound, Figure, missing
from tests.bench.rounds import Contender, Effort, alternate, each
from tests.bench.servers import TAG, drawing
from tests.servers.postgres import PostgresServer, find_postgres

STEP = 1000
#: One number asked of a database costs so many times what it costs from memory, so that fewer of them are timed.
SLOWER = 25
CACHES = (1, 1000)


def direct(effort: Effort) -> Iterator[Figure]:
    """next(tag) direct on SQLite, step 1000, beside a statement a number."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="issuer-bench-")))
        url = f"sqlite:///{folder / 'ids.db'}"
        ids = ends.enter_context(drawing(None, store=url, step=STEP, order="trend"))
        drawn: list[int] = []
        contenders: dict[str, Contender] = {
            "next, direct": each(partial(ids.next, TAG), effort.calls * SLOWER),
            "SQLite UPDATE ... RETURNING": each(_sqlite(folder / "counter.db", ends), effort.calls // 5),
        }
        binaries = find_postgres()
        if binaries is not None:
            server = ends.enter_context(PostgresServer(binaries))
            for cache in CACHES:
                contenders[_nextval(cache)] = each(_postgres(server, cache, ends), effort.calls)
        rounds = alternate(contenders, effort.rounds, "us")
        drawn.append(ids.next(TAG))
        with closing(open_store(url)) as store:
            reservations = len(store.ledger(TAG, newest=10_000_000, timeout=10.0))
    yield rounds.figure("next, direct", Bound(2, 1))
    yield rounds.figure("SQLite UPDATE ... RETURNING")
    for cache in CACHES:
        name = _nextval(cache)
        yield rounds.figure(name) if name in rounds.values else missing(name, "no PostgreSQL server on this machine")
    for name in (name for name in contenders if name != "next, direct"):
        yield rounds.ratio("next, direct", name, what=f"next / {name.removeprefix('PostgreSQL ')}")
    # The numbers begin at 1 and have no gap, so the last one is how many were drawn.
    segments = math.ceil(drawn[0] / STEP)
    yield Figure("reservations in the ledger", (float(reservations),), "")
    yield Figure("segments drawn from", (float(segments),), "")
    yield Figure("reservations beyond them", (float(reservations - segments),), "", Bound(1))


def _nextval(cache: int) -> str:
    return f"PostgreSQL nextval, CACHE {cache}"


def _sqlite(path: Path, ends: ExitStack) -> Any:
    """As the store keeps its own: WAL, every transaction on the disk when it returns."""
    connection = ends.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE counters (tag TEXT PRIMARY KEY, max INTEGER NOT NULL)")
    connection.execute("INSERT INTO counters VALUES (?, 0)", (TAG,))
    statement = "UPDATE counters SET max = max + 1 WHERE tag = ? RETURNING max"
    return lambda: connection.execute(statement, (TAG,)).fetchall()


def _postgres(server: PostgresServer, cache: int, ends: ExitStack) -> Any:
    import psycopg

    connection = ends.enter_context(closing(psycopg.connect(server.url, autocommit=True)))
    connection.execute(f"CREATE SEQUENCE numbers_{cache} CACHE {cache}")
    cursor = connection.cursor()
    statement = f"SELECT nextval('numbers_{cache}')"
    # After a few executions psycopg prepares the statement by itself.
    for _ in repeat(None, 10):
        cursor.execute(statement).fetchone()
    return lambda: cursor.execute(statement).fetchone()
