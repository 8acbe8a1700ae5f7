"""Every command without any server; numbers that are skipped for ever."""

import json
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from issuer.care.care import Care
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag
from issuer_persistence.sqlite.schema import SCHEMA
from issuer_persistence.sqlite.store import SQLiteStore
from tests.cli.conftest import Cli, Program, altered
from tests.cli.terminal import answered

HIGHEST = 2**63 - 1


@pytest.mark.live
@pytest.mark.covers("3.47")
def test_without_any_configuration_the_first_run_prints_1_and_the_next_one_2(program: Program, home: Path) -> None:
    assert program("next", "orders").out == "1\n"
    assert program("next", "orders").out == "2\n"
    assert (home / "data" / "issuer" / "issuer.db").is_file()


def test_numbers_come_one_a_line_or_as_a_json_list(cli: Cli, direct: Cli) -> None:
    assert cli("tags", "--json").json() == []
    listed = cli("tags")
    assert (listed.code, listed.out, "issuer create" in listed.err) == (0, "", True)
    assert cli("next", "orders", "-n", "3").out == "1\n2\n3\n"
    assert cli("next", "orders", "--json").out == "[4]\n"
    # More than one call takes.
    assert cli("next", "orders", "-n", "25000").out.split() == [str(number) for number in range(5, 25005)]
    assert cli("next", "orders", "-n", "10001", "--json").json() == [*range(25005, 35006)]
    # Beyond what a double holds.
    direct("create", "big", "--start", str(HIGHEST - 1))
    assert direct("next", "big", "-n", "2", "--json").json() == [HIGHEST - 1, HIGHEST]


@pytest.mark.covers("0.13", "3.4", "3.28", "U.10", "U.15")
def test_a_tag_is_made_changed_deleted_and_made_again_and_each_says_what_it_is(direct: Cli) -> None:
    for line, told in (
        ("create orders --start 100 --step 50 --ahead 6", "made orders: first number 100, step 50, trend, ahead 6"),
        ("create orders --exist-ok --step 60 --start 100 --ahead 7", "orders exists already: max 99, step 50, ahead 6"),
        ("create users --exist-ok --step 50", "made users: first number 1, step 50, trend"),
        ("create users --exist-ok --step 50", "users exists already: max 0, step 50"),
        ("configure orders --lease 500", "changed orders: max 99, step 50, ahead 6, lease 500"),
        ("configure orders --ahead 1 --lease 0", "changed orders: max 99, step 50, lease 0"),
        ("configure orders --limit 900 --above 130 --yes", "changed orders: max 130, step 50, limit 900, lease 0"),
        ("configure orders --description new --step 5", "changed orders: max 130, step 5, limit 900, lease 0"),
        ("create bills --above 123456", "made bills: first number 123457, step 1000, trend"),
    ):
        ended = direct(*line.split())
        assert (ended.code, ended.out, ended.err) == (0, "", f"{told}\n")
    assert (direct("next", "orders").out, direct("next", "bills").out) == ("131\n", "123457\n")
    other = direct("create", "orders", "--exist-ok", "--limit", "60000")
    told = "error: tag 'orders' exists: limit is 900, not 60000; use its settings, or change "
    assert (other.code, told in other.err) == (1, True)
    deleted = direct("delete", "orders", "--yes")
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "deleted orders\n")
    assert direct("next", "orders").code == 3
    assert direct("inspect", "orders").code == 3
    assert direct("inspect", "users", "--deleted").code == 2
    refused = direct("inspect", "orders", "--deleted")
    assert (refused.code, "orders was deleted just now" in refused.err) == (0, True)
    assert {"step         5", "order        trend, limit 900"} <= {*refused.out.splitlines()}
    seen = direct("inspect", "orders", "--deleted", "--json").json()
    assert (seen["limit"], seen["store"]["step"], seen["description"]) == (900, 5, "new")
    again = direct("create", "orders", "--limit", "900").err
    assert "had other settings: lease 0, step 5, description new; use `issuer configure`" in again
    assert direct("next", "orders").out == "132\n"


def test_show_and_tags_as_json_have_exactly_the_promised_keys(direct: Cli) -> None:
    direct("create", "orders", "--step", "10", "--limit", "500", "--description", "d", "--lease", "7", "--ahead", "6")
    direct("next", "orders", "-n", "61")
    content = direct("inspect", "orders", "--json").json()
    assert list(content) == [
        *(
            "tag",
            "store",
            "redis",
            "order",
            "limit",
            "lease",
            "lease_mode",
            "description",
            "remaining",
            "rate",
            "runway",
        ),
        *("last_extension", "waste"),
    ]
    assert list(content["waste"]) == ["numbers", "of", "since"]
    assert list(content["store"]) == [
        "max", "step", "step_mode", *("target", "min_step", "max_step"), "ahead", "refill_at", *("survive", "drain"),
        "timestamp", "created", "halted",
    ]  # fmt: skip
    assert all(type(content["store"][name]) is int for name in ("max", "step", "ahead", "timestamp", "created"))
    assert (content["redis"], content["remaining"], content["runway"]) == (None, None, None)
    assert (content["tag"], content["order"], content["limit"], content["lease"]) == ("orders", "trend", 500, 7)
    sheet = direct("inspect", "orders").out
    for said in (
        "direct (no Redis)",
        "limit 500",
        "step         10, ahead 6: segments of 60 numbers\n",
        "lease        7 in each process",
    ):
        assert said in sheet
    direct("create", "users")
    assert "lease        auto, by the rate of each process\n" in direct("inspect", "users").out
    assert direct("configure", "users", "--no-drain").err.endswith("drain False\n")
    assert "drain        no: processes keep their unused numbers\n" in direct("inspect", "users").out
    direct("configure", "users", "--drain")
    assert "drain  " not in direct("inspect", "users").out
    listed = direct("tags").out.splitlines()
    assert listed[0].split() == ["TAG", "RESERVED", "STEP", "ORDER", "CHANGED", "DESCRIPTION"]
    assert [line.split()[:4] for line in listed[1:]] == [
        ["orders", "61", "10", "trend"],
        ["users", "0", "1,000", "trend"],
    ]
    tags = direct("tags", "--json").json()
    assert [*tags[0]] == [
        *(
            "tag", "max", "step", "step_mode", *("target", "min_step", "max_step"), "limit", "order", "lease",
            "lease_mode", "ahead", "refill_at", *("survive", "drain"), "description", "scheme", "created", "timestamp",
            "version",
        ),
        *("halted", "deleted"),
    ]  # fmt: skip
    assert [(tag["max"], tag["limit"], tag["lease"]) for tag in tags] == [(61, 500, 7), (0, HIGHEST, None)]


def test_tags_with_usage_have_rate_runway_and_waste(cli: Cli) -> None:
    cli("create", "a", "--step", "10")
    cli("create", "b", "--step", "1000")
    assert cli("next", "a", "-n", "28").code == 0
    cli("configure", "a", "--above", "500", "--yes")
    assert cli("next", "a", "-n", "2").code == 0
    rows = [line.split() for line in cli("tags", "--usage").out.splitlines()]
    assert rows[0] == ["TAG", "RESERVED", "STEP", "PER", "SECOND", "WASTE", "ORDER", "CHANGED"]
    assert (rows[1][2], rows[1][4][-1], rows[2]) == ("10", "%", ["b", "0", "1,000", "trend", *rows[2][4:]]), rows
    listed = cli("tags", "--usage", "--json").json()
    assert [(each["tag"], each["store"]["step"], each["rate"] is None) for each in listed] == [
        ("a", 10, False), ("b", 1000, True)
    ]  # fmt: skip
    assert listed[0]["waste"]["numbers"] > 400
    lines = [json.loads(line) for line in cli("tags", "--usage", "--json-lines").out.splitlines()]
    assert [each.keys() for each in lines] == [each.keys() for each in listed]


@pytest.mark.covers("U.19")
def test_tags_are_listed_by_pages_as_they_are_at_once(direct: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed() -> list[tuple[str, str]]:
        ended = [direct("tags", *options) for options in ((), ("--all",), ("--json",), ("--json-lines",))]
        return [(re.sub(r"[\d.]+ \w+ ago|just now", "?", each.out), each.err) for each in ended]

    direct("create", "b", "--shards", "shard_bits=2")
    for name in ("a", "quite-a-long-name", "y", "z"):
        direct("create", name)
    asked: list[int] = []
    real = SQLiteStore.tags

    def tags(self: SQLiteStore, *, count: int, **page: Any) -> list[Tag | Corrupt]:
        asked.append(count)
        return real(self, count=count, **page)

    monkeypatch.setattr(SQLiteStore, "tags", tags)
    whole = listed()
    monkeypatch.setattr(Care.tag_pages, "__kwdefaults__", {"after": None, "count": 2})
    asked.clear()
    by_pages = listed()
    assert set(asked) == {2}
    assert by_pages[2:] == whole[2:]
    for (table, _), (at_once, _) in zip(by_pages[:2], whole[:2], strict=True):
        assert [line.split() for line in table.splitlines()] == [line.split() for line in at_once.splitlines()]
    assert [err for _, err in by_pages] == [err for _, err in whole]
    assert "4 parts" in by_pages[0][0]
    direct("configure", "z", "--description", "the last one")
    first, second = direct("tags").out.split("\n\n")
    assert [part.splitlines()[0].split()[-1] for part in (first, second)] == ["CHANGED", "DESCRIPTION"]
    assert second.splitlines()[1].endswith("the last one")


def test_a_tag_with_blanks_of_before_is_named_and_can_be_got_rid_of(direct: Cli, home: Path) -> None:
    direct("create", "orders", "--step", "10")
    direct("next", "orders")
    for table in ("tags", "segments"):
        altered(home, f"UPDATE {table} SET tag = ' orders'")  # noqa: S608 - no input
    for refused in (["next", " orders"], ["create", " orders"], ["configure", " orders", "--step", "5"]):
        ended = direct(*refused)
        assert (ended.code, "must not begin or end with blanks" in ended.err) == (2, True)
    listed = direct("tags")
    assert ("' orders'" in listed.out, "issuer doctor" in listed.err) == (True, True)
    for look in (["inspect", " orders"], ["verify", " orders"], ["recover", " orders", "--yes"]):
        assert direct(*look).code == 0
    (found,) = [each for each in direct("doctor", "--json").json() if each["check"] == "tag-blanks"]
    for command in re.findall("`(.*?)`", found["remedy"]):
        assert direct(*shlex.split(command)[1:], *(["--yes"] if "delete" in command else [])).code == 0
    assert direct("next", "orders").out == "2\n"
    assert [tag["tag"] for tag in direct("tags", "--json").json()] == ["orders"]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_commands_that_read_leave_an_older_schema_and_upgrade_raises_it(
    direct: Cli, home: Path, *, beside: bool
) -> None:
    """Else a look with a newer version would stop the service, which is of an older one. `beside`: it is at work."""
    assert direct("create", "orders", "--step", "10").code == 0
    assert direct("next", "orders").out == "1\n"
    service = sqlite3.connect(home / "ids.db", isolation_level=None)
    if beside:
        service.execute("SELECT * FROM tags").fetchall()
    with closing(sqlite3.connect(home / "ids.db", isolation_level=None)) as database:
        for trigger in ("step_mode", "refill_at", "pace", "drain", "lease_mode"):
            database.execute(f"DROP TRIGGER {trigger}_is_kept")
        for column in ("step_mode", "refill_at", "survive", "target", "min_step", "max_step", "drain", "lease_mode"):
            database.execute(f"ALTER TABLE tags DROP COLUMN {column}")
        for column in ("application", "born"):
            database.execute(f"ALTER TABLE segments DROP COLUMN {column}")
        database.execute("PRAGMA user_version = 4")
    kept = [each for each in home.iterdir() if each.suffix != ".db-shm"]
    assert (home / "ids.db-wal" in kept) is beside
    before = {each: each.read_bytes() for each in kept}
    for command in (
        "tags", "inspect orders", "peek orders", "verify", "who orders 1", "decode orders 1",
        "recover orders --dry-run --yes", "recover --all --dry-run --yes", "config",
    ):  # fmt: skip
        ended = direct(*command.split(), "--json") if command != "config" else direct(command)
        assert ended.code == 0, (command, ended.err)
    findings = {each["check"]: each for each in direct("doctor", "--json").json()}
    assert "its schema is 4" in findings["store-schema"]["what"]
    assert {each: each.read_bytes() for each in kept} == before
    assert service.execute("PRAGMA user_version").fetchone() == (4,)
    service.close()
    assert direct("upgrade", "--json").json() == {"before": 4, "after": SCHEMA}
    ended = direct("upgrade")
    assert (ended.code, ended.out, ended.err) == (0, "", f"schema {SCHEMA}: nothing to do\n")
    # The file of before once more, for the first process that reserves.
    (home / "ids.db").unlink()
    for each in kept:
        each.write_bytes(before[each])
    assert direct("next", "orders").code == 0
    findings = {each["check"]: each for each in direct("doctor", "--json").json()}
    assert findings["store-schema"]["level"] == "ok"


@pytest.fixture
def orders(direct: Cli) -> Cli:
    """`cli` on a store whose `orders` has segments of 10 numbers, 20 of which are reserved."""
    direct("create", "orders", "--step", "10")
    direct("next", "orders", "-n", "20")
    return direct


def stands(cli: Cli) -> tuple[int, str]:
    """Return the tag's max, and its description."""
    (tag,) = cli("tags", "--json").json()
    return tag["max"], tag["description"]


def test_a_script_says_yes_or_changes_nothing_and_what_skips_nothing_asks_nobody(orders: Cli) -> None:
    refused = orders("configure", "orders", "--above", "500", "--description", "new")
    assert (refused.code, refused.out, "give --yes" in refused.err) == (2, "", True)
    for option in ("--above", "--start"):
        below = orders("configure", "orders", option, "15")
        assert (below.code, "no number is skipped: the numbers up to 20 are" in below.err) == (0, True)
    assert stands(orders) == (20, "")
    assert orders("configure", "orders", "--above", "500", "--description", "new", "--yes").code == 0
    assert stands(orders) == (500, "new")
    assert orders("next", "orders").out == "501\n"


FAR = 9 * 10**18


@pytest.mark.live
def test_numbers_are_skipped_by_a_yes_only_and_a_no_changes_nothing_else_either(orders: Cli, store: str) -> None:
    for option, above, cost, answer, code in (
        ("--above", 500, "", "\n", 1),
        ("--start", 500, "", "n\n", 1),
        # Over more than a thousand segments it says what it costs.
        ("--above", 10_030, ": 10,010 numbers (1,001 segments, 0 % of all that are left)", "n\n", 1),
        ("--above", FAR, f": {FAR - 20:,} numbers ({FAR // 10 - 2:,} segments, 97 % of all", "n\n", 1),
        ("--above", 10_020, "? [y/N]", "y\n", 0),
    ):
        line = ("configure", "orders", option, str(above + (option == "--start")), "--description", "new")
        question = f"Skip the numbers of orders up to {above} for ever{cost}"
        assert answered(question, answer, "--store", store, *line) == code
        assert stands(orders) == ((20, "") if code else (above, "new"))
