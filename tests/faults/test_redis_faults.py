"""Redis goes back in time, away, or empty, under a real issuer: numbers may be lost, none comes twice."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

import issuer
from issuer import Issuer
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.drawers import Drawers, assert_sound
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ids(server: RedisServer, store: MemoryStore) -> Iterator[Issuer]:
    with issuer.connect(redis=server.url, store=store, timeout=10) as made:
        made.create("a", step=100)
        yield made


@pytest.mark.covers("N.1", "1.11")
def test_kill_9_and_an_older_snapshot_repeat_nothing(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with Drawers([ids], "a") as drawers:
        for _ in range(3):
            drawers.more(300)
            snapshot = server.snapshot()
            drawers.more(500)
            server.restore(snapshot)
            drawers.more(300)
    assert_sound(drawers, store)


@pytest.mark.covers("N.1", "3.20")
def test_failover_to_a_lagging_replica_repeats_nothing(start_redis: StartRedis, store: MemoryStore) -> None:
    master, replica = start_redis(), start_redis()
    replica.replicaof(master)
    with (
        FaultProxy((master.host, master.port)) as address,
        issuer.connect(redis=address.url, store=store, timeout=10) as ids,
    ):
        ids.create("a", step=1000)
        with Drawers([ids], "a") as drawers:
            drawers.more(300)
            replica.pause()
            drawers.more(1200)
            master.kill()
            replica.resume()
            replica.promote()
            address.upstream = (replica.host, replica.port)
            drawers.more(1200)
    assert_sound(drawers, store)


@pytest.mark.covers("N.1")
def test_old_and_new_master_both_alive_repeat_nothing(start_redis: StartRedis, store: MemoryStore) -> None:
    old, new = start_redis(), start_redis()
    new.replicaof(old)
    with (
        issuer.connect(redis=old.url, store=store, timeout=10) as first,
        FaultProxy((old.host, old.port)) as address,
        issuer.connect(redis=address.url, store=store, timeout=10) as second,
    ):
        first.create("a", step=1000)
        with Drawers([first, second], "a") as drawers:
            drawers.more(500)
            new.promote()
            address.upstream = (new.host, new.port)
            address.cut()
            drawers.more(3000)
    record = store.get("a", timeout=1)
    assert record is not None
    assert repeats(drawers.numbers) == []
    assert max(drawers.numbers) <= record.max


@pytest.mark.covers("3.24", "3.25")
def test_a_wiped_redis_goes_on_above_everything(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with Drawers([ids], "a") as drawers:
        for wipe in ("FLUSHALL", "kill", "DEL"):
            drawers.more(250)
            if wipe == "kill":
                server.kill()
                server.start()
            else:
                with server.client() as client:
                    client.execute_command(*({"DEL": ("DEL", "issuer:{a}")}.get(wipe, (wipe,))))
            drawers.more(250)
    assert_sound(drawers, store)


@pytest.mark.covers("N.6", "3.25")
def test_two_recovers_at_once_under_load_repeat_nothing(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with issuer.connect(redis=server.url, store=store) as other, Drawers([ids, other], "a") as drawers:
        for _ in range(20):
            drawers.more(50)
            pair = [threading.Thread(target=one.recover, args=("a",)) for one in (ids, other)]
            for thread in pair:
                thread.start()
            for thread in pair:
                thread.join()
        drawers.more(200)
    assert_sound(drawers, store)


@pytest.mark.covers("N.6", "4.14")
def test_a_load_on_its_way_while_recover_runs_is_refused(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store, scheduler=None) as slow,
        issuer.connect(redis=server.url, store=store, scheduler=None) as ids,
    ):
        ids.create("a", step=100)
        numbers = ids.take("a", 95)
        proxy.hold(match=_sha("load"))
        late = threading.Thread(target=slow.tick)
        slow.take("a", 1)
        late.start()
        until(lambda: proxy.held)
        assert ids.recover("a")[0].new == 200
        before = ids.take("a", 5)
        assert before[0] > 200
        proxy.release()
        late.join()
        after = ids.take("a", 300)
        assert after[0] == before[-1] + 1
        assert repeats(numbers + before + after) == []


def _sha(name: str) -> bytes:
    from issuer.scripts import script

    return script(name).sha.encode()


@pytest.mark.covers("3.16")
def test_the_same_load_sent_twice_takes_effect_once(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store, scheduler=None) as ids,
    ):
        ids.create("a", step=100)
        ids.next("a")
        proxy.duplicate(match=_sha("load"))
        numbers = [ids.next("a") for _ in range(500)]
        assert proxy.hits
        assert repeats(numbers) == []


def test_a_lost_reply_of_a_draw_costs_a_gap_and_no_repeat(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store, scheduler=None) as ids,
    ):
        ids.create("a", step=100)
        numbers = [ids.next("a")]
        for _ in range(5):
            proxy.drop_replies(match=_sha("next"), times=1)
            numbers.append(ids.next("a"))
        assert numbers == [1, 3, 5, 7, 9, 11]


def test_a_lost_reply_of_a_load_spends_the_segment_and_repeats_nothing(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store, scheduler=None) as ids,
    ):
        ids.create("a", step=10)
        numbers = []
        for _ in range(5):
            proxy.drop_replies(match=_sha("load"), times=1)
            numbers += ids.take("a", 10)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
def test_a_dead_redis_costs_a_strict_caller_its_deadline_and_no_more(
    server: RedisServer, store: MemoryStore, fault: str
) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store) as ids,
    ):
        ids.create("a", step=10)
        ids.next("a")
        getattr(proxy, fault)()
        for timeout in (0, 0.3, 1.2):
            began = time.monotonic()
            with pytest.raises(issuer.RedisUnavailable) as error:
                ids.next("a", timeout=timeout)
            assert time.monotonic() - began < timeout + 0.4
            assert error.value.retry_after > 0
        proxy.pass_through()
        assert ids.next("a") > 1


@pytest.mark.covers("3.21")
def test_a_trend_tag_goes_on_direct_and_comes_back_increasing(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store) as ids,
        issuer.connect(redis=server.url, store=store) as other,
    ):
        ids.create("t", step=100, order="trend")
        mine, theirs = [ids.next("t")], [other.next("t")]
        for _ in range(3):
            proxy.refuse()
            mine += [ids.next("t") for _ in range(250)]
            theirs += [other.next("t") for _ in range(50)]
            proxy.pass_through()
            until(lambda: not ids._roster.line("t").supply._direct, message="the process is back on Redis")
            theirs += [other.next("t") for _ in range(50)]
            mine += [ids.next("t") for _ in range(50)]
        assert repeats(mine + theirs) == []
        assert mine == sorted(mine)
        assert theirs == sorted(theirs)


def test_with_both_down_what_is_held_is_issued_and_then_refused(server: RedisServer) -> None:
    store = Failing()
    with issuer.connect(redis=server.url, store=store, timeout=0.3, scheduler=None) as ids:
        ids.create("t", step=10, order="trend")
        first = ids.next("t")
        server.kill()
        held = [ids.next("t", timeout=2)]
        store.down = True
        held += [ids.next("t") for _ in range(9)]
        assert held == list(range(11, 21))
        with pytest.raises((issuer.StoreUnavailable, issuer.RedisUnavailable)):
            ids.next("t")
        store.down = False
        server.start()
        assert ids.tick() >= 0
        assert ids.next("t") > max(held) > first


class Failing(MemoryStore):
    """A memory store that can be switched off."""

    down = False

    def __getattribute__(self, name: str) -> object:
        if name in {"reserve", "get", "hand_back", "store_id"} and object.__getattribute__(self, "down"):
            return _unavailable
        return object.__getattribute__(self, name)


def _unavailable(*_args: object, **_rest: object) -> None:
    from persistence.errors import Unavailable

    raise Unavailable("switched off")


@pytest.mark.covers("4.16")
def test_a_wedged_loader_is_replaced_after_the_election_window(server: RedisServer, store: MemoryStore) -> None:
    with (
        FaultProxy((server.host, server.port)) as proxy,
        issuer.connect(redis=proxy.url, store=store, scheduler=None, timeout=1) as wedged,
        issuer.connect(redis=server.url, store=store, timeout=10) as ids,
    ):
        ids.create("a", step=10)
        proxy.drop_requests(match=_sha("load"))
        with pytest.raises(issuer.IssuerError):
            wedged.next("a")
        began = time.monotonic()
        assert ids.next("a") > 10
        assert time.monotonic() - began < 7
