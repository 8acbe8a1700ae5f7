"""The tables of an SQLite store, and the upgrade of files of older programs."""

from __future__ import annotations

TAG_COLUMNS = (
    "tag", "max", "step", "limit", "order", "description", "created", "timestamp", "version", "halted", "deleted",
    "lease", "ahead", "scheme", "step_mode",
)  # fmt: skip
ENTRY_COLUMNS = (
    "id", "tag", "low", "high", "reason", "time", "host", "pid", "application", "born",
)  # fmt: skip
COLUMNS = {"tags": set(TAG_COLUMNS), "segments": set(ENTRY_COLUMNS), "meta": {"id"}}


def _natural(column: str, lowest: int = 0) -> str:
    return f'"{column}" INTEGER NOT NULL CHECK (typeof("{column}") = \'integer\' AND "{column}" >= {lowest})'


def _flag(column: str) -> str:
    return f'"{column}" INTEGER NOT NULL CHECK (typeof("{column}") = \'integer\' AND "{column}" IN (0, 1))'


_TABLES = (
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
_LEASES = (
    "ALTER TABLE tags ADD COLUMN lease INTEGER CHECK (lease IS NULL OR (typeof(lease) = 'integer' AND lease >= 0))",
    # A process of an older program that had the file open during the upgrade continues, and replaces whole rows without
    # this column. A lease never becomes NULL again, so such a row is one of an older program. The trigger rejects it.
    # The process then opens the file again, and gets the error that it is too old.
    """CREATE TRIGGER lease_is_kept BEFORE INSERT ON tags
    WHEN NEW.lease IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND lease IS NOT NULL AND "order" = 'trend' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the lease of this tag must not write it: upgrade'); END""",
)

_AHEAD = (
    "ALTER TABLE tags ADD COLUMN ahead INTEGER CHECK (ahead IS NULL OR (typeof(ahead) = 'integer' AND ahead >= 1))",
    # Likewise. There is no default: NULL marks the row of an older program, and is read as 1.
    """CREATE TRIGGER ahead_is_kept BEFORE INSERT ON tags
    WHEN NEW.ahead IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND ahead > 1 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for what this tag has ahead must not write it: upgrade'); END""",
)

_SCHEMES = (
    "ALTER TABLE tags ADD COLUMN scheme TEXT CHECK (scheme IS NULL OR typeof(scheme) = 'text')",
    # Likewise. A deleted tag also keeps its scheme: if it is created again, the scheme must make the same values.
    """CREATE TRIGGER scheme_is_kept BEFORE INSERT ON tags
    WHEN NEW.scheme IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND scheme <> '{}')
    BEGIN SELECT RAISE(ABORT, 'a program too old for the scheme of this tag must not write it: upgrade'); END""",
)

# An older program that had the file open leaves these columns NULL.
_LABELS = ("ALTER TABLE segments ADD COLUMN application TEXT", "ALTER TABLE segments ADD COLUMN born TEXT")

_STEP_MODES = (
    "ALTER TABLE tags ADD COLUMN step_mode TEXT CHECK (step_mode IS NULL OR step_mode IN ('fixed', 'auto'))",
    # Likewise. NULL is read as 'fixed'.
    """CREATE TRIGGER step_mode_is_kept BEFORE INSERT ON tags
    WHEN NEW.step_mode IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND step_mode = 'auto' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the step mode of this tag must not write it: upgrade'); END""",
)

# The statements that upgrade each schema to the next one. A new file has schema 0, and gets all of them.
STEPS = (_TABLES, _LEASES, _AHEAD, _SCHEMES, _LABELS, _STEP_MODES)
#: The columns that each schema added: schema 5 to `segments`, the others to `tags`.
ADDED = ((2, "lease"), (3, "ahead"), (4, "scheme"), (5, "application"), (5, "born"), (6, "step_mode"))

#: Newest schema, in the file's `user_version`. A program rejects a file of a newer schema, because it would drop the
#: values of columns that it does not know.
SCHEMA = len(STEPS)


def columns_at(schema: int, table: str) -> set[str]:
    """Return the columns that a table has in a file of that schema."""
    return COLUMNS[table] - {column for added, column in ADDED if added > schema}


def missing_at(schema: int) -> dict[str, set[str]]:
    """Return the columns that a file of that schema lacks, by table. Tables that lack none are left out."""
    lacking = {table: columns - columns_at(schema, table) for table, columns in COLUMNS.items()}
    return {table: columns for table, columns in lacking.items() if columns}
