"""Every command without any server."""

import shlex
from pathlib import Path

import pytest

from issuer.scripts import NAMES
from tests.e2e.conftest import Cli, Ended, Program, altered

HIGHEST = 2**63 - 1


@pytest.mark.live
@pytest.mark.covers("3.47")
def test_without_any_configuration_the_first_run_prints_1_and_the_next_one_2(program: Program, home: Path) -> None:
    assert program("next", "orders").out == "1\n"
    assert program("next", "orders").out == "2\n"
    assert (home / "data" / "issuer" / "issuer.db").is_file()


def test_numbers_come_one_a_line_or_as_a_json_list(cli: Cli) -> None:
    assert cli("next", "orders", "-n", "3").out == "1\n2\n3\n"
    assert cli("next", "orders", "-n", "2", "--json").json() == [4, 5]
    assert cli("next", "orders", "--json").out == "[6]\n"
    # More than one call takes.
    assert cli("next", "orders", "-n", "25000").out.split() == [str(number) for number in range(7, 25007)]
    assert cli("next", "orders", "-n", "10001", "--json").json() == [*range(25007, 35008)]


def test_numbers_beyond_what_a_double_holds_are_printed_exactly(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "big", "--start", str(HIGHEST - 1))
    assert cli("--store", store, "next", "big", "-n", "2", "--json").json() == [HIGHEST - 1, HIGHEST]


@pytest.mark.covers("0.13", "3.4", "U.15")
def test_a_tag_begins_where_it_was_told_to(cli: Cli, store: str) -> None:
    made = cli("--store", store, "create", "orders", "--start", "100", "--step", "50", "--description", "of the shop")
    assert (made.code, made.out, made.err) == (0, "", "made orders: first number 100, step 50, trend\n")
    assert cli("--store", store, "next", "orders").out == "100\n"
    cli("--store", store, "create", "bills", "--above", "123456")
    assert cli("--store", store, "next", "bills").out == "123457\n"


def test_show_as_json_has_exactly_the_promised_keys(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "orders", "--step", "10", "--limit", "500", "--description", "d")
    cli("--store", store, "next", "orders", "-n", "11")
    content = cli("--store", store, "show", "orders", "--json").json()
    assert list(content) == [
        *("tag", "store", "redis", "order", "limit", "lease", "description", "remaining", "rate", "runway"),
        *("last_extension", "waste"),
    ]
    assert list(content["waste"]) == ["numbers", "of", "since"]
    assert list(content["store"]) == ["max", "step", "ahead", "timestamp", "created", "halted"]
    assert content["store"]["max"] == 11
    assert all(type(content["store"][name]) is int for name in ("max", "step", "ahead", "timestamp", "created"))
    assert (content["redis"], content["remaining"], content["runway"]) == (None, None, None)
    assert all(said in cli("--store", store, "show", "orders").out for said in ("direct (no Redis)", "limit 500"))
    assert (content["tag"], content["order"], content["limit"], content["description"]) == ("orders", "trend", 500, "d")


@pytest.mark.covers("3.28")
def test_steps_ahead_are_set_shown_and_reserved(cli: Cli, store: str) -> None:
    made = cli("--store", store, "create", "orders", "--step", "10", "--ahead", "6")
    assert made.err == "made orders: first number 1, step 10, trend, 6 ahead\n"
    assert "step         10, 6 ahead: segments of 60\n" in cli("--store", store, "show", "orders").out
    changed = cli("--store", store, "set", "orders", "--ahead", "2")
    assert changed.err == "changed orders: max 0, step 10, 2 ahead\n"
    assert cli("--store", store, "next", "orders", "-n", "30").code == 0
    assert cli("--store", store, "show", "orders", "--json").json()["store"]["ahead"] == 2
    for wrong in ("0", "1001", "x"):
        assert cli("--store", store, "set", "orders", "--ahead", wrong).code == 2
    assert cli("--store", store, "set", "orders", "--ahead", "1").err == "changed orders: max 30, step 10\n"


def test_tags_are_listed_by_name_as_a_table_and_as_json(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "users", "--step", "7")
    cli("--store", store, "create", "orders", "--start", "42", "--description", "first of all")
    listed = cli("--store", store, "tags").out.splitlines()
    assert listed[0].split() == ["TAG", "MAX", "STEP", "ORDER", "CHANGED", "DESCRIPTION"]
    assert listed[1].split()[:4] == ["orders", "41", "1000", "trend"]
    assert listed[2].split()[:4] == ["users", "0", "7", "trend"]
    content = cli("--store", store, "tags", "--json").json()
    assert [list(tag) for tag in content] == 2 * [
        [
            *("tag", "max", "step", "limit", "order", "lease", "ahead", "description", "created", "timestamp"),
            *("version", "halted", "deleted", "scheme"),
        ]
    ]
    assert [(tag["tag"], tag["max"], tag["limit"]) for tag in content] == [
        ("orders", 41, HIGHEST),
        ("users", 0, HIGHEST),
    ]


def test_a_store_without_tags_is_an_empty_list_and_a_hint(cli: Cli) -> None:
    assert cli("tags", "--json").json() == []
    listed = cli("tags")
    assert (listed.code, listed.out) == (0, "")
    assert "issuer create" in listed.err


def test_a_changed_tag_says_what_it_is_now(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "orders")
    changed = cli("--store", store, "set", "orders", "--step", "5", "--limit", "900", "--above", "30", "--yes")
    assert (changed.out, changed.err) == ("", "changed orders: max 30, step 5, limit 900\n")
    cli("--store", store, "set", "orders", "--description", "new")
    assert cli("--store", store, "next", "orders").out == "31\n"
    assert cli("--store", store, "tags", "--json").json()[0]["description"] == "new"


def test_a_lease_is_kept_in_the_tag_shown_and_changed(cli: Cli, store: str) -> None:
    def of_orders(command: str) -> Ended:
        return cli("--store", store, command, "orders")

    def lease() -> tuple[object, object]:
        listed = cli("--store", store, "tags", "--json").json()
        return listed[0]["lease"], cli("--store", store, "show", "orders", "--json").json()["lease"]

    made = cli("--store", store, "create", "orders", "--lease", "500")
    assert (made.code, made.err) == (0, "made orders: first number 1, step 1000, trend, lease 500\n")
    assert lease() == (500, 500)
    assert "lease        500 ahead in each process\n" in of_orders("show").out
    for size in (1_000_000, 0):
        changed = cli("--store", store, "set", "orders", "--lease", str(size))
        assert (changed.code, changed.err) == (0, f"changed orders: max 0, step 1000, lease {size}\n")
        assert lease() == (size, size)
    assert "lease        never\n" in of_orders("show").out
    cli("--store", store, "set", "orders", "--step", "7")
    assert lease() == (0, 0)
    cli("--store", store, "create", "users")
    assert cli("--store", store, "show", "users", "--json").json()["lease"] is None
    assert "lease        as each process is set\n" in cli("--store", store, "show", "users").out


@pytest.mark.covers("U.10")
def test_a_tag_deleted_and_made_again_goes_on_above(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "orders")
    cli("--store", store, "next", "orders", "-n", "10")
    deleted = cli("--store", store, "delete", "orders", "--yes")
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "deleted orders\n")
    assert cli("--store", store, "next", "orders").code == 3
    cli("--store", store, "create", "orders")
    assert int(cli("--store", store, "next", "orders").out) == 11


def test_each_script_is_printed_with_its_contract_first(cli: Cli) -> None:
    listed = cli("lua").out.splitlines()
    assert [line.split()[0] for line in listed] == [*NAMES]
    assert all(len(line.split()) > 3 for line in listed)
    text = cli("lua", "next").out
    assert text.startswith("--[[\nnext: draw up to n numbers")
    assert "KEYS[1]" in text
    assert "--@include" not in text


def test_the_version_and_the_help_are_quick_and_name_every_command(cli: Cli) -> None:
    assert cli("--version").out.split() == ["issuer", "0.1.0"]
    text = cli("--help").out
    for command in ("next", "tags", "show", "create", "set", "delete", "recover", "keeper", "lua", "config", "demo"):
        assert f"\n  {command} " in text
        assert cli(command, "-h").code == 0
    assert "issuer completion bash" in text
    for scheme in ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"):
        assert f" {scheme}://" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    lease = "--lease N How many numbers of a trend tag each process draws ahead from Redis; 0..1000000, 0: none."
    assert all(lease in " ".join(cli(command, "-h").out.split()) for command in ("create", "set"))


def test_a_tag_with_blanks_of_before_is_named_and_can_be_got_rid_of(cli: Cli, home: Path, store: str) -> None:
    at = ("--store", store)
    cli(*at, "create", "orders", "--step", "10")
    cli(*at, "next", "orders")
    altered(home, "UPDATE tags SET tag = ' orders'")
    altered(home, "UPDATE segments SET tag = ' orders'")
    for refused in (["next", " orders"], ["create", " orders"], ["set", " orders", "--step", "5"]):
        ended = cli(*at, *refused)
        assert (ended.code, "no blanks around it" in ended.err) == (2, True)
    listed = cli(*at, "tags")
    assert ("' orders'" in listed.out, "issuer doctor" in listed.err) == (True, True)
    for look in (["show", " orders"], ["verify", " orders"], ["recover", " orders", "--yes"]):
        assert cli(*at, *look).code == 0
    (found,) = [each for each in cli(*at, "doctor", "--json").json() if each["check"] == "tag-blanks"]
    for command in found["remedy"].split(", then "):
        assert cli(*at, *shlex.split(command)[1:], *(["--yes"] if "delete" in command else [])).code == 0
    assert cli(*at, "next", "orders").out == "2\n"
    assert [tag["tag"] for tag in cli(*at, "tags", "--json").json()] == ["orders"]


def test_a_script_may_make_a_tag_at_each_start_and_is_told_if_it_is_another_one(cli: Cli, store: str) -> None:
    make = ("--store", store, "create", "orders", "--exist-ok")
    assert cli(*make, "--step", "50").err == "there is orders: max 0, step 50\n"
    assert cli("--store", store, "next", "orders").out == "1\n"
    assert cli(*make, "--step", "50").err == "there is orders: max 1, step 50\n"
    other = cli(*make, "--step", "60")
    assert (other.code, "error: tag 'orders' exists: step is 50, not 60; change it" in other.err) == (1, True)
    assert cli("--store", store, "create", "orders").code == 1
