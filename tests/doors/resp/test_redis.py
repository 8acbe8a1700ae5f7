"""On a real Redis: shared draws, contiguity across borders, strict order, clients torn away, a Redis that is away."""

import random
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.gateway.commands import script
from issuer.plugins import Call, Plugin
from issuer.settings import REDIS_CONNECTIONS
from tests.audit import Draw, drawn, order_violations, repeats
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.seeds import seeded
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until


def draws(client: redis.Redis) -> int:
    """Return how many draws the server has run."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


def together(works: Sequence[Callable[[], object]]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_commands_of_one_read_share_a_draw(strict: Served, redis_client: redis.Redis) -> None:
    with strict.client() as client:
        assert client.ask("INCR", "a") == 1  # loads the segment
        assert client.ask("INCR", "a") == 2
        before = draws(redis_client)
        client.send(packed("INCR", "a") * 50 + packed("PING") + packed("INCR", "a") * 50)
        assert client.replies(101) == [*range(3, 53), b"PONG", *range(53, 103)]
        assert draws(redis_client) - before == 1


def test_a_pipeline_of_redis_py_shares_draws_though_its_incr_says_incrby_1(
    strict: Served, redis_client: redis.Redis
) -> None:
    with redis.Redis(port=strict.port, socket_timeout=120) as client:
        assert client.incr("a") == 1
        before = draws(redis_client)
        pipeline = client.pipeline(transaction=False)
        for _ in range(800):
            pipeline.incr("a")
        assert pipeline.execute() == [*range(2, 802)]
        # One for each piece in which it came: 28 KB.
        assert draws(redis_client) - before < 80


def test_a_pipeline_of_more_numbers_than_are_in_memory_draws_the_rest(serve: Serve, redis_url: str) -> None:
    served = serve(redis=redis_url)
    served.create("a", order="trend", lease=100, step=1000)
    with served.client() as client:
        taken = [number for _ in range(20) for number in client.send(packed("INCR", "a") * 16).replies(16)]
        assert client.ask("PING") == b"PONG"
    assert taken == sorted(set(taken))


def test_a_pipeline_of_many_tags_makes_no_more_connections_than_the_setting(
    serve: Serve, redis_proxy: FaultProxy
) -> None:
    served = serve(redis=redis_proxy.url)
    tags = [f"tag-{number}" for number in range(100)]
    for tag in tags:
        served.create(tag, order="strict")
    with served.client() as client:
        for expected in (1, 2):
            client.send(*(packed("INCR", tag) for tag in tags))
            assert client.replies(len(tags)) == [expected] * len(tags)
    assert redis_proxy.accepted == REDIS_CONNECTIONS


def test_clients_that_come_during_a_draw_share_the_next_one(
    proxied: Served, redis_proxy: FaultProxy, redis_client: redis.Redis
) -> None:
    clients = [proxied.client() for _ in range(20)]
    assert [clients[0].ask("INCR", "a") for _ in range(2)] == [1, 2]
    before = draws(redis_client)
    redis_proxy.hold(match=script("next").sha.encode(), times=1)
    clients[0].send(packed("INCR", "a"))
    until(lambda: redis_proxy.held and proxied.waiting == 1)
    for client in clients[1:]:
        client.send(packed("INCR", "a") * 2)
    until(lambda: proxied.waiting == 39)
    redis_proxy.release()
    numbers = [number for client in clients for number in client.replies(1 if client is clients[0] else 2)]
    assert sorted(numbers) == list(range(3, 42))
    assert numbers[0] == 3
    assert draws(redis_client) - before == 2
    for client in clients:
        client.socket.close()


def test_nothing_is_drawn_for_a_client_that_has_left(proxied: Served, redis_proxy: FaultProxy) -> None:
    incr = packed("INCR", "a")
    with proxied.client() as first, proxied.client() as last:
        assert [first.send(incr).reply() for _ in range(2)] == [1, 2]
        redis_proxy.hold(match=script("next").sha.encode(), times=1)
        first.send(incr)
        until(lambda: redis_proxy.held and proxied.waiting == 1)
        with proxied.client() as gone:
            gone.send(incr * 5)
            until(lambda: proxied.waiting == 6)
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        until(lambda: proxied.clients == 2)
        last.send(incr)
        until(lambda: proxied.waiting == 2)
        redis_proxy.release()
        assert (first.reply(), last.reply()) == (3, 4)


@pytest.mark.parametrize("again", [False, True], ids=["the first", "the same again"])
def test_an_incr_that_comes_while_a_get_waits_is_answered_after_it(
    proxied: Served, redis_proxy: FaultProxy, *, again: bool
) -> None:
    incr = packed("INCR", "a") if again else packed("INCR", "a") * 2
    sent = proxied.server.shared.commands
    with proxied.client() as client:
        assert client.ask("INCR", "a") == 1
        redis_proxy.hold(times=1)
        client.send(packed("GET", "a"))
        until(lambda: redis_proxy.held)
        assert sent["GET"] == 1
        (connection,) = proxied.server.shared.connections
        client.send(incr)
        until(lambda: connection._parser.more or sent["INCR"] > 1)
        redis_proxy.release()
        assert client.replies(2) == [b"1", 2]


def test_a_client_that_waits_for_longer_than_the_idle_time_is_answered(
    proxied: Served, redis_proxy: FaultProxy
) -> None:
    async def look() -> None:
        proxied.server.shared.ticks += 100  # so much time has gone by
        proxied.server._look()

    with proxied.client() as client:
        for command, reply in (("INCR", 1), ("GET", b"1")):
            redis_proxy.hold(times=1)
            client.send(packed(command, "a"))
            until(lambda: redis_proxy.held)
            (one,) = proxied.server.shared.connections
            assert one._replies.waiting or one._asking
            proxied.wait(look())
            redis_proxy.release()
            assert client.reply() == reply


def test_contiguous_numbers_across_borders_are_one_callers_alone(serve: Serve, redis_url: str, tmp_path: Path) -> None:
    one, two = (serve(redis=redis_url) for _ in range(2))
    one.create("a", order="strict", step=100)
    singles: list[int] = []
    runs: list[range] = []

    def single(served: Served) -> None:
        with served.client() as client:
            for _ in range(40):
                client.send(packed("INCR", "a") * 5)
                singles.extend(client.replies(5))

    def several(served: Served, seed: int) -> None:
        chance = random.Random(seed)
        with served.client() as client:
            for _ in range(40):
                n = chance.choice([1, 2, 7, 30, 60])
                last = client.ask("INCRBY", "a", n)
                assert isinstance(last, int), last
                runs.append(range(last - n + 1, last + 1))

    together([
        *(lambda served=served: single(served) for served in (one, two)),
        *(lambda served=served, seed=seed: several(served, seed) for served in (one, two) for seed in (1, 2)),
    ])  # fmt: skip
    every = singles + [number for run in runs for number in run]
    assert len(singles) == 400
    assert len(runs) == 160
    assert repeats(every) == []
    assert min(every) >= 1
    with issuer.connect(redis=redis_url, store=f"sqlite:///{tmp_path / 'ids.db'}") as ids:
        assert max(every) <= ids.inspect("a").store.max
        # Each border that a run did not fit into has cost a gap, and nothing was given from it later.
        assert ids.verify("a") == []


@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("n", [1, 99, 100, 101, 1000, 12_345])
def test_more_numbers_in_a_row_than_a_segment_holds_come_as_well(
    serve: Serve, redis_url: str, order: str, n: int
) -> None:
    served = serve(redis=redis_url)
    served.create("a", order=order, step=100)
    taken: list[int] = []
    with served.client() as client:
        for _ in range(3):
            taken.append(client.ask("INCR", "a"))
            last = client.ask("INCRBY", "a", n)
            taken.extend(range(last - n + 1, last + 1))
        taken.append(client.ask("INCR", "a"))
    assert repeats(taken) == []
    assert taken[0] == 1
    if order == "strict":
        assert taken == sorted(taken)


def test_a_row_out_of_leases_is_contiguous_and_of_no_other_process(serve: Serve, redis_url: str) -> None:
    one, two = (serve(redis=redis_url) for _ in range(2))
    one.create("a", order="trend", lease=50, step=1000)
    taken: list[int] = []
    with one.client() as first, two.client() as second:
        for n in (1, 10, 49, 50, 51, 3, 500, 2, 1500):
            for client in (first, second):
                taken.append(client.ask("INCR", "a"))
                last = client.ask("INCRBY", "a", n)
                taken.extend(range(last - n + 1, last + 1))
    assert repeats(taken) == []


def test_others_that_draw_between_each_time_are_an_error_and_no_number(
    strict: Served, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    monkeypatch.setattr("issuer.engine.aio.CONTIGUOUS_DRAWS", 1)
    with strict.client() as client:
        assert client.ask("INCRBY", "a", 900) == 900
        reply = client.ask("INCRBY", "a", 900)  # falls short at the end of the segment
        assert code(reply) == "UNAVAILABLE"
        assert str(reply).endswith("; retry in 0.1 s")
        assert client.ask("INCR", "a") > 1000
    assert redis_client.ping()


def test_strict_numbers_rise_across_clients_and_processes(serve: Serve, redis_url: str) -> None:
    processes = [serve(redis=redis_url) for _ in range(2)]
    processes[0].create("a", order="strict", step=500)
    noted: list[Draw] = []

    def draw(served: Served) -> None:
        with served.client() as client:
            noted.extend(drawn(lambda: client.ask("INCR", "a")) for _ in range(300))

    together([lambda served=served: draw(served) for served in processes for _ in range(3)])  # type: ignore[misc]  # mypy doesn't infer a default's type
    assert len(noted) == 1800
    assert repeats([each.number for each in noted]) == []
    assert order_violations(noted) == []


def test_no_number_goes_to_two_clients_while_some_are_torn_away(strict: Served) -> None:
    chance = random.Random(seeded(6))
    kept: list[int] = []
    ended = threading.Event()

    def draw() -> None:
        with strict.client() as client:
            while not ended.is_set():
                client.send(packed("INCR", "a") * 10)
                kept.extend(client.replies(10))

    def tear() -> None:
        for _ in range(300):
            with strict.client() as torn:
                torn.send(packed("INCR", "a") * chance.randrange(1, 30))
                kept.extend(torn.replies(chance.randrange(2)))
                torn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        ended.set()

    together([draw, draw, tear])
    assert repeats(kept) == []


def test_get_is_what_redis_knows_whichever_process_has_issued_it(serve: Serve, redis_url: str) -> None:
    one, two = (serve(redis=redis_url) for _ in range(2))
    one.create("a", order="strict")
    with one.client() as first, two.client() as second:
        assert second.ask("GET", "a") is None
        assert first.ask("INCRBY", "a", 42) == 42
        assert second.ask("GET", "a") == b"42"
        assert second.ask("INCR", "a") == 43
        one.wait(one.ids.delete("a"))
        assert first.ask("GET", "a") is None
        assert first.ask("EXISTS", "a") == 0
        assert code(first.ask("INCR", "a")) == "NOTAG"


def test_a_redis_that_is_away_is_unavailable_for_strict_tags_and_no_matter_for_trend(
    serve: Serve, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    served = serve(redis=server.url, timeout=2)
    served.create("s", order="strict")
    served.create("t", order="trend")

    def number(client: Raw, tag: str) -> int:
        return until(lambda: code(reply := client.ask("INCR", tag)) == "" and int(reply))

    with served.client() as client:
        assert [number(client, tag) for tag in ("s", "t")] == [1, 1]
        server.kill()
        client.send(packed("INCR", "s") * 2, packed("GET", "s"))
        replies = client.replies(3)
        assert [code(reply) for reply in replies] == ["UNAVAILABLE"] * 3
        assert all("; retry in " in str(reply) for reply in replies)
        assert number(client, "t") > 1
        assert client.ask("EXISTS", "s") == 1
        server.start()
        assert number(client, "s") > 1


def test_numbers_of_both_doors_of_one_issuer_are_different(strict: Served) -> None:
    numbers: list[int] = []

    async def draw() -> None:
        numbers.extend([await strict.ids.next("a") for _ in range(500)])

    def ask() -> None:
        with strict.client() as client:
            for _ in range(50):
                client.send(packed("INCR", "a") * 10)
                numbers.extend(client.replies(10))

    together([lambda: strict.wait(draw()), ask])
    assert len(numbers) == 1000
    assert repeats(numbers) == []


def test_plugins_hear_of_numbers_that_are_drawn_here(serve: Serve) -> None:
    heard: list[int] = []

    class Hearing(Plugin):
        def after(self, call: Call, number: int) -> int:  # noqa: ARG002 - the hook's
            heard.append(number)
            return number

    served = serve(plugins=[Hearing()])
    served.create("a", order="trend")
    with Raw(served.port) as client:
        client.send(packed("INCR", "a") * 5)
        assert client.replies(5) == heard == [1, 2, 3, 4, 5]


def test_an_issuer_for_threads_and_this_server_share_a_tag(strict: Served, redis_url: str, tmp_path: Path) -> None:
    ids: Issuer
    with issuer.connect(redis=redis_url, store=f"sqlite:///{tmp_path / 'ids.db'}") as ids, strict.client() as client:
        assert [ids.next("a"), client.ask("INCR", "a"), ids.next("a"), client.ask("INCRBY", "a", 3), ids.next("a")] == [
            1, 2, 3, 6, 7,
        ]  # fmt: skip
