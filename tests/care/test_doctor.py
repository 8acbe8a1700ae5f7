"""`doctor` on real servers and stores that are set up badly, each in one way; on tags in trouble; and on good ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import issuer
from issuer import Issuer, RedisUnavailable, StoreUnavailable
from issuer.care import care
from issuer.care.doctor import examination, redis, store, tags
from issuer.care.doctor.findings import Facts
from issuer.core import arithmetic
from issuer.drivers import topology
from issuer.threads import finished
from issuer.values import Finding
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings, now_ms
from issuer_persistence.urls import mask
from tests.colours import BOTH, Connect
from tests.deadlines import refused
from tests.schemes import Make
from tests.servers.cluster import ClusterServers
from tests.servers.fake import FencedFakeServer
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

#: The check of how many tags were examined.
LOOKED_AT = "tags-looked-at"

Opened = Callable[..., Issuer]
Check = Callable[[Facts], Iterable[Finding]]
Fires = Callable[[Issuer, Check, str], Finding]
StartRedis = Callable[..., RedisServer]

#: What lua/README.md tells an administrator to grant.
RIGHTS = {"+info", "+evalsha", "+eval", "+script|load", "+time", "+hmget", "+hget", "+hset", "+hdel", "+hincrby"}


@pytest.fixture
def opened(connect: Connect, tmp_path: Path) -> Iterator[Opened]:
    """Make issuers on one SQLite file unless a store is named; they are closed at the end."""
    with ExitStack() as ends:

        def make(url: str | None, **settings: Any) -> Issuer:
            settings = {"store": f"sqlite:///{tmp_path / 'ids.db'}", "scheduler": None, **settings}
            return ends.enter_context(connect(redis=url, **settings))

        yield make


@pytest.fixture
def fires(monkeypatch: pytest.MonkeyPatch) -> Fires:
    """Return the one finding of a check at a level; without the check there must be none."""

    def find(ids: Issuer, check: Check, level: str) -> Finding:
        seen = ids.doctor()
        with monkeypatch.context() as patch:
            patch.setattr(examination, "CHECKS", tuple(each for each in examination.CHECKS if each is not check))
            without = {each.check for each in ids.doctor() if each.level == level}
        [finding] = [each for each in seen if each.level == level and each.check not in without]
        return finding

    return find


def levels(findings: list[Finding], check: str) -> set[tuple[str, str]]:
    """Which levels the check came to, and of what."""
    return {(finding.level, finding.subject) for finding in findings if finding.check == check}


def weak(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.level == "weak"]


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
    before = {key: redis_client.hgetall(key) for key in redis_client.scan_iter()}, ids.tags()
    checks = [each.check for each in ids.doctor() if each.check.startswith("redis")]
    assert ({key: redis_client.hgetall(key) for key in redis_client.scan_iter()}, ids.tags()) == before
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


# ------------------------------------------------------------------------------------------------------------ the tags


def of_check(ids: Issuer, check: str) -> list[Finding]:
    """What a doctor finds by one check, besides that all is well."""
    return [each for each in ids.doctor() if each.check == check and each.level != "ok"]


@pytest.mark.covers("N.7")
def test_tags_in_trouble(
    redis_server: RedisServer, redis_url: str, opened: Opened, fires: Fires, tmp_path: Path
) -> None:
    ids, other = opened(redis_url), opened(redis_url, store=f"sqlite:///{tmp_path / 'other.db'}")
    other.create("orders")
    limits = {"halted": 10**9, "ended": 1000, "near": 1100, "corrupt": 10**9, "alien": 10**9, "orders": 10**9}
    for name, limit in limits.items():
        ids.create(name, limit=limit)
        ids.next(name)
    assert not of_check(ids, "tag-limit"), "of a limit that is less than two segments all is reserved at once"
    for name in ("ended", "near"):
        ids.take(name, 999)
    assert set(weak(ids.doctor())) == {"tag-limit"}
    assert fires(other, tags.verified, "weak").tag == "orders"
    halting = open_store(f"sqlite:///{tmp_path / 'ids.db'}")
    assert halting.halt("halted", below=10**6, timeout=30)
    halting.close()
    client = redis_server.client()
    client.hset("issuer:{corrupt}", "cur", "1e3")
    client.delete("issuer:{alien}")
    client.set("issuer:{alien}", "a string")
    assert fires(ids, tags.halted, "weak").tag == "halted"
    assert fires(ids, tags.limit, "advice").tag == "near"
    assert {each.tag for each in of_check(ids, "tag-corrupt")} == {"corrupt", "alien"}
    for name in ("corrupt", "alien"):
        with pytest.raises(issuer.CorruptState):
            ids.next(name)
    assert {each.tag for each in of_check(ids, "tag-limit") if each.level == "weak"} == {"ended"}


@BOTH
def test_segments_that_redis_lost_are_no_use_of_a_tag(
    redis_client: Redis, redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "BURST", 0)
    ids = opened(redis_url)
    for name in ("lost", "used"):
        ids.create(name, step=10)
        for _ in range(4):
            redis_client.flushall()
            ids.warm(name)
            warmed = now_ms()
            until(lambda: now_ms() > warmed, message="the next reservation is later")  # noqa: B023 - called at once
    ids.next("used")
    assert [each.tag for each in of_check(ids, "tag-runway")] == ["used"]


def restored(ids: Issuer, memory: MemoryStore, tag: str) -> None:
    """Draw from the tag, and put the store back to before: also to the time at which the tag was changed."""
    backup = memory.snapshot()
    ids.take(tag, 25)
    memory.restore(backup)


@BOTH
def test_of_any_number_of_tags_those_are_named_that_verify_names(
    redis_url: str, redis_client: Redis, opened: Opened
) -> None:
    """A restored store sets back the times at which its tags were used: no choice by time would find these tags."""
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for name in ("behind", "torn"):
        ids.create(name, step=10)
        ids.next(name)
    redis_client.hset("issuer:{torn}", "mark", "x")
    restored(ids, memory, "behind")
    memory.create_many({f"t{number:04}": TagSettings() for number in range(1100)}, timeout=60)
    calls: list[tuple[int, int]] = []
    findings = ids.doctor(progress=lambda done, of: calls.append((done, of)))
    named = {each.tag: each.check for each in findings if each.level == "weak" and each.tag}
    assert named == {"behind": "tag-store-behind", "torn": "tag-corrupt"}
    assert named.keys() == {each.tag for each in ids.verify()}
    assert calls == [(done, 1102) for done in range(1, 1103)]
    assert levels(findings, "tags-looked-at") == {("ok", "tags")}


@pytest.mark.covers("U.19")
@BOTH
def test_the_findings_are_those_of_all_tags_however_few_are_in_memory_at_once(
    redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for number in range(9):
        ids.create(f"t{number}", limit=1000 + 100 * number, lease=number * 100, order="trend")
        if number % 2:
            ids.take(f"t{number}", 1000)
            ids.halt(f"t{number}")
    for blank, bare in (("t3 ", "t3"), (" t7", "t7"), (" t", "t0")):
        memory.write(replace(memory._tags[bare], tag=blank))
    monkeypatch.setattr(MemoryStore, "witnessed", lambda *_, **__: {"t0": 10**6, "t8": 10**6})
    whole = ids.doctor()
    assert {each.check for each in whole} >= {
        "tag-blanks",
        "tag-halted",
        "tag-lease",
        "tag-limit",
        "tag-store-behind",
    }
    remedies = {each.tag: each.remedy for each in whole if each.check == "tag-blanks"}
    assert "ids.create('t', above=" in remedies[" t"]
    assert "create" not in remedies["t3 "] + remedies[" t7"]
    held: list[int] = []
    end = examination.Examination._end_page

    def noted(self: examination.Examination, batch: Any) -> None:
        held.append(len(self.facts.records))
        end(self, batch)
        assert not self.facts.records
        assert not self.facts.tags

    monkeypatch.setattr(examination, "PAGE", 2)
    monkeypatch.setattr(examination.Examination, "_end_page", noted)
    by_pages = ids.doctor()
    assert held == [2, 2, 2, 2, 2, 2, 0]
    assert sorted(map(str, by_pages)) == sorted(map(str, whole))
    assert [each.level for each in by_pages] == [each.level for each in whole]
    monkeypatch.setattr(examination, "MOST_FINDINGS", 3)
    *listed, more = [each for each in ids.doctor() if each.check == "tag-halted"]
    assert [each.tag for each in listed] == [" t7", "t1", "t3"]
    assert (more.level, more.tag, more.what) == ("weak", None, "further tags with the same finding: 3")


def test_tags_that_come_and_go_meanwhile_are_no_tags_that_were_left_out(
    redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for number in range(3):
        ids.create(f"t{number}", step=10)
    restored(ids, memory, "t0")  # so its record is read again
    count, read = examination.Examination._count, examination.Examination._read_records

    def counted(self: examination.Examination) -> Any:
        yield from count(self)
        for name in ("u0", "u1"):
            memory.create(name, TagSettings(), timeout=1)

    def deleted(self: examination.Examination) -> Any:
        yield from read(self)
        memory.delete("t0", timeout=1)

    monkeypatch.setattr(examination.Examination, "_count", counted)
    monkeypatch.setattr(examination.Examination, "_read_records", deleted)
    (found,) = [each for each in ids.doctor() if each.check == "tags-looked-at"]
    assert (found.level, found.what) == ("ok", "all tags were examined: 4")


@pytest.mark.parametrize("what", ["doctor", "verify", "inspected"])
def test_a_redis_that_goes_away_half_way_is_waited_for_once_and_what_is_left_out_is_told(
    redis_proxy: FaultProxy, opened: Opened, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for module in (examination, care):
        monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(care, "TOGETHER", 2)
    monkeypatch.setattr(topology, "FORGOTTEN", 10**6)
    ids = opened(redis_proxy.url, timeout=60, redis_timeout=0.5)
    for number in range(20):
        ids.create(f"t{number:02}")

    def progress(done: int) -> None:
        if done == 2:
            redis_proxy.blackhole()
        elif done == 4:
            redis_proxy.pass_through()

    if what == "doctor":
        (told,) = [each for each in ids.doctor(progress=lambda done, _: progress(done)) if each.check == LOOKED_AT]
        assert (told.level, told.what[:8], type(told.error)) == ("unknown", "2 of 20 ", RedisUnavailable)
        return
    seen = []
    care_of = ids.engine.care
    every: Any = care_of.inspected(ids.tags(), None)
    if what == "verify":
        every = finished(lambda: care_of.verified(None, None))
    for done, each in enumerate(every, 1):
        found = each.result
        seen.append(found == [] if isinstance(found, list) else found is not None and found.redis_error is None)
        progress(done)
    assert seen == [True] * 2 + [False] * 18
