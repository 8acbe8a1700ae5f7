"""What an issuer writes to its chronicle: rare events, acts of operators, and a line about itself."""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from issuer import Issuer
from issuer.acting import acting, actor
from issuer.care import chronicler
from issuer.care.chronicle import Act, Happening
from issuer.care.chronicler import WAITING_MOST, Waiting
from issuer.clock import monotonic
from issuer.core.events import CallersWait, FenceTripped, Reserved, StoreSilent
from issuer.errors import RedisUnavailable, StoreUnavailable, Unavailable
from issuer.instance import Instance
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import now_ms
from tests.care.test_chronicle import chronicle_of
from tests.colours import BOTH, Awaited, Connect
from tests.deadlines import ENDLESS
from tests.forks import in_child
from tests.servers.cluster import ClusterServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = BOTH

ME = (socket.gethostname(), os.getpid())


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine that stands still for seconds write each line at once."""
    for module in ("care.chronicler", "engine.blocking", "engine.aio"):
        monkeypatch.setattr(f"issuer.{module}.SHORT", 40.0)


@pytest.fixture
def made(connect: Connect) -> Iterator[Callable[..., Issuer]]:
    with ExitStack() as ends:
        yield lambda url, **more: ends.enter_context(connect(redis=url, scheduler=None, **more))


@pytest.fixture
def ids(made: Callable[..., Issuer], redis_url: str, store: MemoryStore) -> Issuer:
    return made(redis_url, store=store)


def happenings(ids: Issuer, kind: str) -> list[Happening]:
    return [each for each in chronicle_of(ids).happenings if each.kind == kind]


def written(ids: Issuer, kind: str, lines: int = 1) -> list[Happening]:
    """Sweep until so many lines of this kind are there, and return them."""

    def found() -> list[Happening]:
        ids.tick()
        return happenings(ids, kind)

    return until(lambda: each if len(each := found()) >= lines else [], ignoring=(Unavailable,))


def acts(ids: Issuer) -> list[Act]:
    """Return the acts, the oldest first."""
    return chronicle_of(ids).acts[::-1]


class TestEvents:
    def test_a_fence_trip_of_many_tags_makes_one_line_in_each_process(
        self, made: Callable[..., Issuer], start_redis: Callable[..., RedisServer], store: MemoryStore
    ) -> None:
        server = start_redis(appendonly=True)
        both = [made(server.url, store=store, instance=Instance(name)) for name in ("shop", "till")]
        tags = [f"tag-{number}" for number in range(30)]
        both[0].create_many({tag: {} for tag in tags})
        for ids in both:
            assert all(ids.next(tag) for tag in tags)
        began = now_ms()
        server.restart()
        for tag in tags:  # in turn: whoever draws first repairs the tag
            for ids in both if tags.index(tag) % 2 else both[::-1]:
                ids.next(tag)
        for ids in both:
            ids.tick()
        lines = until(lambda: each if len(each := happenings(both[0], "FenceTripped")) == 2 else [])
        assert sorted(each.application for each in lines) == ["shop", "till"]
        assert sum(each.count for each in lines) == 30
        for each in lines:
            assert len(each.tags) == 5
            assert {*each.tags} < {*tags}
            assert began <= each.time <= now_ms()
            assert (each.host, each.pid) == ME
            assert "failed over, was restarted" in each.text

    def test_an_outage_of_redis_is_written_after_its_end_with_its_own_times(
        self, made: Callable[..., Issuer], server: RedisServer, store: MemoryStore
    ) -> None:
        ids = made(server.url, store=store)
        ids.create("a")
        ids.next("a")
        began = now_ms()
        server.kill()
        with pytest.raises(RedisUnavailable):
            ids.next("a", timeout=0.1)
        ids.tick()
        ended = now_ms()
        server.start()
        until(lambda: ids.next("a", timeout=60), ignoring=(Unavailable,))
        [silent], [back] = written(ids, "RedisSilent"), written(ids, "RedisBack")
        assert (silent.tags, silent.count, back.tags) == (("a",), 1, ("a",))
        assert began <= silent.time <= ended <= back.time <= now_ms()
        assert "Redis answers again, after" in back.text

    def test_while_redis_is_away_the_newest_lines_wait(
        self,
        made: Callable[..., Issuer],
        redis_proxy: FaultProxy,
        store: MemoryStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(chronicler, "LATEST", 0.0)
        ids = made(redis_proxy.url, store=store)
        redis_proxy.refuse()
        redis_proxy.cut()
        for number in range(WAITING_MOST * 3):
            ids.engine.config.events.emit(StoreSilent(f"t{number}", _Other.named(number), scheduled=True))
            ids.tick()
        redis_proxy.pass_through()
        lines = written(ids, "StoreSilent", WAITING_MOST)
        assert {each.tags[0] for each in lines} == {f"t{WAITING_MOST * 2 + number}" for number in range(WAITING_MOST)}

    def test_what_repeats_is_collected_for_a_minute(self, ids: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
        late = CallersWait("a", "because")
        for _ in range(20):
            ids.engine.config.events.emit(late)
            ids.tick()
        assert [each.count for each in happenings(ids, "CallersWait")] == [1]
        monkeypatch.setattr(chronicler, "QUIET", 0.0)
        ids.tick()
        assert [each.count for each in happenings(ids, "CallersWait")] == [19, 1]

    def test_an_event_that_is_not_rare_is_no_line(self, ids: Issuer) -> None:
        ids.engine.config.events.emit(Reserved("a", "load", 0, 9, 0.1))
        ids.tick()
        assert chronicle_of(ids).happenings == []

    def test_what_waits_is_written_at_the_end(
        self, connect: Connect, ids: Issuer, redis_url: str, store: MemoryStore
    ) -> None:
        with connect(redis=redis_url, store=store, scheduler=None) as other:
            for _ in range(3):
                other.engine.config.events.emit(FenceTripped("a", "empty"))
            other.tick()
            other.engine.config.events.emit(FenceTripped("b", "empty"))
            assert [each.tags for each in happenings(ids, "FenceTripped")] == [("a",)]
        assert [each.tags for each in happenings(ids, "FenceTripped")] == [("b",), ("a",)]

    def test_the_lists_are_bounded(self, ids: Issuer, redis_client: redis.Redis) -> None:
        for part in ("events", "acts"):
            redis_client.rpush(f"issuer:{part}", *["junk"] * 1500)
        ids.engine.config.events.emit(FenceTripped("a", "empty"))
        ids.create("a")
        ids.tick()
        for part in ("events", "acts"):
            assert redis_client.llen(f"issuer:{part}") == 1000
        found = chronicle_of(ids)
        assert ([each.tag for each in found.acts], [each.kind for each in found.happenings]) == (
            ["a"],
            ["FenceTripped"],
        )


class _Other(StoreUnavailable):
    """Errors of as many classes as one likes."""

    @staticmethod
    def named(number: int) -> StoreUnavailable:
        made: StoreUnavailable = type(f"Other{number}", (_Other,), {})("away")
        return made


class TestActs:
    def test_each_act_says_what_was_changed_and_by_whom(self, ids: Issuer) -> None:
        ids.create("a", step=50, limit=10**6)
        ids.configure("a", step=500, description="of the shop", start=1000)
        ids.halt("a")
        ids.recover("a", at_least=5000)
        ids.delete("a")
        found = acts(ids)
        assert [(each.what, each.tag, each.change) for each in found] == [
            ("create", "a", "step 50, limit 1000000"),
            ("configure", "a", "max 0 -> 999, step 50 -> 500, description '' -> 'of the shop'"),
            ("halt", "a", ""),
            ("recover", "a", "max 999 -> 5000"),
            ("delete", "a", ""),
        ]
        me = actor()
        assert {(each.who, each.origin) for each in found} == {(me.who, me.origin)}
        assert me.origin == f"{ME[0]} pid {ME[1]}"

    def test_what_changes_nothing_is_no_act(self, ids: Issuer) -> None:
        ids.create("a")
        ids.create("a", exist_ok=True)
        ids.create_many({"a": {}, "b": {}}, exist_ok=True)
        ids.recover(dry_run=True)
        for wrong in (lambda: ids.create("a"), lambda: ids.delete("c"), lambda: ids.configure("a", step=0)):
            with pytest.raises(Exception, match=r"."):
                wrong()
        assert [(each.what, each.tag) for each in acts(ids)] == [("create", "a"), ("create", "b")]

    def test_no_secret_is_shown(self, connect: Connect, redis_url: str, redis_client: redis.Redis) -> None:
        keys = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210"}
        with connect(redis=redis_url, store="memory://", scheduler=None, keys=keys) as ids:
            ids.create("a", order="trend", scramble="k1", format="B{seq}")
            ids.configure("a", format="C{seq}")
            made, changed = acts(ids)
        assert changed.change == "format 'B{seq}' -> 'C{seq}'"
        assert "scramble ..." in made.change
        content = str(redis_client.lrange("issuer:acts", 0, -1))
        assert not any(each.decode() in content for each in keys.values())

    def test_a_call_for_many_tags_makes_one_line(self, ids: Issuer) -> None:
        ids.create_many({f"tag-{number:02}": {} for number in range(30)})
        [act] = acts(ids)
        assert (act.what, act.tag) == ("create", "30 tags: tag-00, tag-01, tag-02, tag-03, tag-04, ...")
        ids.recover()
        assert [each.tag[:8] for each in acts(ids)] == ["30 tags:", "30 tags:"]

    def test_a_server_names_its_client(self) -> None:
        with acting("ops", "10.0.0.1"):
            assert actor() == ("ops", "10.0.0.1")
        assert actor().who != "ops"

    def test_a_text_of_any_kind_is_written(self, ids: Issuer) -> None:
        hostile = "<img src=x onerror=alert(1)>\"'\u202e" + "x" * 150
        ids.create(hostile, description="é" * 400)
        [act] = acts(ids)
        assert act.tag == hostile
        assert len(act.change) <= 500

    def test_what_redis_did_not_take_is_written_later(
        self, made: Callable[..., Issuer], redis_proxy: FaultProxy, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = made(redis_proxy.url, store=store)
        ids.create("a")
        monkeypatch.setattr(chronicler, "SHORT", 0.3)
        redis_proxy.drop_requests(match=b"issuer:acts")
        ids.configure("a", step=5)
        redis_proxy.pass_through()
        until(lambda: ids.tick() == 0 and len(acts(ids)) == 2, ignoring=(Unavailable,))
        assert [each.what for each in acts(ids)] == ["create", "configure"]


class TestProcesses:
    def test_an_issuer_in_use_says_what_it_holds_until_it_is_closed(
        self, connect: Connect, ids: Issuer, redis_url: str, store: MemoryStore
    ) -> None:
        began = now_ms()
        with connect(redis=redis_url, store=store, scheduler=None, instance=Instance("shop")) as other:
            other.create("a", order="trend", lease=100)
            other.create("b")
            other.take("a", 3)
            other.next("b")
            assert chronicle_of(ids).processes == []
            other.tick()
            [process] = chronicle_of(ids).processes
            assert (process.host, process.pid, process.application) == (*ME, "shop")
            assert began <= process.began <= process.seen <= now_ms()
            assert (process.tags, process.waiting, process.direct) == (2, 0, 0)
            assert 90 <= process.held <= 200
            assert (process.role, process.trouble) == ("", "")
            assert process.version
            ids.tick()
            assert len(chronicle_of(ids).processes) == 2
        assert [each.application for each in chronicle_of(ids).processes] == ["issuer"]

    def test_it_names_its_role_and_its_trouble(
        self, ids: Issuer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chronicler, "PROCESS_EVERY", 0.0)
        ids.create("a", step=10)
        ids.next("a")
        ids.keep()
        ids.tick()
        assert [each.role for each in chronicle_of(ids).processes] == ["keeper"]

        def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("the store is on holiday")

        monkeypatch.setattr(store, "reserve", away)
        ids.take("a", 8)
        ids.tick()
        [process] = chronicle_of(ids).processes
        assert "on holiday" in process.trouble

    def test_the_line_is_written_every_ten_seconds(self, ids: Issuer, redis_client: redis.Redis) -> None:
        ids.create("a")
        ids.next("a")
        ids.tick()
        redis_client.config_resetstat()
        for _ in range(20):
            ids.tick()
        commands: Any = redis_client.info("commandstats")
        assert {"cmdstat_lpush", "cmdstat_ltrim", "cmdstat_hset"}.isdisjoint(commands)


def test_a_draw_sends_nothing_else(made: Callable[..., Issuer], redis_proxy: FaultProxy, store: MemoryStore) -> None:
    ids = made(redis_proxy.url, store=store)
    ids.create("a", step=100_000)
    ids.next("a")
    before = redis_proxy.count()
    for _ in range(100):
        ids.next("a")
    assert redis_proxy.hits - before == 100
    assert ids.engine.chronicle.due  # its own line: a sweep would write it


def test_a_sweep_does_not_wait_for_the_chronicle(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.engine.scheduler.SWEEP_EVERY", 3600)
    with connect(redis=redis_proxy.url, store=store, **ENDLESS) as ids:
        ids.create("a")
        ids.next("a")
        redis_proxy.hold(match=b"issuer:processes")
        for _ in range(3):
            swept(ids)
        until(lambda: redis_proxy.held)
        assert len(redis_proxy.held) == 1
        redis_proxy.release()
        redis_proxy.pass_through()
        until(lambda: chronicle_of(ids).processes)


def swept(ids: Issuer) -> None:
    sweep: Callable[[], Any] = ids.engine.sweep
    if isinstance(ids, Awaited):
        ids.wait(sweep())
    else:
        sweep()


def test_a_forked_child_writes_its_own_lines_alone(
    made: Callable[..., Issuer], redis_url: str, store: MemoryStore
) -> None:
    ids = made(redis_url, store=store)
    ids.create("a")
    ids.next("a")
    ids.engine.config.events.emit(FenceTripped("parents", "empty"))
    ids.tick()
    ids.engine.config.events.emit(FenceTripped("parents", "empty"))

    def child() -> object:
        engine = ids.engine
        engine.config.events.emit(FenceTripped("childs", "empty"))
        lines = engine.chronicle._waiting.take(all_groups=True)
        return os.getpid(), engine.chronicle._name, [line for _, line in lines]

    found: Any = in_child(child)()
    pid, name, lines = found
    assert name.split(":")[-2] == str(pid)
    assert [(each["pid"], each["tags"]) for each in map(json.loads, lines)] == [(pid, ["childs"])]
    assert [each.pid for each in chronicle_of(ids).processes] == [os.getpid()]


class TestWithoutRights:
    RIGHTS = "~issuer:* +info +evalsha +script|load +time +hmget +hget +hset +hdel +hincrby"

    @pytest.mark.parametrize("denied", ["+select", "+lpush +ltrim -hset", "+lpush"])
    def test_everything_else_works_and_nothing_is_warned_of(
        self,
        made: Callable[..., Issuer],
        server: RedisServer,
        store: MemoryStore,
        caplog: pytest.LogCaptureFixture,
        denied: str,
    ) -> None:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "drawer", "on", ">secret", *f"{self.RIGHTS} {denied}".split())
        ids = made(server.url.replace("://", "://drawer:secret@"), store=store)
        if "-hset" not in denied:
            ids.create("a", step=10)
            assert ids.take("a", 25) == list(range(1, 26))
            ids.configure("a", step=20)
        ids.engine.config.events.emit(FenceTripped("a", "empty"))
        for _ in range(5):
            ids.tick()
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
        with server.client() as client:
            denials = sum(each["count"] for each in client.acl_log())
        assert denials <= 8, "it goes on trying"

    def test_who_cannot_read_is_told_so(self, made: Callable[..., Issuer], server: RedisServer) -> None:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "drawer", "on", ">secret", *self.RIGHTS.split())
        ids = made(server.url.replace("://", "://drawer:secret@"), store="memory://")
        with pytest.raises(Exception, match=r"lrange|hgetall"):
            chronicle_of(ids)


def test_a_close_does_not_wait_for_a_redis_that_hangs(
    connect: Connect, server: RedisServer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("care.chronicler", "engine.blocking", "engine.aio"):
        monkeypatch.setattr(f"issuer.{module}.SHORT", 0.2)
    with connect(redis=server.url, store=store, scheduler=None, redis_timeout=60, timeout=60) as ids:
        ids.create("a")
        ids.next("a")
        ids.tick()
        assert len(chronicle_of(ids).processes) == 1
        ids.engine.config.events.emit(FenceTripped("a", "empty"))
        server.pause()
        began = monotonic()
    assert monotonic() - began < 30
    server.resume()


def test_an_act_takes_no_longer_than_its_call_may(
    connect: Connect, server: RedisServer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(redis=server.url, store=store, scheduler=None, redis_timeout=60) as ids:
        ids.create("a")
        monkeypatch.setattr("issuer.care.chronicler.SHORT", 60)
        server.pause()
        began = monotonic()
        ids.halt("a", timeout=0.2)
        assert monotonic() - began < 30
        server.resume()
        until(lambda: [each.what for each in acts_after_a_sweep(ids)] == ["create", "halt"])


def acts_after_a_sweep(ids: Issuer) -> list[Act]:
    ids.tick()
    return acts(ids)


def test_it_works_in_a_cluster(made: Callable[..., Issuer], cluster: ClusterServers, store: MemoryStore) -> None:
    writes_and_reads(made(cluster.url, store=store, redis_timeout=30, timeout=60))


def test_it_works_with_sentinels(made: Callable[..., Issuer], sentinels: SentinelServers, store: MemoryStore) -> None:
    writes_and_reads(made(sentinels.url, store=store, redis_timeout=30, timeout=60))


def writes_and_reads(ids: Issuer) -> None:
    ids.create("a")
    ids.next("a")
    ids.engine.config.events.emit(FenceTripped("a", "empty"))
    assert [each.tags for each in written(ids, "FenceTripped")] == [("a",)]
    found = chronicle_of(ids)
    assert [each.tag for each in found.acts] == ["a"]
    assert [each.tags for each in found.processes] == [1]


def test_the_memory_of_kinds_is_bounded() -> None:
    waiting = Waiting("shop")
    for number in range(1000):
        waiting(StoreSilent(f"t{number}", _Other.named(number), scheduled=True))
    lines = [json.loads(line) for _, line in waiting.take(all_groups=True)]
    assert [each["tags"] for each in lines] == [[f"t{number}"] for number in range(WAITING_MOST)]
