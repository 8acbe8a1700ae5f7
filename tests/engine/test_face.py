"""The Python face, on the fake server and the memory store: what each call returns, refuses and leaves alone.

What the core decides is shown by threads; what each face does by itself, by threads and by tasks.
"""

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

import issuer
from issuer import Issuer
from issuer.strategies import Instance
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]

LAST = 2**63 - 1


@pytest.fixture
def ids(make: Make) -> Issuer:
    return make()


@pytest.fixture
def direct(connect: Connect) -> Iterator[Issuer]:
    with connect(redis="none", store="memory://", scheduler=None) as made:
        yield made


@pytest.mark.covers("0.13", "3.4", "0.23", "U.15")
def test_start_is_the_first_number_issued_and_above_the_one_before_it(ids: Issuer) -> None:
    assert ids.create("a", start=100).max == 99
    assert [ids.next("a"), ids.next("a")] == [100, 101]
    ids.create("b", above=123_456)
    assert ids.next("b") == 123_457


@pytest.mark.covers("1.6", "4.20")
def test_a_tag_without_settings_gets_the_documented_defaults_and_shows_what_it_is(ids: Issuer) -> None:
    tag = ids.create("a", description="orders of the shop")
    assert (tag.max, tag.step, tag.limit, tag.order) == (0, 1000, LAST, "strict")
    assert (ids.create("b", step="auto").step, ids.create("c").description) == (1000, "")
    assert [ids.inspect(tag).store.step_mode for tag in ("b", "c")] == ["auto", "auto"]
    steps: list[int | Literal["auto"] | None] = [5, None, "auto", 9]
    changed = [ids.configure("b", step=step, description=str(step)) for step in steps]
    expected = [(5, "fixed"), (5, "fixed"), (1000, "auto"), (9, "fixed")]
    assert [(each.step, each.step_mode) for each in changed] == expected
    made = ids.inspect("a")
    assert (made.store.step, made.description, made.store.max) == (1000, "orders of the shop", 0)
    assert 0 < made.store.created <= made.store.timestamp
    assert ids.next("a") == 1
    used = ids.inspect("a").store
    assert (used.created, used.max) == (made.store.created, 1000), "one reservation, of the default step"
    assert used.timestamp >= made.store.timestamp


@BOTH
@pytest.mark.covers("1.5", "4.19")
def test_a_tag_can_be_made_once_only_and_making_it_again_changes_nothing(ids: Issuer) -> None:
    ids.create("a", description="orders of the shop", step=7)
    ids.next("a")
    before = ids.tags(), ids.inspect("a")
    with pytest.raises(issuer.TagExists) as error:
        ids.create("a", step=8, start=500, limit=1000, description="others")
    assert error.value.tag == "a"
    assert (ids.tags(), ids.inspect("a")) == before
    assert ids.next("a") == 2


@pytest.mark.covers("U.1")
def test_take_returns_exactly_n_increasing_numbers_over_segment_borders(ids: Issuer) -> None:
    ids.create("a", step=1000)
    numbers = ids.take("a", 2500)
    assert numbers == list(range(1, 2501))
    assert ids.next("a") == 2501


@pytest.mark.covers("U.2")
def test_reserve_returns_one_contiguous_range_that_nobody_else_gets(make: Make) -> None:
    ids, other = make(), make()
    ids.create("bulk", order="trend", step=10)
    ranges = [ids.reserve("bulk", 500), ids.reserve("bulk", 1)]
    assert ranges == [range(1, 501), range(501, 502)]
    assert ids.next("bulk") == 502
    with ThreadPoolExecutor(8) as pool:
        ranges = list(pool.map(lambda n: (ids, other)[n % 2].reserve("bulk", n), range(1, 41)))
    assert [(len(each), each.step) for each in ranges] == [(n, 1) for n in range(1, 41)]
    assert repeats(number for each in ranges for number in each) == []


CALLS: list[Callable[[Issuer], object]] = [
    lambda ids: ids.next("nope"),
    lambda ids: ids.take("nope", 3),
    lambda ids: ids.issue("nope"),
    lambda ids: ids.peek("nope"),
    lambda ids: ids.decode("nope", 3),
    lambda ids: ids.reserve("nope", 3),
    lambda ids: next(ids.stream("nope")),
    lambda ids: ids.warm("nope"),
    lambda ids: ids.inspect("nope"),
    lambda ids: ids.configure("nope", step=3),
    lambda ids: ids.delete("nope"),
    lambda ids: ids.recover("nope"),
    lambda ids: ids.verify("nope"),
    lambda ids: ids.who("nope", 1),
    lambda ids: ids.halt("nope"),
]


@BOTH
@pytest.mark.covers("1.8", "2.5", "4.12")
def test_an_unknown_tag_is_told_and_leaves_nothing_behind(
    ids: Issuer, direct: Issuer, fake_server: FencedFakeServer
) -> None:
    for number, call in enumerate(CALLS):
        for one in (ids, direct):
            with pytest.raises(issuer.UnknownTag) as error:
                call(one)
            assert isinstance(error.value, LookupError), number
            assert error.value.tag == "nope", number
            assert one.tags() == [], number
            assert one.engine.registry.combiners == {}, number
    with fake_server.client() as client:
        assert client.keys() == []


@BOTH
def test_a_closed_issuer_says_so_and_may_be_closed_twice(ids: Issuer, direct: Issuer) -> None:
    calls: list[Callable[[Issuer], object]] = [lambda ids: ids.tags(), lambda ids: ids.create("b"), *CALLS]
    for one in (ids, direct):
        one.create("nope")
        one.next("nope")
        one.close()
        one.close()
        assert one.closed
        for number, call in enumerate(calls):
            with pytest.raises(issuer.IssuerError, match="closed"):
                pytest.fail(f"call {number}: {call(one)}")


@BOTH
@pytest.mark.covers("4.12")
def test_another_application_another_shard_and_an_empty_tag_have_a_typed_error_each(ids: Issuer) -> None:
    ids.create("users", shards={"app": 17})
    ids.create("others", shards={"app": 18})
    ids.create("used up", limit=1)
    number = ids.next("others", shard_key="x")
    assert ids.next("used up") == 1
    before = ids.tags()
    with pytest.raises(issuer.NotDecodable, match="application 18, but tag 'users' to application 17"):
        ids.decode("users", number)
    with pytest.raises(issuer.SchemeError, match="app 256 doesn't fit into 8 bits"):
        ids.create("more", shards={"app": 256})
    with pytest.raises(issuer.UnknownTag, match="users#64"):
        ids.next("users#64")
    with pytest.raises(issuer.InvalidArgument, match="shard_key is required"):
        ids.next("users")
    with pytest.raises(issuer.LimitReached, match="1 of 1 are reserved"):
        ids.next("used up")
    assert ids.tags() == before


#: By what is called, the arguments that it refuses.
WRONG: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "next": [((tag,), {}) for tag in ("", "x" * 201, "é" * 101, "a\nb", "a\x00", 7, ["a"])]
    + [(("a",), {"timeout": timeout}) for timeout in (-1, float("nan"), "1", True)],
    "take": [(("a", n), {}) for n in (0, -1, 1_000_001, True, 2.0, "2")],
    "reserve": [(("t", 0), {}), (("t", 2**63), {}), (("a", 5), {})],  # a strict one
    "stream": [(("",), {}), (("a",), {"timeout": -1})],
    "create": [(("b",), {"step": step}) for step in (0, -5, 1.5, True, "many")]
    + [(("b",), {"description": text}) for text in (7, "\udcff", "x" * 1001)]
    + [(("b",), {"limit": limit}) for limit in (0, 2**63)]
    + [
        (("b",), said)
        for said in ({"start": 0}, {"above": -1}, {"start": 1, "above": 0}, {"order": "weak"}, {"ahead": 0})
    ]
    + [(("b",), {"limit": 10, **said}) for said in ({"start": 11}, {"above": 10})],
    "configure": [(("a",), {}), (("a",), {"description": "a\x1b[2J"})]
    + [(("a",), said) for said in ({"step": 0}, {"limit": 2}, {"start": 1, "above": 1}, {"ahead": 1001})],
    "recover": [((), {"at_least": 5}), (("a",), {"at_least": -1})],
}


def called(ids: Issuer, name: str, *arguments: Any, **options: Any) -> object:
    answer = getattr(ids, name)(*arguments, **options)
    return next(answer) if name == "stream" else answer


@BOTH
def test_bad_input_is_refused_and_changes_nothing(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    ids.create("t", step=10, order="trend")
    ids.next("a")
    with fake_server.client() as client:
        before = ids.tags(), client.hgetall("issuer:{a}"), client.keys()
        for name, (arguments, options) in ((name, call) for name, calls in WRONG.items() for call in calls):
            with pytest.raises(issuer.InvalidArgument) as error:
                pytest.fail(f"{name}{arguments} {options}: {called(ids, name, *arguments, **options)}")
            assert isinstance(error.value, ValueError)
            assert (ids.tags(), client.hgetall("issuer:{a}"), client.keys()) == before, (name, arguments, options)
    assert ids.next("a") == 2


@pytest.mark.covers("U.5", "1.9")
def test_a_changed_step_holds_from_the_next_reservation_on_every_process(make: Make) -> None:
    ids, other = make(), make()
    ids.create("a", step=10)
    assert other.take("a", 10)[-1] == 10
    assert ids.configure("a", step=100).step == 100
    assert other.next("a") == 11
    assert other.inspect("a").store.max == 110
    assert other.inspect("a").redis.mark == 30  # type: ignore[union-attr]  # drawn from, so it is there


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
        ids.delete("a")
    fake_server.connected = True
    assert ids.next("a") == 2
    ids.delete("a")


def test_deleting_again_floors_a_hash_that_was_not_reached(fake_server: FencedFakeServer) -> None:
    class Cutting(MemoryStore):
        def delete(self, tag: str, *, timeout: float) -> issuer.values.Tag:
            fake_server.connected = False
            return super().delete(tag, timeout=timeout)

    with issuer.connect(redis=fake_server.client(), store=Cutting(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.next("a")
        with pytest.raises(issuer.RedisUnavailable):
            ids.delete("a")
        fake_server.connected = True
        assert ids.next("a") == 2  # the hash was not reached
        ids.engine.config.store.__class__ = MemoryStore
        with pytest.raises(issuer.UnknownTag):
            ids.delete("a")
        with pytest.raises(issuer.UnknownTag):
            ids.next("a")


def test_errors_survive_pickling() -> None:
    for error in (
        issuer.UnknownTag("a"),
        issuer.LimitReached("a", limit=7, value=6),
        issuer.StoreBehind("a", max=5, taken=9),
        issuer.StoreUnavailable("away", tag="a", retry_after=2.5),
        issuer.InvalidArgument("no", tag="a", value=-1),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.covers("1.7")
def test_after_warm_the_first_number_needs_no_store(
    ids: Issuer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids.create("a")
    ids.warm("a")
    with monkeypatch.context() as away:
        for name in ("get", "reserve", "store_id"):
            away.setattr(store, name, None)
        assert ids.next("a") == 1


def test_inspect_shows_both_buffers_and_changes_nothing(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    seen = ids.inspect("a")
    assert seen.redis == issuer.values.RedisState(None, None, None, None, None, None, None)
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


@pytest.mark.covers("0.5", "2.1")
def test_tags_have_unbroken_runs_of_their_own(ids: Issuer) -> None:
    for tag in ("a", "b", "{a}", "a b", "名"):
        ids.create(tag, step=3)
    runs = [[ids.next(tag) for tag in ("a", "b", "{a}", "a b", "名")] for _ in range(10)]
    assert runs == [[number] * 5 for number in range(1, 11)]


def test_without_redis_every_tag_is_trend_and_a_strict_one_is_not_served(direct: Issuer, make: Make) -> None:
    assert direct.create("a").order == "trend"
    with pytest.raises(issuer.ConfigurationError, match="Redis"):
        direct.create("b", order="strict")
    assert [tag.tag for tag in direct.tags()] == ["a"]
    make().create("a")
    without = make(redis="none")
    with pytest.raises(issuer.ConfigurationError, match="strict"):
        without.next("a")
    assert without.inspect("a").store.max == 0
    assert without.inspect("a").redis is None


@BOTH
@pytest.mark.covers("U.4", "N.4", "0.12")
def test_the_unused_tail_is_handed_back_on_close_two_segments_in_one(connect: Connect) -> None:
    store = MemoryStore()
    for expected in (1, 4, 7):
        with connect(redis="none", store=store, scheduler=None) as one:
            if expected == 1:
                one.create("a", step=10)
            assert one.take("a", 3)[0] == expected
            assert one.tick() == 1
            assert store.get("a", timeout=10).max == expected + 19  # type: ignore[union-attr]  # made above
        assert store.get("a", timeout=10).max == expected + 2  # type: ignore[union-attr]  # a store passed in stays open


@BOTH
def test_settings_that_make_no_sense_are_refused_at_once(connect: Connect) -> None:
    for settings, why in (
        ({"redis": "redis://127.0.0.1:1/0"}, "no store"),
        ({"redis": "redis://127.0.0.1:1/0?protocol=3&foo=1"}, "parameter 2 of the URL"),
        ({"redis": 7}, "redis"),
        ({"redis": "redis+cluster://127.0.0.1:1/3"}, "database"),
        ({"store": 7}, "store"),
        ({"scheduler": "foreground"}, "scheduler"),
        ({"instance": 5}, "^instance must be "),
        ({"instance": Instance}, "^instance must be "),
        ({"keys": {"k1": b"short"}}, "^keys: key 'k1' is too short: 5 bytes of at least 16"),
    ):
        common: dict[str, Any] = {"redis": "none"} if why == "no store" else {"redis": "none", "store": "memory://"}
        with pytest.raises(issuer.ConfigurationError, match=why):
            pytest.fail(f"{settings}: {connect(**{**common, **settings})}")


def test_a_server_that_cannot_be_relied_on_is_refused(make: Make, fake_server: FencedFakeServer) -> None:
    make().create("a")
    denying, old = FencedFakeServer(), FencedFakeServer(version=(6, 0))
    denying.info_denied, fake_server.role = True, "slave"
    for server, why in ((denying, r"\+info"), (old, r"6\.2"), (fake_server, "master")):
        with pytest.raises(issuer.FenceError, match=why):
            make(redis=server.client()).next("a")


@BOTH
@pytest.mark.covers("U.1")
def test_a_take_that_fails_part_way_tells_what_it_had_drawn(ids: Issuer) -> None:
    ids.create("few", limit=3)
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert caught.value.drawn == [1, 2, 3]
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert list(caught.value.drawn) == []
