"""Tags of strategies, and plugins, on a real Redis: draws, failures, and what happens meanwhile."""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

import issuer
from issuer import Issuer, events
from issuer.clock import Deadline
from issuer.core.steps import Steps
from issuer.core.supply import supply
from issuer.engine import blocking as engine
from issuer.plugins import Call, Plugin
from issuer.strategies import Context, Instance, Strategy, register, registry
from issuer.threads import finished
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order, Tag, TagSettings
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.refusals import refused
from tests.servers.ports import free_port
from tests.strategies.surrounding import Recording
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")


class Odd(Strategy):
    """Every other number, in each issuer its own."""

    def prepare(self) -> None:
        self._numbers = count(1, 2)

    def generate(self, n: int) -> Sequence[int]:
        return list(islice(self._numbers, n))


@pytest.fixture
def ids(connect: Connect, redis_url: str, store: MemoryStore) -> Iterator[Issuer]:
    with connect(redis=redis_url, store=store) as made:
        yield made


@BOTH
@pytest.mark.covers("3.6", "3.39")
def test_a_strategy_of_ones_own_serves_a_tag_by_name(ids: Issuer) -> None:
    register("odd", Odd)
    ids.create("o", strategy="odd", format="O{seq}")
    assert [ids.next("o"), *ids.take("o", 2), ids.next("o", timeout=60)] == [1, 3, 5, 7]
    assert str(ids.issue("o")) == "O9"
    assert next(ids.stream("o")) == 11
    assert ids.decode("o", "O9").value == 9
    refused(issuer.InvalidArgument, "", ids.next, "o", key="x")
    refused(issuer.InvalidArgument, "", ids.peek, "o")


@pytest.mark.parametrize("machine", ["redis", "file", "store"])
def test_a_number_tells_who_has_its_machine_number(
    connect: Connect, redis_url: str, store: MemoryStore, machine: str, tmp_path: Path
) -> None:
    instance = Instance("sequence-client", 8112, "192.168.0.94", directory=str(tmp_path))
    with connect(redis=redis_url, store=store, instance=instance) as ids:
        ids.create("h", strategy="snowflake", options={"machine": machine})
        number = ids.next("h")
    with connect(redis=redis_url, store=store) as others:
        made = f"{socket.gethostname()}, pid {os.getpid()}" if machine == "store" else instance.key
        assert others.decode("h", number, holder=True).holder == made
        assert others.decode("h", number).holder is None
        assert others.decode("h", number - (1 << 50), holder=True).holder == (None if machine == "store" else made)


def test_what_only_a_counter_has_a_use_for_is_refused_to_a_strategy(ids: Issuer) -> None:
    register("odd", Odd)
    made = [ids.create("of odd", strategy="odd"), ids.create("of snowflake", strategy="snowflake")]
    useless = {"step": 5, "limit": "js", "start": 7, "above": 7, "lease": 10, "ahead": 3}
    for name, value in [*useless.items(), ("step", "auto")]:
        setting: dict[str, Any] = {name: value}
        for strategy in ("odd", "snowflake"):
            excludes = f"strategy '{strategy}' excludes"
            said = f"^{name}: {'.*layout has 63' if (strategy, name) == ('snowflake', 'limit') else excludes}"
            error = refused(issuer.SchemeError, said, ids.create, "s", strategy=strategy, **setting)
            assert (error.setting, error.tag) == (name, "s")
            assert refused(issuer.SchemeError, "", ids.configure, f"of {strategy}", **setting).setting == name
    assert ids.tags() == made


class Failing(Odd):
    """Fails in what is asked without a process's strategy at hand, if its option says so."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        if options.get("fails") == "check":
            raise ValueError("mine")

    @classmethod
    def settled(cls, options: Mapping[str, Any], instance: Instance, *, redis: bool) -> Mapping[str, Any]:
        if options.get("fails") == "settled":
            raise KeyError(instance, redis)
        return options

    @classmethod
    def decode(cls, options: Mapping[str, Any], value: int) -> Mapping[str, int]:
        if options.get("fails") == "decode":
            raise ZeroDivisionError(value)
        return {"half": value // 2}

    @classmethod
    def holder(cls, options: Mapping[str, Any], value: int, tag: str, prefix: str) -> Steps[str | None]:
        if options.get("fails") == "holder":
            raise LookupError(value, tag, prefix)
        return f"the maker of {value}"
        yield

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if context.options.get("fails") == "init":
            raise OSError("no disk")


def test_what_a_strategy_of_ones_own_raises_is_wrapped_wherever_it_is(ids: Issuer) -> None:
    register("failing", Failing)

    def use(where: str) -> None:
        ids.create(where, strategy="failing", options={"fails": where})
        ids.decode(where, 5)
        ids.next(where)

    causes = {"check": ValueError, "settled": KeyError, "decode": ZeroDivisionError, "init": OSError}
    for where, cause in causes.items():
        caught = refused(issuer.StrategyFailed, f"strategy 'failing' failed: {cause.__name__}", use, where)
        assert (caught.tag, caught.strategy) == (where, "failing")
        assert type(caught.__cause__) is cause
    assert [tag.tag for tag in ids.tags()] == ["decode", "init"]


@BOTH
def test_a_holder_that_cannot_be_told_hides_nothing_else(ids: Issuer) -> None:
    register("failing", Failing)
    ids.create("f", strategy="failing", options={})
    ids.create("g", strategy="failing", options={"fails": "holder"})
    told, untold = (ids.decode(tag, 5, holder=True) for tag in ("f", "g"))
    assert (told.fields, told.holder) == ({"half": 2}, "the maker of 5")
    assert (untold.fields, untold.holder) == ({"half": 2}, None)


def test_the_holder_is_unknown_while_the_store_does_not_answer(
    ids: Issuer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids.create("h", strategy="snowflake", options={"machine": "store"})
    number = ids.next("h")
    monkeypatch.setattr(store, "segments", Mock(side_effect=Unconfirmed("it does not answer")))
    assert ids.decode("h", number, holder=True).holder is None


def test_numbers_of_a_strategy_are_trend_whatever_a_record_says(ids: Issuer, store: MemoryStore) -> None:
    register("odd", Odd)
    caught = refused(issuer.SchemeError, "within a process", ids.create, "s", strategy="snowflake", order="strict")
    assert caught.setting == "order"
    assert ids.create("s", strategy="snowflake").order == ids.inspect("s").order == "trend"
    odd = {"strategy": "odd"}
    store.create("old", TagSettings(step=1000, limit=99, order="strict", scheme=odd), timeout=5)
    assert [tag.order for tag in ids.tags()] == [ids.inspect("old").order, ids.inspect("s").order] == ["trend", "trend"]
    assert ids.configure("old", description="odd ones").order == "trend"
    assert ids.next("old") < ids.next("old")


class Doubling(Plugin):
    """Twice the number, for tags of the counter."""

    strategies = ("segment",)
    transforms = True

    def after(self, call: Call, number: int) -> int:
        assert call.strategy == "segment"
        return number * 2


def event_of(event: events.Event, told: list[tuple[str, str]]) -> None:
    if isinstance(event, events.Rejected):
        told.append((event.tag, type(event.error).__name__))


@BOTH
@pytest.mark.covers("3.40")
@pytest.mark.parametrize("plugins", [(), (Recording(),), (Doubling(),)])
def test_observers_hear_of_every_call_that_fails_whatever_the_plugins(
    connect: Connect, redis_url: str, plugins: Sequence[Plugin]
) -> None:
    told: list[tuple[str, str]] = []
    with connect(redis=redis_url, store=MemoryStore(), plugins=plugins) as ids:
        ids.create("a", limit=1)
        assert ids.next("a") in (1, 2)
        ids.observe(lambda event: event_of(event, told))
        asked: tuple[Callable[[str], object], ...] = (
            ids.next,
            ids.issue,
            ids.warm,
            lambda tag: ids.issue(tag, key="k"),
            lambda tag: ids.take(tag, 1),
            lambda tag: ids.reserve(tag, 1),
            lambda tag: next(ids.stream(tag)),
        )
        for number, ask in enumerate(asked):
            refused(issuer.UnknownTag, "", ask, f"made up {number}")
        assert told == [(f"made up {number}", "UnknownTag") for number in range(len(asked))]
        assert [*ids.engine.registry.combiners] == ["a"], "tags that are not there leave nothing behind"
        told.clear()
        caught = refused(issuer.IssuerError, "", ids.issue, "a")
        assert told == [("a", type(caught).__name__)]
        transforms = any(plugin.transforms for plugin in plugins)
        assert type(caught) is (issuer.ConfigurationError if transforms else issuer.LimitReached)


class Ending(Odd):
    """Odd numbers up to 3, without waiting, as the numbers of a layout end."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._open = self._ready()

    def generate(self, n: int) -> Sequence[int]:
        return [next(self._open) for _ in range(n)]

    @property
    def ready(self) -> Iterator[int]:
        return self._open

    def _ready(self) -> Iterator[int]:
        yield from (1, 3)
        raise issuer.ConfigurationError("no numbers any more")


@BOTH
@pytest.mark.covers("3.40")
def test_what_a_strategys_open_numbers_raise_is_told(ids: Issuer) -> None:
    told: list[tuple[str, str]] = []
    ids.observe(lambda event: event_of(event, told))
    register("ending", Ending)
    ids.create("e", strategy="ending")
    assert [ids.next("e"), ids.next("e")] == [1, 3]
    refused(issuer.ConfigurationError, "no numbers any more", ids.next, "e")
    assert told == [("e", "ConfigurationError")]


@BOTH
@pytest.mark.covers("3.41", "3.42")
def test_a_plugin_hears_of_each_number_also_of_leased_and_strategy_tags(
    connect: Connect, redis_url: str, store: MemoryStore
) -> None:
    register("odd", Odd)
    history = Recording()
    with connect(redis=redis_url, store=store, lease=100, plugins=[history]) as ids:
        ids.create("t", order="trend")
        ids.create("o", strategy="odd")
        numbers = [ids.next("t"), *ids.take("t", 3), next(ids.stream("t")), ids.issue("t").value]
        odd = [ids.next("o"), ids.next("o")]
        assert sorted(number for tag, number in history.numbers if tag == "t") == sorted(numbers)
        assert sorted(number for tag, number in history.numbers if tag == "o") == odd


def test_a_strategy_is_swept_though_its_tag_rests_and_closed_with_the_issuer(
    connect: Connect, redis_url: str, store: MemoryStore
) -> None:
    done: list[str] = []

    class Swept(Odd):
        def sweep(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - as the contract has it
            done.append("sweep")
            return
            yield

        def close(self) -> None:
            done.append("close")

    register("swept", Swept)
    with connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("o", strategy="swept")
        ids.next("o")
        for _ in range(3):
            finished(ids.engine.upkeep.sweep)
        assert done == ["sweep"] * 3
        ids.tick()
        assert done == ["sweep"] * 4
    assert done == ["sweep"] * 4 + ["close"]


def test_a_deleted_tag_gives_its_machine_number_back(
    connect: Connect, redis_client: redis.Redis, redis_url: str
) -> None:
    def tokens() -> list[object]:
        keys = redis_client.scan_iter(_type="HASH")
        return [name for key in keys for name in redis_client.hkeys(key) if b":token" in name]

    with connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("s", strategy="snowflake")
        ids.next("s")
        assert len(tokens()) == 1
        ids.delete("s")
        assert tokens() == []
        refused(issuer.UnknownTag, "", ids.next, "s")


def test_no_range_is_reserved_where_there_is_no_counter(ids: Issuer) -> None:
    ids.create("s", order="trend", strategy="snowflake")
    ids.create("p", order="trend", shards=True)
    for tag, why in (("s", "its strategy"), ("p", "has shards or is keyed")):
        refused(issuer.InvalidArgument, why, ids.reserve, tag, 10)


def test_what_a_call_brings_of_a_dropped_line_is_not_laid_open(redis_url: str, store: MemoryStore) -> None:
    with issuer.connect(redis=redis_url, store=store) as ids:
        ids.create("s", strategy="snowflake")
        ids.next("s")
        line = ids.engine.registry.combiner("s")
        assert line.state.source is not None
        assert line.state.source.ready is not None
        ids.delete("s")
        line.supply.origin.publish()
        assert "s" not in ids._open


@BOTH
def test_a_plugin_names_strategies_that_are_known_or_registered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[Any, str]] = [(["segmnt"], "segmnt"), (("segment", "snowflaek"), "snowflaek"), ({""}, "")]
    for names, name in wrong:
        told = rf"^Recording\.strategies: unknown strategy '{name}'; the strategies are .*segment, snowflake"
        with pytest.raises(issuer.ConfigurationError, match=told):
            connect(redis="none", store="memory://", plugins=[Recording(), Recording(strategies=names)])
    monkeypatch.setitem(registry._registered, "own", Strategy)
    with connect(redis="none", store="memory://", plugins=[Recording(strategies=["own", "segment"])]) as ids:
        ids.create("a")
        assert ids.next("a") == 1


@pytest.mark.parametrize("order", ["strict", "trend"])
def test_what_needs_no_redis_is_served_without_it(
    connect: Connect, store: MemoryStore, tmp_path: Path, order: Order
) -> None:
    scheme = {"strategy": "snowflake", "options": {"machine": "fixed"}}
    store.create("s", TagSettings(step=1, order=order, scheme=scheme), timeout=10)
    for call in (lambda ids: [ids.next("s")], lambda ids: ids.take("s", 2), lambda ids: [ids.issue("s").value]):
        instance = Instance(machine=7, directory=str(tmp_path))
        with connect(redis=f"redis://127.0.0.1:{free_port()}/0", store=store, instance=instance, timeout=40) as ids:
            assert all(call(ids))


#: What a call may raise whose time is over before anybody has answered.
UNANSWERED = (issuer.RedisUnavailable, issuer.StoreUnavailable)
FIXED = {"machine": "fixed"}


def test_a_tag_that_another_process_deleted_leaves_nothing_behind(
    connect: Connect, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "LEARN_AFTER", -1.0)
    instance = Instance(machine=7, directory=str(tmp_path))
    with (
        connect(redis="none", store=store) as ids,
        connect(redis="none", store=store, instance=instance) as first,
        connect(redis="none", store=store, instance=instance) as second,
    ):
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
        assert first.next("s")
        refused(issuer.ConfigurationError, "in use", second.next, "s")
        ids.delete("s")
        with pytest.raises(issuer.UnknownTag):
            until(lambda: first.next("s") == 0, timeout=60)
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
        assert until(lambda: second.next("s"), timeout=60, ignoring=(issuer.ConfigurationError,))


def test_a_first_call_that_is_under_way_at_close_takes_no_machine_number(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go = threading.Event(), threading.Event()
    get = store.get

    def slow(tag: str, *, timeout: float) -> Tag | None:
        record = get(tag, timeout=timeout)
        waiting.set()
        assert go.wait(60)
        return record

    instance = Instance(machine=7, directory=str(tmp_path))
    with issuer.connect(redis="none", store=store, instance=instance) as ids:
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
    # `close` gives up waiting for the call long before the call gives up waiting for the store.
    ids = issuer.connect(redis="none", store=store, instance=instance, store_timeout=40)
    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(store, "get", slow)
            patch.setattr(engine, "CLOSING", 0.5)
            calling = pool.submit(ids.next, "s")
            assert waiting.wait(60)
            ids.close()
        go.set()
        refused(issuer.IssuerError, "this issuer is closed", calling.result, 60)
    with issuer.connect(redis="none", store=store, instance=instance) as again:
        assert again.next("s")


def test_all_processes_of_a_tag_take_their_machine_numbers_from_one_place(
    connect: Connect, redis_url: str, tmp_path: Path
) -> None:
    """A process that was given a machine number, beside those that were not and lease one, perhaps the same."""
    numbers: list[int] = []
    own = {"redis": redis_url, "store": MemoryStore()}
    given = Instance(machine=1, directory=str(tmp_path))
    with connect(**own) as plain, connect(**own) as third, connect(**own, instance=given) as fixed:
        plain.create("s", strategy="snowflake", options={"machine_bits": 1, "time_bits": 40, "sequence_bits": 22})
        for ids in (plain, third):
            ids.next("s")
        with pytest.raises(issuer.NoMachineNumber):
            until(lambda: fixed.next("s", timeout=1), 60, ignoring=UNANSWERED)
        for ids in (plain, third) * 100:  # at times both of them in the same millisecond
            numbers += ids.take("s", 10)
        assert fixed.create("t", strategy="snowflake").scheme["options"] == {"machine": "fixed"}
        shared = fixed.create("u", strategy="snowflake", options={"machine": "store"})
        assert shared.scheme["options"]["machine"] == "store"
    assert repeats(numbers) == []


def test_a_strategys_tag_is_not_made_again_with_other_options(store: MemoryStore, tmp_path: Path) -> None:
    with issuer.connect(redis="none", store=store, instance=Instance(machine=1, directory=str(tmp_path))) as ids:
        ids.create("a", strategy="snowflake")
        ids.next("a")
        ids.delete("a")
        # Of a later epoch: numbers of an hour ago would come again.
        refused(issuer.IssuerError, "", ids.create, "a", strategy="snowflake", options={"epoch": "2025-01-01"})
        ids.create("a", strategy="snowflake")
