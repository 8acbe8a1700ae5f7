"""The servers, proxies and fakes that other tests lean on do what they say."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fakeredis
import pytest
import redis

from tests.servers import binaries
from tests.servers.absent import absent
from tests.servers.clocked import ClockedServer, clocked_binary
from tests.servers.fake import FencedFakeServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

StartRedis = Callable[..., RedisServer]

REIGN = "return redis.call('INFO', 'replication')"
INCR = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('INCRBY', KEYS[1], 1)"


class TestFindingServers:
    def test_the_copy_that_a_wheel_puts_into_the_environment_is_not_taken_for_the_systems_redis(self) -> None:
        if found := binaries.find_servers().get("redis"):
            assert "6.2.14" not in binaries.version(found)
            assert binaries.version(found).startswith("Redis")

    def test_an_installed_redis_server_is_found(self) -> None:
        if Path("/usr/bin/redis-server").exists():
            assert binaries.find_servers()["redis"] == Path("/usr/bin/redis-server")

    def test_an_override_is_the_only_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = next(iter(binaries.find_servers().values()), None)
        if chosen is None:
            absent("a redis-server")
        monkeypatch.setenv(binaries.OVERRIDE, str(chosen))
        assert binaries.find_servers() == {"chosen": chosen}
        assert binaries.primary_server() == chosen

    def test_an_override_that_does_not_run_is_an_error(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(binaries.OVERRIDE, str(tmp_path / "nothing"))
        with pytest.raises(FileNotFoundError, match=binaries.OVERRIDE):
            binaries.find_servers()


class TestTheProxy:
    def test_what_is_being_accepted_when_it_closes_is_closed_too(self, recwarn: pytest.WarningsRecorder) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=500) as upstream:
            for _ in range(30):
                with FaultProxy(upstream.getsockname()) as proxy:
                    clients = [socket.create_connection(proxy.address) for _ in range(20)]
                for client in clients:
                    client.close()
            gc.collect()
        assert [str(warning.message) for warning in recwarn if warning.category is ResourceWarning] == []


class TestWaiting:
    def test_until_returns_what_became_true(self) -> None:
        answers = iter([0, None, "here"])
        assert until(lambda: next(answers)) == "here"

    def test_until_fails_at_its_deadline_with_the_reason(self) -> None:
        with pytest.raises(AssertionError, match=r"the moon is full; last seen: 0"):
            until(lambda: 0, 0.01, "the moon is full")

    def test_until_passes_on_errors_that_it_was_not_told_to_ignore(self) -> None:
        with pytest.raises(ZeroDivisionError):
            until(lambda: 1 // 0)


class TestRedisServer:
    def test_every_server_starts_and_has_a_reign_that_scripts_can_read(self, any_redis: RedisServer) -> None:
        client = any_redis.client(decode_responses=True)
        assert f"master_replid:{any_redis.replication()['master_replid']}\r\n" in client.eval(REIGN, 0)
        assert client.dbsize() == 0

    def test_a_unix_socket_serves_as_well(self, start_redis: StartRedis) -> None:
        server = start_redis(unix_socket=True)
        assert server.url.startswith("unix://")
        assert server.client().ping()

    def test_restore_forgets_everything_since_the_snapshot_and_begins_a_new_reign(
        self, start_redis: StartRedis
    ) -> None:
        server = start_redis()
        server.client().set("n", 1)
        snapshot, reign, pid = server.snapshot(), server.replication()["master_replid"], server.pid
        server.client().set("n", 2)
        server.restore(snapshot)
        assert server.client().get("n") == b"1"
        assert server.replication()["master_replid"] != reign
        assert server.pid != pid

    def test_a_killed_server_without_persistence_comes_back_empty_on_the_same_port(
        self, start_redis: StartRedis
    ) -> None:
        server = start_redis()
        server.client().set("n", 1)
        url = server.url
        server.kill()
        assert not server.running
        with pytest.raises(redis.ConnectionError):
            server.client().ping()
        assert server.start().url == url
        assert server.client().get("n") is None

    def test_a_clock_that_is_set_is_seen_at_once_by_scripts_too_and_nothing_else_changes(
        self, redis_server: RedisServer
    ) -> None:
        with ClockedServer(clocked_binary(redis_server.binary)) as server, server.client() as client:
            reign = server.replication()["master_replid"]
            for ahead in (3600, -3600, 0):
                server.set_clock(ahead)
                seconds = int(client.eval("return redis.call('TIME')[1]", 0))
                assert abs(seconds - time.time() - ahead) < 2
            assert server.replication()["master_replid"] == reign
            assert client.info("server")["uptime_in_seconds"] < 60
            left = [path for path in Path("/dev/shm").glob("*faketime*") if path.name.endswith(f"_{server.pid}")]
            assert left
        assert not [path for path in left if path.exists()]

    def test_a_wiped_server_is_empty_whatever_it_had_saved(self, any_redis: RedisServer) -> None:
        with RedisServer(any_redis.binary, appendonly=True) as server:
            server.client().set("n", 1)
            assert server.wipe().client().get("n") is None

    def test_an_aof_survives_a_kill_and_loses_its_tail_when_cut(self, any_redis: RedisServer) -> None:
        with RedisServer(any_redis.binary, appendonly=True) as server:
            server.client().set("n", 1)
            server.kill()
            server.start()
            assert server.client().get("n") == b"1"
            before = server.aof_size()
            server.client().set("n", 2)
            server.cut_aof(server.aof_size() - before - 5)
            assert server.client().get("n") == b"1"

    def test_an_orderly_restart_keeps_an_aof(self, start_redis: StartRedis) -> None:
        server = start_redis(appendonly=True)
        server.client().set("n", 7)
        assert server.restart().client().get("n") == b"7"

    def test_a_paused_server_answers_nothing_until_it_is_resumed(self, start_redis: StartRedis) -> None:
        server = start_redis()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            server.client(socket_timeout=0.05).ping()
        server.resume()
        assert server.client().ping()

    def test_a_promoted_replica_has_a_new_reign_and_shows_the_old_one_second(self, any_redis: RedisServer) -> None:
        any_redis.client().set("n", 1)
        with RedisServer(any_redis.binary) as replica:
            replica.replicaof(any_redis)
            # Only now: a master takes a new id when its first replica comes.
            old = any_redis.replication()["master_replid"]
            assert replica.client().get("n") == b"1"
            assert replica.replication()["master_replid"] == old
            replica.promote()
            seen = replica.replication()
            assert seen["master_replid"] != old
            assert seen["master_replid2"] == old

    def test_revive_makes_a_usable_master_of_whatever_is_left(self, start_redis: StartRedis) -> None:
        server, other = start_redis(), start_redis()
        server.client().set("n", 1)
        server.replicaof(other)
        server.pause()
        assert server.revive().client().set("n", 2)
        server.kill()
        assert server.revive().client().dbsize() == 0

    def test_a_server_that_cannot_start_says_why(self, start_redis: StartRedis) -> None:
        with pytest.raises(Exception, match="no-such-option"):
            start_redis("--no-such-option", "1")

    def test_the_process_and_its_directory_are_gone_at_the_end(self, redis_server: RedisServer) -> None:
        with RedisServer(redis_server.binary) as server:
            process, directory = server._process, server.directory
            assert process is not None
        assert process.poll() is not None
        assert not directory.exists()


@pytest.fixture
def caller(redis_proxy: FaultProxy, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client that reaches the primary server through the proxy, once and without patience."""
    with redis_server.client(port=redis_proxy.port, socket_timeout=0.3) as client:
        client.connection_pool.connection_kwargs["port"] = redis_proxy.port
        assert client.ping()
        yield client


class TestFaultProxy:
    def test_it_passes_everything_at_first(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        payload = b"x" * 1_000_000
        caller.set("big", payload)
        assert caller.get("big") == payload
        assert (redis_proxy.accepted, redis_proxy.open, redis_proxy.hits) == (1, 1, 0)

    def test_refuse_cuts_what_is_open_and_accepts_nothing_new(
        self, caller: redis.Redis, redis_proxy: FaultProxy
    ) -> None:
        redis_proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                caller.ping()
        redis_proxy.pass_through()
        assert caller.ping()

    def test_a_blackhole_accepts_and_never_answers(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        redis_proxy.blackhole()
        for _ in range(2):  # over the open connection, then over a new one
            with pytest.raises(redis.TimeoutError):
                caller.incr("n")
        assert redis_proxy.accepted == 2
        redis_proxy.pass_through()
        assert caller.incr("n") == 1  # what was sent into the hole never arrived

    def test_a_dropped_request_never_arrives(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        redis_proxy.drop_requests(match=b"INCR", times=1)
        with pytest.raises(redis.ConnectionError):
            caller.incr("n")
        assert caller.incr("n") == 1
        assert redis_proxy.hits == 1

    def test_a_dropped_reply_leaves_the_work_done(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        redis_proxy.drop_replies(match=b"INCR", times=1)
        with pytest.raises(redis.ConnectionError):
            caller.incr("n")
        assert caller.incr("n") == 2

    def test_a_delayed_reply_comes_late_but_comes(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        redis_proxy.delay_replies(0.1, match=b"INCR")
        began = time.monotonic()
        assert caller.incr("n") == 1
        assert time.monotonic() - began >= 0.1
        redis_proxy.delay_replies(1.0, match=b"INCR")
        with pytest.raises(redis.TimeoutError):
            caller.incr("n")
        assert caller.get("n") == b"2"

    def test_a_held_request_arrives_after_its_caller_has_given_up(
        self, caller: redis.Redis, redis_proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        redis_proxy.hold(match=b"late", times=1)
        with pytest.raises(redis.TimeoutError):
            caller.set("n", "late")
        assert caller.set("n", "early")
        assert [b"late" in request for request in redis_proxy.held] == [True]
        redis_proxy.pass_through()
        assert redis_proxy.release() == 1
        until(lambda: redis_server.client().get("n") == b"late")
        assert redis_proxy.held == []

    def test_a_held_request_whose_caller_still_waits_is_answered(
        self, caller: redis.Redis, redis_proxy: FaultProxy
    ) -> None:
        redis_proxy.hold(match=b"INCR")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(caller.incr, "n")
            until(lambda: redis_proxy.held)
            redis_proxy.release()
            assert answer.result(5) == 1

    def test_a_duplicated_request_is_executed_twice_and_answered_once(
        self, caller: redis.Redis, redis_proxy: FaultProxy
    ) -> None:
        redis_proxy.duplicate(match=b"INCR", times=1)
        assert caller.incr("n") == 2
        assert caller.incr("n") == 3

    def test_cut_closes_open_connections_only(self, caller: redis.Redis, redis_proxy: FaultProxy) -> None:
        redis_proxy.cut()
        until(lambda: redis_proxy.open == 0)
        assert caller.ping()  # redis-py sees that its connection was closed, and makes another one
        assert (redis_proxy.accepted, redis_proxy.open) == (2, 1)

    def test_a_dead_upstream_is_a_closed_connection(self, start_redis: StartRedis) -> None:
        server = start_redis()
        with FaultProxy(server.address) as proxy, redis.Redis.from_url(proxy.url, socket_timeout=2) as client:
            assert client.ping()
            server.kill()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.start()
            assert client.ping()

    def test_close_ends_its_thread_and_may_be_repeated(self, redis_server: RedisServer) -> None:
        proxy = FaultProxy((redis_server.host, redis_server.port))
        with redis.Redis.from_url(proxy.url) as client:
            assert client.ping()
            proxy.close()
            proxy.close()
        assert not proxy._thread.is_alive()

    def test_many_callers_may_use_it_while_faults_change(
        self, redis_proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        stop = threading.Event()
        acknowledged = 0
        with redis.Redis.from_url(redis_proxy.url, socket_timeout=1) as client, ThreadPoolExecutor(8) as pool:

            def draw() -> int:
                done = 0
                while not stop.is_set():
                    try:
                        client.incr("n")
                    except redis.RedisError:
                        continue
                    done += 1
                return done

            tallies = [pool.submit(draw) for _ in range(8)]
            for _ in range(5):
                redis_proxy.drop_replies(b"INCR", times=3)
                until(lambda: redis_proxy._fault.left == 0)
                redis_proxy.cut()
                redis_proxy.pass_through()
            stop.set()
            acknowledged = sum(tally.result(10) for tally in tallies)
        assert redis_proxy.hits == 15
        assert int(redis_server.client().get("n") or 0) >= acknowledged + 15


class TestFencedFake:
    def test_scripts_and_clients_read_the_same_reign(
        self, fake_server: FencedFakeServer, fake_redis: fakeredis.FakeRedis
    ) -> None:
        assert fake_redis.info("replication")["master_replid"] == fake_server.master_replid
        assert f"master_replid:{fake_server.master_replid}\r\n".encode() in fake_redis.eval(REIGN, 0)
        sha = fake_redis.script_load(REIGN)
        old, new = fake_server.master_replid, fake_server.new_reign()
        reply = fake_redis.evalsha(sha, 0)
        assert f"master_replid:{new}\r\nmaster_replid2:{old}\r\n".encode() in reply
        assert reply.startswith(b"# Replication\r\nrole:master\r\n")

    def test_info_without_a_section_tells_all_and_with_an_unknown_one_nothing(
        self, fake_redis: fakeredis.FakeRedis
    ) -> None:
        everything = fake_redis.info()
        assert {"redis_version", "role"} <= set(everything)
        assert fake_redis.info("nonsense") == {}

    def test_the_role_can_be_lost(self, fake_server: FencedFakeServer, fake_redis: fakeredis.FakeRedis) -> None:
        fake_server.role = "slave"
        assert b"role:slave\r\n" in fake_redis.eval(REIGN, 0)

    def test_info_can_be_denied(self, fake_server: FencedFakeServer, fake_redis: fakeredis.FakeRedis) -> None:
        fake_server.info_denied = True
        with pytest.raises(redis.ResponseError, match="can't run this command") as raised:
            fake_redis.eval(REIGN, 0)
        assert not isinstance(raised.value, redis.exceptions.NoPermissionError)
        with pytest.raises(redis.exceptions.NoPermissionError):
            fake_redis.info()

    def test_time_moves_inside_scripts(self, fake_server: FencedFakeServer, fake_redis: fakeredis.FakeRedis) -> None:
        script = "return redis.call('TIME')[1]"
        before = int(fake_redis.eval(script, 0))
        fake_server.time_offset = -3600
        assert abs(int(fake_redis.eval(script, 0)) - (before - 3600)) <= 5
        assert abs(fake_redis.time()[0] - (before - 3600)) <= 5

    def test_a_wiped_server_has_forgotten_data_scripts_and_reign(
        self, fake_server: FencedFakeServer, fake_redis: fakeredis.FakeRedis
    ) -> None:
        fake_redis.set("n", 1)
        sha, reign = fake_redis.script_load(REIGN), fake_server.master_replid
        assert fake_server.wipe() != reign
        assert fake_redis.get("n") is None
        with pytest.raises(redis.exceptions.NoScriptError):
            fake_redis.evalsha(sha, 0)

    def test_other_fake_servers_of_the_process_stay_as_they_are(self) -> None:
        with fakeredis.FakeRedis(server=fakeredis.FakeServer()) as plain, pytest.raises(redis.ResponseError):
            plain.info()

    def test_numbers_above_2_to_the_53_stay_exact(self, fake_redis: fakeredis.FakeRedis) -> None:
        top = str(2**63 - 2)
        script = (
            "redis.call('HSET', KEYS[1], 'cur', ARGV[1]) "
            "redis.call('HINCRBY', KEYS[1], 'cur', '1') "
            "return redis.call('HGET', KEYS[1], 'cur')"
        )
        assert fake_redis.eval(script, 1, "h", top) == str(2**63 - 1).encode()

    def test_asyncio_clients_see_it_too(self, fake_server: FencedFakeServer) -> None:
        async def ask() -> bytes:
            async with fake_server.async_client() as client:
                return bytes(await client.eval(REIGN, 0))

        assert fake_server.master_replid.encode() in asyncio.run(ask())
