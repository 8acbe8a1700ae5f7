"""The tables of an SQLite store, and the upgrade of files of older programs."""

from __future__ import annotations

TAG_COLUMNS = (
    "tag", "max", "step", "limit", "order", "description", "created", "timestamp", "version", "halted", "deleted",
    "lease", "ahead", "scheme", "step_mode", "refill_at", "survive", "target", "min_step", "max_step", "drain",
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
    # This trigger, and those of later columns, protect values from older programs. A process of an older program can
    # have the file open during the upgrade. That process continues, and replaces whole rows without this column. The
    # present program never sets a lease back to NULL, so a row with NULL comes from an older program. The trigger
    # rejects the row. Then the process opens the file again, and gets the error that its program is too old.
    """CREATE TRIGGER lease_is_kept BEFORE INSERT ON tags
    WHEN NEW.lease IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND lease IS NOT NULL AND "order" = 'trend' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the lease of this tag must not write it: upgrade'); END""",
)

_AHEAD = (
    "ALTER TABLE tags ADD COLUMN ahead INTEGER CHECK (ahead IS NULL OR (typeof(ahead) = 'integer' AND ahead >= 1))",
    # This trigger rejects a row of an older program if it would lose the tag's `ahead`. The column has no default: NULL
    # shows that an older program wrote the row. NULL is read as 1.
    """CREATE TRIGGER ahead_is_kept BEFORE INSERT ON tags
    WHEN NEW.ahead IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND ahead > 1 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for what this tag has ahead must not write it: upgrade'); END""",
)

_SCHEMES = (
    "ALTER TABLE tags ADD COLUMN scheme TEXT CHECK (scheme IS NULL OR typeof(scheme) = 'text')",
    # This trigger rejects a row of an older program if it would lose the tag's scheme, also that of a deleted tag: this
    # scheme is needed if the tag is created again.
    """CREATE TRIGGER scheme_is_kept BEFORE INSERT ON tags
    WHEN NEW.scheme IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND scheme <> '{}')
    BEGIN SELECT RAISE(ABORT, 'a program too old for the scheme of this tag must not write it: upgrade'); END""",
)

# An older program that has the file open during the upgrade leaves these columns NULL. NULL is read as "".
_LABELS = ("ALTER TABLE segments ADD COLUMN application TEXT", "ALTER TABLE segments ADD COLUMN born TEXT")

_STEP_MODES = (
    "ALTER TABLE tags ADD COLUMN step_mode TEXT CHECK (step_mode IS NULL OR step_mode IN ('fixed', 'auto'))",
    # This trigger rejects a row of an older program if it would lose the step mode 'auto'. NULL is read as 'fixed'.
    """CREATE TRIGGER step_mode_is_kept BEFORE INSERT ON tags
    WHEN NEW.step_mode IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND step_mode = 'auto' AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the step mode of this tag must not write it: upgrade'); END""",
)

_REFILLS = (
    """ALTER TABLE tags ADD COLUMN refill_at REAL
    CHECK (refill_at IS NULL OR (typeof(refill_at) = 'real' AND refill_at > 0 AND refill_at < 1))""",
    # This trigger rejects a row of an older program if it would lose the tag's `refill_at`. NULL is read as 0.2.
    """CREATE TRIGGER refill_at_is_kept BEFORE INSERT ON tags
    WHEN NEW.refill_at IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND refill_at <> 0.2 AND NOT deleted
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the refill_at of this tag must not write it: upgrade'); END""",
)

_PACES = (
    *(
        f"""ALTER TABLE tags ADD COLUMN {name} INTEGER
        CHECK ({name} IS NULL OR (typeof({name}) = 'integer' AND {name} >= {lowest}))"""
        for name, lowest in (("survive", 0), ("target", 1), ("min_step", 1), ("max_step", 1))
    ),
    # This trigger rejects a row of an older program if it would lose one of these four values. NULL is read as 0 for
    # `survive`, 600 for `target`, 1000 for `min_step` and 1 000 000 for `max_step`.
    """CREATE TRIGGER pace_is_kept BEFORE INSERT ON tags
    WHEN NEW.target IS NULL AND EXISTS (
        SELECT * FROM tags WHERE tag = NEW.tag AND NOT deleted
        AND (survive <> 0 OR target <> 600 OR min_step <> 1000 OR max_step <> 1000000)
    ) BEGIN SELECT RAISE(ABORT, 'a program too old for the target of this tag must not write it: upgrade'); END""",
)

_DRAINS = (
    "ALTER TABLE tags ADD COLUMN drain INTEGER CHECK (drain IS NULL OR drain IN (0, 1))",
    # A trigger as for `lease`, against older programs. NULL is read as 1, true.
    """CREATE TRIGGER drain_is_kept BEFORE INSERT ON tags
    WHEN NEW.drain IS NULL AND EXISTS (SELECT * FROM tags WHERE tag = NEW.tag AND drain = 0 AND NOT deleted)
    BEGIN SELECT RAISE(ABORT, 'a program too old for the drain of this tag must not write it: upgrade'); END""",
)

# Upgrade statements. Entry n upgrades a file from schema n to n + 1. A new file has schema 0, and all entries are run.
STEPS = (_TABLES, _LEASES, _AHEAD, _SCHEMES, _LABELS, _STEP_MODES, _REFILLS, _PACES, _DRAINS)
#: Columns that were added later, each with its schema. Schema 5 added columns to `segments`, the others to `tags`.
ADDED = (
    (2, "lease"), (3, "ahead"), (4, "scheme"), (5, "application"), (5, "born"), (6, "step_mode"), (7, "refill_at"),
    (8, "survive"), (8, "target"), (8, "min_step"), (8, "max_step"), (9, "drain"),
)  # fmt: skip

#: Newest schema. A file stores its schema in `user_version`. If a file has a newer schema than the program, the program
#: rejects the file. Otherwise the program would lose the values of columns that it does not know.
SCHEMA = len(STEPS)


def columns_at(schema: int, table: str) -> set[str]:
    """Return the columns of a table in a file with the given schema."""
    return COLUMNS[table] - {column for added, column in ADDED if added > schema}


def missing_at(schema: int) -> dict[str, set[str]]:
    """Return, for each table, the columns that are missing in a file with the given schema."""
    lacking = {table: columns - columns_at(schema, table) for table, columns in COLUMNS.items()}
    return {table: columns for table, columns in lacking.items() if columns}
