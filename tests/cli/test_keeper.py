"""`issuer keeper`, as a service manager runs it."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from issuer.gateway.commands import script
from tests.cli.conftest import Cli, Start
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

Told = Callable[..., str]


@pytest.fixture
def servers(redis_url: str, store: str) -> dict[str, str]:
    return {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}


@pytest.fixture
def told(home: Path) -> Told:
    """Wait until the keeper has said that, so often, and return all that it has said."""

    def read(text: str, times: int = 1) -> str:
        until(lambda: (home / "talk").read_text().count(text) >= times, message=text)
        return (home / "talk").read_text()

    return read


@pytest.mark.covers("N.9")
def test_a_client_that_only_draws_is_extended_until_a_signal_stops_the_keeper(
    with_redis: Cli, start: Start, servers: dict[str, str], redis_client: redis.Redis
) -> None:
    def state() -> dict[str, Any]:
        return dict(with_redis("inspect", "orders", "--json").json()["redis"])

    with_redis("create", "orders", "--step", "100")
    keeper = start("keeper", env=servers)
    until(lambda: "keeping all tags" in Path("talk").read_text())
    draw = redis_client.register_script(script("next").text)
    assert draw(keys=["issuer:{orders}"], args=[30, -1]) == [b"empty"]
    until(lambda: (state() or {}).get("max") == 100, message="a first segment")
    assert draw(keys=["issuer:{orders}"], args=[30, -1]) == [b"ok", b"0", b"30"]
    until(lambda: state()["next_max"] == 200, message="the next one, past the mark")
    keeper.send_signal(signal.SIGINT)
    assert (keeper.wait(60), keeper.communicate()[0]) == (0, "")
    talk = Path("talk").read_text()
    assert "keeping all tags of sqlite:///" in talk
    assert "segment 101..200 loaded at number 30" in talk
    assert talk.splitlines()[-1].endswith("stopped")
    assert with_redis("next", "orders").out == "31\n"


def test_a_tag_whose_key_the_keeper_lacks_is_told_once_and_keeps_none_of_the_others_waiting(
    with_redis: Cli, start: Start, told: Told, servers: dict[str, str], redis_client: redis.Redis
) -> None:
    draw = redis_client.register_script(script("next").text)

    def drawn(tag: str) -> None:
        assert draw(keys=[f"issuer:{{{tag}}}"], args=[1, -1]) == [b"empty"]

    def scrambled(tag: str) -> None:
        assert with_redis("create", tag, "--order", "trend", "--scramble", "k1").code == 0

    scrambled("before")
    with_redis("create", "orders", "--step", "50")
    start("keeper", env=servers)
    told("keeping all tags")
    drawn("before")
    drawn("orders")
    told("'orders': segment 1..50 loaded")
    with_redis("create", "late", "--step", "70")
    drawn("late")
    told("'late': segment 1..70 loaded")
    scrambled("last")
    drawn("last")
    problem = "background work failed: scramble: this process has no key 'k1'"
    told(f"tag 'before': {problem}")  # a sweep has no order of tags
    talk = told(f"tag 'last': {problem}")
    assert [talk.count(f"tag '{tag}': {problem}") for tag in ("before", "last")] == [1, 1]


def test_servers_that_are_not_there_yet_or_go_away_are_waited_for(
    direct: Cli, start: Start, told: Told, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    at = ("--redis", server.url)

    def draw() -> Any:
        with server.client() as client:
            draw = client.register_script(script("next").text)
            return draw(keys=["issuer:{orders}"], args=[1, -1])

    direct(*at, "create", "orders", "--step", "100")
    server.kill()
    keeper = start(*at, "--store", store, "keeper")
    told("trying again")
    server.start()
    before = told("all is well").count("trying again")
    assert draw() == [b"empty"]
    told("1..100 loaded")
    server.kill()
    told("trying again", before + 1)
    assert keeper.poll() is None
    server.start()
    told("all is well", 2)
    assert draw() in ([b"empty"], [b"ok", b"100", b"101"])  # a sweep may have found the empty Redis before
    told("101..200 loaded")  # the empty Redis gets numbers above
    keeper.terminate()
    assert keeper.wait(60) == 0
    # What waiting doesn't help ends it.
    url = f"redis://127.0.0.1:{free_port()}/0?no_such_parameter=1"
    assert start("--redis", url, "--store", store, "keeper").wait(60) == 2
    assert "error: " in told("parameter 1 of the URL")
