"""SQLite files of an older schema are brought up to date; programs that know only the older one do no harm."""

from __future__ import annotations

import re
import secrets
import sqlite3
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from issuer.core.record import sound
from issuer_persistence.errors import Corrupt, Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.records import TagChanges
from issuer_persistence.sqlite import SQLiteStore
from issuer_persistence.sqlite import schema as sqlite_schema
from issuer_persistence.sqlite.file import SQLiteFile
from issuer_persistence.sqlite.schema import SCHEMA, TAG_COLUMNS
from tests.stores.benches import TIMEOUT, create, get, ranges, reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
# As the programs of schemas 2 to 6 brought a file up to theirs.
_SCHEMA_2 = (
    "ALTER TABLE tags ADD COLUMN lease INTEGER CHECK (lease IS NULL OR (typeof(lease) = 'integer' AND lease >= 0))",
    """CREATE TRIGGER lease_is_kept BEFORE INSERT ON tags
    WHEN NEW.lease IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND lease IS NOT NULL AND "order" = 'trend' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the lease of this tag must not write it: upgrade'); END""",
)
_SCHEMA_3 = (
    "ALTER TABLE tags ADD COLUMN ahead INTEGER CHECK (ahead IS NULL OR (typeof(ahead) = 'integer' AND ahead >= 1))",
    """CREATE TRIGGER ahead_is_kept BEFORE INSERT ON tags
    WHEN NEW.ahead IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND ahead > 1 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for what this tag has ahead must not write it: upgrade'); END""",
)
_SCHEMA_4 = (
    "ALTER TABLE tags ADD COLUMN scheme TEXT CHECK (scheme IS NULL OR typeof(scheme) = 'text')",
    """CREATE TRIGGER scheme_is_kept BEFORE INSERT ON tags
    WHEN NEW.scheme IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND scheme <> '{}')
    BEGIN SELECT RAISE(ABORT, 'a program too old for the scheme of this tag must not write it: upgrade'); END""",
)
_SCHEMA_5 = ("ALTER TABLE segments ADD COLUMN application TEXT", "ALTER TABLE segments ADD COLUMN born TEXT")
_SCHEMA_6 = (
    "ALTER TABLE tags ADD COLUMN step_mode TEXT CHECK (step_mode IS NULL OR step_mode IN ('fixed', 'auto'))",
    """CREATE TRIGGER step_mode_is_kept BEFORE INSERT ON tags
    WHEN NEW.step_mode IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND step_mode = 'auto' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the step mode of this tag must not write it: upgrade'); END""",
)
_SCHEMA_7 = (
    """ALTER TABLE tags ADD COLUMN refill_at REAL
    CHECK (refill_at IS NULL OR (typeof(refill_at) = 'real' AND refill_at > 0 AND refill_at < 1))""",
    """CREATE TRIGGER refill_at_is_kept BEFORE INSERT ON tags
    WHEN NEW.refill_at IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND refill_at <> 0.2 AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the refill_at of this tag must not write it: upgrade'); END""",
)
_SCHEMA_8 = (
    *(
        f"""ALTER TABLE tags ADD COLUMN {name} INTEGER
        CHECK ({name} IS NULL OR (typeof({name}) = 'integer' AND {name} >= {lowest}))"""
        for name, lowest in (("survive", 0), ("target", 1), ("min_step", 1), ("max_step", 1))
    ),
    """CREATE TRIGGER pace_is_kept BEFORE INSERT ON tags
    WHEN NEW.target IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND NOT deleted
        AND (survive <> 0 OR target <> 600 OR min_step <> 1000 OR max_step <> 1000000)
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the target of this tag must not write it: upgrade'); END""",
)
_SCHEMA_9 = (
    "ALTER TABLE tags ADD COLUMN drain INTEGER CHECK (drain IS NULL OR drain IN (0, 1))",
    """CREATE TRIGGER drain_is_kept BEFORE INSERT ON tags
    WHEN NEW.drain IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND drain = 0 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for the drain of this tag must not write it: upgrade'); END""",
)
_STRIDE = {"stride": [{"from": 1, "first": 3, "stride": 2}], "id": "9f2c"}
#: Blanks, and what the error of a trigger says: these may differ between programs.
_OF_NO_EFFECT = re.compile(r"\s*([()]|\s)\s*|too old for [^']*")
_EVERYTHING = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
_ROWS = "SELECT * FROM tags ORDER BY tag"


def put(connection: sqlite3.Connection, tag: str, maximum: int, order: str = "trend", **more: object) -> None:
    """Write a tag as the program of schema 1 does; those of later ones with a `lease`, `ahead` and a `scheme` too."""
    fields = {"tag": tag, "max": maximum, "step": 10, "limit": 1000, "order": order, "description": "old"}
    fields |= {"created": 5, "timestamp": 6, "version": secrets.token_hex(12), "halted": 0, "deleted": 0, **more}
    names, marks = ", ".join(f'"{each}"' for each in fields), ", ".join("?" * len(fields))
    connection.execute(f"INSERT OR REPLACE INTO tags ({names}) VALUES ({marks})", [*fields.values()])  # noqa: S608


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Callable[[int], sqlite3.Connection]]:
    """Makes a file as it is at a schema; its program goes on while others bring the file up to date."""
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)

    def at(version: int) -> sqlite3.Connection:
        connection.execute("PRAGMA journal_mode = WAL")
        schemas = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, _SCHEMA_5, _SCHEMA_6, _SCHEMA_7, _SCHEMA_8, _SCHEMA_9)
        for steps in schemas[:version]:
            for statement in steps:
                connection.execute(statement)
        connection.execute("INSERT INTO meta (id) VALUES ('0123456789abcdef01234567')")
        connection.execute(f"PRAGMA user_version = {version}")
        put(connection, "orders", 30)
        put(connection, "users", 7, "strict")
        put(connection, "gone", 100, deleted=True)
        if version > 1:
            put(connection, "leased", 40, lease=7)
        columns = "(id, tag, low, high, reason, time, host, pid)"
        connection.execute(f"INSERT INTO segments {columns} VALUES ('x', 'orders', 20, 30, 'refill', 6, 'host', 1)")  # noqa: S608
        return connection

    yield at
    connection.close()


@pytest.fixture
def old(older: Callable[[int], sqlite3.Connection]) -> sqlite3.Connection:
    return older(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """A store on that file, once it is there."""
    store = SQLiteStore(tmp_path / "store.db")
    yield store
    store.close()


def effects(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return all tables, indexes and triggers of a file, without what has no effect."""
    found = connection.execute(_EVERYTHING).fetchall()
    return [(kind, name, _OF_NO_EFFECT.sub(r"\1", sql or "")) for kind, name, sql in found]


def schema(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_an_older_file_is_brought_up_to_date_with_all_that_is_in_it(
    store: SQLiteStore, older: Callable[[int], sqlite3.Connection], version: int
) -> None:
    old = older(version)
    rows = old.execute(_ROWS).fetchall()
    assert store.store_id(timeout=TIMEOUT) == "0123456789abcdef01234567"
    found = [*map(sound, store.tags(count=1000, timeout=TIMEOUT))]
    assert [(each.tag, each.max, each.lease, each.ahead, each.scheme, each.step_mode) for each in found] == [
        *([("leased", 40, 7, 1, {}, "fixed")] if version > 1 else []),
        ("orders", 30, None, 1, {}, "fixed"),
        ("users", 7, None, 1, {}, "fixed"),
    ]
    assert ranges(store) == [(20, 30)]
    assert store.examine(timeout=TIMEOUT).schema == schema(old) == version, "a reader has changed the file"
    store.upgrade(timeout=TIMEOUT)
    assert old.execute(_ROWS).fetchall() == [(*row, *[None] * (len(TAG_COLUMNS) - len(row))) for row in rows]
    assert (reserve(store).low, ranges(store)) == (30, [(20, 30), (30, 40)])
    store.configure("orders", TagChanges(lease=50, ahead=3, scheme=_STRIDE), timeout=TIMEOUT)
    held = reserve(store)
    assert (held.low, held.high, held.tag.lease, held.tag.scheme) == (40, 70, 50, _STRIDE)
    assert create(store, "gone", step=10, order="trend", lease=5).max == 100
    # And its tables are those of a file made now.
    fresh = SQLiteStore(store._path.with_name("fresh.db"))
    fresh.upgrade(timeout=TIMEOUT)
    made = sqlite3.connect(fresh._path)
    assert effects(made) == effects(old)
    assert schema(made) == schema(old) == SCHEMA
    made.close()
    fresh.close()


def test_the_table_itself_refuses_what_has_another_type(store: SQLiteStore, old: sqlite3.Connection) -> None:
    create(store, "high", above=2**63 - 10)
    for change in (
        "max = max + 1000",  # what a plain UPDATE does: REAL, without a word
        *(f"{column} = {value}" for column in ("lease", "ahead") for value in ("1.5", "'x'", "-1")),
        "scheme = x'7b7d'",
        *(f"step_mode = {value}" for value in ("'x'", "''", "1")),
        *(f"{name} = {value}" for name in ("target", "survive", "min_step") for value in ("'x'", "-1", "1.5")),
        *(f"lease_mode = {value}" for value in ("'x'", "''", "1")),
        *(f"drain = {value}" for value in ("'x'", "-1", "2", "0.5")),
        *(f"refill_at = {value}" for value in ("'x'", "0", "1", "-0.2", "1.5")),
    ):
        with pytest.raises(sqlite3.IntegrityError):
            old.execute(f"UPDATE tags SET {change} WHERE tag = 'high'")  # noqa: S608 - from the list above
    # A row that was tampered with all the same keeps nobody from the others.
    old.execute("PRAGMA ignore_check_constraints = ON")
    old.execute("UPDATE tags SET max = 9.3e18 WHERE tag = 'users'")
    assert reserve(store).low == 30
    with pytest.raises(Corrupt):
        get(store, "users")
    assert old.execute("SELECT max FROM tags WHERE tag = 'users'").fetchone() == (9.3e18,)


def test_a_fault_on_the_way_leaves_the_older_file(
    store: SQLiteStore, old: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.execute(_EVERYTHING).fetchall()
    steps = sqlite_schema.STEPS
    with monkeypatch.context() as broken:
        broken.setattr("issuer_persistence.sqlite.file.STEPS", (*steps, ("INSERT INTO nowhere VALUES (1)",)))
        with pytest.raises(Unconfirmed, match="nowhere"):
            reserve(store)
    assert (schema(old), old.execute(_EVERYTHING).fetchall()) == (1, before)
    assert get(store).max == 30


def test_a_file_brought_up_to_date_between_a_look_and_the_lock_is_left_alone(
    store: SQLiteStore, old: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, look = SQLiteStore(store._path), SQLiteFile._version
    # As a program of an older version does: without the lock file.
    monkeypatch.setattr(other._file, "_alone", lambda *_, **__: nullcontext())

    def overtaken(self: SQLiteFile, connection: sqlite3.Connection) -> int:
        version = look(self, connection)
        monkeypatch.setattr(SQLiteFile, "_version", look)
        assert version == 1
        assert other.configure("orders", TagChanges(lease=5), timeout=TIMEOUT).lease == 5
        return version

    monkeypatch.setattr(SQLiteFile, "_version", overtaken)
    assert reserve(store).tag.lease == 5
    assert schema(old) == SCHEMA
    other.close()


#: What a setting is of a tag for which it has been used, and of one that an older program may write all the same.
_SETTINGS: dict[int, tuple[str, Any, Any]] = {
    1: ("lease", 5, 0),
    2: ("ahead", 4, 1),
    3: ("scheme", _STRIDE, {}),
    5: ("step_mode", "auto", "fixed"),
    6: ("refill_at", 0.8, 0.2),
    7: ("target", 60, 600),
    8: ("drain", False, True),
    9: ("lease_mode", "auto", "set"),
}


@pytest.mark.parametrize("version", _SETTINGS)
def test_an_older_program_that_had_the_file_open_cannot_drop_what_it_knows_nothing_of(
    store: SQLiteStore, older: Callable[[int], sqlite3.Connection], version: int
) -> None:
    name, used, plain = _SETTINGS[version]
    knows: dict[str, Any] = {"lease": None, "ahead": 1, "scheme": "{}", "step_mode": "fixed", "refill_at": 0.2}
    knows |= {"target": 600, "drain": 1}
    old = older(version)
    known = dict([*knows.items()][: version - 1 - (version > 4)])
    store.configure("orders", TagChanges(**{name: used}), timeout=TIMEOUT)
    store.configure("users", TagChanges(**{name: plain}), timeout=TIMEOUT)
    put(old, "users", 60, "strict", **known)
    assert get(store, "users").max == 60
    before = get(store)
    for deleted in (False, True) if name != "ahead" else (False,):
        with pytest.raises(sqlite3.IntegrityError, match="upgrade"):
            put(old, "orders", 500, deleted=deleted, **known)
    assert get(store) == before
    store.delete("orders", timeout=TIMEOUT)
    if name == "scheme":  # the values of a tag that is made again are made as before
        with pytest.raises(sqlite3.IntegrityError, match="upgrade"):
            put(old, "orders", 500, **known)
    else:
        put(old, "orders", 500, **known)
        assert (get(store).max, get(store).lease, get(store).ahead) == (500, None, 1)


def test_entries_that_a_program_of_schema_4_writes_meanwhile_say_nothing_of_a_service(
    store: SQLiteStore, older: Callable[[int], sqlite3.Connection]
) -> None:
    fourth = older(4)
    store.reserve("orders", None, purpose=Purpose("test", "billing", "b"), timeout=TIMEOUT)
    columns = "(id, tag, low, high, reason, time, host, pid)"
    fourth.execute(f"INSERT INTO segments {columns} VALUES ('y', 'orders', 40, 50, 'load', 6, 'host', 1)")  # noqa: S608
    found = store.ledger("orders", newest=3, timeout=TIMEOUT)
    assert [(each.id, each.application, each.born) for each in found][::2] == [("y", "", ""), ("x", "", "")]
    assert (found[1].application, found[1].born) == ("billing", "b")


@pytest.mark.parametrize("version", [9, 8, 7, 6, 5, 4])
def test_the_way_back_that_the_page_on_upgrades_shows_leaves_a_file_of_the_older_schema(
    store: SQLiteStore, older: Callable[[int], sqlite3.Connection], version: int
) -> None:
    old = older(version)
    before, rows = old.execute(_EVERYTHING).fetchall(), old.execute(_ROWS).fetchall()
    store.upgrade(timeout=TIMEOUT)
    assert schema(old) == SCHEMA
    assert old.execute(_EVERYTHING).fetchall() != before
    store.close()
    page = (Path(__file__).parents[2] / "docs" / "operate" / "upgrade.md").read_text(encoding="utf-8")
    for shown in re.findall(r"sqlite3 issuer.db '(.*)'", page)[: SCHEMA - version]:
        old.executescript(shown)
    assert schema(old) == version
    assert (old.execute(_EVERYTHING).fetchall(), old.execute(_ROWS).fetchall()) == (before, rows)
