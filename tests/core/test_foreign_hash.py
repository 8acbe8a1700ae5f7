"""Two stores on one prefix: a hash that was armed for one gives the other's processes no number.

Store A issues 1..5 of "orders"; the processes under test are on store B.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import CorruptState, ForeignHash, Issuer
from issuer.core import record
from issuer.core.supply import mode as origin
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import Order, TagChanges, TagSettings, fresh_version
from tests.audit import repeats
from tests.colours import BOTH, COLOURS, Connect, covering
from tests.hanging import HangingStore
from tests.refusals import refused
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

KEY = "issuer:{orders}"

#: How a number is asked for, each way with a look of its own.
WAYS: dict[str, Callable[[Issuer], Any]] = {
    "next": lambda ids: ids.next("orders"),
    "next in time": lambda ids: ids.next("orders", timeout=30),
    "take": lambda ids: ids.take("orders", 3)[0],
    "issue": lambda ids: ids.issue("orders").value,
    "key": lambda ids: ids.next("orders", key="cart-7"),
    "stream": lambda ids: next(ids.stream("orders")),
    "peek": lambda ids: ids.peek("orders").value,
}

Mode = tuple[dict[str, Any], dict[str, Any]]

#: How the numbers come, as arguments of `connect` and of `create`.
MODES: dict[str, Mode] = {
    "strict": ({}, {"order": "strict"}),
    "trend": ({}, {"order": "trend"}),
    "leased": ({"lease": 20}, {"order": "trend"}),
}
in_modes = covering(
    "connect, mode", [("blocking", "strict"), ("asyncio", "trend"), ("blocking", "leased")], COLOURS, MODES
)


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Mode:
    return MODES[request.param]


@dataclass
class Scene:
    """A Redis, a client of it, and an issuer on store A that has issued 1..5."""

    connect: Connect
    url: str
    client: redis.Redis
    owner: Issuer

    def on(self, store: object, **settings: Any) -> Issuer:
        return self.connect(**{"redis": self.url, "store": store, **settings})

    @property
    def hash(self) -> Any:
        return self.client.hgetall(KEY)

    def empty(self) -> None:
        self.client.delete(KEY)

    def taken_over(self) -> None:
        """Put a third store's hash in the place of what is there, in one step: nobody can arm it in between."""
        with issuer.connect(redis=self.url, store=MemoryStore(), prefix="third", scheduler=None) as ids:
            ids.create("orders", step=1_000_000)
            ids.next("orders")
        self.client.rename("third:{orders}", KEY)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> HangingStore:
    """A store that can hang. A first draw waits for it no longer than outside of tests."""
    for name in ("PATIENCE", "PATIENCE_ALONE"):
        monkeypatch.setattr(origin, name, getattr(record, name))
    return HangingStore()


@pytest.fixture
def scene(connect: Connect, redis_client: redis.Redis, redis_url: str) -> Iterator[Scene]:
    with issuer.connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("orders", step=100)
        assert ids.take("orders", 5) == [1, 2, 3, 4, 5]
        yield Scene(connect, redis_url, redis_client, ids)


def made_in(store: MemoryStore, order: Order = "trend") -> MemoryStore:
    """Make the tag in that store, as under a prefix of its own."""
    store.create("orders", TagSettings(step=100, order=order), timeout=10)
    return store


def _refused(ids: Issuer) -> ForeignHash | None:
    try:
        ids.next("orders")
    except ForeignHash as error:
        return error
    return None


def found_out(ids: Issuer) -> None:
    until(lambda: _refused(ids), message="the sweep has found out")


@BOTH
@pytest.mark.parametrize("order", ["strict", "trend", None])
def test_the_first_draw_is_refused_and_changes_nothing(scene: Scene, order: Order | None) -> None:
    store = MemoryStore() if order is None else made_in(MemoryStore(), order)
    hash, records = scene.hash, store.snapshot().tags
    for lease in (0, 20):
        for name, way in WAYS.items():
            with scene.on(store, lease=lease) as ids:
                for _ in range(2):
                    caught = refused(ForeignHash, "another store", way, ids)
                    error = caught
                    assert (error.tag, error.key, error.taken) == ("orders", KEY, 100), name
                    assert error.owner == hash[b"store"].decode()
                    assert error.store == store.store_id(timeout=10)
            assert (scene.hash, store.snapshot().tags) == (hash, records), (name, lease)
    assert scene.client.keys("issuer:{*") == [KEY.encode()]
    assert scene.owner.next("orders") == 6


@BOTH
def test_a_store_that_another_one_replaces_loads_no_segment(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a database's address leads to another server. The process has read the id long before."""
    store = MemoryStore()
    with scene.on(store, scheduler=None) as ids:
        ids.create("invoices", step=10)
        assert ids.take("invoices", 2) == [1, 2]
        store.configure("invoices", TagChanges(step=100, raise_to=5000), timeout=10)
        owner = store.store_id(timeout=10)
        monkeypatch.setattr(store, "_id", fresh_version())
        for _ in range(3):
            caught = refused(ForeignHash, "another store", ids.take, "invoices", 100)
            assert (caught.owner, caught.store) == (owner, store.store_id(timeout=10))
    assert store.snapshot().tags["invoices"].max == 5092, "one reservation is a gap"


@BOTH
def test_a_store_that_is_empty_is_told_so_and_not_made(scene: Scene, tmp_path: Path) -> None:
    """It has no id yet, and is another one than the hash's all the same."""
    ways: dict[str, Callable[[Issuer], Any]] = {**WAYS, "create": lambda ids: ids.create("orders")}
    for name, way in ways.items():
        with scene.on(f"sqlite:///{tmp_path / 'empty' / 'ids.db'}") as ids:
            refused(ForeignHash, "this store is empty", way, ids)
            refused(issuer.UnknownTag, "", ids.peek, "users")
            assert (ids.tags(), ids.verify(), ids.recover(dry_run=True)) == ([], [], []), name
            assert "store-reachable" in {each.check for each in ids.doctor()}
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_made_while_its_hash_is_looked_at_is_no_other_one(scene: Scene, tmp_path: Path) -> None:
    """Two processes begin on a new store: the one asks for its id, and then the other one makes tag and hash."""
    store = open_store(f"sqlite:///{tmp_path / 'ids.db'}")
    scene.empty()
    ask = store.store_id

    def begin() -> int:
        with scene.on(f"sqlite:///{tmp_path / 'ids.db'}", scheduler=None) as other:
            other.create("orders")
            return other.next("orders")

    def overtaken(*, timeout: float) -> str:
        found = ask(timeout=timeout)
        assert found or pool.submit(begin).result() == 1  # not in this thread, which asks the same store
        return found

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool, scene.on(store, scheduler=None) as ids:
        patched.setattr(store, "store_id", overtaken)
        assert ids.next("orders") == 2


def test_warm_and_a_caller_without_time_are_refused_too(scene: Scene) -> None:
    with scene.on(MemoryStore(), scheduler=None) as ids:
        refused(ForeignHash, "", ids.warm, "orders")
        ids.create("other")
        ids.next("other")  # from now on the store's id is known
        with pytest.raises(ForeignHash):  # without time, Redis may not have answered by then
            until(lambda: ids.next("orders", timeout=0), 60, ignoring=(issuer.RedisUnavailable,))
    assert scene.owner.next("orders") == 6


def test_a_series_whose_hash_is_another_stores_is_refused_and_not_made(scene: Scene) -> None:
    store = MemoryStore()
    scene.owner.create("bills", keyed=True)
    scene.owner.issue("bills", restart_key="acme")
    with scene.on(store, scheduler=None) as ids:
        ids.create("bills", keyed=True)
        caught = refused(ForeignHash, "", ids.issue, "bills", restart_key="acme")
        assert caught.tag == "bills#acme"
        assert ids.issue("bills", restart_key="zeta").counter == 1
    assert set(store.snapshot().tags) == {"bills", "bills#zeta"}


def test_create_is_refused_and_makes_nothing(scene: Scene) -> None:
    scene.owner.create("users", shards={"app": 1})
    scene.owner.issue("users", shard_key="alice")
    hashes = {key: scene.client.hgetall(key) for key in scene.client.keys("issuer:{*")}
    store = MemoryStore()
    with scene.on(store, scheduler=None) as ids:
        asked: dict[str, dict[str, Any]] = {"orders": {}, "users": {"shards": {"app": 1}}}
        for name, settings in asked.items():
            caught = refused(ForeignHash, "", ids.create, name, **settings)
            assert str(caught.tag).partition("#")[0] == name
        assert store.snapshot().tags == {}
        assert {key: scene.client.hgetall(key) for key in hashes} == hashes
        assert ids.create("fresh").max == 0


CHANGES: list[Callable[[Issuer], object]] = [
    lambda ids: ids.configure("orders", start=500),
    lambda ids: ids.configure("orders", above=500),
    lambda ids: ids.configure("orders", format="B{seq:09d}"),
    lambda ids: ids.configure("orders", limit=10**6),
    lambda ids: ids.recover("orders", at_least=5000, dry_run=True),
    lambda ids: ids.recover("orders", at_least=5000),
]


def test_configure_and_recover_are_refused_and_change_nothing(scene: Scene) -> None:
    store = made_in(MemoryStore())
    hash, records = scene.hash, store.snapshot().tags
    with scene.on(store, scheduler=None) as ids:
        for change in CHANGES:
            refused(ForeignHash, "", change, ids)
            assert (scene.hash, store.snapshot().tags) == (hash, records)
        assert ids.configure("orders", step=7, description="B's").step == 7  # for which Redis isn't needed


def test_a_tag_is_made_while_redis_is_away_and_looked_at_when_it_is_back(scene: Scene, redis_proxy: FaultProxy) -> None:
    with scene.on(MemoryStore(), redis=redis_proxy.url, scheduler=None) as ids:
        redis_proxy.refuse()
        assert ids.create("orders").max == 0
        redis_proxy.pass_through()
        refused(ForeignHash, "", ids.next, "orders")
    assert scene.owner.next("orders") == 6


@in_modes
def test_a_store_that_hangs_holds_nobody_up_and_the_sweep_finds_out_when_it_is_back(
    scene: Scene, mode: Mode, hanging: HangingStore
) -> None:
    settings, tag = mode
    made_in(hanging, tag["order"])
    hanging.hang()
    # Who waited for the store would have no number within the time of a call.
    with scene.on(hanging, timeout=20, store_timeout=60, **settings) as ids:
        numbers = [ids.next("orders") for _ in range(30)]
        assert numbers == list(range(6, 36))
        hanging.resume()
        found_out(ids)
        for _ in range(20):
            found = _refused(ids)
            assert (found.taken or 0 if found else 0) >= max(numbers)


@in_modes
def test_a_store_that_hangs_and_is_the_hashs_own_is_served_throughout(
    scene: Scene, mode: Mode, hanging: HangingStore
) -> None:
    scene.empty()
    settings, tag = mode
    with issuer.connect(redis=scene.url, store=hanging, scheduler=None) as other:
        other.create("orders", step=10_000, **tag)
        numbers = [other.next("orders")]
        hanging.hang()
        with scene.on(hanging, timeout=20, store_timeout=60, **settings) as ids:
            numbers += [ids.next("orders") for _ in range(30)]
            hanging.resume()
            supply = ids.engine.registry.combiner("orders").supply
            until(lambda: ids.next("orders") and supply.state.owned, timeout=60, message="the sweep has looked")
            assert ids.engine.registry.combiner("orders").supply is supply
        assert numbers == sorted(set(numbers))


def test_without_a_scheduler_a_store_that_hangs_is_waited_for_once(
    scene: Scene, hanging: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "ASK_AGAIN", 600.0)
    made_in(hanging, "strict")
    hanging.hang()
    with scene.on(hanging, timeout=20, store_timeout=60, scheduler=None) as ids:
        hanging.begun.clear()
        for _ in range(30):
            ids.next("orders")
        assert hanging.begun.count("store_id") == 1
        hanging.resume()
        ids.next("orders")
        monkeypatch.setattr(origin, "ASK_AGAIN", 0.0)
        refused(ForeignHash, "", ids.next, "orders")


@in_modes
def test_a_hash_that_another_store_arms_later_is_found_by_the_sweep(scene: Scene, mode: Mode) -> None:
    scene.empty()
    settings, tag = mode
    with scene.on(MemoryStore(), **settings) as ids:
        ids.create("orders", step=100_000, **tag)
        for _ in range(50):
            ids.next("orders")
        scene.taken_over()
        found_out(ids)
        hash = scene.hash
        for way in WAYS.values():
            refused(ForeignHash, "", way, ids)
        assert scene.hash == hash
        scene.empty()  # the other store's tag is at its end, and the one of this store goes on
        assert ids.next("orders") > 100_000


def test_a_tick_finds_it_as_well(scene: Scene) -> None:
    scene.empty()
    with scene.on(MemoryStore(), scheduler=None) as ids:
        ids.create("orders", step=100_000, order="trend")
        ids.take("orders", 50)
        scene.taken_over()
        assert ids.next("orders") == 2  # the third store's: nobody has looked
        assert ids.tick() == 0
        assert _refused(ids) is not None


def test_a_tag_served_direct_does_not_rejoin_another_stores_hash(scene: Scene, redis_proxy: FaultProxy) -> None:
    store = made_in(MemoryStore())
    redis_proxy.refuse()
    with scene.on(store, redis=redis_proxy.url) as ids:
        assert ids.next("orders") == 1  # reserved in its own store
        redis_proxy.pass_through()
        found_out(ids)
    assert scene.owner.next("orders") == 6


def test_it_is_told_once(scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A keeper meets the hash at each sweep."""
    store = f"sqlite:///{tmp_path / 'b.db'}"
    with scene.on(store, redis="none", scheduler=None) as made:
        made.create("orders", order="trend")
    with scene.on(store, scheduler=None) as ids:
        for _ in range(3):
            ids.keep()
            assert ids.tick() == 0
    told = [each.levelname for each in caplog.records if "another store" in each.message]
    assert told == ["WARNING"]
    assert scene.owner.next("orders") == 6


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("garbage", ["", "garbage", "0" * 23, "A" * 24])
def test_what_is_no_stores_id_is_corrupt_to_all_but_recover_which_repairs_it(scene: Scene, garbage: str) -> None:
    store = MemoryStore()
    scene.empty()
    with scene.on(store, scheduler=None) as ids:
        ids.create("orders", step=100)
        numbers = ids.take("orders", 50)
    scene.client.hset(KEY, "store", garbage)
    hash = scene.hash
    for call in (*WAYS.values(), lambda ids: ids.create("orders"), CHANGES[1]):
        with scene.on(store, scheduler=None) as ids, pytest.raises(CorruptState, match=r"run ids\.recover\('orders'\)"):
            call(ids)
        assert scene.hash == hash
    with scene.on(store, scheduler=None) as ids:
        assert ids.recover("orders")[0].new == 100
        assert repeats([*numbers, *ids.take("orders", 150)]) == []
        assert ids.verify() == []
