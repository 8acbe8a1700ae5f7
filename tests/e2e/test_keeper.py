"""`issuer keeper`, as a service manager runs it."""

import signal
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
def servers(redis_url: str, store: str) -> dict[str, str]:
    return {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}


@pytest.mark.covers("N.9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_only_draws_is_extended_until_a_signal_stops_the_keeper(
    with_redis: Cli, start: Start, servers: dict[str, str], redis_client: redis.Redis, number: signal.Signals
) -> None:
    def state() -> dict[str, Any]:
        return dict(with_redis("show", "orders", "--json").json()["redis"])

    with_redis("create", "orders", "--step", "100")
    keeper = start("keeper", env=servers)
    until(lambda: state()["max"] == 100, message="a first segment, which nobody asked for")
    draw = redis_client.register_script(with_redis("lua", "next").out)
    assert draw(keys=["issuer:{orders}"], args=[30, -1]) == [b"ok", b"0", b"30"]
    until(lambda: state()["next_max"] == 200, message="the next one, past the mark")
    keeper.send_signal(number)
    assert (keeper.wait(60), keeper.communicate()[0]) == (0, "")
    talk = Path("talk").read_text()
    assert "keeping 1 tag of sqlite:///" in talk
    assert "segment 101..200 loaded at number 30" in talk
    assert talk.splitlines()[-1].endswith("stopped")
    assert with_redis("next", "orders").out == "31\n"


def test_a_tag_whose_key_the_keeper_lacks_is_told_once_and_keeps_none_of_the_others_waiting(
    with_redis: Cli, start: Start, home: Path, servers: dict[str, str]
) -> None:
    def scrambled(tag: str) -> None:
        env = {"ISSUER_KEYS": "k1=0123456789abcdef"}
        assert with_redis("create", tag, "--order", "trend", "--scramble", "k1", env=env).code == 0

    def talk() -> str:
        return (home / "talk").read_text()

    scrambled("before")
    with_redis("create", "orders", "--step", "50")
    start("keeper", env=servers)
    until(lambda: "'orders': segment 1..50 loaded" in talk(), message="the other one has a segment")
    scrambled("between")
    with_redis("create", "late", "--step", "70")
    until(lambda: "'late': segment 1..70 loaded" in talk(), message="one made later, too")
    scrambled("last")
    until(lambda: "new tag last" in talk(), message="it looks around for a while")
    until(
        lambda: "tag 'last': sweep: scramble: this process has no key 'k1'" in talk(), message="what keeps it waiting"
    )
    assert [talk().count(f"tag '{tag}': sweep: scramble") for tag in ("before", "between", "last")] == [1, 1, 1]


def test_servers_that_are_not_there_yet_or_go_away_are_waited_for(
    cli: Cli, start: Start, home: Path, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    def told(text: str, times: int = 1) -> None:
        until(lambda: (home / "talk").read_text().count(text) >= times, message=text)

    server = start_redis()
    cli("--redis", server.url, "--store", store, "create", "orders", "--step", "100")
    server.kill()
    keeper = start("--redis", server.url, "--store", store, "keeper")
    told("trying again")
    server.start()
    told("1..100 loaded")
    told("all is well")
    before = (home / "talk").read_text().count("trying again")
    server.kill()
    told("trying again", before + 1)
    assert keeper.poll() is None
    server.start()
    told("all is well", 2)
    told("101..200 loaded")  # the empty Redis gets numbers above
    keeper.terminate()
    assert keeper.wait(60) == 0


def test_what_waiting_does_not_help_ends_it(cli: Cli, start: Start, home: Path, store: str) -> None:
    cli("--store", store, "create", "orders")
    url = f"redis://127.0.0.1:{free_port()}/0?no_such_parameter=1"
    assert start("--redis", url, "--store", store, "keeper").wait(60) == 2
    assert "error: " in (home / "talk").read_text()
