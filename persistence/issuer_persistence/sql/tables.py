"""The tables of a store in an SQL database, and its statements. Both databases understand the statements.

Names are quoted with `"`: `limit` and `order` are words of SQL. MySQL reads these quotes with the mode ANSI_QUOTES.
Values are never a part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from issuer_persistence.errors import Misconfigured
from issuer_persistence.records import SETTINGS, Setting


def _kind(setting: Setting) -> str:
    if setting.range is not None:
        return "number or nothing" if setting.default is None else "number"
    return "share" if setting.share is not None else "flag" if setting.flag else "text"


#: The tables and their columns, each with its kind, see `Types`. The first column of each table is its primary key.
#: Both databases return the values with the Python types of the records.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "tags": {
        "tag": "name", "max": "number", **{name: _kind(setting) for name, setting in SETTINGS.items()},
        "created": "number", "timestamp": "number", "version": "text", "halted": "flag", "deleted": "flag",
    },
    "segments": {
        "id": "name", "tag": "name", "low": "number", "high": "number", "reason": "text", "time": "number",
        "host": "text", "pid": "number", "application": "text", "born": "text",
    },
    "meta": {"name": "name", "value": "text"},
}  # fmt: skip
TAG_COLUMNS, ENTRY_COLUMNS = tuple(COLUMNS["tags"]), tuple(COLUMNS["segments"])

#: Columns of the ledger's index.
_BY_NUMBER = '("tag", "high", "low", "id")'

#: Newest schema. The table `meta` contains the schema of the tables.
SCHEMA = 1

#: Prefix of the tables' names if the URL has none.
PREFIX = "issuer_"
#: Without capitals: by its setting `lower_case_table_names`, MySQL changes them.
_ALLOWED = re.compile(r"[a-z][a-z0-9_]{0,39}")


def checked_prefix(prefix: str) -> str:
    """Return the prefix. If it is not allowed in the name of a table, raise Misconfigured."""
    if not _ALLOWED.fullmatch(prefix):
        raise Misconfigured(
            "a prefix of tables must have 1 to 40 lower-case letters, digits and _, with a letter first"
        )
    return prefix


def _quoted(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{each}"' for each in columns)


def _marks(columns: tuple[str, ...]) -> str:
    return ", ".join(["%s"] * len(columns))


@dataclass(frozen=True)
class Types:
    """Types of the columns in a database, by the kinds in `COLUMNS`.

    Attributes:
        name: A text that is compared byte by byte, and sorted by its bytes. It can be a key.
        text: A text without limit.
        flag: True or false.
        share: A float of 8 bytes.
        found: For each kind, the type and the collation as the database's information schema shows them. "" as
            collation means any.
        schema: SQL expression for the schema of the table `table_name`, in the information schema.
        index_within: True if the ledger's index is created within its table. MySQL has no CREATE INDEX IF NOT EXISTS.
        suffix: What follows the definition of a table.
        limited: What precedes a statement of `prune`, so that the server ends it after a second. "" if the transaction
            has a limit already.
    """

    name: str
    text: str
    flag: str
    share: str
    found: Mapping[str, tuple[str, str]]
    schema: str
    index_within: bool = False
    suffix: str = ""
    limited: str = ""

    def column(self, kind: str) -> str:
        """Return the type of a column for CREATE TABLE."""
        if kind.startswith("number"):
            return "BIGINT" if kind == "number or nothing" else "BIGINT NOT NULL"
        return f"{getattr(self, kind)} NOT NULL"

    def found_as(self, kind: str) -> tuple[str, str]:
        """Return the type and the collation of a column as the information schema shows them."""
        return ("bigint", "") if kind.startswith("number") else self.found[kind]


class Statements:
    """The statements for the tables with this prefix."""

    def __init__(self, prefix: str, schema: str, limited: str = "") -> None:
        """Write the statements. `schema` and `limited`: see `Types`."""
        #: Names of the tables, in the order of `COLUMNS`.
        self.names = tuple(f"{prefix}{name}" for name in COLUMNS)
        self.tags, self.segments, self.meta = (f'"{name}"' for name in self.names)
        tag, entry = _quoted(TAG_COLUMNS), _quoted(ENTRY_COLUMNS)
        # The lint rule S608 warns of SQL with foreign text. These statements consist of names from above only.
        self.get = f'SELECT {tag} FROM {self.tags} WHERE "tag" = %s'  # noqa: S608
        self.get_many = f'SELECT {tag} FROM {self.tags} WHERE "tag" IN '  # noqa: S608
        self.page = f'SELECT {tag} FROM {self.tags} WHERE NOT "deleted" ORDER BY "tag" LIMIT %s'  # noqa: S608
        self.page_after = f'SELECT {tag} FROM {self.tags} WHERE "tag" > %s AND NOT "deleted" ORDER BY "tag" LIMIT %s'  # noqa: S608
        self.insert = f"INSERT INTO {self.tags} ({tag}) VALUES ({_marks(TAG_COLUMNS)})"  # noqa: S608
        #: With a place for the columns: `"max" = %s, ...`. The last value is the version that was read.
        self.update = f'UPDATE {self.tags} SET %s WHERE "tag" = %%s AND "version" = %%s'  # noqa: S608
        self.enter = f"INSERT INTO {self.segments} ({entry}) VALUES ({_marks(ENTRY_COLUMNS)})"  # noqa: S608
        self.shorten = f'UPDATE {self.segments} SET "high" = %s WHERE "id" = %s AND "high" > %s'  # noqa: S608
        self.store_id = f'SELECT "value" FROM {self.meta} WHERE "name" = \'id\''  # noqa: S608
        #: The schema, and the layout of a store on the table of another program.
        self.schema = f'SELECT "name", "value" FROM {self.meta} WHERE "name" IN (\'schema\', \'layout\')'  # noqa: S608
        self.noted = f'SELECT "value" FROM {self.meta} WHERE "name" = %s'  # noqa: S608
        self.meta_names = f'SELECT "name" FROM {self.meta}'  # noqa: S608
        self.note = f'UPDATE {self.meta} SET "value" = %s WHERE "name" = %s'  # noqa: S608
        self.put_meta = f'INSERT INTO {self.meta} ("name", "value") VALUES (%s, %s)'  # noqa: S608
        #: Highest number of the ledger that is above `max`. In a returned entry, low equals high.
        self.taken = f'SELECT max("high") FROM {self.segments} WHERE "tag" = %s AND "high" > %s AND "low" < "high"'  # noqa: S608
        taken = f'SELECT max("high") FROM {self.segments} AS "entry" WHERE "entry"."tag" = "row"."tag"'  # noqa: S608
        #: One column, because PyMySQL takes 10 us to read the description of each. For MySQL: PostgreSQL needs it not.
        self.get_to_reserve = (
            f"SELECT json_array({_quoted(TAG_COLUMNS[1:])}, "  # noqa: S608
            f'({taken} AND "entry"."high" > "row"."max" AND "entry"."low" < "entry"."high"), ({self.store_id})) '
            f'FROM {self.tags} AS "row" WHERE "tag" = %s'
        )
        self.columns = (
            "SELECT table_name, column_name, data_type, collation_name FROM information_schema.columns "  # noqa: S608
            f"WHERE table_schema = {schema} AND table_name IN (%s, %s, %s)"
        )
        of_tag = f'SELECT {entry} FROM {self.segments} WHERE "tag" = %s'  # noqa: S608
        newest, oldest = 'ORDER BY "high" DESC, "low" DESC, "id" DESC LIMIT %s', 'ORDER BY "high", "low", "id" LIMIT %s'
        self.newest, self.oldest = f"{of_tag} {newest}", f"{of_tag} {oldest}"
        position = '("high", "low", "id")'
        self.below = f'{of_tag} AND "high" <= %s AND {position} < (%s, %s, %s) {newest}'
        self.above = f'{of_tag} AND "high" >= %s AND {position} > (%s, %s, %s) {oldest}'
        self.entries = f'{of_tag} AND "id" IN '
        walked = f'{limited}SELECT "tag", "high", "low", "id", "time" FROM {self.segments}'  # noqa: S608
        self.walk_on = f'{walked} WHERE "tag" > %s ORDER BY "tag", "high", "low", "id" LIMIT %s'
        #: MySQL would read a whole tag for the condition that PostgreSQL has in its place.
        self.walk_above = (
            f'{walked} WHERE "tag" = %s AND "high" >= %s AND ("tag", "high", "low", "id") > (%s, %s, %s, %s) {oldest}'
        )
        self.drop = f'{limited}DELETE FROM {self.segments} WHERE "id" IN '  # noqa: S608

    def definitions(self, types: Types) -> list[str]:
        """Return the statements that create the tables and the ledger's index, unless they exist."""
        made = []
        for (table, columns), name in zip(COLUMNS.items(), self.names, strict=True):
            lines = [f'    "{column}" {types.column(kind)}' for column, kind in columns.items()]
            lines[0] += " PRIMARY KEY"
            if table == "segments" and types.index_within:
                lines.append(f"    INDEX {_BY_NUMBER}")
            made.append(f'CREATE TABLE IF NOT EXISTS "{name}" (\n' + ",\n".join(lines) + f"\n){types.suffix}")
        if not types.index_within:
            index = f"{self.names[1]}_by_number"
            made.insert(2, f'CREATE INDEX IF NOT EXISTS "{index}" ON {self.segments} {_BY_NUMBER}')
        return made
