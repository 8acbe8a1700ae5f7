"""Tables of other issuers in a database of their own, and what their programs do with them."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pymysql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cli.conftest import Ended

#: The tables of each layout. What only MySQL understands stands in /* */ for PostgreSQL.
TABLES = {
    "leaf": """CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint NOT NULL DEFAULT 1,
        step int NOT NULL, description varchar(256) DEFAULT NULL,
        update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag))""",
    "leaf-go": """CREATE TABLE leaf_alloc (id int NOT NULL, biz_tag varchar(128) NOT NULL DEFAULT '',
        max_id bigint NOT NULL DEFAULT 1, step int NOT NULL, description varchar(256) DEFAULT NULL,
        update_time bigint NOT NULL DEFAULT 0, PRIMARY KEY (id), UNIQUE (biz_tag))""",
    "tinyid": """CREATE TABLE tiny_id_info (id bigint NOT NULL, biz_type varchar(63) NOT NULL DEFAULT '',
        begin_id bigint NOT NULL DEFAULT 0, max_id bigint NOT NULL DEFAULT 0, step int DEFAULT 0,
        delta int NOT NULL DEFAULT 1, remainder int NOT NULL DEFAULT 0,
        create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
        update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00', version bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (id), UNIQUE (biz_type))""",
    "tokens": """CREATE TABLE tiny_id_token (id int NOT NULL, token varchar(255) NOT NULL DEFAULT '',
        biz_type varchar(63) NOT NULL DEFAULT '', remark varchar(255) NOT NULL DEFAULT '', PRIMARY KEY (id))""",
    "cosid": """CREATE TABLE cosid (name varchar(100) NOT NULL, last_max_id bigint {unsigned} NOT NULL DEFAULT 0,
        last_fetch_time bigint NOT NULL, PRIMARY KEY (name))""",
    "sequence": """CREATE TABLE "sequence" (seq_name varchar(200) NOT NULL, current_value bigint NOT NULL,
        _increment int NOT NULL, PRIMARY KEY (seq_name))""",
    "sequence-value": "CREATE TABLE sequence_value (Name {bytes} DEFAULT NULL, ID int DEFAULT NULL)",
    "id-alloc": """CREATE TABLE id_alloc (app_id int NOT NULL, app_name varchar(128) NOT NULL,
        max_id bigint NOT NULL DEFAULT 1, shard_id int NOT NULL, step int NOT NULL DEFAULT 1000,
        description varchar(255) DEFAULT NULL, create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
        max_limit_id bigint NOT NULL DEFAULT 0, PRIMARY KEY (app_id, shard_id))""",
    "django-sequences": """CREATE TABLE sequences_sequence (name varchar(100) NOT NULL, last bigint NOT NULL,
        PRIMARY KEY (name))""",
    "parcels": "CREATE TABLE parcels (id {serial} PRIMARY KEY, name varchar(20))",
    "table": "CREATE TABLE orders (id {serial} PRIMARY KEY, name varchar(20))",
}


Sources = Callable[..., "Source"]


class Source:
    """A database of its own on a server, with the tables of some layouts."""

    def __init__(self, server: str, *layouts: str) -> None:
        """`server`: URL of a database on the server, with a user who may create others."""
        parts = urlsplit(server)
        self.kind, self._name = parts.scheme, f"source_{secrets.token_hex(4)}"
        self._server, self.url = server, parts._replace(path=f"/{self._name}").geturl()
        with self._connected(server) as admin:
            utf8 = "" if self.kind == "postgresql" else " CHARACTER SET utf8mb4"
            admin.execute(f"CREATE DATABASE {self._name}{utf8}")
        self.connection = self._connection(self.url)
        postgres = self.kind == "postgresql"
        types = {
            "unsigned": "" if postgres else "unsigned",
            "bytes": "varchar(50)" if postgres else "varbinary(50)",
            "serial": "serial" if postgres else "int AUTO_INCREMENT",
        }
        for layout in layouts:
            self.run(TABLES[layout].format(**types))

    def _connection(self, url: str) -> Any:
        if self.kind == "postgresql":
            return psycopg.connect(url, autocommit=True)
        parts = urlsplit(url)
        return pymysql.connect(
            host=str(parts.hostname), port=parts.port or 0, user=parts.username, database=parts.path.strip("/"),
            autocommit=True, sql_mode="ANSI_QUOTES", charset="utf8mb4",
        )  # fmt: skip

    @contextmanager
    def _connected(self, url: str) -> Iterator[Any]:
        connection = self._connection(url)
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def again(self) -> Source:
        """Return the same database with a connection of its own, for another thread."""
        other = copy.copy(self)
        other.connection = self._connection(self.url)
        return other

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def insert(self, table: str, columns: str, *rows: Sequence[object]) -> None:
        marks = ", ".join(["%s"] * len(rows[0]))
        self.connection.cursor().executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - ours

    def leaf(self, tag: str, step: int | None = None) -> range:
        """Take a segment as Leaf does: with the row's step, or with one of its own."""
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        by = "step" if step is None else str(step)
        cursor.execute(f"UPDATE leaf_alloc SET max_id = max_id + {by} WHERE biz_tag = %s", (tag,))  # noqa: S608 - ours
        cursor.execute("SELECT biz_tag, max_id, step FROM leaf_alloc WHERE biz_tag = %s", (tag,))
        [(_, max_id, row)] = cursor.fetchall()
        cursor.execute("COMMIT")
        return range(max_id - (step or row), max_id)

    def tinyid(self, tag: str) -> list[int]:
        """Take a segment as tinyid does, and return its numbers."""
        for _ in range(3):
            [(id, max_id, step, delta, remainder, version)] = self.run(
                "SELECT id, max_id, step, delta, remainder, version FROM tiny_id_info WHERE biz_type = %s", tag
            )
            cursor = self.connection.cursor()
            cursor.execute(
                "UPDATE tiny_id_info SET max_id = %s, update_time = now(), version = version + 1 "
                "WHERE id = %s AND max_id = %s AND version = %s AND biz_type = %s",
                (max_id + step, id, max_id, version, tag),
            )
            if cursor.rowcount == 1:
                return [each for each in range(max_id + 1, max_id + step + 1) if each % delta == remainder]
        raise AssertionError("get next segmentId conflict")

    def close(self) -> None:
        self.connection.close()
        with self._connected(self._server) as admin:
            admin.execute(f"DROP DATABASE {self._name}")


LEAF = ("leaf_alloc", "biz_tag, max_id, step, description")
GO = ("leaf_alloc", "id, biz_tag, max_id, step, description")
TINYID = ("tiny_id_info", "id, biz_type, max_id, step, delta, remainder")
ALLOC = ("id_alloc", "app_id, app_name, shard_id, max_id, step, max_limit_id")

#: Of each layout: the rows, further arguments, and LAST THERE and FIRST HERE of each tag.
LAYOUTS: dict[str, tuple[tuple[str, str], list[tuple[Any, ...]], list[str], dict[str, list[int]]]] = {
    "leaf": (
        LEAF,
        [("orders", 2001, 2000, "old"), ("new", 1, 10, None), ("zero", 0, 10, None), ("Größe", 7, 1, "a\nb")],
        [],
        {"orders": [2000, 2001], "new": [0, 1], "zero": [0, 1], "Größe": [6, 7]},
    ),
    "leaf-go": (GO, [(1, "orders", 5, 2000, "")], [], {"orders": [4, 5]}),
    "tinyid": (
        TINYID,
        [(1, "test", 1, 100000, 1, 0), (2, "odd", 1, 100000, 2, 1), (3, "even", 1000, 9, 3, 0), (4, "big", 7, 1, 5, 4)],
        [],
        {"test": [1, 2], "odd": [1, 3], "even": [1000, 1002], "big": [7, 9]},
    ),
    "cosid": (("cosid", "name, last_max_id, last_fetch_time"), [("ns.a", 0, 0), ("ns.b", 77, 5)], [],
              {"ns.a": [0, 1], "ns.b": [77, 78]}),
    "sequence": (('"sequence"', "seq_name, current_value, _increment"), [("a", 7, 1), ("b", 7, 5), ("c", 0, 5)], [],
                 {"a": [7, 8], "b": [7, 12], "c": [0, 5]}),
    "sequence-value": (("sequence_value", "Name, ID"), [("a", 100), ("a", 300), ("a", 200), ("b", 0)],
                       ["--block", "20"], {"a": [320, 321], "b": [20, 21]}),
    "id-alloc": (
        ALLOC,
        [(17, "pay", shard, 3 * shard, 1000, 0) for shard in range(64)],
        [],
        {"pay": [189 << 14 | 63 << 8 | 17, 190 << 14 | 17]},
    ),
    "django-sequences": (("sequences_sequence", "name, last"), [("default", 3), ("cases", 0)], [],
                         {"default": [3, 4], "cases": [0, 1]}),
    "table": (("orders", "id, name"), [(1, "a"), (41, "b")], ["--table", "orders", "--column", "id"],
              {"orders": [41, 42]}),
}  # fmt: skip


def shown(ended: Ended) -> dict[str, list[int]]:
    """Return the numbers of the table by tag."""
    lines = [line.split() for line in ended.out.splitlines()[1:]]
    return {tag: [int(each) for each in numbers] for tag, *numbers in lines}
