"""`issuer doctor` from outside: its report, its JSON, its exit codes."""

import json
import re
from collections.abc import Callable
from contextlib import closing, nullcontext

import pytest
from click.testing import CliRunner

from issuer.care.doctor import examination
from issuer.cli import main
from issuer.cli.commands import doctor
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.cli.conftest import Cli
from tests.cli.terminal import Terminal
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer

StartRedis = Callable[..., RedisServer]


@pytest.mark.covers("N.7")
def test_a_good_set_up_exits_0(direct: Cli, start_redis: StartRedis) -> None:
    server = start_redis(appendonly=True)
    ended = direct("--redis", server.url, "doctor")
    assert (ended.code, ended.err, ended.out.partition("\n")[0]) == (0, "", "OK")
    assert re.search(r"^0 problems, 0 recommendations, 0 not checked, \d\d ok$", ended.out, re.MULTILINE)
    ended = direct("--redis", server.url, "doctor", "--json")
    assert ended.code == 0
    assert {finding["level"] for finding in ended.json()} == {"ok"}


@pytest.mark.covers("N.7")
def test_what_weakens_the_promise_comes_first_and_exits_4(direct: Cli, start_redis: StartRedis) -> None:
    server = start_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    ended = direct("--redis", server.url, "doctor")
    assert (ended.code, ended.err) == (4, "")
    headings = re.findall("^(PROBLEMS|ADVICE|NOT CHECKED|OK)$", ended.out, re.MULTILINE)
    assert headings == ["PROBLEMS", "ADVICE", "OK"]
    first = ended.out.partition("ADVICE")[0]
    assert f"  redis-eviction  {server.url}\n  what  maxmemory-policy is allkeys-lru" in first
    assert "  why   When memory is short" in first
    assert "  do    Run CONFIG SET maxmemory-policy noeviction" in first
    assert "\n1 problem, 1 recommendation, 0 not checked, " in ended.out
    found = direct("--redis", server.url, "doctor", "--json")
    assert found.code == 4
    assert list(found.json()[0]) == ["check", "level", "subject", "what", "why", "remedy", "tag", "error"]
    assert [finding["check"] for finding in found.json() if finding["level"] == "weak"] == ["redis-eviction"]


def test_a_login_that_is_refused_exits_2_a_halt_4_and_a_server_that_is_away_5(
    direct: Cli, start_redis: StartRedis
) -> None:
    refused = direct("--redis", start_redis(password="right").url.replace("right", "wrong"), "doctor")
    assert (refused.code, "refuses the login" in refused.out, "wrong" in refused.out) == (2, True, False)
    direct("create", "orders")
    assert direct("halt", "orders", "--yes").code == 0
    halted = direct("doctor")
    assert (halted.code, "issuer recover orders" in halted.out) == (4, True)
    away = f"redis://127.0.0.1:{free_port()}"
    ended = direct("--redis", away, "doctor", "--json")
    assert (ended.code, ended.err) == (5, "")
    assert {each["check"]: each["error"] for each in ended.json()}["redis-reachable"] == "RedisUnavailable"
    both = direct("--redis", away, "--store", f"mongodb://127.0.0.1:{free_port()}/x", "--timeout", "0.3", "doctor")
    assert both.code == 5
    assert "redis-reachable" in both.out
    assert "store-reachable" in both.out


def cells(line: str) -> int:
    return sum(2 if ord(letter) >= 0x2E80 else 1 for letter in line)


@pytest.mark.live
def test_of_many_tags_some_are_shown_in_a_report_that_fits_the_terminal_and_json_has_all(
    direct: Cli, store: str
) -> None:
    with closing(open_store(store)) as filling:
        for name in ("订单" * 20, "o" * 60, *(f"t{number}" for number in range(28))):
            filling.create(name, TagSettings(above=90, step=1, limit=100, order="trend"), timeout=60)
    for columns in (60, 80, 132):
        with Terminal("--store", store, "doctor", columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ends() == 0
            assert "examining tags" in terminal.text
            report = terminal.text.rpartition("?25h")[2]  # below the bar
        assert "…" not in report
        for line in report.splitlines():
            # A word is never broken: somebody may want to copy it.
            assert cells(line) <= columns or max(cells(word) for word in line.split()) > columns - 12, line
    ended = direct("doctor")
    assert ended.out.count("\n  tag-limit  ") == 5
    assert "  and 25 more of tag-limit: --json has them\n" in ended.out
    assert [each["check"] for each in direct("doctor", "--json").json()].count("tag-limit") == 30


def test_tags_that_are_left_out_are_no_success(
    redis_proxy: FaultProxy, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis answers the checks of the server, and goes away between two pages of tags."""
    with closing(open_store(store)) as filling:
        for number in range(4):
            filling.create(f"t{number}", TagSettings(), timeout=60)
    monkeypatch.setattr(examination, "PAGE", 2)
    monkeypatch.setattr(doctor, "progress_bar", lambda _: nullcontext(lambda *_: redis_proxy.blackhole()))
    monkeypatch.setenv("ISSUER_REDIS_TIMEOUT", "0.5")
    options = ("--redis", redis_proxy.url, "--store", store, "--timeout", "60")
    ended = CliRunner().invoke(main, [*options, "doctor", "--json"])
    found = json.loads(ended.stdout)
    assert {each["level"] for each in found} <= {"ok", "advice", "unknown"}
    (told,) = [each for each in found if each["check"] == "tags-looked-at"]
    assert (ended.exit_code, told["error"], told["what"][:7]) == (5, "RedisUnavailable", "2 of 4 ")
