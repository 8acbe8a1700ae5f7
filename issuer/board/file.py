"""The file of a board: an SQLite database in a temporary folder, which the processes of one server share.

One process, the collector, writes the rows of all tags. All workers read pages of them, sorted by an index, so that a
page costs the same with 100 000 tags. The file also keeps what was known last while Redis or the store is down.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from issuer.board.rows import NEVER, TagRow
from issuer_persistence.records import now_ms

#: Seconds that a call waits while another process writes.
PATIENCE: Final = 0.3

#: After this many ms, a reader repeats a wish.
WISH_AGAIN: Final = 5000

#: For how many ms a fact about a single tag is kept: one day.
TAG_FOR: Final = 86_400_000

_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS rows (
    tag TEXT PRIMARY KEY, state TEXT, rank INTEGER, urgency REAL, rate REAL, last INTEGER, walk INTEGER,
    sought TEXT, content TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_urgency ON rows (rank, urgency, tag, sought, state);
CREATE INDEX IF NOT EXISTS by_runway ON rows (urgency);
CREATE INDEX IF NOT EXISTS by_name ON rows (tag, sought, state);
CREATE INDEX IF NOT EXISTS by_state ON rows (state, urgency, tag, sought);
CREATE INDEX IF NOT EXISTS by_rate ON rows (rate DESC, tag, sought, state);
CREATE INDEX IF NOT EXISTS by_last ON rows (last DESC, tag, sought, state);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, at INTEGER, content TEXT);
CREATE TABLE IF NOT EXISTS wishes (name TEXT PRIMARY KEY, at INTEGER);
"""

#: The orders in which `page` can sort.
SORTS: Final[Mapping[str, str]] = {
    "runway": "rank, urgency, tag",
    "rate": "rate DESC, tag",
    "last": "last DESC, tag",
    "name": "tag",
}


class Fact(NamedTuple):
    """Something that the collector has found out. `at`: when, in ms since 1970. `content`: JSON."""

    at: int
    content: Any


class BoardFile:
    """The file of a board. Calls are thread-safe, and raise `sqlite3.Error` if the file cannot be read or written."""

    def __init__(self, path: Path | Literal[""]) -> None:
        """Open the file, or create it. A child process must open it anew after a fork.

        `path`: "" means a file of this object alone, which is deleted at the end of the process at the latest.
        """
        self._database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)
        self._lock = threading.Lock()
        self._wished: dict[str, int] = {}

    @staticmethod
    def create(path: Path) -> None:
        """Create the file, in place of one that a killed server with the same process id has left.

        Only this user may read it, because it also has a secret. Nobody else can have prepared it: if it is there
        although it was removed, raise FileExistsError.
        """
        BoardFile.remove(path)
        path.touch(mode=0o600, exist_ok=False)
        BoardFile(path).close()  # the tables, as several processes could not create them at once

    @staticmethod
    def remove(path: Path) -> None:
        """Remove the file, and those that SQLite has made beside it."""
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    # ------------------------------------------------------------------ rows

    def put(self, rows: Iterable[TagRow], walk: int) -> None:
        """Store the rows in place of earlier rows of the same tags, all or none. `walk`: number of the current walk."""
        values = [
            (
                row.tag, row.state, row.rank, row.urgency, row.rate or 0.0, row.last or 0, walk,
                f"{row.tag}\n{row.description}".casefold(), json.dumps(row.content(), separators=(",", ":")),
            )
            for row in rows
        ]  # fmt: skip
        with self._lock, self._database as database:
            database.execute("BEGIN")
            database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def forget(self, walk: int) -> None:
        """Delete the rows that were not put during this walk or a later one: their tags are gone.

        Also delete what was noted of a single tag more than a day ago.
        """
        self._run("DELETE FROM rows WHERE walk < ?", walk)
        self._run("DELETE FROM facts WHERE name LIKE 'tag %' AND at < ?", now_ms() - TAG_FOR)

    def rows(self, tags: Sequence[str]) -> dict[str, TagRow]:
        """Return the rows of these tags, by name of the tag. Unknown tags are missing."""
        marks = ",".join("?" * len(tags))
        return {row.tag: row for row in self._rows(f"SELECT content FROM rows WHERE tag IN ({marks})", *tags)}  # noqa: S608 - only marks

    def active(self, most: int) -> list[str]:
        """Return the names of the tags in use, the most urgent first, at most `most`."""
        found = self._run("SELECT tag FROM rows WHERE rate > 0 ORDER BY rank, urgency, tag LIMIT ?", most)
        return [tag for (tag,) in found]

    def page(self, sort: str, sought: str, state: str, first: int, count: int) -> tuple[list[TagRow], int]:
        """Return rows, and how many rows there are.

        Args:
            sort: One of SORTS.
            sought: Text in the name or the description. "" for all tags. Case does not matter.
            state: State of the tags. "" for all states.
            first: How many rows are left out before the first one.
            count: Maximum number of rows.
        """
        conditions, values = ["1"], []
        if sought:
            conditions.append("instr(sought, ?)")
            values.append(sought.casefold())
        if state:
            conditions.append("state = ?")
            values.append(state)
        where = f"FROM rows WHERE {' AND '.join(conditions)}"
        ((total,),) = self._run(f"SELECT count(*) {where}", *values)
        by = (
            "urgency, tag" if state and sort == "runway" else SORTS[sort]
        )  # a state has one rank: an index has this order
        order = f"ORDER BY {by} LIMIT ? OFFSET ?"
        # Without the first query, SQLite would read the content of all rows before those that are wanted.
        chosen = f"SELECT content FROM rows WHERE tag IN (SELECT tag {where} {order}) ORDER BY {by}"  # noqa: S608 - no values
        return self._rows(chosen, *values, count, first), total

    def states(self) -> dict[str, int]:
        """Return how many tags have each state."""
        return dict(self._run("SELECT state, count(*) FROM rows GROUP BY state"))

    def shortest(self) -> float | None:
        """Return the shortest runway of a tag, in seconds. None if no runway is known."""
        ((found,),) = self._run("SELECT min(urgency) FROM rows")
        return None if found is None or found >= NEVER else found

    def _rows(self, query: str, *values: object) -> list[TagRow]:
        return [TagRow(**json.loads(content)) for (content,) in self._run(query, *values)]

    # ------------------------------------------------------------------ facts and wishes

    def note(self, name: str, content: Any) -> None:
        """Store a fact: a value for JSON."""
        self._run("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", name, now_ms(), json.dumps(content))

    def fact(self, name: str) -> Fact | None:
        """Return the fact, or None if it is unknown."""
        for at, content in self._run("SELECT at, content FROM facts WHERE name = ?", name):
            return Fact(at, json.loads(content))
        return None

    def wish(self, name: str) -> None:
        """Tell the collector that somebody wants to see something now. Repeated wishes cost nothing."""
        now = now_ms()
        if now - self._wished.get(name, 0) > WISH_AGAIN:
            self._wished[name] = now
            self._run("INSERT OR REPLACE INTO wishes VALUES (?, ?)", name, now)

    def wished(self, name: str) -> int:
        """Return when a wish was last made, in ms since 1970. 0: never."""
        return next((at for (at,) in self._run("SELECT at FROM wishes WHERE name = ?", name)), 0)

    def _run(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, closing(self._database.execute(query, values)) as cursor:
            return cursor.fetchall()
