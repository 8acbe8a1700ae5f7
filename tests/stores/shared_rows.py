"""A store on the table of Leaf, of its Go port or of tinyid: their tables as they create them, and a bench."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any

from issuer_persistence.scheme_json import PLAIN
from issuer_persistence.sql.layouts import LAYOUTS
from issuer_persistence.sql.shared_row import SharedRowStore
from tests.stores.benches import TIMEOUT, Bench, SQLBench
from tests.stores.theirs import FETCHES, connected

#: The tables, as the programs' own files create them.
TABLES = {
    "leaf": """CREATE TABLE `leaf_alloc` (
        `biz_tag` varchar(128) NOT NULL DEFAULT '',
        `max_id` bigint(20) NOT NULL DEFAULT '1',
        `step` int(11) NOT NULL,
        `description` varchar(256) DEFAULT NULL,
        `update_time` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
        PRIMARY KEY (`biz_tag`)) ENGINE=InnoDB""",
    "leaf-go": """CREATE TABLE `leaf_alloc` (
        `id` int(11) NOT NULL AUTO_INCREMENT,
        `biz_tag` varchar(128) NOT NULL DEFAULT '',
        `max_id` bigint(20) NOT NULL DEFAULT '1',
        `step` int(11) NOT NULL,
        `description` varchar(256) DEFAULT NULL,
        `update_time` bigint(20) NOT NULL DEFAULT '0',
        PRIMARY KEY (`id`),
        UNIQUE KEY `biz_tag` (`biz_tag`)) ENGINE=InnoDB""",
    "tinyid": """CREATE TABLE `tiny_id_info` (
        `id` bigint(20) unsigned NOT NULL AUTO_INCREMENT,
        `biz_type` varchar(63) NOT NULL DEFAULT '',
        `begin_id` bigint(20) NOT NULL DEFAULT '0',
        `max_id` bigint(20) NOT NULL DEFAULT '0',
        `step` int(11) DEFAULT '0',
        `delta` int(11) NOT NULL DEFAULT '1',
        `remainder` int(11) NOT NULL DEFAULT '0',
        `create_time` timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
        `update_time` timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
        `version` bigint(20) NOT NULL DEFAULT '0',
        PRIMARY KEY (`id`),
        UNIQUE KEY `uniq_biz_type` (`biz_type`)) ENGINE=InnoDB""",
}

#: How the programs' own instructions add a tag: name, max_id, step.
ROWS = {
    "leaf": "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES (%s, %s, %s, 'Test leaf')",
    "leaf-go": (
        "INSERT INTO leaf_alloc (biz_tag, max_id, step, description, update_time) "
        "VALUES (%s, %s, %s, 'Test leaf', unix_timestamp())"
    ),
    "tinyid": (
        "INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step, delta, remainder, create_time, update_time, "
        "version) VALUES (%s, 1, %s, %s, 1, 0, now(), now(), 1)"
    ),
}

#: The tests of the contract that do not hold on Leaf's table, each with the reason.
WEAKER = {
    "test_of_many_tags_none_is_created_if_one_cannot_be": "tags have no scheme",
    "test_the_last_segment_is_shorter_and_then_the_tag_is_full": "max_id names the next number, at most 2^63-1",
    "test_a_tag_has_what_it_was_made_with_and_else_the_default": "tags have no scheme",
    "test_it_is_changed_without_anything_else[leaf-scheme]": "tags have no scheme",
    "test_it_is_changed_without_anything_else[leaf-step]": "a step is at most 2^31-1",
    "test_it_stays_whatever_else_changes": "tags have no scheme",
    "test_a_tag_made_again_has_what_is_given_now": "tags have no scheme",
    "test_what_is_out_of_range_is_a_value_error_and_changes_nothing": "tags have no scheme",
    "test_a_strict_tag_has_no_lease": "tags have no scheme",
    "test_a_change_of_what_somebody_else_has_changed_is_refused": "tags have no scheme",
    "test_a_tag_is_not_made_again_with_another_way_of_making_values": "tags have no scheme",
    "test_what_no_store_writes_is_corrupt_and_left_alone[leaf-description]": "a description may be NULL",
}

#: The tests of the contract that delete a tag, which Leaf's table allows only after Leaf has gone.
DELETES = {
    "test_every_change_brings_a_fresh_version_and_the_time",
    "test_an_unknown_or_deleted_tag_is_refused_by_every_verb",
    "test_any_name_will_do_and_each_has_its_own_series",
    "test_pages_of_tags_are_complete_and_sorted_by_the_bytes_of_utf_8",
    "test_many_tags_are_created_at_once_as_each_alone_would_be",
    "test_of_many_tags_that_several_callers_create_each_caller_gets_all_or_none",
    "test_a_tag_that_stays_is_on_exactly_one_page_while_others_come_and_go",
    "test_what_no_store_writes_is_corrupt_and_left_alone",
    "test_a_hand_back_that_comes_too_late_is_refused",
    "test_a_tag_made_again_goes_on_above_its_tombstone",
    "test_a_tag_without_numbers_left_is_not_made",
    "test_a_halted_tag_gives_nothing_until_it_is_recovered",
    "test_creating_a_tag_at_once_makes_one_and_so_does_bringing_it_back",
}


class SharedRowBench(SQLBench):
    """A store on another program's table, in a database of its own. `link`: a connection as the other program has."""

    scheme = PLAIN
    name_most = 63

    def __init__(self, url: str, layout: str, *, adopted: bool = False, collation: str = "utf8mb4_bin") -> None:
        self.theirs = LAYOUTS[layout]
        self.kind, self.prefix, self.database = SharedRowStore, "issuer_", f"t{secrets.token_hex(4)}"
        self.server = f"{url.rpartition('/')[0]}/{self.database}"
        self.url = f"{self.server}?layout={layout}"
        with closing(connected(url)) as link, link.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.database} COLLATE {collation}")
        self.link = connected(self.server, autocommit=True)
        self.run(TABLES[layout])
        self.layout = layout
        self.past = self.make()
        Bench.__init__(self)
        if adopted:
            self.store.adopt(timeout=TIMEOUT)

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as the other program, or a person, would."""
        with self.link.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def add(self, tag: str, max_id: int = 1, step: int | None = 10) -> None:
        """Create a tag as the other program's instructions say."""
        self.run(ROWS[self.layout], tag, max_id, step)

    def row(self, tag: str = "orders") -> tuple[Any, ...]:
        """max_id and step of the other program's row."""
        [found] = self.run(f"SELECT max_id, step FROM {self.theirs.table} WHERE {self.theirs.key} = %s", tag)  # noqa: S608
        return found

    def fetch(self, tag: str = "orders", step: int | None = None) -> range:
        """Take numbers as the other program does. Return them."""
        with closing(connected(self.server)) as link:
            return FETCHES[self.layout](link, tag, step)

    def backup(self) -> object:
        rows = self.run(f"SELECT * FROM {self.theirs.table}")  # noqa: S608 - ours
        return super().backup(), rows

    def restore(self, backup: Any) -> None:
        ours, rows = backup
        super().restore(ours)
        self.run(f"DELETE FROM {self.theirs.table}")  # noqa: S608 - ours
        for each in rows:
            self.run(f"INSERT INTO {self.theirs.table} VALUES ({', '.join(['%s'] * len(each))})", *each)  # noqa: S608

    def tamper(self, tag: str, **fields: object) -> None:
        for name, value in fields.items():
            column = "max_id" if name == "max" else name
            if name not in ("max", "step", self.theirs.description):
                super().tamper(tag, **{name: value})
                continue
            if name == "max" and isinstance(value, int) and value >= 0:
                value += self.theirs.ahead  # noqa: PLW2901 - what the column has
            with self.cursor() as cursor:
                table, key = self.theirs.table, self.theirs.key
                cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {key} = %s", (value, tag))  # noqa: S608 - ours
                cursor.execute(f"SELECT {column} FROM {table} WHERE {key} = %s", (tag,))  # noqa: S608 - ours
                self.check(value, cursor.fetchone()[0])

    def raw(self, tag: str = "orders") -> dict[str, Any]:
        found = super().raw(tag)
        max_id, step = self.row(tag)
        found |= {"max": max_id - self.theirs.ahead if max_id > 0 else max_id, "step": step}
        if column := self.theirs.description:
            statement = f"SELECT {column} FROM {self.theirs.table} WHERE {self.theirs.key} = %s"  # noqa: S608 - ours
            [(found["description"],)] = self.run(statement, tag)
        return found

    def close(self) -> None:
        with self.link:
            Bench.close(self)
            self.past.close()
            self.run(f"DROP DATABASE {self.database}")
