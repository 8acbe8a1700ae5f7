"""Each check of `doctor` on made-up facts, and that nothing is found without it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from issuer.advice import command_line, http
from issuer.care.discrepancies import MEANINGS, UNSEEN, Discrepancy
from issuer.care.doctor import examination, redis, store, tags
from issuer.care.doctor.examination import judge
from issuer.care.doctor.findings import (
    APART,
    FAR_APART,
    ClockDifference,
    DrawFacts,
    Facts,
    Finding,
    Level,
    ReplicaFacts,
    ServerFacts,
    TagFacts,
)
from issuer.core.periods import PERIOD_BITS, Periods
from issuer.errors import CorruptState, FenceError, RedisUnavailable, StoreFull, StoreUnavailable
from issuer.gateway.tag_scripts import Hash
from issuer.settings import Settings
from issuer_persistence.facts import Sharing, StoreFacts, StoreSetting
from issuer_persistence.records import HIGHEST, Order, Tag

REPLID = "8371b4fb1155b71f4a04d3e1bc3e18c4a990aeeb"

# What the servers say of themselves, cut to the fields that matter. Redis and Valkey as the tests' own servers say it,
# Dragonfly and KeyDB as their issue trackers show it: neither can be had here.
REDIS = {
    "redis_version": "7.0.15",
    "executable": "/usr/bin/redis-server",
    "used_memory": "991216",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "rdb_last_bgsave_status": "ok",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "role": "master",
    "connected_slaves": "0",
    "master_replid": REPLID,
}
VALKEY = {**REDIS, "redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}
DRAGONFLY = {**REDIS, "redis_version": "7.4.0", "dragonfly_version": "df-v1.30.3"}
OLD_DRAGONFLY = {**REDIS, "redis_version": "6.2.11", "dfly_version": "df-v1.1.2"}
KEYDB = {**REDIS, "redis_version": "6.3.4", "executable": "/usr/local/bin/keydb-server"}
ACTIVE_KEYDB = {**KEYDB, "role": "active-replica", "slave_read_only": "0"}

STORE = StoreFacts(
    kind="mongodb",
    version="7.0.0",
    time=1,
    lasting=True,
    write_concern={"w": "majority", "j": True},
    asked_concern={},
    replica_set="rs0",
    members=3,
    retry_writes=True,
    settings=(StoreSetting("fsync", "on", good=True, why="Commits are lost.", remedy="Set fsync = on."),),
)
ORDERS = Tag(tag="orders", max=2000, step=1000, limit=HIGHEST, order="strict", created=1, timestamp=1, version="v")
HASH = Hash(100, 1000, 200, 1000, 2000, 1200, fence=REPLID, born="b", store="s1")


def server(info: dict[str, str] | None = None, /, **facts: Any) -> ServerFacts:
    settings = {"save": "", "min-replicas-to-write": "0", "active-replica": None}
    return ServerFacts(
        **{"name": "r:1", "info": {**REDIS, **(info or {})}, "settings": settings, "clock": ClockDifference(0), **facts}
    )


def healthy(**changes: Any) -> Facts:
    facts = Facts(
        settings=Settings(),
        store="mongodb://m",
        redis="redis://r:1",
        servers=[server()],
        draw=DrawFacts(status="empty"),
        store_facts=STORE,
        store_id="s1",
        store_clock=ClockDifference(0),
        records=[ORDERS],
        tags=[TagFacts(record=ORDERS, hash=HASH, rate=0.1)],
        there=1,
        checked=1,
        examined=1,
    )
    for name, value in changes.items():
        setattr(facts, name, value)
    return facts


def with_server(info: dict[str, str] | None = None, /, **facts: Any) -> Facts:
    return healthy(servers=[server(info, **facts)])


def in_cluster(node_timeout: str | None) -> Facts:
    return with_server({"cluster_enabled": "1"}, settings={redis.NODE_TIMEOUT: node_timeout})


def with_store(**facts: Any) -> Facts:
    return healthy(store_facts=replace(STORE, **facts))


def with_tag(hash: Hash | None = HASH, **facts: Any) -> Facts:
    settings = ("limit", "halted", "step", "step_mode", "max_step", "target", "ahead", "survive")
    record = replace(ORDERS, **{name: facts.pop(name) for name in settings if name in facts})
    return healthy(records=[record], tags=[TagFacts(record=record, **{"hash": hash, "rate": 0.1, **facts})])


def leased(order: Order, *, lease: int | None = None, ahead: int = 1, default: int = 0) -> Facts:
    return healthy(records=[replace(ORDERS, order=order, lease=lease, ahead=ahead)], settings=Settings(lease=default))


#: A day, and its counters.
DAILY = {"restart": "daily", "timezone": "UTC", "format": "{date:%Y%m%d}{seq:06d}", "id": "i"}
NOON = 1_795_262_400_000
TODAY = Periods("daily").index(NOON) << PERIOD_BITS
STRIDE = {"stride": [{"from": 1, "first": 2, "stride": 3}], "limit": 100, "id": "i"}


def with_scheme(scheme: dict[str, Any], max: int, *, cur: int | None = None, limit: int = HIGHEST) -> Facts:
    record = replace(ORDERS, scheme=scheme, max=max, limit=limit)
    hash = None if cur is None else replace(HASH, cur=cur, max=max, next_cur=None, next_max=None)
    return healthy(records=[record], tags=[TagFacts(record=record, hash=hash)])


def with_parts(**changes: Any) -> Facts:
    """Two tags in parts, each with one part, which comes to its end and runs short, and a tag that only looks so."""
    names: dict[str, dict[str, Any]] = {
        "users": {"shards": {"shard_bits": 6, "app_bits": 8, "app": 0}},
        "users#1": {"part_of": "users"},
        "cust": {"keyed": True},
        "cust#a#b": {"part_of": "cust"},
        "orders#1": {},
    }
    records = [
        replace(ORDERS, tag=name, scheme=scheme, **(changes if "#" in name else {})) for name, scheme in names.items()
    ]
    return healthy(records=records, tags=[TagFacts(record=each, rate=9.0) for each in records if "#" in each.tag])


A_DAY_OF_2000, A_DAY_OF_2500 = {**DAILY, "limit": 2000}, {**DAILY, "limit": 2500}
READ_ONLY, CONCERN = "redis-replica-read-only", "store-write-concern"
FULL = StoreFull("full", path="store.db")
AWAY, OUT = RedisUnavailable("no answer in time"), StoreUnavailable("away")
ONE_REPLICA = {"min_slaves_good_slaves": "1"}
NEEDS_TWO = {"min-replicas-to-write": "2"}
KEEPS_UP = ReplicaFacts(name="r:2", read_only=True)
LAGGING: list[dict[str, Any]] = [{"lag": redis.LAG}, {"behind": redis.BEHIND}, {"state": "wait_bgsave"}]
REFUSED: list[dict[str, Any]] = [{"status": "notmaster"}, {"error": RedisUnavailable("OOM")}]
WRITES, BRITTLE = ("rdb_last_bgsave_status", "aof_last_write_status"), (("delete", 2), ("wal", 1))

FSYNC_OFF = StoreSetting("fsync", "off", good=False, why="Commits are lost.", remedy="Set fsync = on.")

Check = Callable[[Facts], Iterable[Finding]]

#: Of each check what it finds: the name and the level of the finding, and facts of which each makes it.
CASES: list[tuple[Check, str, Level, list[Facts]]] = [
    (redis.reachable, "redis-reachable", "weak", [healthy(redis_error=AWAY), with_server(info=None, error=AWAY)]),
    (redis.info_allowed, "redis-info", "weak", [with_server(info=None, error=FenceError("no +info"))]),
    (redis.draws, "redis-draw", "weak", [healthy(draw=DrawFacts(**no)) for no in REFUSED]),
    (redis.node, "redis-node", "weak", [with_server(node_error=FenceError("no +cluster|myid"))]),
    (redis.reports, "redis-report", "advice", [healthy(report_error=FenceError("no +publish"))]),
    (redis.kind, "redis-kind", "weak", [with_server(info) for info in (DRAGONFLY, OLD_DRAGONFLY, ACTIVE_KEYDB)]),
    (redis.kind, "redis-kind", "weak", [with_server({"redis_version": version}) for version in ("6.0.16", "?")]),
    (redis.kind, "redis-kind", "weak", [with_server(KEYDB, settings={"active-replica": "yes"})]),
    (redis.kind, "redis-kind", "advice", [with_server(KEYDB, settings={"active-replica": "no"})]),
    (redis.role, "redis-role", "weak", [with_server({"role": "slave"}), with_server(ACTIVE_KEYDB)]),
    (redis.replid, "redis-replid", "weak", [with_server({"master_replid": replid}) for replid in ("", "0" * 40)]),
    (redis.eviction, "redis-eviction", "weak", [with_server({"maxmemory_policy": "allkeys-lru", "maxmemory": "5000"})]),
    (redis.eviction, "redis-eviction", "advice", [with_server({"maxmemory_policy": "allkeys-random"})]),
    (redis.memory, "redis-memory", "weak", [with_server({"used_memory": "90", "maxmemory": "100"})]),
    (redis.persistence, "redis-persistence", "advice", [with_server({"aof_enabled": "0"})]),
    (redis.persistence, "redis-persistence", "unknown", [with_server({"aof_enabled": "0"}, settings={})]),
    (redis.persistence, "redis-persistence", "weak", [with_server({failed: "err"}) for failed in WRITES]),
    (redis.min_replicas, "redis-min-replicas", "advice", [with_server(replicas=(KEEPS_UP,))]),
    (redis.min_replicas, "redis-min-replicas", "weak", [with_server({"min_slaves_good_slaves": "0"}, settings={})]),
    (redis.min_replicas, "redis-min-replicas", "weak", [with_server(ONE_REPLICA, settings=NEEDS_TWO)]),
    (redis.failover, "redis-failover", "advice", [healthy(silence=4000), in_cluster("15000")]),
    (redis.failover, "redis-failover", "unknown", [healthy(silence=0), in_cluster(None)]),
    (redis.read_only, READ_ONLY, "weak", [with_server(replicas=(replace(KEEPS_UP, read_only=False),))]),
    (redis.read_only, READ_ONLY, "weak", [with_server({"role": "slave", "slave_read_only": "0"})]),
    (redis.read_only, READ_ONLY, "unknown", [with_server(replicas=(ReplicaFacts(name="r:2"),))]),
    (redis.lag, "redis-lag", "advice", [with_server(replicas=(replace(KEEPS_UP, **each),)) for each in LAGGING]),
    (redis.clock, "redis-clock", "advice", [with_server(clock=ClockDifference(APART))]),
    (redis.clock, "redis-clock", "weak", [with_server(clock=ClockDifference(-FAR_APART))]),
    (redis.clock, "redis-clock", "weak", [with_server(clock=None, clock_error=FenceError("no +time"))]),
    (redis.clock, "redis-clock", "unknown", [with_server(clock=None)]),
    (store.reachable, "store-reachable", "weak", [healthy(store_error=why) for why in (OUT, FULL, CorruptState("x"))]),
    (store.lasting, "store-lasting", "weak", [with_store(kind="memory", lasting=False)]),
    (store.lasting, "store-lasting", "unknown", [with_store(lasting=None)]),
    (store.write_concern, CONCERN, "weak", [with_store(write_concern=weak) for weak in ({"w": 1}, {"w": "majority"})]),
    (store.write_concern, CONCERN, "advice", [with_store(asked_concern=weak) for weak in ({"w": 1}, {"j": False})]),
    (store.replica_set, "store-replica-set", "advice", [with_store(replica_set=""), with_store(members=2)]),
    (store.retry_writes, "store-retry-writes", "advice", [with_store(retry_writes=False)]),
    (store.regions, "store-regions", "unknown", [with_store(service=name) for name in ("cosmos-ru", "cosmos-vcore")]),
    (store.durability, "store-durability", "weak", [with_store(journal=j, synchronous=s) for j, s in BRITTLE]),
    (store.settings, "store-settings", "weak", [with_store(settings=(FSYNC_OFF,))]),
    (store.shared, "store-shared", "advice", [with_store(sharing=Sharing("Leaf", "leaf_alloc", False, ()))]),
    (store.shared, "store-shared", "weak", [with_store(sharing=Sharing("Leaf", "leaf_alloc", True, ("orders",)))]),
    (store.lock, "store-lock", "advice", [with_store(open_elsewhere=True)]),
    (store.schema, "store-schema", "advice", [with_store(schema=4, newest_schema=6)]),
    (store.clock, "store-clock", "weak", [healthy(store_clock=ClockDifference(FAR_APART))]),
    (store.clock, "store-clock", "unknown", [healthy(store_clock=None, store_facts=replace(STORE, time=None))]),
    (store.timeouts, "settings-timeouts", "advice", [healthy(settings=Settings(timeout=4))]),
    (
        tags.looked_at,
        "tags-looked-at",
        "unknown",
        [healthy(examined=0), healthy(there=2), healthy(there=2, left_out=AWAY)],
    ),
    (tags.halted, "tag-halted", "weak", [with_tag(halted=True)]),
    (tags.blanks, "tag-blanks", "advice", [healthy(records=[replace(ORDERS, tag=" orders")])]),
    (
        tags.dots,
        "tag-dot",
        "advice",
        [healthy(settings=Settings(compat=["leaf"]), records=[replace(ORDERS, tag="order.v2")])],
    ),
    (tags.limit, "tag-limit", "advice", [with_tag(limit=2500), with_scheme(A_DAY_OF_2500, TODAY | 2000)]),
    (tags.limit, "tag-limit", "weak", [with_tag(limit=2000), with_scheme(A_DAY_OF_2000, TODAY | 2000)]),
    (tags.limit, "tag-limit", "weak", [healthy(records=[replace(ORDERS, max=HIGHEST)])]),
    (tags.limit, "tag-limit", "weak", [with_scheme(A_DAY_OF_2000, TODAY | 3000, cur=TODAY | 2000)]),
    (tags.limit, "tag-limit", "weak", [with_scheme(DAILY, TODAY | 2**40 - 1), with_scheme(STRIDE, 33, limit=33)]),
    (tags.limit, "tag-limit", "unknown", [with_scheme({**DAILY, "timezone": "Mars/Olympus"}, TODAY)]),
    (tags.runway, "tag-runway", "advice", [with_tag(rate=1.0), with_tag(rate=5000.0, rated_for=2.0)]),
    (tags.runway, "tag-runway", "advice", [with_tag(rate=5000.0, step=10**6, step_mode="auto")]),
    (tags.runway, "tag-runway", "advice", [with_tag(rate=1.0, step=1200, survive=601)]),
    (
        tags.runway,
        "tag-runway",
        "advice",
        [with_tag(rate=1.0, step=1200, survive=601, step_mode="auto", max_step=1200)],
    ),
    (tags.lease, "tag-lease", "advice", [leased("trend", lease=200), leased("trend", default=1000)]),
    *(
        (tags.verified, meaning.check, "weak", [with_tag(found=[Discrepancy("orders", kind, "it is so")])])
        for kind, meaning in MEANINGS.items()
        if kind != UNSEEN
    ),
]


def only(facts: Facts, check: str) -> Finding:
    """The one finding of that check."""
    [found] = [finding for finding in judge(facts) if finding.check == check]
    return found


def of(findings: list[Finding], check: str, level: Level) -> list[Finding]:
    return [finding for finding in findings if (finding.check, finding.level) == (check, level)]


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day doesn't end while the tests run."""
    monkeypatch.setattr(tags, "now_ms", lambda: NOON)


@pytest.mark.covers("N.7")
def test_each_check_fires_and_says_what_why_and_what_to_do_and_without_it_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = examination.CHECKS
    assert {check for check, *_ in CASES} == set(every)
    for check, name, level, bad in CASES:
        for facts in bad:
            monkeypatch.setattr(examination, "CHECKS", every)
            [finding] = of(judge(facts), name, level)
            assert all((finding.what, finding.why, finding.remedy, finding.subject)), name
            assert all(map(finding.told, (command_line, http))), name
            monkeypatch.setattr(examination, "CHECKS", tuple(each for each in every if each is not check))
            assert not of(judge(facts), name, level), name


def test_what_is_well_is_found_well_by_every_check() -> None:
    replica = {"connected_slaves": "1", **ONE_REPLICA}
    for info in (REDIS, VALKEY, {**REDIS, "redis_version": "6.2.14"}):
        facts = with_server({**info, **replica}, settings={"min-replicas-to-write": "1"}, replicas=(KEEPS_UP,))
        findings = judge(facts)
        assert [finding for finding in findings if finding.level != "ok"] == []
        elsewhere = {
            "redis-failover",
            "store-shared",
            "store-durability",
            "store-lock",
            "store-schema",
            "store-regions",
        }
        names = {name for _, name, *_ in CASES if not name.startswith("tag-")}
        assert {finding.check for finding in findings} >= names - elsewhere


def test_what_only_looks_like_a_weakness_is_none() -> None:
    of_volatile = {"maxmemory_policy": "volatile-lru", "maxmemory": "5000000"}
    nearly_late = replace(KEEPS_UP, lag=redis.LAG - 1)
    for name, well in (
        ("redis-eviction", [with_server(of_volatile)]),
        ("redis-persistence", [with_server({"aof_enabled": "0"}, settings={"save": "3600 1"})]),
        ("redis-memory", [with_server({"used_memory": "89", "maxmemory": "100"})]),
        ("redis-lag", [with_server(replicas=(nearly_late,))]),
        ("redis-clock", [with_server(clock=ClockDifference(APART + 50, doubt=51))]),
        ("redis-failover", [healthy(), healthy(silence=3000), in_cluster("3000")]),
        ("redis-draw", [healthy(redis=None, servers=[], draw=None)]),
        ("store-durability", [with_store(journal="wal", synchronous=3)]),
        ("store-lock", [with_store(open_elsewhere=False)]),
        ("store-schema", [with_store(schema=each, newest_schema=6) for each in (0, 6, 7)]),
        ("store-replica-set", [with_store(replica_set="sharded", members=None)]),
        ("store-lasting", [with_store(kind="sqlite", time=None, write_concern=None)]),
        ("store-clock", [healthy(store_clock=None, store_facts=replace(STORE, own_clock=False))]),
        ("tag-limit", [with_tag(limit=2501), with_scheme(DAILY, TODAY | 2000), with_scheme(A_DAY_OF_2000, TODAY - 1)]),
        ("tag-limit", [with_scheme(A_DAY_OF_2000, TODAY | 3000, cur=TODAY | 1000), with_scheme(STRIDE, 26, limit=33)]),
        ("tag-limit", [with_scheme({"strategy": "snowflake"}, 0)]),
        ("tag-runway", [with_tag(rate=1000 / 1200), with_tag(rate=None), with_tag(rate=50.0, rated_for=2.0)]),
        ("tag-runway", [with_tag(rate=1.0, step_mode="auto")]),
        ("tag-runway", [with_tag(rate=1.0, step=60, step_mode="auto", max_step=60, target=60)]),
        (
            "tag-runway",
            [with_tag(rate=1.0, step=1200, survive=600), with_tag(rate=1.0, step=600, ahead=2, survive=600)],
        ),
        ("tag-lease", [leased("trend", lease=199), leased("trend", lease=0, default=1000)]),
        ("tag-lease", [leased("trend", lease=1000, ahead=6), leased("strict", default=1000)]),
        ("tag-lease", [replace(leased("trend", lease=1000), redis=None, servers=[], draw=None)]),
        ("redis-reachable", [with_tag(found=[Discrepancy("orders", UNSEEN, "no answer")])]),
    ):
        for facts in well:
            assert {finding.level for finding in judge(facts) if finding.check == name} <= {"ok"}, name


def test_what_is_to_be_done_about_a_part_is_said_of_its_tag() -> None:
    found = judge(with_parts(limit=2000))
    remedies = {(finding.check, finding.tag): finding.remedy for finding in found}
    assert remedies["tag-limit", "users#1"] == (
        "Create a new tag to use instead of users: the limit of existing parts can't be changed."
    )
    assert remedies["tag-limit", "orders#1"] == "Raise the limit with ids.configure('orders#1', limit=N)."
    assert remedies["tag-runway", "users#1"] == "Run ids.configure('users', step=11000)."
    assert remedies["tag-runway", "cust#a#b"] == "Run ids.configure('cust', step=11000)."
    assert remedies["tag-runway", "orders#1"] == "Run ids.configure('orders#1', step=11000)."
    assert not [finding for finding in found if finding.tag in ("users", "cust")]


def test_a_halt_is_told_as_what_it_may_be_and_an_odd_tag_can_be_pasted_into_a_shell() -> None:
    halt = only(healthy(records=[replace(ORDERS, tag="it's $HOME", halted=True)]), "tag-halted")
    assert "An operator halted it, or a process found that the store had gone back" in halt.why
    assert (halt.tag, halt.remedy) == ("it's $HOME", """Run ids.recover("it's $HOME").""")
    assert halt.told(command_line) == """Run `issuer recover 'it'"'"'s $HOME'`."""
    assert halt.told(http) == 'Run POST /v1/tags/it%27s%20%24HOME/recover {"dry_run": false}.'


def test_a_lease_and_the_step_that_it_needs() -> None:
    found = only(leased("trend", lease=1000, ahead=2), "tag-lease")
    assert found.what == "each process draws 1,000 numbers ahead, from segments of 2,000"
    assert found.remedy == "Run ids.configure('orders', step=2600)."
    record = replace(ORDERS, order="trend", lease=1000, ahead=2, step=2600)
    assert of(judge(healthy(records=[record])), "tag-lease", "advice") == []


def test_findings_come_in_the_same_order_whichever_tag_was_used_last() -> None:
    for names in ("bca", "acb"):
        tags_of = [TagFacts(record=replace(ORDERS, tag=name), hash=HASH, rate=10.0) for name in names]
        found = of(judge(healthy(records=[each.record for each in tags_of], tags=tags_of)), "tag-runway", "advice")
        assert [finding.tag for finding in found] == ["a", "b", "c"]


def test_the_limit_that_is_told_is_that_of_the_values() -> None:
    burst = only(with_tag(rate=5000.0, rated_for=2.0), "tag-runway")
    assert burst.remedy == "Run ids.configure('orders', step=100000).", (
        "ten times as long as it was seen, not a day's numbers"
    )
    assert "run doctor again later" in burst.why
    grown = only(with_tag(rate=5000.0, step=10**6, step_mode="auto"), "tag-runway")
    assert grown.remedy == "Run ids.configure('orders', max_step=3000000)."
    found = only(with_scheme(STRIDE, 33, limit=33), "tag-limit")
    assert found.what == "0 numbers are left to reserve up to the limit 100"


def test_the_worst_comes_first() -> None:
    levels = [finding.level for finding in judge(with_server({**DRAGONFLY, "aof_enabled": "0"}, clock=None))]
    assert levels == sorted(levels, key=["weak", "advice", "unknown", "ok"].index)
    assert len(set(levels)) == len(examination.LEVELS)
