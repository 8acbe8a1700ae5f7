"""The tables of other issuers. For each layout: the query that reads it, and the conversion of its rows to tags.

A conversion answers one question: which is the highest number that the other issuer may have given? In some tables
`max` is the last number given, in others it is the next one. Whoever confuses them issues a number twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from issuer.errors import brief
from issuer_persistence.records import DEFAULT_MAX_STEP, HIGHEST
from issuer_persistence.sql.layouts import AHEAD

#: Runs a statement with its values, and returns the rows.
Query: TypeAlias = Callable[..., list[tuple[Any, ...]]]

#: A public number of the table `id_alloc`: index << 14 | shard << 8 | application.
SHARD_BITS, APP_BITS = 6, 8
_INDEX_AT: Final = SHARD_BITS + APP_BITS

#: How many sequences of PostgreSQL one statement reads.
_SEQUENCES: Final = 200

#: A default that gives the next number of a sequence, in MariaDB. Its group is the quoted name of the sequence.
_NEXTVAL: Final = r"""nextval\(((?:[`"][^`"]+[`"]\.?){1,2})\)"""
#: A default that has no numbers above those of its counter: none, a constant, or the next number of a sequence.
_COUNTED: Final = re.compile(
    rf"(None|NULL|\(?-?\d+\)?|'-?\d*'|nextval\('(?:[^']|'')+'::regclass\)|{_NEXTVAL})?(::[a-z ]+)?"
)


class NotImportable(Exception):
    """A row cannot be imported. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of the command that a layout needs. `block`: how many numbers a process takes at once."""

    table: str = ""
    column: str = ""
    block: int = 0


#: A query, or a function that runs queries. The first column of a row is the name of the tag.
Reading: TypeAlias = str | Callable[[Query, Choice], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class ImportedTag:
    """A tag as the source has it.

    Attributes:
        last: Highest number that the source may have given, or 0. With `app`, the highest index.
        stored: Value in the table that `last` was computed from.
        step: Size of a step in numbers, or None if the table has none.
        limit: Last number that the source gives.
        stride: Distance between two numbers.
        offset: Remainder of the numbers, 1..stride.
        app: Application number of a tag with shards, or None.
        refusal: Why the tag cannot be imported, and what to do. "" if it can be imported.
        note: What the operator must know about the tag, or "".
    """

    tag: str
    last: int = 0
    stored: object = None
    step: int | None = None
    limit: int = HIGHEST
    description: str = ""
    stride: int = 1
    offset: int = 1
    app: int | None = None
    refusal: str = ""
    note: str = ""

    @property
    def highest(self) -> int:
        """The highest number that the source may have given, as users see it."""
        if self.app is None or not self.last:
            return self.last
        return self.last << _INDEX_AT | ((1 << SHARD_BITS) - 1) << APP_BITS | self.app

    def following(self, number: int) -> int:
        """Return the lowest number of the tag above `number`. With `app`, both are indexes."""
        return number + 1 + (self.offset - number - 1) % self.stride

    def shown(self, number: int) -> int:
        """Return the number that users see. With `app`, `number` is an index."""
        return number if self.app is None else number << _INDEX_AT | self.app

    def span(self, by: int) -> int:
        """Return how many numbers are skipped, at least `by`, so that the stride continues."""
        return -(-by // self.stride) * self.stride

    def options(self, limit: int) -> dict[str, Any]:
        """Return the arguments of `Issuer.create` for the tag. `limit`: last number of the tag here."""
        found: dict[str, Any] = {"above": self.last}
        if self.step is not None:  # an adapted step is never smaller than that of the source
            found |= {"step": self.step, "min_step": self.step, "max_step": max(self.step, DEFAULT_MAX_STEP)}
        if limit < HIGHEST and self.app is None:
            found["limit"] = limit
        if self.description:
            found["description"] = self.description
        if self.stride > 1:
            found |= {"stride": self.stride, "offset": self.offset}
        if self.app is not None:
            found["shards"] = {"shard_bits": SHARD_BITS, "app_bits": APP_BITS, "app": self.app}
        return found


def _join_nothing(found: Sequence[ImportedTag]) -> ImportedTag:
    return replace(found[0], refusal=f"{len(found)} rows have this name: rename or delete all but one in the source")


@dataclass(frozen=True, slots=True)
class ImportLayout:
    """A table of another issuer, or a similar source.

    Attributes:
        read: How the rows are read.
        convert: Converts a row. It raises NotImportable.
        update: Statement that sets the number in a row, for --split. Its values are the new number, the name of the
            tag, and the number that was read. "" if the source cannot be split.
        ahead: 1 if the table has the next number, 0 if it has the last number that was given.
        join: Makes one tag of several rows with the same name.
        settings: Settings of new tags, in place of the defaults and of the step in the table.
    """

    read: Reading
    convert: Callable[[tuple[Any, ...], Choice], ImportedTag]
    update: str = ""
    ahead: int = 0
    join: Callable[[Sequence[ImportedTag]], ImportedTag] = _join_nothing
    settings: Mapping[str, Any] = field(default_factory=dict)

    def tags(self, rows: Iterable[tuple[Any, ...]], choice: Choice) -> list[ImportedTag]:
        groups: dict[object, list[ImportedTag]] = {}
        for row in rows:
            each = self._converted(row, choice)
            groups.setdefault(each.tag if each.app is None else each.app, []).append(each)
        joined: dict[str, list[ImportedTag]] = {}
        for group in groups.values():
            each = self._joined(group, self.join)
            joined.setdefault(each.tag, []).append(each)
        return [self._joined(joined[tag], _join_nothing) for tag in sorted(joined)]

    @staticmethod
    def _joined(found: Sequence[ImportedTag], join: Callable[[Sequence[ImportedTag]], ImportedTag]) -> ImportedTag:
        refused = [each for each in found if each.refusal]
        return refused[0] if refused else found[0] if len(found) == 1 else join(found)

    def _converted(self, row: tuple[Any, ...], choice: Choice) -> ImportedTag:
        name = row[0].decode(errors="surrogateescape") if isinstance(row[0], bytes) else row[0]
        try:
            return self.convert((name or "", *row[1:]), choice)
        except NotImportable as error:
            return ImportedTag(name or "", refusal=str(error))


def _whole(value: object, column: str, lowest: int | None = None) -> int:
    """Return the value of a column. If it is not a whole number from `lowest` on, raise NotImportable."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotImportable(f"{column} is {brief(value)}, not a whole number: correct it in the source")
    if lowest is not None and value < lowest:
        raise NotImportable(f"{column} {value} is below {lowest}: correct it in the source")
    return value


def _text(value: object) -> str:
    """Return a description that a tag may have: without control characters, and with at most 1000 bytes."""
    text = "".join(each if each.isprintable() else " " for each in value) if isinstance(value, str) else ""
    return text.encode()[:1000].decode(errors="ignore").strip()


def _leaf(row: tuple[Any, ...], _: Choice) -> ImportedTag:
    # Leaf gives max_id .. max_id + step - 1: max_id is the next number, and has not been given yet.
    tag, max_id, step, description = row
    stored = _whole(max_id, "max_id", 0)
    return ImportedTag(tag, max(stored - 1, 0), stored, _whole(step, "step", 1), description=_text(description))


def _tinyid(row: tuple[Any, ...], _: Choice) -> ImportedTag:
    tag, max_id, step, delta, remainder = row
    stored, width, rest = _whole(max_id, "max_id"), _whole(delta, "delta", 1), _whole(remainder, "remainder", 0)
    if rest >= width:
        raise NotImportable(f"remainder {rest} is not below delta {width}, so no number fits: correct it in the source")
    return ImportedTag(
        tag, max(stored, 0), stored, max(_whole(step, "step", 1) // width, 1), stride=width, offset=rest or width
    )


def _join_databases(found: Sequence[ImportedTag]) -> ImportedTag:
    """Join the rows of one tag in several databases of tinyid. Together they must have each remainder once."""
    width, rests = found[0].stride, {each.offset for each in found}
    if {each.stride for each in found} != {width} or len(rests) < len(found):
        problem = "two databases give the same numbers: compare their delta and remainder, and look for repeats"
        return replace(found[0], refusal=problem)
    if len(found) < width:
        problem = f"delta is {width}, but there are only {len(found)} databases: give all of them, each with --from"
        return replace(found[0], refusal=problem)
    steps = sum(each.step or 0 for each in found)
    stored = tuple(each.stored for each in found)
    return ImportedTag(found[0].tag, max(each.last for each in found), stored, steps)


def _last(column: str) -> Callable[[tuple[Any, ...], Choice], ImportedTag]:
    """Return the conversion of a row that has only a name and the last number given."""

    def convert(row: tuple[Any, ...], _: Choice) -> ImportedTag:
        stored = _whole(row[1], column)
        return ImportedTag(row[0], max(stored, 0), stored)

    return convert


def _sequence(row: tuple[Any, ...], _: Choice) -> ImportedTag:
    tag, current_value, increment = row
    last, width = _whole(current_value, "current_value", 0), _whole(increment, "_increment", 1)
    return ImportedTag(tag, last, last, stride=width, offset=(last - 1) % width + 1)


def _sequence_value(row: tuple[Any, ...], choice: Choice) -> ImportedTag:
    # The program may give a block before it has stored that the block is taken.
    stored = _whole(row[1], "ID", 0)
    return ImportedTag(row[0], stored + choice.block, stored)


def _join_rows(found: Sequence[ImportedTag]) -> ImportedTag:
    top = max(found, key=lambda each: each.last)
    return replace(top, note=f"{len(found)} rows have this name; the highest of them counts")


def _id_alloc(row: tuple[Any, ...], _: Choice) -> ImportedTag:
    name, app_id, shard_id, max_id, step, max_limit_id, description = row
    app, shard, last = _whole(app_id, "app_id", 0), _whole(shard_id, "shard_id", 0), _whole(max_id, "max_id", 0)
    if app >> APP_BITS or shard >> SHARD_BITS:
        raise NotImportable(f"app_id {app} is above 255, or shard_id {shard} above 63: they overlap in the numbers")
    limit, note = _whole(max_limit_id, "max_limit_id", 0), ""
    if limit:
        if last << _INDEX_AT >= limit:
            raise NotImportable(
                f"shard {shard} has reached max_limit_id {limit} and begun again, so numbers are there twice: look for "
                "them in your tables, then create the tag with `issuer create`"
            )
        note = f"its numbers do not end at max_limit_id {limit} here"
    return ImportedTag(
        name,
        last,
        (shard, last),
        _whole(step, "step", 1),
        (1 << 63 - _INDEX_AT) - 1,
        _text(description),
        app=app,
        note=note,
    )


def _join_shards(found: Sequence[ImportedTag]) -> ImportedTag:
    """Join the rows of the shards of one application. All shards go on above the highest index."""
    if names := {each.tag for each in found} - {found[0].tag}:
        problem = f"app_id {found[0].app} has another app_name, {min(names)!r}, too: correct it in the source"
        return replace(found[0], refusal=problem)
    top = max(found, key=lambda each: each.last)
    return replace(top, stored=frozenset(each.stored for each in found))


def _quoted(name: str) -> str:
    """Return the name of a table or column as SQL. A schema may stand before the name, with a point."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _read_table(query: Query, choice: Choice) -> list[tuple[Any, ...]]:
    """Read the highest value of a column, the last value of its counter, and its default.

    Deleted rows have raised the counter. The default is "" if it gives no number above the counter.
    """
    table, column = _quoted(choice.table), _quoted(choice.column)
    [(highest,)] = query(f"SELECT max({column}) FROM {table}")  # noqa: S608 - both names are quoted
    [(version,)] = query("SELECT version()")
    counters: list[Any] = []
    if str(version).startswith("PostgreSQL"):
        # The second part finds the sequence of a default value that does not belong to the column.
        found = query(
            "SELECT pg_get_serial_sequence(%s, %s) UNION SELECT p.refobjid::regclass::text FROM pg_attribute "
            "JOIN pg_attrdef d ON (adrelid, adnum) = (attrelid, attnum) JOIN pg_depend p ON p.objid = d.oid AND "
            "(p.classid, p.refclassid) = ('pg_attrdef'::regclass, 'pg_class'::regclass) JOIN pg_class s ON "
            "s.oid = p.refobjid AND s.relkind = 'S' WHERE attrelid = to_regclass(%s) AND attname = %s",
            table, choice.column, table, choice.column,
        )  # fmt: skip
        # After RESTART, `last_value` is the next number, but lower ones may have been given.
        select = "SELECT last_value - (NOT is_called)::int FROM "
        counters = [query(select + each)[0][0] for (each,) in found if each]
        defaults = query(
            "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON (adrelid, adnum) = "
            "(attrelid, attnum) WHERE attrelid = to_regclass(%s) AND attname = %s",
            table, choice.column,
        )  # fmt: skip
    else:
        schema, _, name = choice.table.rpartition(".")
        # MySQL caches the counter for a day. MariaDB ignores the comment.
        query("SET /*!80000 SESSION information_schema_stats_expiry = 0, */ @issuer = 0")
        found = query(
            "SELECT CASE WHEN locate('auto_increment', extra) > 0 THEN t.auto_increment - 1 END, column_default "
            "FROM information_schema.tables t JOIN information_schema.columns c USING (table_schema, table_name) "
            "WHERE table_schema = coalesce(nullif(%s, ''), database()) AND table_name = %s AND column_name = %s",
            schema, name, choice.column,
        )  # fmt: skip
        counters, defaults = [each for each, _ in found], [each[1:] for each in found]
        if sequence := re.fullmatch(_NEXTVAL, str(defaults[0][0]) if defaults else ""):
            # The server stores the number after those in its cache, and has given at most these.
            stored = query(f"SELECT next_not_cached_value - increment FROM {sequence[1]}")  # noqa: S608 - quoted
            counters = [each for (each,) in stored]
    default = str(defaults[0][0]) if defaults else ""
    counter = max((each for each in counters if each is not None), default=0)
    return [(choice.table, highest, counter, "" if _COUNTED.fullmatch(default) else default)]


def _table(row: tuple[Any, ...], choice: Choice) -> ImportedTag:
    tag, highest, counter, default = row
    if default:
        raise NotImportable(
            f"{choice.column} has the default {brief(default)}, which is not just the next value of a sequence. Find "
            "the highest number that it may have given, and create the tag with `issuer create --above`"
        )
    values = [_whole(each, choice.column) for each in (highest, counter) if each is not None]
    last = max([0, *values])
    return ImportedTag(tag, last, last)


def _read_sequences(query: Query, _: Choice) -> list[tuple[Any, ...]]:
    every = query(
        "SELECT format('%I.%I', nspname, relname), CASE nspname WHEN current_schema() THEN relname "
        "ELSE nspname || '.' || relname END, seqincrement, seqmax, seqcycle, has_sequence_privilege(c.oid, 'SELECT') "
        "FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE has_schema_privilege(n.oid, 'USAGE') AND NOT pg_is_other_temp_schema(n.oid)"
    )
    listed = [each[:-1] for each in every if each[-1]]
    found: list[tuple[Any, ...]] = [(each[1], None, False, *each[2:-1]) for each in every if not each[-1]]
    for first in range(0, len(listed), _SEQUENCES):
        page = listed[first : first + _SEQUENCES]
        # pg_sequences has no last value after setval(..., false), although lower numbers may have been given.
        selects = (f"SELECT {at} AS at, last_value, is_called FROM {each[0]}" for at, each in enumerate(page))  # noqa: S608 - quoted by the server
        values = query(" UNION ALL ".join(selects) + " ORDER BY at")
        found += [(each[1], *value[1:], *each[2:]) for each, value in zip(page, values, strict=True)]
    return found


def _pgsequence(row: tuple[Any, ...], _: Choice) -> ImportedTag:
    tag, last_value, is_called, increment, max_value, cycle = row
    if last_value is None:
        raise NotImportable("the user may not read it: GRANT SELECT ON SEQUENCE ... TO ...")
    if cycle:
        raise NotImportable("the sequence has CYCLE, so it gives numbers twice: ALTER SEQUENCE ... NO CYCLE first")
    width = _whole(increment, "increment_by", 1)
    last = last_value if is_called else last_value - width
    if last + width < 1:
        raise NotImportable(f"its next number, {last + width}, is below 1: raise it with setval first")
    stored = (last_value, is_called)
    return ImportedTag(tag, max(last, 0), stored, limit=max_value, stride=width, offset=(last - 1) % width + 1)


_LEAF: Final = ImportLayout(
    "SELECT biz_tag, max_id, step, description FROM leaf_alloc",
    _leaf,
    "UPDATE leaf_alloc SET max_id = %s WHERE biz_tag = %s AND max_id = %s",
    ahead=1,
    # Leaf doubles a step that lasts for less than 15 minutes.
    settings={"order": "trend", "step": "auto"},
)

#: The layouts by name.
LAYOUTS: Final = {
    "leaf": _LEAF,
    "leaf-go": _LEAF,
    "tinyid": ImportLayout(
        "SELECT biz_type, max_id, step, delta, remainder FROM tiny_id_info",
        _tinyid,
        "UPDATE tiny_id_info SET max_id = %s, version = version + 1, update_time = now() "
        "WHERE biz_type = %s AND max_id = %s",
        join=_join_databases,
        # tinyid's clients draw from segments. Only trend tags can give these away.
        settings={"order": "trend", "ahead": AHEAD},
    ),
    "cosid": ImportLayout(
        "SELECT name, last_max_id FROM cosid",
        _last("last_max_id"),
        "UPDATE cosid SET last_max_id = %s WHERE name = %s AND last_max_id = %s",
        # CosId's chain holds several segments, and becomes longer if callers had to wait for one.
        settings={"order": "trend", "target": 60, "ahead": AHEAD},
    ),
    "sequence": ImportLayout(
        'SELECT seq_name, current_value, _increment FROM "sequence"',
        _sequence,
        'UPDATE "sequence" SET current_value = %s WHERE seq_name = %s AND current_value = %s',
    ),
    "sequence-value": ImportLayout("SELECT Name, ID FROM sequence_value", _sequence_value, join=_join_rows),
    "id-alloc": ImportLayout(
        "SELECT app_name, app_id, shard_id, max_id, step, max_limit_id, description FROM id_alloc",
        _id_alloc,
        join=_join_shards,
    ),
    "django-sequences": ImportLayout(
        "SELECT name, last FROM sequences_sequence",
        _last("last"),
        "UPDATE sequences_sequence SET last = %s WHERE name = %s AND last = %s",
    ),
    "table": ImportLayout(_read_table, _table),
    "pgsequence": ImportLayout(_read_sequences, _pgsequence),
}
