"""Each exit code, with its one line on stderr and nothing on stdout; streams that a shell has closed."""

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Cli, altered
from tests.servers.ports import free_port
from tests.waiting import until


@pytest.fixture
def orders(direct: Cli) -> Cli:
    """`cli` on a store with the tag `orders`, of ten numbers, in which damage can be made."""
    assert direct("create", "orders", "--limit", "10", "--step", "5").code == 0
    return direct


#: By exit code: command lines, and what the one line on stderr says. What a setting may be is unit/test_settings' and
#: unit/numbers'; here each way stands once from which a refusal comes to the edge, and each name as it is typed.
REFUSED = {
    1: [("create orders", "exists")],
    2: [
        ("next", "Missing argument"),
        ("next orders -n 0", "0 is not in the range"),
        ("next orders --timeout 1", "--timeout must be before the command: issuer --timeout ... next\n"),
        ("next orders --jsn", "Did you mean --json?"),
        ("next orders --ttl 5", "--ttl requires --key"),
        ("next ''", "1 to 200 bytes"),
        ("next \udcff", "must be valid Unicode text"),
        ("sing", "No such command 'sing'.\n"),
        ("verfy", "No such command 'verfy'. Did you mean 'verify'?"),
        ("show orders", "No such command 'show'. Did you mean 'inspect'?"),
        ("list", "Did you mean 'tags'?"),
        ("create new --start 1 --above 1", "not both"),
        ("create new --step 0", "step must be"),
        ("create new --order strict", "needs Redis, but no Redis is configured; use --order trend\n"),
        ("create new --scramble-strict", "error: --scramble-strict: requires scramble\n"),
        ("create new --restart daily --format {date:%Y%m%d}-{seq}", "error: restart: "),  # Redis decides when one ends
        ("create new --timezone Mars/Olympus", "error: timezone: "),
        ("create new --scramble k9", "error: scramble: "),
        ("create new --format {nothing}", "error: format: "),
        ("create new --stride 0", "error: stride: "),
        ("create new --stride 2 --offset 3", "error: offset: "),
        ("create new --shards shard_bits=40", "error: shards: "),
        ("create new --shards colour=4", "error: shards: "),
        ("create new --shards app=256", "error: shards: app 256 doesn't fit"),
        ("create new --shards app=0 --limit 5", "error: limit: "),
        ("create new --keyed --start 5", "error: keyed: "),
        ("create new --strategy=", "error: strategy: "),
        ("create new --strategy nope", "error: strategy: "),
        ("create new --strategy snowflake --order strict", "error: order: "),
        ("create new --strategy snowflake --stride 2", "error: strategy: "),
        ("create new --strategy snowflake --option colour=red", "error: options: "),
        ("create new --limit int33", "error: "),
        ("create new --option a", "error: "),
        ("create new --description 'a\x1b[2Jb\nc'", "control characters"),
        ("--redis http://x next orders", "redis+sentinel:// or redis+cluster://"),
        ("configure orders", "nothing to change"),
        ("configure orders --lease 1000001", "lease must be 0..1000000"),
        ("configure orders --ahead 1001", "ahead"),
        ("configure orders --scramble-strict", "error: --scramble-strict: requires scramble\n"),
        # What a tag has for good.
        ("configure orders --restart daily", "error: restart: cannot be changed"),
        ("configure orders --keyed", "error: keyed: cannot be changed"),
        ("configure orders --strategy snowflake", "error: strategy: cannot be changed"),
        ("keeper", "no Redis is configured"),
        ("delete orders", "--yes"),
        ("recover orders", "stdin is not a terminal"),
        ("recover", "either a TAG or --all"),
        ("recover --all --at-least 5 --yes", "requires a TAG"),
        ("halt orders --all", "either a TAG or --all"),
        ("halt orders", "--yes"),
        ("verify orders --all", "not both"),
        ("who orders 0", "0"),
        ("decode orders 99999999999999999999", "is above 2^63-1"),
        ("machines orders", "has no machine numbers"),
        ("--timeout soon next orders", "not a valid float"),
        ("--prefix { next orders", "no braces"),
        ("--config gone.toml next orders", "there is no settings file"),
        ("--store ftp://x next orders", "is not the URL of a store"),
    ],
    3: [
        ("next unknown", "create it with `issuer create unknown`\n"),
        ("next -- --json", "error: unknown tag '--json'"),
        *((f"{command} unknown{rest}", "unknown tag 'unknown' in sqlite:///{home}/ids.db; ") for command, rest in (
            ("inspect", ""), ("configure", " --step 5"), ("delete", " --yes"), ("decode", " 5"), ("recover", " --yes"),
            ("halt", " --yes"), ("verify", ""), ("who", " 1"), ("peek", ""),
        )),
    ],
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_a_refusal_has_its_code_and_one_line_and_changes_nothing(orders: Cli, home: Path, code: int) -> None:
    before = orders("tags", "--json").json()
    for line, message in REFUSED[code]:
        ended = orders(*shlex.split(line))
        assert (ended.code, ended.out) == (code, ""), line
        assert message.replace("{home}", str(home)) in ended.err, (line, ended.err)
        assert ended.err.count("error: ") == 1, line
        assert "Traceback" not in ended.err, line
    assert orders("tags", "--json").json() == before


def test_a_store_that_is_not_there_is_not_made_by_looking_at_it(cli: Cli, home: Path) -> None:
    for command in ("tags", "next a", "verify", "doctor", "recover a --yes"):
        ended = cli("--store", f"sqlite:///{home / 'typo' / 'ids.db'}", *command.split())
        assert (ended.code, ended.out) == (2, "")
        assert "there is no store sqlite:///" in ended.err
        assert "to make a new store" in ended.err
    assert list(home.iterdir()) == []
    for command in ("doctor", "create a"):
        ended = cli("--store", f"sqlite:///{'x' * 300}", *command.split())
        assert (ended.code, "Traceback" in ended.err) == (2, False)
        assert "cannot be opened or created" in ended.out + ended.err
    ended = cli("--redis", "redis://localhost", "next", "orders")
    assert (ended.code, "--store" in ended.err) == (2, True)


def test_a_limit_reached_half_way_leaves_the_numbers_printed_before_it(direct: Cli) -> None:
    direct("create", "few", "--limit", "12000")
    ended = direct("next", "few", "-n", "30000")
    assert ended.code == 1
    assert ended.out.split() == [str(number) for number in range(1, 10001)], "each 10 000 are a take"
    assert "has too few numbers left up to its limit" in ended.err


@pytest.mark.parametrize("with_redis", [False, True], ids=["direct", "redis"])
def test_at_an_exhausted_limit_only_its_error_is_told(direct: Cli, redis_url: str, *, with_redis: bool) -> None:
    servers = ("--redis", redis_url) if with_redis else ()
    direct(*servers, "create", "few", "--limit", "1000", "--step", "100")
    assert direct(*servers, "next", "few", "-n", "1000").code == 0
    for command in ("next", "peek"):
        ended = direct(*servers, command, "few")
        assert (ended.code, ended.out) == (1, "")
        [told] = ended.err.splitlines()
        assert told.startswith("error: tag 'few' has reached its limit: 1000 of 1000 are reserved"), told


def test_beside_json_stderr_is_one_object_with_the_warnings_in_it(orders: Cli) -> None:
    ended = orders("next", "orders", "-n", "9", "--json")
    assert (ended.code, ended.json()) == (0, list(range(1, 10)))
    assert ended.err.startswith("warning: tag 'orders': at least 90 % of its numbers are used")
    ended = orders("next", "orders", "-n", "3", "--json")
    assert (ended.code, ended.json()) == (1, [10])
    told = json.loads(ended.err)
    assert (told["error"], told["code"], told["tag"]) == ("LimitReached", "limit_reached", "orders")
    assert (told["limit"], told["value"]) == (10, 10)
    assert told["message"].endswith("; raise the limit with `issuer configure orders --limit N`")
    assert ["% of its numbers are used" in warning for warning in told["warnings"]] == [True]
    for line in ("next", "next orders -n 0", "next orders --colour", "--timeout soon next orders", "sing"):
        ended = orders(*line.split(), "--json")
        assert (ended.code, ended.out) == (2, "")
        told = json.loads(ended.err)
        assert (told["error"], told["code"], told["tag"]) == ("UsageError", "usage", None)
        assert told["message"]


def test_a_record_that_no_issuer_writes_is_a_problem(orders: Cli, home: Path) -> None:
    altered(home, """UPDATE tags SET "order" = 'sideways'""")
    for command in (["next", "orders"], ["inspect", "orders"], ["tags"]):
        ended = orders(*command)
        assert (ended.code, ended.out) == (4, "")
        assert "order must be one of" in ended.err


@pytest.mark.live
@pytest.mark.covers("0.16")
def test_what_is_away_says_when_to_try_again_as_text_and_as_json_and_show_tells_the_rest(direct: Cli) -> None:
    ended = direct("--store", f"mongodb://127.0.0.1:{free_port()}/x", "--timeout", "0.3", "next", "orders")
    assert (ended.code, ended.out, "error: " in ended.err) == (5, "", True)
    away = ("--redis", "redis://127.0.0.1:1")
    assert direct(*away, "create", "orders").code == 0

    def said(*more: str) -> str:
        ended = direct(*away, "--timeout", "0.2", "next", "orders", *more)
        assert (ended.code, ended.out) == (5, "")
        return ended.err

    def told() -> bool:
        content = json.loads(said("--json"))
        assert content["tag"] == "orders"
        return bool(content["error"] == "RedisUnavailable" and 0 < content["retry_after"] <= 0.5)

    # A machine that stands still may not come as far as Redis in 0.2 s, or past the moment of the next trial.
    until(lambda: re.fullmatch(r"error: .*; try again in 0\.\d+ s\n", said()), message="it says when to try again")
    until(told, message="it says so as JSON")
    shown = direct(*away, "inspect", "orders", "--json")
    assert (shown.code, shown.json()["redis"], shown.json()["store"]["max"]) == (5, None, 0)
    assert "redis://127.0.0.1" in shown.json()["redis_error"]


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
    assert told[0].startswith("error: ")
    assert json.loads(told[1])["error"] == "OSError"


#: What a library in C does: it writes to the descriptor 2, whatever that is.
LOUD = """
import os, sys
from issuer import Issuer
take = Issuer.take
def loud(*args, **options):
    numbers = take(*args, **options)
    os.write(2, b"X" * 100_000)
    return numbers
Issuer.take = loud
from issuer.cli import main
main()
"""


@pytest.mark.live
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_with_streams_closed_and_none_of_its_talk_lands_in_the_store(
    direct: Cli, home: Path, store: str, closed: str
) -> None:
    direct("create", "orders")
    program = [sys.executable, "-c", LOUD, "--store", store, "next", "orders", "-n", "3"]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program], cwd=home, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ("" if ">&-" in closed.split() else "1\n2\n3\n")
    assert b"XXXX" not in (home / "ids.db").read_bytes()
    with closing(sqlite3.connect(home / "ids.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert direct("next", "orders").out == "4\n"
    if "<&-" in closed:  # then nobody can be asked
        command = [sys.executable, *PROGRAM, "--store", store, "delete", "orders"]
        asking = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=home, check=False)
        assert asking.returncode == 2
        assert [tag["tag"] for tag in direct("tags", "--json").json()] == ["orders"]
