"""`doctor` on real servers that are set up badly, each in one way; and on good ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import issuer
from issuer import RedisUnavailable, gateway
from issuer.core.doctor import redis
from persistence.memory import MemoryStore
from tests.integration.examining import RIGHTS, Fires, Opened, StartRedis, drawer, follow, levels, weak
from tests.servers.cluster import ClusterServers
from tests.servers.fake import FencedFakeServer
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

# ------------------------------------------------------------------------------------------------------------ well


@pytest.mark.covers("N.7")
def test_a_good_set_up_has_nothing_to_complain_about(
    any_redis: RedisServer, opened: Opened, mongo_url: str, request: pytest.FixtureRequest
) -> None:
    client = any_redis.client()
    client.config_set("save", "3600 1")
    request.addfinalizer(lambda: any_redis.client().config_set("save", ""))
    ids = opened(any_redis.url, store=f"{mongo_url}/doctor_{any_redis.port}")
    name = f"t{free_port()}"
    ids.create(name)
    ids.next(name)
    findings = ids.doctor()
    # A single mongod, or the wire server, is no replica set.
    assert {each.check for each in findings if each.level != "ok"} <= {"store-replica-set"}
    by_name = {each.check: each for each in findings}
    assert by_name["redis-draw"].level == by_name["store-write-concern"].level == "ok"
    assert by_name["redis-kind"].what.startswith(("Redis 7", "Redis 6.2", "Valkey "))


def test_it_changes_nothing(start_redis: StartRedis, opened: Opened) -> None:
    server = start_redis()
    ids = opened(server.url)
    for name in ("orders", "users"):
        ids.create(name, step=10)
        ids.take(name, 25)
    client = server.client()

    def everything() -> object:
        return {key: client.hgetall(key) for key in client.scan_iter()}, ids.tags()

    before = everything()
    ids.doctor()
    assert everything() == before
    assert ids.next("orders") == 26


def test_direct_has_no_redis_to_examine(opened: Opened) -> None:
    ids = opened(None)
    ids.create("orders")
    ids.next("orders")
    findings = ids.doctor()
    assert {each.level for each in findings} == {"ok"}
    assert [each.check for each in findings if each.check.startswith("redis")] == ["redis-reachable"]


# ------------------------------------------------------------------------------------------------------------ Redis


@pytest.mark.covers("N.7")
def test_hashes_that_may_be_evicted(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    server = start_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    ids = opened(server.url)
    assert "allkeys-lru" in fires(ids, redis.eviction, "weak").what
    server.client().config_set("maxmemory", 0)
    assert "allkeys-lru" in fires(ids, redis.eviction, "advice").what


def test_nothing_on_disk(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    assert "neither" in fires(opened(start_redis().url), redis.persistence, "advice").what


def test_a_disk_that_takes_no_snapshot(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    server = start_redis("--save", "3600 1")
    client = server.client()
    client.set("a", 1)
    shutil.rmtree(server.directory)
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 10)
    ids = opened(server.url)
    assert "rdb_last_bgsave_status" in fires(ids, redis.persistence, "weak").what
    ids.create("orders")
    with pytest.raises(RedisUnavailable, match="MISCONF"):
        ids.next("orders", timeout=1)


def test_no_memory_left(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    server = start_redis("--maxmemory", "600kb")
    assert "614400 bytes are used" in fires(opened(server.url), redis.memory, "weak").what


@pytest.mark.covers("N.7")
def test_a_replica_that_takes_writes(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    master, replica = start_redis(), start_redis("--replica-read-only", "no")
    follow(replica, master)
    ids = opened(master.url)
    assert fires(ids, redis.read_only, "weak").subject == f"127.0.0.1:{replica.port}"
    replica.client().config_set("slave-read-only", "yes")
    assert levels(ids.doctor(), "redis-replica-read-only") == {("ok", f"127.0.0.1:{replica.port}")}
    replica.client().config_set("requirepass", "not ours")
    assert "can't be asked" in fires(opened(master.url), redis.read_only, "unknown").what


def test_a_replica_that_a_unix_socket_does_not_lead_to(
    start_redis: StartRedis, opened: Opened, fires: Fires, tmp_path: Path
) -> None:
    master, replica = start_redis("--unixsocket", str(tmp_path / "r")), start_redis("--replica-read-only", "no")
    follow(replica, master)
    assert "can't be asked" in fires(opened(f"unix://{tmp_path / 'r'}"), redis.read_only, "unknown").what


@pytest.mark.parametrize("protocol", [2, 3])
def test_either_protocol_is_understood(start_redis: StartRedis, opened: Opened, protocol: int) -> None:
    findings = opened(f"{start_redis('--save', '3600 1').url}?protocol={protocol}").doctor()
    assert {finding.level for finding in findings} == {"ok"}
    assert {finding.check: finding.what for finding in findings}["redis-persistence"] == "snapshots are on: save 3600 1"


def test_a_replica_instead_of_its_master(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    master, replica = start_redis(), start_redis()
    follow(replica, master)
    ids = opened(replica.url)
    assert "'slave'" in fires(ids, redis.role, "weak").what
    assert "'notmaster'" in fires(ids, redis.draws, "weak").what


def test_a_master_that_goes_on_when_it_is_cut_off(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    master, replica = start_redis(), start_redis()
    follow(replica, master)
    ids = opened(master.url)
    assert "min-replicas-to-write is 0" in fires(ids, redis.min_replicas, "advice").what
    master.client().config_set("min-slaves-to-write", 1)
    assert {level for level, _ in levels(ids.doctor(), "redis-min-replicas")} == {"ok"}
    master.client().config_set("min-slaves-to-write", 2)
    assert "min-replicas-to-write is 2" in fires(ids, redis.min_replicas, "weak").what
    ids.create("orders")
    with pytest.raises(RedisUnavailable, match="NOREPLICAS"):
        ids.next("orders", timeout=1)


def test_a_replica_that_lags(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    master, replica = start_redis(), start_redis()
    follow(replica, master)
    ids = opened(master.url, redis_timeout=0.2)
    assert {level for level, _ in levels(ids.doctor(), "redis-lag")} == {"ok"}
    replica.pause()
    until(lambda: int(master.replication()["slave0"]["lag"]) >= redis.LAG, 20)
    assert fires(ids, redis.lag, "advice").subject == f"127.0.0.1:{replica.port}"
    assert "can't be asked" in fires(ids, redis.read_only, "unknown").what


@pytest.mark.covers("N.7")
def test_info_denied(
    any_redis: RedisServer,
    opened: Opened,
    fires: Fires,
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(lambda: any_redis.client().acl_deluser("drawer"))
    rights = [right for right in RIGHTS if right != "+info"]
    ids = opened(drawer(any_redis, *rights))
    finding = fires(ids, redis.info_allowed, "weak")
    assert "+info" in finding.remedy
    assert weak(ids.doctor()) == ["redis-info"]


def test_config_denied_is_told_and_the_rest_is_judged(
    any_redis: RedisServer, opened: Opened, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: any_redis.client().acl_deluser("drawer"))
    ids = opened(drawer(any_redis, *RIGHTS))
    findings = ids.doctor()
    assert weak(findings) == []
    [unseen] = [each for each in findings if each.level == "unknown"]
    assert (unseen.check, "+config|get" in unseen.remedy) == ("redis-persistence", True)


@pytest.mark.covers("N.7")
@pytest.mark.parametrize("right", [right for right in RIGHTS if right not in {"+info", "+eval", "+script|load"}])
def test_a_right_that_is_missing_is_found_before_a_draw_needs_it(
    start_redis: StartRedis, opened: Opened, fires: Fires, right: str
) -> None:
    server = start_redis()
    ids = opened(drawer(server, *(each for each in RIGHTS if each != right)))
    check = redis.clock if right == "+time" else redis.draws
    finding = fires(ids, check, "weak")
    assert f"'{right[1:]}'" in finding.what
    assert server.client().dbsize() == 0


def test_a_script_that_can_not_be_loaded(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    rights = [right for right in RIGHTS if right not in {"+eval", "+script|load"}]
    ids = opened(drawer(start_redis(), *rights))
    assert "script" in fires(ids, redis.draws, "weak").what


def test_mutation_without_the_trials_a_missing_right_to_write_is_not_seen(
    any_redis: RedisServer,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(lambda: any_redis.client().acl_deluser("drawer"))
    ids = opened(drawer(any_redis, *(right for right in RIGHTS if right != "+hset")))
    assert weak(ids.doctor()) == ["redis-draw"]
    monkeypatch.setattr(gateway, "trials", lambda _key: [])
    assert weak(ids.doctor()) == []


class StrangeServer(FencedFakeServer):
    """A server of another make."""

    fields = b""

    def info(self, sections: tuple[bytes, ...] = ()) -> bytes:
        return super().info(sections) + self.fields


@pytest.mark.parametrize(
    ("fields", "role", "named"),
    [
        (b"dragonfly_version:df-v1.30.3\r\n", "master", "Dragonfly df-v1.30.3 is not supported"),
        (b"executable:/usr/bin/keydb-server\r\n", "active-replica", "KeyDB 7.0.0 with active-replica is not supported"),
    ],
)
def test_a_server_that_is_refused_is_examined_all_the_same(fires: Fires, fields: bytes, role: str, named: str) -> None:
    server = StrangeServer()
    server.fields, server.role = fields, role
    with server.client() as client, issuer.connect(redis=client, store=MemoryStore(), scheduler=None) as ids:
        assert fires(ids, redis.kind, "weak").what == named
        assert {"redis-kind", "redis-draw"} <= set(weak(ids.doctor()))


def test_servers_that_are_away(opened: Opened, fires: Fires) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    ids = opened(url)
    ids.create("orders")
    finding = fires(ids, redis.reachable, "weak")
    assert isinstance(finding.error, RedisUnavailable)
    assert levels(ids.doctor(), "tags-looked-at") == {("unknown", "tags")}


def test_a_login_that_is_refused(start_redis: StartRedis, opened: Opened) -> None:
    ids = opened(start_redis(password="right").url.replace("right", "wrong"))
    [finding] = [each for each in ids.doctor() if each.level == "weak"]
    assert (finding.check, type(finding.error)) == ("redis-reachable", issuer.ConfigurationError)
    assert "wrong" not in finding.what + finding.subject


def test_the_present_master_of_the_sentinels(start_sentinels: Callable[..., SentinelServers], opened: Opened) -> None:
    group = start_sentinels()
    ids = opened(group.url)
    old = group.master()
    findings = ids.doctor()
    assert weak(findings) == []
    assert levels(findings, "redis-role") == {("ok", f"{old[0]}:{old[1]}")}
    assert len(levels(findings, "redis-replica-read-only")) == len(group.replicas())
    group.kill_master()
    group.wait_for_master_other_than(old)
    host, port = group.master()
    assert levels(ids.doctor(), "redis-role") == {("ok", f"{host}:{port}")}


def test_each_master_of_a_cluster(cluster: ClusterServers, opened: Opened, request: pytest.FixtureRequest) -> None:
    masters = cluster.masters()
    bad = masters[1]
    request.addfinalizer(lambda: bad.client().config_set("maxmemory-policy", "noeviction"))
    bad.client().config_set("maxmemory-policy", "allkeys-lru")
    findings = opened(cluster.url).doctor()
    wanted = {("advice" if each is bad else "ok", f"127.0.0.1:{each.port}") for each in masters}
    assert levels(findings, "redis-eviction") == wanted
    assert levels(findings, "redis-draw") == {("ok", cluster.url)}


@pytest.mark.parametrize(("seconds", "level"), [(10.0, "advice"), (-120.0, "weak")])
def test_a_clock_that_is_wrong(fake_server: FencedFakeServer, fires: Fires, seconds: float, level: str) -> None:
    fake_server.time_offset = seconds
    with (
        fake_server.client() as client,
        issuer.connect(redis=client, store=MemoryStore(), scheduler=None) as ids,
    ):
        finding = fires(ids, redis.clock, level)
    assert ("ahead of" if seconds > 0 else "behind") in finding.what
    shown = float(finding.what.partition("is ")[2].partition(" s")[0])
    assert abs(shown - abs(seconds)) < 1
