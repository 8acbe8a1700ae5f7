"""`issuer doctor` from outside: its report, its JSON, its exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from issuer.persistence.opening import open_store
from tests.e2e.conftest import Cli
from tests.e2e.terminal import Terminal
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

StartRedis = Callable[..., RedisServer]


@pytest.mark.covers("N.7")
def test_a_good_set_up_exits_0(cli: Cli, start_redis: StartRedis, store: str) -> None:
    server = start_redis(appendonly=True)

    def run(*arguments: str) -> tuple[int, str, str]:
        ended = cli("--redis", server.url, "--store", store, *arguments)
        return ended.code, ended.out, ended.err

    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert out.startswith("WELL\n")
    assert re.search(r"^nothing weakens the promise; 0 advice, 0 not seen, \d\d well$", out, re.MULTILINE)
    code, out, _ = run("doctor", "--json")
    assert code == 0
    assert {finding["level"] for finding in json.loads(out)} == {"ok"}


def test_the_embedded_default_is_well_too(cli: Cli) -> None:
    assert cli("next", "orders").out == "1\n"
    ended = cli("doctor")
    assert (ended.code, ended.err) == (0, "")
    assert "no Redis is set: direct" in ended.out
    assert cli("next", "orders").out == "2\n"


@pytest.mark.covers("N.7")
def test_what_weakens_the_promise_comes_first_and_exits_4(cli: Cli, start_redis: StartRedis, store: str) -> None:
    server = start_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    ended = cli("--redis", server.url, "--store", store, "doctor")
    assert (ended.code, ended.err) == (4, "")
    headings = [
        line for line in ended.out.splitlines() if line in {"WEAKENS THE PROMISE", "ADVICE", "NOT SEEN", "WELL"}
    ]
    assert headings == ["WEAKENS THE PROMISE", "ADVICE", "WELL"]
    first = ended.out.partition("ADVICE")[0]
    assert f"  redis-eviction  {server.url}\n  what  maxmemory-policy is allkeys-lru" in first
    assert "  why   When memory is short" in first
    assert "  do    CONFIG SET maxmemory-policy noeviction" in first
    assert "\n1 thing weakens the promise; 1 advice, 0 not seen, " in ended.out
    found = cli("--redis", server.url, "--store", store, "doctor", "--json")
    assert found.code == 4
    assert list(found.json()[0]) == ["check", "level", "subject", "what", "why", "remedy", "tag", "error"]
    assert [finding["check"] for finding in found.json() if finding["level"] == "weak"] == ["redis-eviction"]


def test_what_cannot_be_reached_is_a_finding_and_exits_5(cli: Cli, store: str) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    ended = cli("--redis", away, "--store", store, "doctor", "--json")
    assert (ended.code, ended.err) == (5, "")
    assert {each["check"]: each["error"] for each in ended.json()}["redis-reachable"] == "RedisUnavailable"
    both = cli("--redis", away, "--store", f"mongodb://127.0.0.1:{free_port()}/x", "--timeout", "0.3", "doctor")
    assert both.code == 5
    assert "redis-reachable" in both.out
    assert "store-reachable" in both.out


def test_a_login_that_is_refused_exits_2(cli: Cli, start_redis: StartRedis, store: str) -> None:
    server = start_redis(password="right")
    ended = cli("--redis", server.url.replace("right", "wrong"), "--store", store, "doctor")
    assert ended.code == 2
    assert "refuses the login" in ended.out
    assert "wrong" not in ended.out


def test_a_halt_outweighs_nothing_but_a_server_that_is_away(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "orders")
    halting = open_store(store)
    assert halting.halt("orders", below=8, timeout=5)
    halting.close()
    ended = cli("--store", store, "doctor")
    assert ended.code == 4
    assert "issuer recover orders" in ended.out
    assert cli("--redis", f"redis://127.0.0.1:{free_port()}", "--store", store, "doctor").code == 5


@pytest.mark.live
def test_the_report_fits_the_terminal(cli: Cli, store: str) -> None:
    for name in ("订单" * 20, "o" * 60):
        cli("--store", store, "create", name, "--limit", "10")
        cli("--store", store, "next", name, "-n", "9")
    for columns in (40, 60, 132):
        with Terminal("--store", store, "doctor", columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ends() == 0
            report = terminal.text
        assert report.count("tag-limit") == 2
        assert "…" not in report
        for line in report.splitlines():
            # A word is never broken: somebody may want to copy it.
            assert cells(line) <= columns or max(cells(word) for word in line.split()) > columns - 12, line


def cells(line: str) -> int:
    return sum(2 if ord(letter) >= 0x2E80 else 1 for letter in line)


def test_of_many_tags_some_are_shown_and_json_has_all(cli: Cli, store: str) -> None:
    filling = open_store(store)
    for number in range(9):
        filling.create(f"t{number}", above=90, step=1, limit=100, order="trend", description="", timeout=5)
    filling.close()
    ended = cli("--store", store, "doctor")
    assert ended.out.count("\n  tag-limit  ") == 5
    assert "  and 4 more of tag-limit: --json has them\n" in ended.out
    found = cli("--store", store, "doctor", "--json").json()
    assert len([finding for finding in found if finding["check"] == "tag-limit"]) == 9
    some = cli("--store", store, "doctor", "--most", "4")
    assert "4 of 9 tags were looked at closely" in some.out
    assert cli("--store", store, "doctor", "--most", "-1").code == 2


@pytest.mark.live
@pytest.mark.usefixtures("home")
def test_many_tags_have_a_progress_bar_on_a_terminal(store: str, tmp_path: Path) -> None:
    filling = open_store(store)
    for number in range(30):
        filling.create(f"t{number}", above=0, step=1, limit=100, order="trend", description="", timeout=5)
    filling.close()
    with Terminal("--store", store, "doctor", "--json", out=tmp_path / "out") as terminal:
        assert terminal.ends() == 0
        assert "looking at tags" in terminal.text
        assert "100%" in terminal.text
    assert json.loads((tmp_path / "out").read_text())
