"""SQLite files of an older schema are brought up to date; programs that know only the older one do no harm."""

from __future__ import annotations

import re
import secrets
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from issuer.persistence import sqlite_schema
from issuer.persistence.errors import Corrupt, Unavailable
from issuer.persistence.sqlite import SQLiteStore
from issuer.persistence.sqlite_schema import SCHEMA
from tests.contract.benches import TIMEOUT, create, get, ranges, reserve
from tests.contract.processes import finish, let_go, start_loaders

if TYPE_CHECKING:
    from collections.abc import Iterator


def _natural(column: str, lowest: int = 0) -> str:
    return f'"{column}" INTEGER NOT NULL CHECK (typeof("{column}") = \'integer\' AND "{column}" >= {lowest})'


def _flag(column: str) -> str:
    return f'"{column}" INTEGER NOT NULL CHECK (typeof("{column}") = \'integer\' AND "{column}" IN (0, 1))'


# As the program of schema 1 made and wrote them. Not to be changed, nor what follows: such files are out there.
_SCHEMA_1 = (
    "CREATE TABLE meta (id TEXT NOT NULL)",
    f"""CREATE TABLE tags (
        tag TEXT NOT NULL PRIMARY KEY, {_natural("max")}, {_natural("step", 1)}, {_natural("limit")},
        "order" TEXT NOT NULL, description TEXT NOT NULL, {_natural("created")}, {_natural("timestamp")},
        version TEXT NOT NULL, {_flag("halted")}, {_flag("deleted")}
    )""",
    f"""CREATE TABLE segments (
        id TEXT NOT NULL PRIMARY KEY, tag TEXT NOT NULL, {_natural("low")}, {_natural("high")},
        reason TEXT NOT NULL, {_natural("time")}, host TEXT NOT NULL, {_natural("pid")}
    )""",
    "CREATE INDEX segments_by_number ON segments (tag, high DESC)",
)
# As the programs of schemas 2 and 3 brought a file up to theirs.
_SCHEMA_2 = (
    "ALTER TABLE tags ADD COLUMN lease INTEGER CHECK (lease IS NULL OR (typeof(lease) = 'integer' AND lease >= 0))",
    """CREATE TRIGGER lease_is_kept BEFORE INSERT ON tags
    WHEN NEW.lease IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND lease IS NOT NULL AND "order" = 'trend' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the lease of this tag must not write it: upgrade'); END""",
    "PRAGMA user_version = 2",
)
_SCHEMA_3 = (
    "ALTER TABLE tags ADD COLUMN ahead INTEGER CHECK (ahead IS NULL OR (typeof(ahead) = 'integer' AND ahead >= 1))",
    """CREATE TRIGGER ahead_is_kept BEFORE INSERT ON tags
    WHEN NEW.ahead IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND ahead > 1 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for what this tag has ahead must not write it: upgrade'); END""",
    "PRAGMA user_version = 3",
)
_SCHEMA_4 = (
    "ALTER TABLE tags ADD COLUMN scheme TEXT CHECK (scheme IS NULL OR typeof(scheme) = 'text')",
    """CREATE TRIGGER scheme_is_kept BEFORE INSERT ON tags
    WHEN NEW.scheme IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND scheme <> '{}')
    BEGIN SELECT RAISE(ABORT, 'a program too old for the scheme of this tag must not write it: upgrade'); END""",
    "PRAGMA user_version = 4",
)
_COLUMNS_1 = (
    "tag", "max", "step", "limit", "order", "description", "created", "timestamp", "version", "halted", "deleted",
)  # fmt: skip
_STRIDE = {"stride": [{"from": 1, "first": 3, "stride": 2}], "id": "9f2c"}


def put(
    connection: sqlite3.Connection,
    tag: str,
    maximum: int,
    order: str = "trend",
    *,
    deleted: bool = False,
    **more: object,
) -> None:
    """Write a tag as the program of schema 1 does; of schema 2 with a `lease`, of schema 3 with `ahead` too."""
    columns = [*_COLUMNS_1, *more]
    names, marks = ", ".join(f'"{each}"' for each in columns), ", ".join("?" * len(columns))
    values = (tag, maximum, 10, 1000, order, "old", 5, 6, secrets.token_hex(12), False, deleted, *more.values())
    connection.execute(f"INSERT OR REPLACE INTO tags ({names}) VALUES ({marks})", values)  # noqa: S608 - ours


@pytest.fixture
def old(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of the older program, which goes on while others bring its file up to date."""
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in _SCHEMA_1:
        connection.execute(statement)
    connection.execute("INSERT INTO meta (id) VALUES ('0123456789abcdef01234567')")
    connection.execute("PRAGMA user_version = 1")
    put(connection, "orders", 30)
    put(connection, "users", 7, "strict")
    put(connection, "gone", 100, deleted=True)
    connection.execute("INSERT INTO segments VALUES ('x', 'orders', 20, 30, 'refill', 6, 'host', 1)")
    yield connection
    connection.close()


@pytest.fixture
def second(old: sqlite3.Connection) -> sqlite3.Connection:
    """The same file at schema 2, with a leased tag."""
    for statement in _SCHEMA_2:
        old.execute(statement)
    put(old, "leased", 40, lease=7)
    return old


@pytest.fixture
def third(second: sqlite3.Connection) -> sqlite3.Connection:
    """The same file at schema 3."""
    for statement in _SCHEMA_3:
        second.execute(statement)
    return second


@pytest.fixture
def fourth(third: sqlite3.Connection) -> sqlite3.Connection:
    """The same file at schema 4."""
    for statement in _SCHEMA_4:
        third.execute(statement)
    return third


@pytest.fixture
def store(old: sqlite3.Connection, tmp_path: Path) -> Iterator[SQLiteStore]:  # noqa: ARG001 - the file must be there
    store = SQLiteStore(tmp_path / "store.db")
    yield store
    store.close()


def schema(connection: sqlite3.Connection) -> tuple[int, set[str]]:
    """Its number, and the columns of a tag."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(tags)")}
    return connection.execute("PRAGMA user_version").fetchone()[0], columns


@pytest.mark.parametrize("at", ["old", "second", "third", "fourth"])
def test_an_older_file_is_brought_up_to_date_with_all_that_is_in_it(
    store: SQLiteStore, at: str, request: pytest.FixtureRequest
) -> None:
    old = request.getfixturevalue(at)
    rows = old.execute("SELECT * FROM tags ORDER BY tag").fetchall()
    assert store.store_id(timeout=TIMEOUT) == "0123456789abcdef01234567"
    leased, added = {"old": (None, 3), "second": (7, 2), "third": (7, 1), "fourth": (7, 0)}[at]
    assert [(each.tag, each.max, each.lease, each.ahead, each.scheme) for each in store.tags(timeout=TIMEOUT)] == [
        *([("leased", 40, leased, 1, {})] if leased else []),
        ("orders", 30, None, 1, {}),
        ("users", 7, None, 1, {}),
    ]
    assert old.execute("SELECT * FROM tags ORDER BY tag").fetchall() == [(*row, *[None] * added) for row in rows]
    assert ranges(store) == [(20, 30)]
    assert (reserve(store).low, ranges(store)) == (30, [(20, 30), (30, 40)])
    store.configure("orders", lease=50, ahead=3, scheme=_STRIDE, timeout=TIMEOUT)
    held = reserve(store)
    assert (held.low, held.high, held.tag.lease, held.tag.scheme) == (40, 70, 50, _STRIDE)
    assert create(store, "gone", step=10, order="trend", lease=5).max == 100
    # And its tables are those of a file made now.
    fresh = SQLiteStore(store._path.with_name("fresh.db"))
    fresh.store_id(timeout=TIMEOUT)
    made = sqlite3.connect(fresh._path)
    everything = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert made.execute(everything).fetchall() == old.execute(everything).fetchall()
    assert schema(made) == schema(old)
    assert schema(made)[0] == SCHEMA
    made.close()
    fresh.close()


def test_the_table_itself_refuses_what_has_another_type(store: SQLiteStore, old: sqlite3.Connection) -> None:
    create(store, "high", above=2**63 - 10)
    for change in (
        "max = max + 1000",  # what a plain UPDATE does: REAL, without a word
        *(f"{column} = {value}" for column in ("lease", "ahead") for value in ("1.5", "'x'", "-1")),
        "scheme = x'7b7d'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            old.execute(f"UPDATE tags SET {change} WHERE tag = 'high'")  # noqa: S608 - from the list above
    assert store._connection is not None
    assert store._connection.execute("PRAGMA ignore_check_constraints").fetchone() == (0,)


def test_a_fault_on_the_way_leaves_the_older_file(
    store: SQLiteStore, old: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema(old)
    steps = sqlite_schema.STEPS
    with monkeypatch.context() as broken:
        broken.setattr("issuer.persistence.sqlite.STEPS", (*steps, ("INSERT INTO nowhere VALUES (1)",)))
        with pytest.raises(Unavailable, match="nowhere"):
            store.store_id(timeout=TIMEOUT)
    assert schema(old) == before
    assert get(store).max == 30


def test_a_file_brought_up_to_date_between_a_look_and_the_lock_is_left_alone(
    store: SQLiteStore, old: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, look = SQLiteStore(store._path), SQLiteStore._version

    def overtaken(self: SQLiteStore, connection: sqlite3.Connection) -> int:
        version = look(self, connection)
        monkeypatch.undo()
        assert version == 1
        assert other.configure("orders", lease=5, timeout=TIMEOUT).lease == 5
        return version

    monkeypatch.setattr(SQLiteStore, "_version", overtaken)
    assert get(store).lease == 5
    assert schema(old)[0] == SCHEMA
    other.close()


@pytest.mark.live
@pytest.mark.parametrize("at", ["fresh", "older"])
def test_processes_that_open_a_file_at_once_all_succeed(tmp_path: Path, at: str) -> None:
    for turn in range(3):
        path = tmp_path / f"{turn}.db"
        if at == "older":
            connection = sqlite3.connect(path, isolation_level=None)
            for statement in (*_SCHEMA_1, "INSERT INTO meta (id) VALUES ('x')", "PRAGMA user_version = 1"):
                connection.execute(statement)
            connection.close()
        started = start_loaders(f"sqlite:///{path}", 4, "id")
        let_go(started)
        assert len({finish(each) for each in started}) == 1
        assert SQLiteStore(path).tags(timeout=TIMEOUT) == []


def test_a_row_that_was_tampered_with_keeps_nobody_from_the_others(store: SQLiteStore, old: sqlite3.Connection) -> None:
    old.execute("PRAGMA ignore_check_constraints = ON")
    old.execute("UPDATE tags SET max = 9.3e18 WHERE tag = 'users'")
    assert reserve(store).low == 30
    with pytest.raises(Corrupt):
        get(store, "users")
    assert old.execute("SELECT max FROM tags WHERE tag = 'users'").fetchone() == (9.3e18,)


def test_an_older_program_that_had_the_file_open_cannot_drop_a_lease(
    store: SQLiteStore, old: sqlite3.Connection
) -> None:
    create(store, "short", order="trend", lease=5)
    store.configure("users", lease=0, timeout=TIMEOUT)
    put(old, "orders", 60)  # what has no lease loses none
    assert get(store).max == 60
    store.configure("orders", lease=0, timeout=TIMEOUT)
    for tag in ("short", "orders"):
        before = get(store, tag)
        for deleted in (False, True):
            with pytest.raises(sqlite3.IntegrityError, match="upgrade"):
                put(old, tag, 500, deleted=deleted)
        assert get(store, tag) == before
    put(old, "users", 9, "strict")  # 0 and nothing are the same to a strict tag
    assert get(store, "users").lease is None
    store.delete("short", timeout=TIMEOUT)
    put(old, "short", 500)  # made again
    assert (get(store, "short").max, get(store, "short").lease) == (500, None)


def test_a_program_of_schema_2_that_had_the_file_open_cannot_drop_what_is_ahead(
    store: SQLiteStore, second: sqlite3.Connection
) -> None:
    store.configure("users", ahead=1, timeout=TIMEOUT)
    store.configure("orders", ahead=4, timeout=TIMEOUT)
    put(second, "users", 60, lease=None)  # one step ahead is what it knows
    assert get(store, "users").max == 60
    before = get(store)
    with pytest.raises(sqlite3.IntegrityError, match="upgrade"):
        put(second, "orders", 500, lease=None)
    assert get(store) == before
    store.delete("orders", timeout=TIMEOUT)
    put(second, "orders", 500, lease=None)  # made again
    assert (get(store).max, get(store).ahead) == (500, 1)


def test_a_program_of_schema_3_that_had_the_file_open_cannot_drop_a_scheme(
    store: SQLiteStore, third: sqlite3.Connection
) -> None:
    known: dict[str, Any] = {"lease": None, "ahead": 1}
    store.configure("users", scheme={}, timeout=TIMEOUT)
    store.configure("orders", scheme=_STRIDE, timeout=TIMEOUT)
    put(third, "users", 60, **known)  # plain is what it knows
    assert (get(store, "users").max, get(store, "users").scheme) == (60, {})
    for _ in ("live", "deleted"):
        before = get(store)
        for deleted in (False, True):
            with pytest.raises(sqlite3.IntegrityError, match="upgrade"):
                put(third, "orders", 500, deleted=deleted, **known)
        assert get(store) == before
        store.delete("orders", timeout=TIMEOUT)
    # The guard taken out: it drops the scheme.
    third.execute("DROP TRIGGER scheme_is_kept")
    put(third, "orders", 500, **known)
    assert get(store).scheme == {}


def test_entries_that_a_program_of_schema_4_writes_meanwhile_say_nothing_of_a_service(
    store: SQLiteStore, fourth: sqlite3.Connection
) -> None:
    store.reserve("orders", None, reason="test", application="billing", born="b", timeout=TIMEOUT)
    columns = "(id, tag, low, high, reason, time, host, pid)"
    fourth.execute(f"INSERT INTO segments {columns} VALUES ('y', 'orders', 40, 50, 'load', 6, 'host', 1)")  # noqa: S608
    found = store.ledger("orders", newest=3, timeout=TIMEOUT)
    assert [(each.id, each.application, each.born) for each in found][::2] == [("y", "", ""), ("x", "", "")]
    assert (found[1].application, found[1].born) == ("billing", "b")


def test_the_way_back_that_the_page_on_upgrades_shows_leaves_a_file_of_schema_4(
    store: SQLiteStore, fourth: sqlite3.Connection
) -> None:
    everything = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    before, rows = fourth.execute(everything).fetchall(), fourth.execute("SELECT * FROM tags").fetchall()
    store.store_id(timeout=TIMEOUT)
    assert schema(fourth)[0] == SCHEMA
    store.close()
    page = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"sqlite3 issuer.db '(.*)'", page)
    fourth.executescript(shown)
    assert fourth.execute("PRAGMA user_version").fetchone() == (4,)
    assert fourth.execute(everything).fetchall() == before
    assert fourth.execute("SELECT * FROM tags").fetchall() == rows
