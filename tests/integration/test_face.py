"""The Python face, on the fake server and the memory store: what each call returns, refuses and leaves alone."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import issuer
from issuer import Issuer
from persistence.memory import MemoryStore
from tests.servers.fake import FencedFakeServer

LAST = 2**63 - 1


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ids(fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[Issuer]:
    with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as made:
        yield made


@pytest.fixture
def direct() -> Iterator[Issuer]:
    with issuer.connect(redis=None, store="memory://", scheduler=None) as made:
        yield made


@pytest.mark.covers("0.13", "3.4", "0.23")
def test_start_is_the_first_number_issued(ids: Issuer) -> None:
    assert ids.create("a", start=100).max == 99
    assert [ids.next("a"), ids.next("a")] == [100, 101]


@pytest.mark.covers("U.15", "0.13")
def test_above_is_the_number_before_the_first(ids: Issuer) -> None:
    ids.create("a", above=123_456)
    assert ids.next("a") == 123_457


@pytest.mark.covers("1.6")
def test_a_tag_without_settings_gets_the_documented_defaults(ids: Issuer) -> None:
    tag = ids.create("a")
    assert (tag.max, tag.step, tag.limit, tag.order, tag.description) == (0, 1000, LAST, "strict", "")
    assert ids.create("b", step="auto").step == 1000


@pytest.mark.covers("1.5", "4.20")
def test_a_tag_can_be_made_once_only(ids: Issuer) -> None:
    ids.create("a", description="orders of the shop", step=7)
    with pytest.raises(issuer.TagExists) as error:
        ids.create("a", step=8)
    assert error.value.tag == "a"
    seen = ids.inspect("a")
    assert (seen.store.step, seen.description) == (7, "orders of the shop")
    assert seen.store.created <= seen.store.timestamp


@pytest.mark.covers("U.1")
def test_take_returns_exactly_n_increasing_numbers_over_segment_borders(ids: Issuer) -> None:
    ids.create("a", step=1000)
    numbers = ids.take("a", 2500)
    assert numbers == list(range(1, 2501))
    assert ids.next("a") == 2501


@pytest.mark.covers("U.2")
def test_reserve_returns_one_contiguous_range_that_nobody_else_gets(ids: Issuer) -> None:
    ids.create("bulk", order="trend", step=10)
    ranges = [ids.reserve("bulk", 500), ids.reserve("bulk", 1)]
    assert ranges == [range(1, 501), range(501, 502)]
    assert ids.next("bulk") == 502


def test_reserve_refuses_a_strict_tag_and_changes_nothing(ids: Issuer) -> None:
    ids.create("a")
    with pytest.raises(issuer.InvalidArgument, match="strict"):
        ids.reserve("a", 5)
    assert ids.inspect("a").store.max == 0


@pytest.mark.covers("1.8", "2.5", "4.12")
@pytest.mark.parametrize(
    "call",
    [
        lambda ids: ids.next("nope"),
        lambda ids: ids.take("nope", 3),
        lambda ids: ids.reserve("nope", 3),
        lambda ids: ids.warm("nope"),
        lambda ids: ids.inspect("nope"),
        lambda ids: ids.configure("nope", step=3),
        lambda ids: ids.delete("nope"),
        lambda ids: ids.recover("nope"),
        lambda ids: ids.verify("nope"),
        lambda ids: ids.who("nope", 1),
        lambda ids: ids.halt("nope"),
    ],
)
def test_an_unknown_tag_is_told_and_leaves_nothing_behind(
    call: Callable[[Issuer], object], ids: Issuer, direct: Issuer, fake_server: FencedFakeServer
) -> None:
    for one in (ids, direct):
        with pytest.raises(issuer.UnknownTag) as error:
            call(one)
        assert isinstance(error.value, LookupError)
        assert error.value.tag == "nope"
        assert one.tags() == []
        assert one._roster.lines == {}
    with fake_server.client() as client:
        assert client.keys() == []


BAD_CALLS: list[Callable[[Any], Any]] = [
    lambda ids: ids.next(""),
    lambda ids: ids.next("x" * 201),
    lambda ids: ids.next("é" * 101),
    lambda ids: ids.next("a\nb"),
    lambda ids: ids.next("a\x00"),
    lambda ids: ids.next(7),
    lambda ids: ids.next(["a"]),
    lambda ids: ids.next("a", timeout=-1),
    lambda ids: ids.next("a", timeout=float("nan")),
    lambda ids: ids.next("a", timeout="1"),
    lambda ids: ids.next("a", timeout=True),
    lambda ids: ids.take("a", 0),
    lambda ids: ids.take("a", -1),
    lambda ids: ids.take("a", 1_000_001),
    lambda ids: ids.take("a", True),
    lambda ids: ids.take("a", 2.0),
    lambda ids: ids.take("a", "2"),
    lambda ids: ids.reserve("t", 0),
    lambda ids: ids.reserve("t", 2**63),
    lambda ids: ids.create("b", start=0),
    lambda ids: ids.create("b", start=11, limit=10),
    lambda ids: ids.create("b", above=-1),
    lambda ids: ids.create("b", above=10, limit=10),
    lambda ids: ids.create("b", start=1, above=0),
    lambda ids: ids.create("b", step=0),
    lambda ids: ids.create("b", step=-5),
    lambda ids: ids.create("b", step=1.5),
    lambda ids: ids.create("b", step=True),
    lambda ids: ids.create("b", step="many"),
    lambda ids: ids.create("b", limit=0),
    lambda ids: ids.create("b", limit=2**63),
    lambda ids: ids.create("b", order="weak"),
    lambda ids: ids.create("b", description=7),
    lambda ids: ids.create("b", description="\udcff"),
    lambda ids: ids.create("b", description="x" * 1001),
    lambda ids: ids.configure("a", description="a\x1b[2J"),
    lambda ids: ids.configure("a"),
    lambda ids: ids.configure("a", step=0),
    lambda ids: ids.configure("a", limit=2),
    lambda ids: ids.configure("a", start=1, above=1),
    lambda ids: ids.recover(at_least=5),
    lambda ids: ids.recover("a", at_least=-1),
]


@pytest.mark.parametrize("number", range(len(BAD_CALLS)))
def test_bad_input_is_refused_and_changes_nothing(number: int, ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    ids.create("t", step=10, order="trend")
    ids.next("a")
    with fake_server.client() as client:
        before = ids.tags(), client.hgetall("issuer:{a}"), client.keys()
        with pytest.raises(issuer.InvalidArgument) as error:
            BAD_CALLS[number](ids)
        assert isinstance(error.value, ValueError)
        assert (ids.tags(), client.hgetall("issuer:{a}"), client.keys()) == before
    assert ids.next("a") == 2


@pytest.mark.covers("U.5", "1.9")
def test_a_changed_step_holds_from_the_next_reservation_on_every_process(
    ids: Issuer, fake_server: FencedFakeServer, store: MemoryStore
) -> None:
    ids.create("a", step=10)
    with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as other:
        assert other.take("a", 10)[-1] == 10
        assert ids.configure("a", step=100).step == 100
        assert other.next("a") == 11
        assert other.inspect("a").store.max == 110
        assert other.inspect("a").redis.mark == 30  # type: ignore[union-attr]  # drawn from, so it is there


@pytest.mark.covers("U.5")
def test_start_and_above_only_raise_and_leave_a_floor(ids: Issuer) -> None:
    ids.create("a", step=1000)
    assert ids.next("a") == 1
    ids.configure("a", start=500)
    assert ids.next("a") == 500
    ids.configure("a", above=100)
    assert ids.next("a") == 501
    assert ids.configure("a", above=5000).max == 5000
    assert ids.next("a") == 5001


@pytest.mark.covers("U.5", "4.11")
def test_a_limit_below_max_is_refused_and_one_above_reopens_the_tag(ids: Issuer) -> None:
    ids.create("a", step=10, limit=15)
    assert ids.take("a", 15)[-1] == 15
    with pytest.raises(issuer.LimitReached) as error:
        ids.next("a")
    assert (error.value.tag, error.value.limit, error.value.value) == ("a", 15, 15)
    with pytest.raises(issuer.InvalidArgument):
        ids.configure("a", limit=14)
    ids.configure("a", limit=16)
    assert ids.next("a") == 16


@pytest.mark.covers("U.10", "4.17")
def test_a_retired_tag_comes_back_above_every_earlier_number(ids: Issuer) -> None:
    ids.create("a", step=10)
    last = ids.take("a", 25)[-1]
    ids.delete("a")
    for call in (ids.next, ids.inspect, ids.delete):
        with pytest.raises(issuer.UnknownTag):
            call("a")
    assert ids.tags() == []
    again = ids.create("a", start=3)
    assert again.max >= last
    assert ids.next("a") > last


def test_a_delete_changes_nothing_while_redis_is_away(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    ids.next("a")
    fake_server.connected = False
    with pytest.raises(issuer.RedisUnavailable):
        ids.delete("a", timeout=0.1)
    fake_server.connected = True
    assert ids.next("a") == 2
    ids.delete("a")


def test_deleting_again_floors_a_hash_that_was_not_reached(fake_server: FencedFakeServer) -> None:
    class Cutting(MemoryStore):
        def delete(self, tag: str, *, timeout: float) -> issuer.Tag:
            fake_server.connected = False
            return super().delete(tag, timeout=timeout)

    with issuer.connect(redis=fake_server.client(), store=Cutting(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.next("a")
        with pytest.raises(issuer.RedisUnavailable):
            ids.delete("a", timeout=0.1)
        fake_server.connected = True
        assert ids.next("a") == 2  # the hash was not reached
        ids._terms.store.__class__ = MemoryStore
        with pytest.raises(issuer.UnknownTag):
            ids.delete("a")
        with pytest.raises(issuer.UnknownTag):
            ids.next("a")


@pytest.mark.parametrize(
    "error",
    [
        issuer.UnknownTag("a"),
        issuer.LimitReached("a", limit=7, value=6),
        issuer.StoreBehind("a", max=5, taken=9),
        issuer.StoreUnavailable("away", tag="a", retry_after=2.5),
        issuer.InvalidArgument("no", tag="a", value=-1),
    ],
)
def test_errors_survive_pickling(error: issuer.IssuerError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.covers("1.7")
def test_after_warm_the_first_number_needs_no_store(ids: Issuer, store: MemoryStore) -> None:
    ids.create("a")
    ids.warm("a")
    asked: list[str] = []
    store.__class__ = type("Watched", (MemoryStore,), {"__getattribute__": _noting(asked)})
    assert ids.next("a") == 1
    assert asked == []


def _noting(asked: list[str]) -> Callable[[Any, str], Any]:
    def look(self: Any, name: str) -> Any:
        asked.append(name)
        return object.__getattribute__(self, name)

    return look


def test_inspect_shows_both_buffers_and_changes_nothing(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    seen = ids.inspect("a")
    assert seen.redis == issuer.RedisState(None, None, None, None, None, None, None)
    assert (seen.remaining, seen.rate, seen.runway) == (0, None, None)
    ids.take("a", 3)
    assert ids.tick() == 1
    seen = ids.inspect("a")
    assert seen.redis is not None
    assert (seen.redis.cur, seen.redis.max, seen.redis.mark) == (3, 10, 2)
    assert (seen.redis.next_cur, seen.redis.next_max) == (10, 20)
    assert seen.redis.fence == fake_server.master_replid
    assert seen.remaining == 17
    assert seen.store.max == 20


def test_tick_loads_what_is_due_and_counts_it(ids: Issuer) -> None:
    ids.create("a", step=10)
    ids.create("b", step=10)
    assert ids.tick() == 0
    ids.take("a", 2)
    ids.take("b", 1)
    assert ids.tick() == 1
    assert ids.tick() == 0


@pytest.mark.covers("0.5", "2.1")
def test_tags_have_unbroken_runs_of_their_own(ids: Issuer) -> None:
    for tag in ("a", "b", "{a}", "a b", "名"):
        ids.create(tag, step=3)
    runs = [[ids.next(tag) for tag in ("a", "b", "{a}", "a b", "名")] for _ in range(10)]
    assert runs == [[number] * 5 for number in range(1, 11)]


def test_without_redis_every_tag_is_trend(direct: Issuer) -> None:
    assert direct.create("a").order == "trend"
    with pytest.raises(issuer.ConfigurationError, match="Redis"):
        direct.create("b", order="strict")
    assert [tag.tag for tag in direct.tags()] == ["a"]


def test_a_strict_tag_is_not_served_without_redis(ids: Issuer, store: MemoryStore) -> None:
    ids.create("a")
    with issuer.connect(redis=None, store=store, scheduler=None) as without:
        with pytest.raises(issuer.ConfigurationError, match="strict"):
            without.next("a")
        assert without.inspect("a").store.max == 0
        assert without.inspect("a").redis is None


@pytest.mark.covers("U.4", "N.4", "0.12")
def test_the_unused_tail_is_handed_back_on_close() -> None:
    for expected in (1, 2, 3):
        with issuer.connect(redis=None, store="memory://tail", scheduler=None) as one:
            if expected == 1:
                one.create("a", step=1000)
            assert one.next("a") == expected


def test_two_held_segments_are_handed_back_in_one() -> None:
    store = MemoryStore()
    with issuer.connect(redis=None, store=store, scheduler=None) as one:
        one.create("a", step=10)
        one.take("a", 3)
        assert one.tick() == 1
        assert one.inspect("a").store.max == 20
    with issuer.connect(redis=None, store=store, scheduler=None) as two:
        assert two.inspect("a").store.max == 3
        assert two.next("a") == 4


def test_a_closed_issuer_says_so() -> None:
    one = issuer.connect(redis=None, store="memory://", scheduler=None)
    one.create("a")
    one.close()
    one.close()
    for call in (lambda: one.next("a"), one.tags, lambda: one.create("b")):
        with pytest.raises(issuer.IssuerError, match="closed"):
            call()


def test_a_store_and_a_client_that_were_passed_in_stay_open(fake_server: FencedFakeServer) -> None:
    client, store = fake_server.client(), MemoryStore()
    with issuer.connect(redis=client, store=store, scheduler=None) as one:
        one.create("a")
        one.next("a")
    assert client.ping()
    assert store.get("a", timeout=1) is not None
    client.close()


def test_redis_without_a_store_is_refused() -> None:
    with pytest.raises(issuer.ConfigurationError, match="no store"):
        issuer.connect(redis="redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    "settings",
    [
        {"redis": "http://x", "store": "memory://"},
        {"redis": 7, "store": "memory://"},
        {"redis": None, "store": "ftp://x"},
        {"redis": None, "store": 7},
        {"redis": None, "store": "memory://", "prefix": "a{b"},
        {"redis": None, "store": "memory://", "timeout": -1},
        {"redis": None, "store": "memory://", "store_timeout": 0},
        {"redis": None, "store": "memory://", "redis_timeout": "soon"},
        {"redis": None, "store": "memory://", "scheduler": "cron"},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(issuer.ConfigurationError):
        issuer.connect(**settings)


def test_the_hash_of_another_store_is_refused(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=2)
    ids.take("a", 2)
    store = MemoryStore()
    store.create("a", above=0, step=2, limit=LAST, order="strict", description="", timeout=1)
    with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as stranger:
        for call in (stranger.next, stranger.create, stranger.recover, stranger.delete):
            with pytest.raises(issuer.ForeignHash, match="another store"):
                call("a")
    assert ids.next("a") == 3


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("field", ["cur", "max", "mark"])
@pytest.mark.parametrize("garbage", ["", "x", "1.5", '"7"', " 7", "-1", "9" * 20, str(2**63)])
def test_garbage_in_the_hash_is_refused_and_recover_repairs_it(
    ids: Issuer, fake_server: FencedFakeServer, field: str, garbage: str
) -> None:
    ids.create("a", step=10)
    last = ids.take("a", 5)[-1]
    with fake_server.client() as client:
        client.hset("issuer:{a}", field, garbage)
        before = client.hgetall("issuer:{a}")
        with pytest.raises(issuer.CorruptState, match="recover"):
            ids.next("a")
        assert client.hgetall("issuer:{a}") == before
    assert ids.recover("a")[0].new >= 10
    assert ids.next("a") > last


def test_a_key_of_another_type_is_refused(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    with fake_server.client() as client:
        client.set("issuer:{a}", "7")
        for call in (ids.next, ids.inspect, ids.recover, ids.warm):
            with pytest.raises(issuer.CorruptState):
                call("a")
        assert client.get("issuer:{a}") == b"7"


def test_a_server_that_denies_info_is_refused(fake_server: FencedFakeServer) -> None:
    fake_server.info_denied = True
    with issuer.connect(redis=fake_server.client(), store="memory://", scheduler=None) as ids:
        ids.create("a")
        with pytest.raises(issuer.FenceError, match=r"\+info"):
            ids.next("a")


def test_a_server_that_is_no_master_is_refused(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a")
    fake_server.role = "slave"
    with pytest.raises(issuer.FenceError, match="master"):
        ids.next("a")
    fake_server.role = "master"
    assert ids.next("a") == 1
    # It was one: this is a failover, and waited for.
    fake_server.role = "slave"
    with pytest.raises(issuer.RedisUnavailable, match="master"):
        ids.next("a", timeout=0.2)
    fake_server.role = "master"
    assert ids.next("a") == 2


def test_a_server_that_is_too_old_is_refused() -> None:
    with issuer.connect(redis=FencedFakeServer(version=(6, 0)).client(), store="memory://", scheduler=None) as ids:
        ids.create("a")
        with pytest.raises(issuer.FenceError, match=r"6\.2"):
            ids.next("a")


def test_numbers_are_exact_above_2_to_53_and_end_at_2_to_63_minus_1(ids: Issuer) -> None:
    ids.create("a", above=2**53 - 2, step=3)
    assert ids.take("a", 6) == list(range(2**53 - 1, 2**53 + 5))
    ids.create("b", above=LAST - 3)
    assert ids.take("b", 3) == [LAST - 2, LAST - 1, LAST]
    with pytest.raises(issuer.LimitReached):
        ids.next("b")


@pytest.mark.covers("U.1")
def test_a_take_that_fails_part_way_tells_what_it_had_drawn(ids: Issuer) -> None:
    ids.create("few", limit=3)
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert caught.value.drawn == [1, 2, 3]
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert list(caught.value.drawn) == []
