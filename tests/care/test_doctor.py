"""`doctor` on real servers and stores that are set up badly, each in one way; and on good ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import issuer
from issuer import RedisUnavailable, StoreUnavailable
from issuer.care.doctor import examination, redis, store, tags
from issuer_persistence.memory import MemoryStore
from issuer_persistence.urls import mask
from tests.care.findings import Fires, Opened, levels, of_check, weak
from tests.colours import BOTH
from tests.deadlines import refused
from tests.schemes import Make
from tests.servers.cluster import ClusterServers
from tests.servers.fake import FencedFakeServer
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

StartRedis = Callable[..., RedisServer]


#: What lua/README.md tells an administrator to grant.
RIGHTS = {"+info", "+evalsha", "+eval", "+script|load", "+time", "+hmget", "+hget", "+hset", "+hdel", "+hincrby"}


def drawer(server: RedisServer, rights: set[str]) -> str:
    """Give these rights, and no others, to a user of that name, and return the URL to log in with."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "drawer", "reset", "on", ">secret", "~issuer:*", *rights)
    return server.url.replace("redis://", "redis://drawer:secret@")


def follow(replica: RedisServer, master: RedisServer) -> None:
    """Make it a replica, and return when its master knows that it keeps up: that is later than its own link is up."""
    replica.replicaof(master)
    until(lambda: master.replication()["slave0"]["state"] == "online", 60, f"{master!r} knows {replica!r}")


# ------------------------------------------------------------------------------------------------------------ well


@pytest.mark.covers("N.7")
def test_a_good_set_up_has_nothing_to_complain_about(
    any_redis: RedisServer, opened: Opened, mongo_url: str, request: pytest.FixtureRequest
) -> None:
    any_redis.client().config_set("save", "3600 1")
    request.addfinalizer(lambda: any_redis.client().config_set("save", ""))
    for protocol in (2, 3):
        ids = opened(f"{any_redis.url}?protocol={protocol}", store=f"{mongo_url}/doctor_{free_port()}")
        name = f"t{protocol}"
        ids.create(name)
        ids.next(name)
        findings = ids.doctor()
        # One member is a set without a second copy.
        assert {each.check for each in findings if each.level != "ok"} <= {"store-replica-set"}
        by_name = {each.check: each for each in findings}
        assert by_name["redis-draw"].level == by_name["store-write-concern"].level == "ok"
        assert by_name["redis-kind"].what.startswith(("Redis 7", "Redis 6.2", "Valkey "))
        assert by_name["redis-persistence"].what == "snapshots are on: save 3600 1"


@BOTH
@pytest.mark.parametrize("direct", [False, True])
def test_it_changes_nothing(redis_client: Redis, redis_url: str, opened: Opened, direct: bool) -> None:
    ids = opened("none" if direct else redis_url)
    for name in ("orders", "users"):
        ids.create(name, step=10, order="trend")
        ids.take(name, 25)
    before = {key: redis_client.hgetall(key) for key in redis_client.scan_iter(_type="HASH")}, ids.tags()
    checks = [each.check for each in ids.doctor() if each.check.startswith("redis")]
    assert ({key: redis_client.hgetall(key) for key in redis_client.scan_iter(_type="HASH")}, ids.tags()) == before
    assert ids.next("orders") == 26
    assert (checks == ["redis-reachable"]) == direct


# ------------------------------------------------------------------------------------------------------------ Redis


@pytest.mark.covers("N.7")
def test_a_server_that_may_lose_what_it_has(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    server = start_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--save", "3600 1")
    client = server.client()
    ids = opened(server.url)
    assert "allkeys-lru" in fires(ids, redis.eviction, "weak").what
    client.config_set("maxmemory", 0)
    assert "allkeys-lru" in fires(ids, redis.eviction, "advice").what
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 600 * 1024)
    assert "614,400 bytes are used" in fires(ids, redis.memory, "weak").what
    client.config_set("maxmemory", 0)
    client.config_set("save", "")
    assert "neither" in fires(ids, redis.persistence, "advice").what
    client.config_set("save", "3600 1")
    client.set("a", 1)
    shutil.rmtree(server.directory)
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 60)
    assert "rdb_last_bgsave_status" in fires(ids, redis.persistence, "weak").what
    ids.create("orders")
    # The time may be over before Redis has answered, or the store.
    until(lambda: "MISCONF" in str(refused(ids, "orders", 1)), 60, ignoring=(StoreUnavailable,))


@pytest.mark.covers("N.7")
def test_a_master_and_its_replica(
    start_redis: StartRedis, opened: Opened, fires: Fires, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, replica = start_redis("--unixsocket", str(tmp_path / "r")), start_redis("--replica-read-only", "no")
    follow(replica, master)
    # Where all stands still for a while no replica says how far it is.
    lag = redis.LAG
    monkeypatch.setattr(redis, "LAG", 60)
    ids, there = opened(master.url), f"127.0.0.1:{replica.port}"
    ids.create("orders")
    assert fires(ids, redis.read_only, "weak").subject == there
    assert "can't be reached" in fires(opened(f"unix://{tmp_path / 'r'}"), redis.read_only, "unknown").what
    instead = opened(replica.url)
    assert "'slave'" in fires(instead, redis.role, "weak").what
    assert "'notmaster'" in fires(instead, redis.draws, "weak").what
    replica.client().config_set("slave-read-only", "yes")
    assert levels(ids.doctor(), "redis-replica-read-only") == {("ok", there)}
    assert "min-replicas-to-write is 0" in fires(ids, redis.min_replicas, "advice").what
    master.client().config_set("min-slaves-to-write", 1)
    assert {level for level, _ in levels(ids.doctor(), "redis-min-replicas")} == {"ok"}
    master.client().config_set("min-slaves-to-write", 2)
    assert "min-replicas-to-write is 2" in fires(ids, redis.min_replicas, "weak").what
    until(lambda: "NOREPLICAS" in str(refused(ids, "orders", 1)), 60, ignoring=(StoreUnavailable,))  # as above
    monkeypatch.setattr(redis, "LAG", lag)
    until(lambda: {level for level, _ in levels(ids.doctor(), "redis-lag")} == {"ok"}, 60)  # a second apart at most
    monkeypatch.setattr(redis, "LAG", 0)
    assert fires(ids, redis.lag, "advice").subject == there
    replica.client().config_set("requirepass", "not ours")
    assert "can't be reached" in fires(opened(master.url), redis.read_only, "unknown").what


@pytest.mark.covers("N.7")
def test_a_right_that_is_missing_is_found_before_a_draw_needs_it(
    any_redis: RedisServer, opened: Opened, fires: Fires, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: any_redis.client().acl_deluser("drawer"))
    findings = opened(drawer(any_redis, RIGHTS)).doctor()
    assert weak(findings) == []
    [unseen] = [each for each in findings if each.level == "unknown"]
    assert (unseen.check, "+config|get" in unseen.remedy) == ("redis-persistence", True)
    for right in RIGHTS - {"+info", "+eval", "+script|load"}:
        check = redis.clock if right == "+time" else redis.draws
        finding = fires(opened(drawer(any_redis, RIGHTS - {right})), check, "weak")
        assert f"'{right[1:]}'" in finding.what, right
    assert any_redis.client().dbsize() == 0
    any_redis.client().script_flush()
    assert "script" in fires(opened(drawer(any_redis, RIGHTS - {"+eval", "+script|load"})), redis.draws, "weak").what
    ids = opened(drawer(any_redis, RIGHTS - {"+info"}))
    assert "+info" in fires(ids, redis.info_allowed, "weak").remedy
    assert weak(ids.doctor()) == ["redis-info"]


class StrangeServer(FencedFakeServer):
    """A server of another make."""

    fields = b""

    def info(self, sections: tuple[bytes, ...] = ()) -> bytes:
        return super().info(sections) + self.fields


def test_a_server_that_is_refused_is_examined_all_the_same(make: Make, fires: Fires) -> None:
    for fields, role, named in (
        (b"dragonfly_version:df-v1.30.3\r\n", "master", "Dragonfly df-v1.30.3"),
        (b"executable:/usr/bin/keydb-server\r\n", "active-replica", "KeyDB 7.0.0 with active-replica"),
    ):
        server = StrangeServer()
        server.fields, server.role = fields, role
        ids = make(redis=server.client())
        assert fires(ids, redis.kind, "weak").what == f"{named} is not supported"
        assert {"redis-kind", "redis-draw"} <= set(weak(ids.doctor()))


@BOTH
def test_what_is_away_or_lets_nobody_in_is_a_finding(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    opened("none").create("orders")
    ids = opened(f"redis://127.0.0.1:{free_port()}")
    assert isinstance(fires(ids, redis.reachable, "weak").error, RedisUnavailable)
    assert levels(ids.doctor(), "tags-looked-at") == {("unknown", "tags")}
    [denied] = [
        each
        for each in opened(start_redis(password="right").url.replace("right", "wrong")).doctor()
        if each.level == "weak"
    ]
    assert (denied.check, type(denied.error)) == ("redis-reachable", issuer.ConfigurationError)
    assert "wrong" not in denied.what + denied.subject
    ids = opened("none", store=f"mongodb://127.0.0.1:{free_port()}/x", timeout=0.5)
    [away] = [each for each in ids.doctor() if each.level == "weak"]
    assert (away.check, type(away.error)) == ("store-reachable", issuer.StoreUnavailable)


def test_the_master_and_the_replicas_of_the_sentinels(
    start_sentinels: Callable[..., SentinelServers], opened: Opened
) -> None:
    group = start_sentinels()
    findings = opened(group.url).doctor()
    assert weak(findings) == []
    assert levels(findings, "redis-role") == {("ok", "{}:{}".format(*group.master()))}
    assert len(levels(findings, "redis-replica-read-only")) == len(group.replicas())


@BOTH
def test_a_failover_that_takes_longer_than_callers_wait(
    start_sentinels: Callable[..., SentinelServers], opened: Opened, request: pytest.FixtureRequest
) -> None:
    group = start_sentinels()
    clients: list[Any] = [sentinel.client() for sentinel in group.sentinels]

    def told(client: Any, milliseconds: int) -> None:
        client.execute_command("SENTINEL", "SET", group.name, "down-after-milliseconds", milliseconds)

    def may(client: Any, sign: str) -> None:
        client.execute_command("ACL", "SETUSER", "default", f"{sign}sentinel|replicas")

    for client, silence in zip(clients, (1000, 3000, 30_000), strict=True):
        before = client.sentinel_master(group.name)["down-after-milliseconds"]
        request.addfinalizer(partial(told, client, before))
        request.addfinalizer(partial(may, client, "+"))
        told(client, silence)
    (slow,) = of_check(opened(group.url, timeout=5), "redis-failover")
    assert (slow.level, slow.what) == ("advice", "down-after-milliseconds is 30,000; timeout is 5 s")
    assert slow.remedy == "Set down-after-milliseconds to 3000 on every node, or timeout to at least 32."
    may(clients[2], "-")
    assert levels(opened(group.url, timeout=5).doctor(), "redis-failover") == {("ok", mask(group.url))}
    for client in clients[:2]:
        may(client, "-")
    (unread,) = of_check(opened(group.url), "redis-failover")
    assert (unread.level, "SENTINEL REPLICAS" in unread.remedy) == ("unknown", True)


def test_each_master_of_a_cluster(cluster: ClusterServers, opened: Opened, request: pytest.FixtureRequest) -> None:
    masters = cluster.masters()
    bad = masters[1]
    request.addfinalizer(lambda: bad.client().config_set("maxmemory-policy", "noeviction"))
    bad.client().config_set("maxmemory-policy", "allkeys-lru")
    for node in cluster.nodes:
        node.client().config_set("cluster-node-timeout", 3000)
    findings = opened(cluster.url, timeout=5).doctor()
    wanted = {("advice" if each is bad else "ok", f"127.0.0.1:{each.port}") for each in masters}
    assert levels(findings, "redis-eviction") == wanted
    assert levels(findings, "redis-draw") == {("ok", mask(cluster.url))}
    assert levels(findings, "redis-failover") == {("ok", f"127.0.0.1:{each.port}") for each in masters}
    bad.client().config_set("cluster-node-timeout", 15_000)  # the default
    (slow,) = of_check(opened(cluster.url, timeout=5), "redis-failover")
    assert (slow.subject, slow.what) == (f"127.0.0.1:{bad.port}", "cluster-node-timeout is 15,000; timeout is 5 s")


# ------------------------------------------------------------------------------------------------------------ the store


@pytest.mark.covers("N.7")
def test_a_store_or_settings_that_promise_less(mongo_url: str, opened: Opened, fires: Fires) -> None:
    assert "memory" in fires(opened("none", store=MemoryStore()), store.lasting, "weak").what
    ids = opened("none", store=f"{mongo_url}/doctor_w1?w=1&retryWrites=false")
    assert fires(ids, store.write_concern, "advice").what.startswith("the URL or client asks for w=1;")
    assert fires(ids, store.retry_writes, "advice").what == "retryWrites is off"
    # Callers who give up before a loader is replaced.
    assert fires(opened("none", timeout=2, store_timeout=2), store.timeouts, "advice").subject == "settings"


def test_a_store_that_went_back_in_time_is_told_and_a_segment_that_is_loaded_meanwhile_is_none(
    redis_url: str, opened: Opened, fires: Fires, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    behind = opened(redis_url, store=memory, prefix="behind")
    behind.create("users", step=10)
    backup = memory.snapshot()
    behind.take("users", 50)
    memory.restore(backup)
    finding = fires(behind, tags.verified, "weak")
    assert (finding.tag, finding.remedy) == ("users", "Run ids.recover('users').")
    behind.recover("users")
    assert weak(behind.doctor()) == ["store-lasting"]
    ids = opened(redis_url)
    ids.create("orders", step=10)
    look = examination.Examination._look_at_tag

    def late(self: examination.Examination, record: Any) -> Any:
        ids.take("orders", 95)
        return look(self, record)

    monkeypatch.setattr(examination.Examination, "_look_at_tag", late)
    assert weak(ids.doctor()) == []
