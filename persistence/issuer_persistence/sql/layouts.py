"""The tables of other programs that a store in MySQL can share with them, and the statements for these tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from issuer_persistence.sql.tables import Statements

_INT, _TIME = ("int", "bigint"), ("timestamp", "datetime")

#: Steps per segment of a tag from tinyid or CosId. There, each process holds a step or more. Here, all processes share
#: the segment in Redis.
AHEAD = 10


@dataclass(frozen=True)
class SharedTable:
    """The table of another program.

    Attributes:
        program: Name of the program.
        table: Name of the table.
        key: Column with the name of the tag.
        columns: Types that each column may have.
        name_most: Longest name of a tag, in characters.
        ahead: `max_id` minus the highest number that was reserved: 1 if `max_id` is the next number, 0 if it is the
            last one.
        description: Column with the description. "" if there is none.
        moved: What the program writes with each change of `max_id`, beside `max_id`.
        created: Values of columns of a new row, by column, as SQL.
        fits: SQL condition that is true for the rows that can be shared.
        pause: Shortest time between two reservations of this store for one tag, in seconds. A program that compares
            the row before it writes would otherwise find it changed too often.
        settings: Settings of a tag that only the program has, in place of the defaults.
    """

    program: str
    table: str
    key: str
    columns: Mapping[str, tuple[str, ...]]
    name_most: int
    ahead: int
    description: str = ""
    moved: str = ""
    created: Mapping[str, str] = field(default_factory=dict)
    fits: str = "TRUE"
    pause: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)


_LEAF = {"biz_tag": ("varchar",), "max_id": ("bigint",), "step": _INT, "description": ("varchar",)}
#: Leaf doubles its own step while a segment lasts for less than 15 minutes. The column has the lowest step.
_ADAPTED = {"step_mode": "auto"}

LAYOUTS: Mapping[str, SharedTable] = {
    "leaf": SharedTable(
        "Leaf", "leaf_alloc", "biz_tag", {**_LEAF, "update_time": _TIME}, 128, 1, "description", settings=_ADAPTED
    ),
    "leaf-go": SharedTable(
        "Leaf's Go port", "leaf_alloc", "biz_tag", {"id": _INT, **_LEAF, "update_time": _INT}, 128, 1, "description",
        moved=', "update_time" = unix_timestamp()', created={"update_time": "unix_timestamp()"},
        settings=_ADAPTED,
    ),
    "tinyid": SharedTable(
        "tinyid", "tiny_id_info", "biz_type",
        {
            "biz_type": ("varchar",), "begin_id": ("bigint",), "max_id": ("bigint",), "step": _INT, "delta": _INT,
            "remainder": _INT, "create_time": _TIME, "update_time": _TIME, "version": ("bigint",),
        },
        63, 0,
        moved=', "version" = "version" + 1, "update_time" = now()',
        created={
            "begin_id": '"max_id"', "delta": "1", "remainder": "0", "create_time": "now()", "update_time": "now()",
            "version": "0",
        },
        fits='"delta" = 1 AND "remainder" = 0',
        pause=0.1,
        settings={"ahead": AHEAD},
    ),
}  # fmt: skip


class SharedStatements(Statements):
    """The statements for the store's own tables, and those for the table of the other program."""

    def __init__(self, prefix: str, schema: str, layout: SharedTable) -> None:
        super().__init__(prefix, schema)
        self.layout = layout
        table, key = f'"{layout.table}"', f'"{layout.key}"'
        self.name = name = f"CAST(CONVERT({key} USING utf8mb4) AS BINARY)"
        description = f'"{layout.description}"' if layout.description else "NULL"
        #: Without a subquery: it would show the database as it was before the statement has waited for the row.
        self.theirs = (
            f'SELECT {key}, "max_id", "step", {description}, {layout.fits}, '  # noqa: S608 - names from above only
            f"CAST(unix_timestamp(sysdate(3)) * 1000 AS UNSIGNED) FROM {table}"
        )
        self.one_of_theirs = f"{self.theirs} WHERE {key} = %s"
        self.page_of_theirs = (
            # A row that does not fit is the other program's alone, unless this store has drawn from it before.
            f'{self.theirs} WHERE {name} > %s AND coalesce((SELECT NOT "deleted" FROM {self.tags} AS "ours" '  # noqa: S608
            f'WHERE "ours"."tag" = {name}), {layout.fits}) ORDER BY {name} LIMIT %s'
        )
        self.update_theirs = f'UPDATE {table} SET %s{layout.moved} WHERE {key} = %%s AND "max_id" = %%s'  # noqa: S608
        described = [f'"{layout.description}"'] if layout.description else []
        columns = [key, '"max_id"', '"step"', *described]
        values = ", ".join([*["%s"] * len(columns), *layout.created.values()])
        columns += [f'"{each}"' for each in layout.created]
        self.insert_theirs = (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON DUPLICATE KEY UPDATE {key} = {key}"  # noqa: S608
        )
        self.insert_ours = f'{self.insert} ON DUPLICATE KEY UPDATE "tag" = "tag"'
        self.adopt = f'{self.put_meta} ON DUPLICATE KEY UPDATE "name" = "name"'
        self.adopted = f"SELECT count(*) FROM {self.meta} WHERE \"name\" = 'adopted'"  # noqa: S608
        self.moved = (
            f'SELECT "ours"."tag" FROM {self.tags} AS "ours" JOIN {table} ON "ours"."tag" = {name} '  # noqa: S608
            f'WHERE greatest("max_id" - {layout.ahead}, 0) <> "ours"."max" LIMIT 10'
        )


def problems(layout: SharedTable, rows: Callable[[str, Sequence[object]], list[tuple[Any, ...]]]) -> list[str]:
    """Return why the table of the other program cannot be shared. `rows`: runs a statement and returns its rows."""
    table, key = layout.table, layout.key
    of_it = "WHERE table_schema = database() AND table_name = %s"
    engines = rows(f"SELECT engine FROM information_schema.tables {of_it}", (table,))  # noqa: S608 - no foreign text
    if not engines:
        return [f"there is no table {table} of {layout.program} in the database"]
    wrong = [f"table {table} has the engine {each}, not InnoDB" for (each,) in engines if each != "InnoDB"]
    types = dict(rows(f"SELECT column_name, data_type FROM information_schema.columns {of_it}", (table,)))  # noqa: S608
    wrong += [
        f"column {table}.{column} is {types.get(column, 'missing')}, not {' or '.join(known)}"
        for column, known in layout.columns.items()
        if types.get(column) not in known
    ]
    if not rows(
        f"SELECT index_name FROM information_schema.statistics {of_it} GROUP BY index_name HAVING "  # noqa: S608
        "max(non_unique) = 0 AND count(*) = 1 AND max(column_name) = %s AND count(sub_part) = 0",
        (table, key),
    ):
        wrong.append(f"table {table} has no primary or unique key on {key} alone")
    triggers = rows(
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = database() AND "
        "event_object_table = %s",
        (table,),
    )
    return wrong + [f"table {table} has the trigger {each}, which may change max_id" for (each,) in triggers]
