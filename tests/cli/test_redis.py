"""The commands that mean something else, or more, with a real Redis; `issuer keeper` as a service manager runs it."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.acting import actor
from issuer.gateway.commands import script
from issuer.threads import finished
from tests.cli.conftest import Cli, Start, empty_store
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

REPLID = 40


def test_show_tells_nothing_or_both_buffers_and_a_raised_start_holds_at_once(
    with_redis: Cli, redis_url: str, store: str
) -> None:
    assert with_redis("create", "orders", "--step", "100").err == "made orders: first number 1, step 100, strict\n"
    content = with_redis("inspect", "orders", "--json").json()
    fields = ["cur", "max", "mark", "next_cur", "next_max", "fence", "born"]
    assert list(content["redis"].items()) == [(field, None) for field in fields]
    assert "nothing drawn yet" in with_redis("inspect", "orders").out
    with_redis("next", "orders", "-n", "19")
    assert with_redis("next", "orders").out == "20\n"  # the mark
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as program:
        program.warm("orders")
    content = with_redis("inspect", "orders", "--json").json()
    state = content["redis"]
    assert [state[name] for name in fields[:5]] == [20, 100, 20, 100, 200]
    assert len(state["fence"]) == REPLID
    assert (content["remaining"], content["store"]["max"], "redis_error" in content) == (180, 200, False)
    shown = with_redis("inspect", "orders").out
    for said in ("21..100, 80 left", "101..200, 100 left", "lease        none: the tag is strict\n"):
        assert said in shown
    assert with_redis("configure", "orders", "--start", "5000", "--yes").code == 0
    assert with_redis("next", "orders").out == "5000\n"
    with_redis("configure", "orders", "--above", "10", "--yes")
    assert with_redis("next", "orders").out == "5001\n"


def test_each_command_of_an_operator_is_in_the_chronicle(with_redis: Cli, redis_url: str) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("configure", "orders", "--step", "500")
    with_redis("halt", "orders", "--yes")
    with_redis("recover", "orders", "--dry-run")
    with_redis("recover", "orders", "--yes")
    with_redis("next", "orders")
    with_redis("delete", "orders", "--yes")
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        found = finished(ids.engine.chronicle.read)
    acts = [(each.what, each.tag, each.change) for each in found.acts[::-1]]
    assert acts == [
        ("create", "orders", "step 100"),
        ("configure", "orders", "step 100 -> 500"),
        ("halt", "orders", ""),
        ("recover", "orders", "max 0 -> 0"),
        ("delete", "orders", ""),
    ]
    assert {(each.who, each.origin) for each in found.acts} == {actor()}
    assert found.processes == []  # a command ends before its first sweep


def test_what_a_run_leaves_of_a_lease_comes_back(with_redis: Cli, redis_client: redis.Redis) -> None:
    made = with_redis("create", "orders", "--order", "trend", "--lease", "50")
    assert made.err == "made orders: first number 1, step 1000, trend, lease 50\n"
    assert with_redis("next", "orders", "-n", "2").out == "1\n2\n"
    assert redis_client.hget("issuer:{orders}", "cur") == b"2"
    assert with_redis("next", "orders").out == "3\n"
    strict = with_redis("create", "bills", "--lease", "5")
    assert (strict.code, "is strict" in strict.err) == (2, True)


def test_a_mistyped_store_is_given_no_number_of_the_right_one(
    with_redis: Cli, redis_client: redis.Redis, home: Path
) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("next", "orders", "-n", "5")
    hash = redis_client.hgetall("issuer:{orders}")
    mistyped = "--store", empty_store(home / "idz.db")
    for command in (
        "next orders",
        "next orders --key k",
        "peek orders",
        "create orders",
        "configure orders --above 9 --yes",
    ):
        ended = with_redis(*mistyped, *command.split())
        assert (ended.code, ended.out) == (2, "")
        assert "another store" in ended.err
        assert "issuer recover orders --at-least N" in ended.err
    assert json.loads(with_redis(*mistyped, "next", "orders", "--json").err)["error"] == "ForeignHash"
    assert with_redis(*mistyped, "tags", "--json").json() == []
    assert redis_client.hgetall("issuer:{orders}") == hash
    assert with_redis("next", "orders").out == "6\n"
    # As the message says: first above what that hash has held, then a prefix of its own.
    own = *mistyped, "--prefix", "b"
    assert with_redis(*own, "create", "orders", "--above", "100").code == 0
    found = with_redis(*mistyped, "doctor", "--json").json()
    finding = next(each for each in found if each["check"] == "tag-two-stores")
    assert "issuer --prefix NEW recover orders --at-least N" in finding["remedy"]
    assert with_redis(*own, "recover", "orders", "--at-least", "250", "--yes").code == 0
    assert with_redis(*own, "next", "orders").out == "251\n"


def test_garbage_in_redis_is_a_problem_that_recover_repairs(with_redis: Cli, redis_client: redis.Redis) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders")
    for field, garbage in (("cur", "1.5"), ("store", "garbage")):
        redis_client.hset("issuer:{orders}", field, garbage)
        for command in ("next orders", "configure orders --above 50 --yes"):
            ended = with_redis(*command.split())
            assert (ended.code, ended.out, "issuer recover orders" in ended.err) == (4, "", True)
        assert with_redis("inspect", "orders").code == (4 if field == "cur" else 0)
        assert ("not the id of a store" in with_redis("verify", "orders").out) == (field == "store")
        assert with_redis("recover", "orders", "--at-least", "5000", "--yes").code == 0
    assert with_redis("next", "orders").out == "5001\n"


@pytest.mark.parametrize("options", [(), ("--json",), ("--json-lines",)])
def test_tags_whose_usage_is_not_shown_have_an_exit_code(
    with_redis: Cli, redis_client: redis.Redis, options: tuple[str, ...]
) -> None:
    with_redis("create", "orders")
    with_redis("create", "users")
    with_redis("next", "orders")
    assert with_redis("tags", "--usage", *options).code == 0
    nowhere = with_redis("--redis", "redis://127.0.0.1:1", "tags", "--usage", *options)
    assert (nowhere.code, "users" in nowhere.out, nowhere.err.count("error: ")) == (5, True, 1)
    redis_client.hset("issuer:{orders}", "cur", "garbage")
    damaged = with_redis("tags", "--usage", *options)
    assert (damaged.code, "users" in damaged.out, "issuer recover orders" in damaged.err) == (4, True, True)


@pytest.mark.covers("N.6")
def test_recover_skips_what_the_buffers_hold(with_redis: Cli) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("next", "orders", "-n", "120")
    seen = with_redis("inspect", "orders", "--json").json()
    top = seen["store"]["max"]
    for gap in (seen["remaining"], 0):
        (each,) = with_redis("recover", "orders", "--yes", "--json").json()
        assert each == {"tag": "orders", "old": top, "new": top, "gap": gap}
    assert with_redis("next", "orders").out == f"{top + 1}\n"


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


@pytest.mark.live
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


@pytest.mark.live
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


@pytest.mark.live
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
