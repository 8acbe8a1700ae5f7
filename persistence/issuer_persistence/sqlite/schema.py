"""The tables of an SQLite store, and the upgrade of files of older programs."""

from __future__ import annotations

import re


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


def _added(column: str, kind: str, check: str, lost: str) -> tuple[str, ...]:
    """Return the statements that add a setting's column, and protect its value from older programs.

    A process of an older program can have the file open during the upgrade. That process continues, and replaces whole
    rows without this column. The column has no default, and the present program never sets it back to NULL: so a row
    with NULL comes from an older program. The trigger rejects the row if the tag would lose a value that is not the
    default. Then the process opens the file again, and gets the error that its program is too old.

    Args:
        column: Name of the column, which is the name of the setting.
        kind: SQLite's type.
        check: Condition for valid values.
        lost: Condition for values that an older program must not drop. It must not hold for the default, as which NULL
            is read.
    """
    added = f"ALTER TABLE tags ADD COLUMN {column} {kind} CHECK ({column} IS NULL OR {check})"
    return added, _kept(column, column, lost)


def _kept(name: str, column: str, lost: str) -> str:
    return f"""CREATE TRIGGER {name}_is_kept BEFORE INSERT ON tags
    WHEN NEW.{column} IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND {lost})
    BEGIN SELECT RAISE(ABORT, 'a program too old for the {column} of this tag must not write it: upgrade'); END"""  # noqa: S608


def _pace(column: str, lowest: int) -> str:
    check = f"(typeof({column}) = 'integer' AND {column} >= {lowest})"
    return f"ALTER TABLE tags ADD COLUMN {column} INTEGER CHECK ({column} IS NULL OR {check})"


# Upgrade statements. Entry n upgrades a file from schema n to n + 1. A new file has schema 0, and all entries are run.
STEPS = (
    _TABLES,
    _added(
        "lease", "INTEGER", "(typeof(lease) = 'integer' AND lease >= 0)",
        "lease IS NOT NULL AND \"order\" = 'trend' AND NOT deleted",
    ),
    _added("ahead", "INTEGER", "(typeof(ahead) = 'integer' AND ahead >= 1)", "ahead > 1 AND NOT deleted"),
    # The scheme of a deleted tag is kept, too: it is needed if the tag is created again.
    _added("scheme", "TEXT", "typeof(scheme) = 'text'", "scheme <> '{}'"),
    # An older program that has the file open during the upgrade leaves these columns NULL. NULL is read as "".
    ("ALTER TABLE segments ADD COLUMN application TEXT", "ALTER TABLE segments ADD COLUMN born TEXT"),
    _added("step_mode", "TEXT", "step_mode IN ('fixed', 'auto')", "step_mode = 'auto' AND NOT deleted"),
    _added(
        "refill_at", "REAL", "(typeof(refill_at) = 'real' AND refill_at > 0 AND refill_at < 1)",
        "refill_at <> 0.2 AND NOT deleted",
    ),
    (
        _pace("survive", 0), _pace("target", 1), _pace("min_step", 1), _pace("max_step", 1),
        _kept(
            "pace", "target",
            "NOT deleted AND (survive <> 0 OR target <> 600 OR min_step <> 1000 OR max_step <> 1000000)",
        ),
    ),
    _added("drain", "INTEGER", "drain IN (0, 1)", "drain = 0 AND NOT deleted"),
    _added("lease_mode", "TEXT", "lease_mode IN ('set', 'auto')", "lease_mode = 'auto' AND NOT deleted"),
)  # fmt: skip

#: Columns that were added later: the schema that added it, the table, and the column.
ADDED = [
    (schema, *found)
    for schema, step in enumerate(STEPS, 1)
    for statement in step
    for found in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", statement)
]
TAG_COLUMNS = (
    "tag", "max", "step", "limit", "order", "description", "created", "timestamp", "version", "halted", "deleted",
    *(column for _, table, column in ADDED if table == "tags"),
)  # fmt: skip
ENTRY_COLUMNS = (
    "id", "tag", "low", "high", "reason", "time", "host", "pid",
    *(column for _, table, column in ADDED if table == "segments"),
)  # fmt: skip
COLUMNS = {"tags": set(TAG_COLUMNS), "segments": set(ENTRY_COLUMNS), "meta": {"id"}}

#: Newest schema. A file stores its schema in `user_version`. If a file has a newer schema than the program, the program
#: rejects the file. Otherwise the program would lose the values of columns that it does not know.
SCHEMA = len(STEPS)


def columns_at(schema: int, table: str) -> set[str]:
    """Return the columns of a table in a file with the given schema."""
    return COLUMNS[table] - {column for added, _, column in ADDED if added > schema}


def missing_at(schema: int) -> dict[str, set[str]]:
    """Return, for each table, the columns that are missing in a file with the given schema."""
    lacking = {table: columns - columns_at(schema, table) for table, columns in COLUMNS.items()}
    return {table: columns for table, columns in lacking.items() if columns}
