"""`issuer keeper`, as a service manager runs it."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.e2e.conftest import Cli, Start
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def servers(redis_url: str, store: str) -> tuple[str, ...]:
    return ("--redis", redis_url, "--store", store)


@pytest.mark.covers("N.9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_only_draws_is_extended_until_a_signal_stops_the_keeper(
    with_redis: Cli, start: Start, servers: tuple[str, ...], redis_client: redis.Redis, number: signal.Signals
) -> None:
    def state() -> dict[str, Any]:
        return dict(with_redis("show", "orders", "--json").json()["redis"])

    with_redis("create", "orders", "--step", "100")
    keeper = start(*servers, "keeper", stderr=subprocess.PIPE)
    until(lambda: state()["max"] == 100, message="a first segment, which nobody asked for")
    draw = redis_client.register_script(with_redis("lua", "next").out)
    assert draw(keys=["issuer:{orders}"], args=[30, -1]) == [b"ok", b"0", b"30"]
    until(lambda: state()["next_max"] == 200, message="the next one, past the mark")
    keeper.send_signal(number)
    out, talk = keeper.communicate(timeout=10)
    assert (keeper.returncode, out) == (0, "")
    assert "keeping 1 tag of sqlite:///" in talk
    assert "segment 101..200 loaded at number 30" in talk
    assert talk.splitlines()[-1].endswith("stopped")
    assert with_redis("next", "orders").out == "31\n"


def test_a_tag_made_while_it_runs_is_kept_as_well(
    with_redis: Cli, start: Start, home: Path, servers: tuple[str, ...]
) -> None:
    with_redis("tags")
    start(*servers, "keeper")
    until(lambda: "keeping 0 tags" in (home / "talk").read_text(), message="it runs")
    with_redis("create", "late", "--step", "50")
    until(lambda: with_redis("show", "late", "--json").json()["redis"]["max"] == 50, 10, "it has a segment")
    assert "new tag late" in (home / "talk").read_text()


def test_a_tag_whose_key_the_keeper_lacks_is_told_once_and_keeps_none_of_the_others_waiting(
    with_redis: Cli, start: Start, home: Path, servers: tuple[str, ...]
) -> None:
    def scrambled(tag: str) -> None:
        env = {"ISSUER_KEYS": "k1=0123456789abcdef"}
        assert with_redis("create", tag, "--order", "trend", "--scramble", "k1", env=env).code == 0

    def talk() -> str:
        return (home / "talk").read_text()

    scrambled("before")
    with_redis("create", "orders", "--step", "50")
    start(*servers, "keeper")
    until(lambda: "'orders': segment 1..50 loaded" in talk(), 10, "the other one has a segment")
    scrambled("between")
    with_redis("create", "late", "--step", "70")
    until(lambda: "'late': segment 1..70 loaded" in talk(), 10, "one made later, too")
    scrambled("last")
    until(lambda: "new tag last" in talk(), 10, "it looks around for a while")
    until(lambda: "tag 'last': sweep: scramble: this process has no key 'k1'" in talk(), 10, "what keeps it waiting")
    assert [talk().count(f"tag '{tag}': sweep: scramble") for tag in ("before", "between", "last")] == [1, 1, 1]


def test_a_redis_that_goes_away_is_waited_for(
    cli: Cli, start: Start, home: Path, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    cli("--store", store, "create", "seed")
    cli("--redis", server.url, "--store", store, "create", "orders", "--step", "100")
    keeper = start("--redis", server.url, "--store", store, "keeper")
    until(lambda: "1..100 loaded" in (home / "talk").read_text(), message="a segment")
    server.kill()
    until(lambda: "trying again" in (home / "talk").read_text(), 10, "it says so")
    assert keeper.poll() is None
    server.start()
    until(lambda: "all is well" in (home / "talk").read_text(), 10, "it goes on")
    until(lambda: "101..200 loaded" in (home / "talk").read_text(), 10, "the empty Redis gets numbers above")
    keeper.terminate()
    assert keeper.wait(10) == 0


def test_servers_that_are_not_there_yet_are_waited_for(
    cli: Cli, start: Start, home: Path, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    cli("--redis", server.url, "--store", store, "create", "orders", "--step", "100")
    server.kill()
    keeper = start("--redis", server.url, "--store", store, "keeper")
    until(lambda: "trying again" in (home / "talk").read_text(), 10, "it says so")
    assert keeper.poll() is None
    server.start()
    until(lambda: "1..100 loaded" in (home / "talk").read_text(), 10, "a segment")
    keeper.terminate()
    assert keeper.wait(10) == 0


def test_what_waiting_does_not_help_ends_it(cli: Cli, start: Start, home: Path, store: str) -> None:
    cli("--store", store, "create", "orders")
    url = f"redis://127.0.0.1:{free_port()}/0?no_such_parameter=1"
    assert start("--redis", url, "--store", store, "keeper").wait(10) == 2
    assert "error: " in (home / "talk").read_text()
