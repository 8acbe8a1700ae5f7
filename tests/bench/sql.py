"""A reservation in an SQL database, beside a bare transaction of the same statements."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial

from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store
from issuer_persistence.records import HIGHEST, TagSettings, fresh_version, now_ms
from issuer_persistence.sql.store import SQLStore
from issuer_persistence.sql.tables import ENTRY_COLUMNS, TAG_COLUMNS
from tests.bench.figures import Bound, Figure, missing
from tests.bench.rounds import Effort, alternate, each
from tests.bench.servers import TAG
from tests.servers.mariadb import SYNCED, MariaDBServer, find_mariadb
from tests.servers.postgres import PostgresServer, find_postgres

STEP = 1000
TIMEOUT = 30.0
#: Makes a bare transaction for a store's server and a tag.
Bare = Callable[[SQLStore, str, ExitStack], Callable[[], object]]
#: A commit waits for the disk, which takes 2 ms for some time and 10 ms for some other: so the turns are short.
SLOWER, SLICES = 1000, 50


def sql(effort: Effort) -> Iterator[Figure]:
    """Reservations in PostgreSQL and MariaDB, beside a bare transaction of the same statements."""
    kinds: list[tuple[str, PostgresServer | MariaDBServer | None, Bare]] = [
        ("PostgreSQL", PostgresServer(postgres) if (postgres := find_postgres()) else None, _postgres),
        ("MariaDB", MariaDBServer(mariadb, **SYNCED) if (mariadb := find_mariadb()) else None, _mariadb),
    ]
    for name, server, bare in kinds:
        what = f"{name}, reservation / bare transaction"
        if server is None:
            yield missing(what, f"no {name} server on this machine")
            continue
        with ExitStack() as ends:
            ends.enter_context(server)
            store = ends.enter_context(closing(open_store(server.url)))
            assert isinstance(store, SQLStore)
            for tag in (TAG, f"{TAG}-bare"):
                store.create(
                    tag, TagSettings(above=0, step=STEP, limit=HIGHEST, order="strict", description=""), timeout=TIMEOUT
                )
            reserve = partial(store.reserve, TAG, STEP, purpose=Purpose("bench"), timeout=TIMEOUT)
            contenders = {
                f"{name}, reservation": each(reserve, effort.calls // SLOWER),
                f"{name}, bare transaction": each(bare(store, f"{TAG}-bare", ends), effort.calls // SLOWER),
            }
            rounds = alternate(contenders, effort.rounds, "us", SLICES)
        yield from rounds.figures()
        ours, bare_one = contenders
        yield rounds.ratio(ours, bare_one, Bound(1.3), what)


def _entry(tag: str) -> dict[str, object]:
    return asdict(Purpose("bench").entry(tag, 0, STEP))


def _postgres(store: SQLStore, tag: str, ends: ExitStack) -> Callable[[], object]:
    import psycopg

    from issuer_persistence.sql.postgresql import PostgreSQLStore

    assert isinstance(store, PostgreSQLStore)
    connection = ends.enter_context(closing(psycopg.connect(store._address, autocommit=True, prepare_threshold=None)))
    cursor = connection.cursor()
    begin = (
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 30000; SET LOCAL lock_timeout = 30000; "
        "SELECT set_config('synchronous_commit', 'on', true) "
        "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )
    other = {"n": STEP, "at_least": 0, "exact": False, "now": now_ms()}

    def transaction() -> object:
        cursor.execute(begin)
        cursor.execute(store._reserve, {**_entry(tag), **other, "version": fresh_version()})
        found = cursor.fetchone()
        cursor.execute("COMMIT")
        return found

    return transaction


def _mariadb(store: SQLStore, tag: str, ends: ExitStack) -> Callable[[], object]:
    connection = store.connect(TIMEOUT).connection
    ends.callback(connection.close)
    cursor = connection.cursor()
    read = f"{store.statements.get_to_reserve} FOR UPDATE"
    update = store.statements.update % '"max" = %s, "timestamp" = %s, "version" = %s'

    def transaction() -> object:
        cursor.execute(read, (tag,))
        found = json.loads(cursor.fetchone()[0])
        low, version = found[0], found[TAG_COLUMNS.index("version") - 1]
        cursor.execute(update, (low + STEP, now_ms(), fresh_version(), tag, version))
        entry = _entry(tag) | {"low": low, "high": low + STEP}
        cursor.execute(store.statements.enter, [entry[each] for each in ENTRY_COLUMNS])
        connection.commit()
        return low

    return transaction
