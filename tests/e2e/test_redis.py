"""The commands that mean something else, or more, with a real Redis."""

import json
from pathlib import Path

import pytest
import redis

import issuer
from tests.e2e.conftest import Cli, empty_store
from tests.lua.hashes import OTHER_STORE

REPLID = 40


def test_numbers_go_on_from_run_to_run_without_a_gap(with_redis: Cli) -> None:
    assert with_redis("create", "orders").err == "made orders: first number 1, step 1000, strict\n"
    assert with_redis("next", "orders", "-n", "3").out == "1\n2\n3\n"
    assert with_redis("next", "orders", "--json").json() == [4]


def test_a_lease_moves_redis_ahead_and_what_a_run_leaves_of_it_comes_back(
    with_redis: Cli, redis_client: redis.Redis, redis_url: str, store: str
) -> None:
    made = with_redis("create", "orders", "--order", "trend", "--lease", "50")
    assert made.err == "made orders: first number 1, step 1000, trend, lease 50\n"
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as program:
        assert program.next("orders") == 1
        assert redis_client.hget("issuer:{orders}", "cur") == b"50"
    assert with_redis("next", "orders", "-n", "2").out == "2\n3\n"
    assert with_redis("set", "orders", "--lease", "0").err == "changed orders: max 1000, step 1000, lease 0\n"
    assert with_redis("show", "orders", "--json").json()["lease"] == 0
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as program:
        assert program.next("orders") == 4
        assert redis_client.hget("issuer:{orders}", "cur") == b"4"


def test_a_strict_tag_is_refused_a_lease(with_redis: Cli) -> None:
    assert with_redis("create", "orders").code == 0
    for command in (
        ["create", "new", "--lease", "5"],
        ["create", "new", "--order", "strict", "--lease", "5"],
        ["set", "orders", "--lease", "5"],
    ):
        ended = with_redis(*command)
        assert (ended.code, ended.out) == (2, "")
        assert "is strict" in ended.err
    assert [(tag["tag"], tag["lease"]) for tag in with_redis("tags", "--json").json()] == [("orders", None)]
    assert "lease        never: strict\n" in with_redis("show", "orders").out


def test_show_of_a_tag_that_was_never_drawn_from_has_an_object_of_nulls(with_redis: Cli) -> None:
    with_redis("create", "orders")
    content = with_redis("show", "orders", "--json").json()
    fields = ["cur", "max", "mark", "next_cur", "next_max", "fence", "born"]
    assert list(content["redis"].items()) == [(field, None) for field in fields]
    assert "nothing drawn yet" in with_redis("show", "orders").out


def test_show_tells_both_buffers_in_whole_numbers(with_redis: Cli, redis_url: str, store: str) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("next", "orders", "-n", "19")
    assert with_redis("next", "orders").out == "20\n"  # the mark
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as program:
        program.warm("orders")
    content = with_redis("show", "orders", "--json").json()
    state = content["redis"]
    assert (state["cur"], state["max"], state["mark"]) == (20, 100, 20)
    assert (state["next_cur"], state["next_max"]) == (100, 200)
    assert len(state["fence"]) == REPLID
    assert (content["remaining"], content["store"]["max"]) == (180, 200)
    assert all(type(state[name]) is int for name in ("cur", "max", "mark", "next_cur", "next_max"))
    assert "redis_error" not in content
    shown = with_redis("show", "orders").out
    assert "21..100, 80 left" in shown
    assert "101..200, 100 left" in shown


def test_a_raised_start_holds_in_redis_at_once(with_redis: Cli) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders")
    assert with_redis("set", "orders", "--start", "5000", "--yes").code == 0
    assert with_redis("next", "orders").out == "5000\n"
    with_redis("set", "orders", "--above", "10", "--yes")
    assert with_redis("next", "orders").out == "5001\n"


@pytest.mark.parametrize(("field", "garbage"), [("cur", "1.5"), ("store", ""), ("store", "garbage")])
def test_garbage_in_redis_is_a_problem_that_recover_repairs(
    with_redis: Cli, redis_client: redis.Redis, field: str, garbage: str
) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders")
    redis_client.hset("issuer:{orders}", field, garbage)
    looks = (["show", "orders"], ["show", "orders", "--json"]) if field == "cur" else ()
    for command in (["next", "orders"], ["set", "orders", "--above", "50", "--yes"], *looks):
        ended = with_redis(*command)
        assert (ended.code, ended.out) == (4, "")
        assert "issuer recover orders" in ended.err
    assert ("no store's id" in with_redis("verify", "orders").out) == (field == "store")
    assert with_redis("recover", "orders", "--at-least", "5000", "--yes").code == 0
    assert with_redis("next", "orders").out == "5001\n"


def test_recover_raises_nothing_above_another_stores_hash(with_redis: Cli, redis_client: redis.Redis) -> None:
    with_redis("create", "orders")
    redis_client.hset("issuer:{orders}", mapping={"store": OTHER_STORE, "cur": "9", "max": "9", "mark": "9"})
    before = with_redis("tags", "--json").json()
    for how in ("--dry-run", "--yes"):
        ended = with_redis("recover", "orders", "--at-least", "5000", how)
        assert (ended.code, ended.out) == (2, "")
        assert "another store" in ended.err
    assert with_redis("tags", "--json").json() == before


def test_a_mistyped_store_is_given_no_number_of_the_right_one(
    with_redis: Cli, cli: Cli, redis_client: redis.Redis, redis_url: str, home: Path
) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("next", "orders", "-n", "5")
    hash = redis_client.hgetall("issuer:{orders}")
    mistyped = "--redis", redis_url, "--store", empty_store(home / "idz.db")
    for command in (["next", "orders"], ["next", "orders", "-n", "3"], ["next", "orders", "--key", "k"],
                    ["peek", "orders"], ["create", "orders"], ["set", "orders", "--above", "9", "--yes"]):  # fmt: skip
        ended = cli(*mistyped, *command)
        assert (ended.code, ended.out) == (2, "")
        assert "another store" in ended.err
        assert "issuer recover orders --at-least N" in ended.err
    assert json.loads(cli(*mistyped, "next", "orders", "--json").err)["error"] == "ForeignHash"
    assert cli(*mistyped, "tags", "--json").json() == []
    assert redis_client.hgetall("issuer:{orders}") == hash
    assert with_redis("next", "orders").out == "6\n"

    # As the message says: first above what that hash has held, then a prefix of its own.
    own = *mistyped, "--prefix", "b"
    assert cli(*own, "create", "orders", "--above", "100").code == 0
    finding = next(each for each in cli(*mistyped, "doctor", "--json").json() if each["check"] == "tag-two-stores")
    assert "issuer --prefix NEW recover orders --at-least N" in finding["remedy"]
    assert cli(*own, "recover", "orders", "--at-least", "250", "--yes").code == 0
    assert cli(*own, "next", "orders").out == "251\n"


def test_a_prefix_keeps_two_worlds_apart(with_redis: Cli, redis_client: redis.Redis) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders")
    assert int(with_redis("--prefix", "other", "next", "orders").out) > 1
    assert set(redis_client.keys()) == {b"issuer:{orders}", b"other:{orders}"}
