"""Each exit code, with its one line on stderr and nothing on stdout."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

from issuer.cli.exits import code_of, in_options
from issuer.errors import (
    ClockBehind,
    ConfigurationError,
    FenceError,
    FormatOverflow,
    IssuerError,
    LimitReached,
    NoMachineNumber,
    NotDecodable,
    Refused,
    SchemeError,
    StoreUnavailable,
    StrategyFailed,
    TransformFailed,
)
from persistence.opening import open_store
from tests.e2e.conftest import Cli, Ended, Start
from tests.servers.ports import free_port


@pytest.fixture
def orders(cli: Cli, store: str) -> Cli:
    """`cli` on a store with the tag `orders`, of ten numbers, in which halts and damage can be made."""
    made = cli("--store", store, "create", "orders", "--limit", "10", "--step", "5")
    assert made.code == 0

    def run(*arguments: str) -> Ended:
        return cli("--store", store, *arguments)

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create", "orders"], 1, "exists"),
        (["next"], 2, "Missing argument"),
        (["next", "orders", "-n", "0"], 2, "0 is not in the range"),
        (["next", "orders", "-n", "1.5"], 2, "'1.5' is not a valid integer."),
        (["next", "orders", "--timeout", "1"], 2, "--timeout stands before the command: issuer --timeout ... next\n"),
        (["next", "orders", "--nn"], 2, "No such option '--nn'.\n"),
        (["next", "orders", "--jsn"], 2, "Did you mean --json?"),
        (["next", "orders", "--ttl", "5"], 2, "give both, or none"),
        (["next", "orders", "--key", "k", "--ttl", "0"], 2, "ttl must be a number of seconds, above 0, not 0.0"),
        (["next", "orders", "--key", "k", "--ttl", "-1"], 2, "ttl must be a number of seconds, above 0, not -1.0"),
        (["next", ""], 2, "1 to 200 bytes"),
        (["next", "a\nb"], 2, "control characters"),
        (["next", "x" * 201], 2, "1 to 200 bytes"),
        (["next", "\udcff"], 2, "is valid text"),
        (["sing"], 2, "No such command"),
        (["--colour", "next"], 2, "No such option"),
        (["create", "new", "--start", "11", "--limit", "10"], 2, "start must be"),
        (["create", "new", "--start", "1", "--above", "1"], 2, "not both"),
        (["create", "new", "--step", "0"], 2, "step must be"),
        (["create", "new", "--step", "1.5"], 2, "not a valid integer"),
        (["create", "new", "--limit", str(2**63)], 2, "limit must be"),
        (["create", "new", "--order", "strict"], 2, "needs Redis, and none is set; use --order trend\n"),
        (["create", "new", "--stride-above", "5"], 2, "error: --stride-above: says nothing without stride\n"),
        (["--redis", "http://x", "next", "orders"], 2, "redis+sentinel:// or redis+cluster://"),
        (["create", "new", "--order", "odd"], 2, "'odd' is not one of"),
        (["create", "new", "--order", "strict", "--lease", "5"], 2, "needs Redis"),
        (["create", "new", "--lease", "-1"], 2, "lease must be 0..1000000"),
        (["create", "new", "--lease", "1000001"], 2, "lease must be 0..1000000"),
        (["create", "new", "--lease", "1.5"], 2, "not a valid integer"),
        (["set", "orders"], 2, "nothing to change"),
        (["set", "orders", "--lease", "1000001"], 2, "lease must be 0..1000000"),
        (["lua", "odd"], 2, "Invalid value for '[NAME]': 'odd' is not one of"),
        (["keeper"], 2, "none is set"),
        (["delete", "orders"], 2, "--yes"),
        (["recover", "orders"], 2, "--yes"),
        (["recover"], 2, "one of them"),
        (["recover", "orders", "--all"], 2, "one of them"),
        (["recover", "--all", "--at-least", "5", "--yes"], 2, "needs a TAG"),
        (["recover", "orders", "--at-least", "-1", "--yes"], 2, "not in the range"),
        (["--timeout", "-1", "next", "orders"], 2, "timeout"),
        (["--timeout", "soon", "next", "orders"], 2, "not a valid float"),
        (["--prefix", "{", "next", "orders"], 2, "no braces"),
        (["--config", "gone.toml", "next", "orders"], 2, "there is no settings file"),
        (["--store", "ftp://x", "next", "orders"], 2, "is no store"),
        (["next", "unknown"], 3, "create it with `issuer create`\n"),
        (["show", "unknown"], 3, "unknown tag"),
        (["set", "unknown", "--step", "5"], 3, "unknown tag"),
        (["delete", "unknown", "--yes"], 3, "unknown tag"),
        (["recover", "unknown", "--yes"], 3, "unknown tag"),
        (["recover", "unknown", "--dry-run"], 3, "unknown tag"),
    ],
)
def test_a_refusal_has_its_code_and_one_line(orders: Cli, arguments: list[str], code: int, message: str) -> None:
    ended = orders(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err


def test_an_unknown_tag_says_where_it_was_looked_for(orders: Cli, home: Path) -> None:
    for command in (
        ["next", "unknown"],
        ["show", "unknown"],
        ["delete", "unknown", "--yes"],
        ["decode", "unknown", "5"],
    ):
        assert f"unknown tag 'unknown' in sqlite:///{home}/ids.db: " in orders(*command).err


def test_a_message_speaks_of_options_and_leaves_names_alone() -> None:
    assert in_options("tag 'at_least': use order='trend'") == "tag 'at_least': use --order trend"
    assert in_options("at_least needs it, or scramble_strict=True") == "--at-least needs it, or --scramble-strict"
    assert in_options("run `issuer recover stride_above`") == "run `issuer recover stride_above`"


def test_a_refusal_changes_nothing(orders: Cli) -> None:
    before = orders("tags", "--json").json()
    for arguments in (["set", "orders", "--limit", "0"], ["create", "orders"], ["next", "orders", "-n", "0"]):
        assert orders(*arguments).code in {1, 2}
    assert orders("tags", "--json").json() == before


@pytest.mark.parametrize(
    "command",
    [
        ["tags"],
        ["show", "a"],
        ["next", "a"],
        ["verify"],
        ["doctor"],
        ["set", "a", "--step", "5"],
        ["recover", "a", "--yes"],
    ],
)
def test_a_store_that_is_not_there_is_not_made_by_looking_at_it(cli: Cli, home: Path, command: list[str]) -> None:
    ended = cli("--store", f"sqlite:///{home / 'typo' / 'ids.db'}", *command)
    assert (ended.code, ended.out) == (2, "")
    assert "there is no store sqlite:///" in ended.err
    assert "`issuer create` makes a new one" in ended.err
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("command", [["tags"], ["verify", "--all"], ["doctor"], ["create", "a"]])
def test_a_store_whose_name_no_file_can_have_is_an_error_and_no_traceback(cli: Cli, command: list[str]) -> None:
    ended = cli("--store", f"sqlite:///{'x' * 300}", *command)
    assert "Traceback" not in ended.err
    assert ended.code == 2
    assert "it can't be opened or made there" in (ended.out if command == ["doctor"] else ended.err)


def test_what_raises_nothing_says_so(orders: Cli) -> None:
    orders("next", "orders", "-n", "5")
    for option in ("--start", "--above"):
        ended = orders("set", "orders", option, "3")
        assert ended.code == 0
        assert ended.err.startswith("nothing is skipped: the numbers up to 5 have been reserved already\n")


def test_a_limit_reached_half_way_leaves_the_numbers_printed_before_it(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "few", "--limit", "12000")
    ended = cli("--store", store, "next", "few", "-n", "30000")
    assert ended.code == 1
    assert ended.out.split() == [str(number) for number in range(1, 12001)]
    assert "has reached its limit" in ended.err
    assert cli("--store", store, "next", "few").out == ""
    cli("--store", store, "create", "fewer", "--limit", "3")
    as_json = cli("--store", store, "next", "fewer", "-n", "4", "--json")
    assert (as_json.code, as_json.json()) == (1, [1, 2, 3])


def test_beside_json_stderr_is_one_object_with_the_warnings_in_it(orders: Cli) -> None:
    ended = orders("next", "orders", "-n", "12", "--json")
    assert (ended.code, ended.json()) == (1, list(range(1, 11)))
    told = json.loads(ended.err)
    assert (told["error"], told["tag"]) == ("LimitReached", "orders")
    assert ["% of its numbers are reserved" in warning for warning in told["warnings"]] == [True]


def test_a_warning_beside_json_that_went_well_is_told_in_the_end(orders: Cli) -> None:
    ended = orders("next", "orders", "-n", "9", "--json")
    assert (ended.code, ended.json()) == (0, list(range(1, 10)))
    assert ended.err.startswith("warning: tag 'orders': 100 % of its numbers are reserved")


@pytest.mark.parametrize(
    "arguments",
    [
        ["next", "--json"],
        ["next", "orders", "-n", "0", "--json"],
        ["next", "orders", "--json", "--colour"],
        ["next", "orders", "--key", "k", "-n", "2", "--json"],
        ["--timeout", "soon", "next", "orders", "--json"],
        ["sing", "--json"],
    ],
)
def test_an_error_of_usage_is_json_where_the_result_would_be(orders: Cli, arguments: list[str]) -> None:
    ended = orders(*arguments)
    assert (ended.code, ended.out) == (2, "")
    told = json.loads(ended.err)
    assert (told["error"], told["tag"]) == ("UsageError", None)
    assert told["message"]


def test_a_tag_may_be_named_like_an_option(orders: Cli) -> None:
    ended = orders("next", "--", "--json")
    assert (ended.code, ended.err.startswith("error: unknown tag '--json'")) == (3, True)


@pytest.mark.parametrize("command", [["next", "orders"], ["next", "orders", "-n", "7", "--json"]])
def test_a_store_that_is_behind_is_a_problem_and_names_recover(orders: Cli, store: str, command: list[str]) -> None:
    halting = open_store(store)
    assert halting.halt("orders", below=8, timeout=5)
    halting.close()
    ended = orders(*command)
    assert (ended.code, ended.out) == (4, "")
    assert "issuer recover orders" in ended.err
    assert "HALTED" in orders("show", "orders").out
    assert "trend, halted" in orders("tags").out
    assert orders("recover", "orders", "--yes").code == 0
    assert orders("next", "orders").code == 0


def test_a_record_that_no_issuer_writes_is_a_problem(orders: Cli, home: Path) -> None:
    connection = sqlite3.connect(home / "ids.db")
    with connection:
        connection.execute("""UPDATE tags SET "order" = 'sideways'""")
    connection.close()
    for command in (["next", "orders"], ["show", "orders"], ["tags"]):
        ended = orders(*command)
        assert (ended.code, ended.out) == (4, "")
        assert "order must be one of" in ended.err


@pytest.mark.live
def test_a_store_that_is_away_cannot_be_reached(cli: Cli) -> None:
    ended = cli("--store", f"mongodb://127.0.0.1:{free_port()}/x", "--timeout", "0.3", "next", "orders")
    assert (ended.code, ended.out) == (5, "")
    assert "error: " in ended.err


def test_a_redis_that_is_away_cannot_be_reached_but_show_tells_the_rest(cli: Cli, store: str) -> None:
    def away(*arguments: str) -> Ended:
        url = f"redis://127.0.0.1:{free_port()}"
        return cli("--redis", url, "--store", store, "--timeout", "0.3", *arguments)

    cli("--store", store, "create", "orders")
    cli("--redis", f"redis://127.0.0.1:{free_port()}", "--store", store, "create", "strict")
    assert away("next", "strict").code == 5
    shown = away("show", "orders", "--json")
    assert shown.code == 5
    content = shown.json()
    assert content["redis"] is None
    assert "redis://127.0.0.1" in content["redis_error"]
    assert content["store"]["max"] == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IssuerError("x"), 1),
        (LimitReached("t", limit=1, value=1), 1),
        (ConfigurationError("x"), 2),
        (StoreUnavailable("x"), 5),
        (FenceError("x"), 5),
        (SchemeError("x", setting="stride"), 2),
        (NotDecodable("x"), 2),
        (FormatOverflow(100, width=2, field="seq"), 1),
        (Refused("t"), 1),
        (TransformFailed("t", plugin="P", numbers=[1]), 1),
        (StrategyFailed("x", strategy="s"), 1),
        (ClockBehind("x", behind=1500), 5),
        (NoMachineNumber("x"), 5),
    ],
)
def test_errors_that_are_hard_to_cause_have_their_code_too(error: IssuerError, code: int) -> None:
    assert code_of(error) == code


@pytest.mark.covers("0.16")
def test_what_is_away_says_when_to_try_again(cli: Cli, store: str) -> None:
    away = ("--redis", "redis://127.0.0.1:1", "--store", store, "--timeout", "0.2")
    assert cli(*away, "create", "orders").code == 0
    ended = cli(*away, "next", "orders")
    assert (ended.code, ended.out) == (5, "")
    assert re.fullmatch(r"error: .*; try again in 0\.\d+ s\n", ended.err)


def test_with_json_an_error_is_json_as_well(cli: Cli, store: str) -> None:
    away = ("--redis", "redis://127.0.0.1:1", "--store", store, "--timeout", "0.2")
    assert cli(*away, "create", "orders").code == 0
    ended = cli(*away, "next", "orders", "--json")
    assert (ended.code, ended.out) == (5, "")
    told = json.loads(ended.err)
    assert (told["error"], told["tag"]) == ("RedisUnavailable", "orders")
    assert 0 < told["retry_after"] <= 0.5
    assert "127.0.0.1" in told["message"]
    unknown = cli("--store", store, "show", "nobody", "--json")
    assert (unknown.code, unknown.out) == (3, "")
    assert json.loads(unknown.err).keys() == {"error", "message", "tag"}


def test_redis_without_a_store_is_a_configuration_error(cli: Cli) -> None:
    ended = cli("--redis", "redis://localhost", "next", "orders")
    assert (ended.code, ended.out) == (2, "")
    assert "--store" in ended.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_is_an_error_and_no_traceback(start: Start, home: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert start("config", stdout=full).wait(10) == 1
        assert start("tags", "--json", stdout=full).wait(10) == 1
    plain, as_json = (home / "talk").read_text().splitlines()
    assert plain.startswith("error: ")
    assert json.loads(as_json)["error"] == "OSError"
