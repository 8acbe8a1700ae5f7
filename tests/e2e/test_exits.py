"""Each exit code, with its one line on stderr and nothing on stdout."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import closing
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
from issuer.persistence.opening import open_store
from tests.e2e.conftest import PROGRAM, Cli, altered
from tests.servers.ports import free_port


@pytest.fixture
def orders(direct: Cli) -> Cli:
    """`cli` on a store with the tag `orders`, of ten numbers, in which halts and damage can be made."""
    assert direct("create", "orders", "--limit", "10", "--step", "5").code == 0
    return direct


#: By exit code: command lines, and what the one line on stderr says. What a setting may be is unit/test_settings' and
#: integration/test_bad_values'; here each way stands once from which a refusal comes to the edge.
REFUSED = {
    1: [("create orders", "exists")],
    2: [
        ("next", "Missing argument"),
        ("next orders -n 0", "0 is not in the range"),
        ("next orders -n 1.5", "'1.5' is not a valid integer."),
        ("next orders --timeout 1", "--timeout stands before the command: issuer --timeout ... next\n"),
        ("next orders --nn", "No such option '--nn'.\n"),
        ("next orders --jsn", "Did you mean --json?"),
        ("next orders --ttl 5", "give both, or none"),
        ("next orders --key k --ttl 0", "ttl must be a number of seconds, above 0, not 0.0"),
        ("next ''", "1 to 200 bytes"),
        ("next 'a\nb'", "control characters"),
        ("next \udcff", "is valid text"),
        ("sing", "No such command"),
        ("--colour next", "No such option"),
        ("create new --start 11 --limit 10", "start must be"),
        ("create new --start 1 --above 1", "not both"),
        ("create new --step 0", "step must be"),
        ("create new --order strict", "needs Redis, and none is set; use --order trend\n"),
        ("create new --stride-above 5", "error: --stride-above: says nothing without stride\n"),
        ("--redis http://x next orders", "redis+sentinel:// or redis+cluster://"),
        ("create new --order odd", "'odd' is not one of"),
        ("create new --lease 1000001", "lease must be 0..1000000"),
        ("set orders", "nothing to change"),
        ("set orders --lease 1000001", "lease must be 0..1000000"),
        ("lua odd", "Invalid value for '[NAME]': 'odd' is not one of"),
        ("keeper", "none is set"),
        ("delete orders", "--yes"),
        ("recover orders", "--yes"),
        ("recover", "one of them"),
        ("recover orders --all", "one of them"),
        ("recover --all --at-least 5 --yes", "needs a TAG"),
        ("recover orders --at-least -1 --yes", "not in the range"),
        ("--timeout -1 next orders", "timeout"),
        ("--timeout soon next orders", "not a valid float"),
        ("--prefix { next orders", "no braces"),
        ("--config gone.toml next orders", "there is no settings file"),
        ("--store ftp://x next orders", "is no store"),
    ],
    3: [
        ("next unknown", "create it with `issuer create`\n"),
        *((f"{command} unknown{rest}", "unknown tag 'unknown' in sqlite:///{home}/ids.db: ") for command, rest in (
            ("show", ""), ("set", " --step 5"), ("delete", " --yes"), ("decode", " 5"), ("recover", " --yes"),
            ("recover", " --dry-run"),
        )),
    ],
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_a_refusal_has_its_code_and_one_line_and_changes_nothing(orders: Cli, home: Path, code: int) -> None:
    before = orders("tags", "--json").json()
    for line, message in REFUSED[code]:
        ended = orders(*shlex.split(line))
        assert (ended.code, ended.out) == (code, ""), line
        assert message.replace("{home}", str(home)) in ended.err, line
        assert ended.err.count("error: ") == 1, line
        assert "Traceback" not in ended.err, line
    assert orders("tags", "--json").json() == before


def test_a_message_speaks_of_options_and_leaves_names_alone() -> None:
    assert in_options("tag 'at_least': use order='trend'") == "tag 'at_least': use --order trend"
    assert in_options("at_least needs it, or scramble_strict=True") == "--at-least needs it, or --scramble-strict"
    assert in_options("run `issuer recover stride_above`") == "run `issuer recover stride_above`"


@pytest.mark.parametrize(
    "command", ["tags", "show a", "next a", "verify", "doctor", "set a --step 5", "recover a --yes"]
)
def test_a_store_that_is_not_there_is_not_made_by_looking_at_it(cli: Cli, home: Path, command: str) -> None:
    ended = cli("--store", f"sqlite:///{home / 'typo' / 'ids.db'}", *command.split())
    assert (ended.code, ended.out) == (2, "")
    assert "there is no store sqlite:///" in ended.err
    assert "`issuer create` makes a new one" in ended.err
    assert list(home.iterdir()) == []


def test_a_store_whose_name_no_file_can_have_is_an_error_and_no_traceback(cli: Cli) -> None:
    for command in ("tags", "doctor", "create a"):
        ended = cli("--store", f"sqlite:///{'x' * 300}", *command.split())
        assert (ended.code, "Traceback" in ended.err) == (2, False)
        assert "it can't be opened or made there" in (ended.out if command == "doctor" else ended.err)


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
    assert ["% of its numbers are used" in warning for warning in told["warnings"]] == [True]


def test_a_warning_beside_json_that_went_well_is_told_in_the_end(orders: Cli) -> None:
    ended = orders("next", "orders", "-n", "9", "--json")
    assert (ended.code, ended.json()) == (0, list(range(1, 10)))
    assert ended.err.startswith("warning: tag 'orders': 90 % of its numbers are used")


def test_an_error_of_usage_is_json_where_the_result_would_be(orders: Cli) -> None:
    for line in ("next", "next orders -n 0", "next orders --colour", "--timeout soon next orders", "sing"):
        ended = orders(*line.split(), "--json")
        assert (ended.code, ended.out) == (2, "")
        told = json.loads(ended.err)
        assert (told["error"], told["tag"], bool(told["message"])) == ("UsageError", None, True)


def test_a_tag_may_be_named_like_an_option(orders: Cli) -> None:
    ended = orders("next", "--", "--json")
    assert (ended.code, ended.err.startswith("error: unknown tag '--json'")) == (3, True)


def test_a_store_that_is_behind_is_a_problem_and_names_recover(orders: Cli, store: str) -> None:
    with closing(open_store(store)) as halting:
        assert halting.halt("orders", below=8, timeout=5)
    for command in (["next", "orders"], ["next", "orders", "-n", "7", "--json"]):
        ended = orders(*command)
        assert (ended.code, ended.out) == (4, "")
        assert "issuer recover orders" in ended.err
    assert orders("recover", "orders", "--yes").code == 0
    assert orders("next", "orders").code == 0


def test_a_record_that_no_issuer_writes_is_a_problem(orders: Cli, home: Path) -> None:
    altered(home, """UPDATE tags SET "order" = 'sideways'""")
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
    away = ("--redis", f"redis://127.0.0.1:{free_port()}", "--store", store)
    cli("--store", store, "create", "orders")
    shown = cli(*away, "show", "orders", "--json")
    assert shown.code == 5
    content = shown.json()
    assert content["redis"] is None
    assert "redis://127.0.0.1" in content["redis_error"]
    assert content["store"]["max"] == 0


def test_errors_that_are_hard_to_cause_have_their_code_too() -> None:
    codes: dict[int, list[IssuerError]] = {
        1: [
            *(IssuerError("x"), LimitReached("t", limit=1, value=1), FormatOverflow(100, width=2, field="seq")),
            *(Refused("t"), TransformFailed("t", plugin="P", numbers=[1]), StrategyFailed("x", strategy="s")),
        ],
        2: [ConfigurationError("x"), SchemeError("x", setting="stride"), NotDecodable("x")],
        5: [StoreUnavailable("x"), FenceError("x"), ClockBehind("x", behind=1500), NoMachineNumber("x")],
    }
    assert {code: [code_of(error) for error in errors] for code, errors in codes.items()} == {
        code: [code] * len(errors) for code, errors in codes.items()
    }


@pytest.mark.covers("0.16")
def test_what_is_away_says_when_to_try_again_as_text_and_as_json(cli: Cli, store: str) -> None:
    away = ("--redis", "redis://127.0.0.1:1", "--store", store)
    assert cli(*away, "create", "orders").code == 0
    ended = cli(*away, "--timeout", "0.2", "next", "orders")
    assert (ended.code, ended.out) == (5, "")
    assert re.fullmatch(r"error: .*; try again in 0\.\d+ s\n", ended.err)
    ended = cli(*away, "--timeout", "0.2", "next", "orders", "--json")
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


@pytest.mark.live
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_is_an_error_and_no_traceback(home: Path) -> None:
    told = []
    for command in (["config"], ["tags", "--json"]):
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            line = [sys.executable, *PROGRAM, *command]
            ended = subprocess.run(line, cwd=home, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 1
        told += ended.stderr.splitlines()
    plain, as_json = told
    assert plain.startswith("error: ")
    assert json.loads(as_json)["error"] == "OSError"
