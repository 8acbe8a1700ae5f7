"""Checks of Redis. Each check takes the facts, and yields its findings about every server that issues numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import PurePosixPath

from issuer.care.doctor.findings import Check, Facts, Finding, ReplicaFacts, ServerFacts, compared
from issuer.errors import FenceError
from issuer.gateway.keys import due_channel
from issuer.gateway.server_commands import OLDEST
from issuer.times import lasting

#: If a replica's last report is this many seconds old, the replica is behind. Replicas report once a second.
LAG = 3

#: If a replica has not received this many bytes yet, it is behind. A draw takes about 200 bytes, so this is the data of
#: 5000 draws.
BEHIND = 1_000_000

#: If this share of maxmemory is used, in percent, Redis is nearly full.
NEARLY_FULL = 90

#: How long the nodes of a Cluster wait for a silent master, in ms.
NODE_TIMEOUT = "cluster-node-timeout"

#: How long a failover takes after the master was silent for long enough, in seconds: 1 to 2 s in the tests.
ELECTION = 2

_REPLID = re.compile(r"[0-9a-f]{40}")

ServerCheck = Callable[[ServerFacts, Mapping[str, str]], Iterable[Finding]]


def _each(check: ServerCheck) -> Callable[[Facts], Iterator[Finding]]:
    @wraps(check)
    def checked(facts: Facts) -> Iterator[Finding]:
        for server in facts.servers:
            if server.info is not None:
                yield from check(server, server.info)

    return checked


def reachable(facts: Facts) -> Iterator[Finding]:
    if facts.redis is None:
        yield Check("redis-reachable", "settings").ok(
            "no Redis is configured (direct mode)",
            "Each process draws from segments that it reserves in the store. The numbers are unique, in trend order.",
        )
        return
    remedy = "Start Redis, or correct its URL. `issuer config` shows the URL in use and where it was set."
    why = (
        "While Redis is unavailable, callers of strict tags get an error. For trend tags, each process draws from "
        "segments that it reserves in the store."
    )
    if facts.redis_error is not None:
        yield Check("redis-reachable", facts.redis).weak(str(facts.redis_error), why, remedy, error=facts.redis_error)
    for server in facts.servers:
        if server.info is not None:
            yield Check("redis-reachable", server.name).ok("Redis answers", "Numbers can be drawn.")
        elif not isinstance(server.error, FenceError):
            yield Check("redis-reachable", server.name).weak(str(server.error), why, remedy, error=server.error)


def info_allowed(facts: Facts) -> Iterator[Finding]:
    """Check whether the INFO command is allowed. The fence, which detects lost data of Redis, needs INFO."""
    for server in facts.servers:
        if isinstance(server.error, FenceError):
            yield Check("redis-info", server.name).weak(
                f"INFO is denied: {server.error}",
                "Every script reads the master's replication id from INFO. This check (the fence) detects a Redis that "
                "has gone back in time. Without INFO every draw is rejected with FenceError.",
                "Allow INFO for the user: `ACL SETUSER <user> +info`. lua/README.md lists all permissions.",
            )
        elif server.info is not None:
            yield Check("redis-info", server.name).ok("INFO is allowed", "The fence needs INFO.")


@_each
def node(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:  # noqa: ARG001 - every check has it
    if isinstance(server.node_error, FenceError):
        yield Check("redis-node", server.name).weak(
            f"CLUSTER MYID is denied: {server.node_error}",
            "Numbers are issued. But the fence does not detect a promoted replica that has kept the replication id of "
            "its master, and numbers could be issued twice.",
            "Allow CLUSTER MYID for the user: `ACL SETUSER <user> +cluster|myid`.",
        )
    else:
        yield Check("redis-node", server.name).ok("CLUSTER MYID is allowed", "In a Cluster, the fence needs this id.")


def draws(facts: Facts) -> Iterator[Finding]:
    """Check by a test draw, from a hash that does not exist, whether the scripts and their commands are allowed."""
    if facts.draw is None:
        return
    subject = facts.redis or ""
    if facts.draw.status == "empty":
        yield Check("redis-draw", subject).ok("a test draw works", "The scripts run, and the fence works.")
        return
    seen = facts.draw.error or f"Redis answers a test draw with {facts.draw.status!r}"
    yield Check("redis-draw", subject).weak(
        str(seen),
        "No number can be drawn from this Redis.",
        "Correct the problem that the error names. lua/README.md lists the permissions that the user needs.",
    )


def reports(facts: Facts) -> Iterator[Finding]:
    """Check by a test message whether PUBLISH is allowed. With PUBLISH, draws report tags that need a segment."""
    if facts.draw is None or facts.draw.status != "empty":
        return
    channel = due_channel(facts.settings.prefix)
    found = Check("redis-report", facts.redis or "")
    if facts.report_error is None:
        yield found.ok("a test message can be published", f"Draws report to keepers on the channel {channel}.")
        return
    yield found.advice(
        f"PUBLISH is denied: {facts.report_error}",
        "If clients of this user draw with EVALSHA and a negative window, a keeper finds tags that need their next "
        "segment only during its slow walk over all tags, and never loads a first segment. Other clients do not need "
        "this permission.",
        f"Allow the channel for the user: `ACL SETUSER <user> +publish &{channel}`.",
    )


@_each
def kind(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    what, trouble = _what_it_is(info, server.settings.get("active-replica"))
    if trouble:
        yield Check("redis-kind", server.name).weak(
            f"{what} is not supported", trouble, "Use Redis 6.2 or newer, or Valkey."
        )
    elif what.startswith("KeyDB"):
        yield Check("redis-kind", server.name).advice(
            f"{what}, without active replication",
            "The fence isn't tested on KeyDB. With active-replica, two masters have the same replication id, and "
            "numbers would be issued twice.",
            "Use Redis 6.2 or newer, or Valkey. If you stay with KeyDB, keep active-replica and multi-master off.",
        )
    else:
        yield Check("redis-kind", server.name).ok(f"{what} is supported", "The fence is tested with this server.")


def _what_it_is(info: Mapping[str, str], active_replica: str | None) -> tuple[str, str]:
    """Return the server's name and version, and why the server is not supported ("" if it is supported)."""
    version = info.get("redis_version", "of unknown version")
    for field in ("dragonfly_version", "dfly_version"):
        if field in info:
            why = (
                "Its replication id stays the same after a restart. So the fence can't detect that the data is older, "
                "and numbers would be issued twice."
            )
            return f"Dragonfly {info[field]}", why
    active = info.get("role") == "active-replica" or active_replica == "yes"
    if active or PurePosixPath(info.get("executable", "")).name.startswith("keydb"):
        why = (
            "Two masters with the same replication id write the same hash. The fence can't detect it, and numbers "
            "would be issued twice."
        )
        return f"KeyDB {version}{' with active-replica' if active else ''}", why if active else ""
    if "valkey_version" in info or info.get("server_name") == "valkey":
        return f"Valkey {info.get('valkey_version', 'of unknown version')}", ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return (
        f"Redis {version}",
        ""
        if numbers >= OLDEST
        else "Its scripting lacks what the issuer's scripts need. The issuer sends no draws to it.",
    )


@_each
def role(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "master":
        yield Check("redis-role", server.name).ok("it is a master", "Only masters issue numbers.")
        return
    yield Check("redis-role", server.name).weak(
        f"its role is {info.get('role', 'unknown')!r}, not 'master'",
        "Every draw is rejected, because the master would not know of numbers that a replica issues.",
        "Set the URL to that of the master, or of the Sentinels: redis+sentinel://.",
    )


@_each
def replid(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    shown = info.get("master_replid", "")
    if _REPLID.fullmatch(shown) and shown.strip("0"):
        yield Check("redis-replid", server.name).ok("it shows its master_replid", "The fence needs this id.")
        return
    yield Check("redis-replid", server.name).weak(
        f"its master_replid is {shown!r}" if shown else "it shows no master_replid",
        "The fence identifies a master's term by this replication id. Without it, a Redis that has gone back in time "
        "can't be detected, so every draw is rejected.",
        "Use Redis 6.2 or newer, or Valkey, without a proxy that rewrites INFO.",
    )


@_each
def eviction(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    policy, limited = info.get("maxmemory_policy"), number(info, "maxmemory") > 0
    check = "redis-eviction"
    remedy = "Run CONFIG SET maxmemory-policy noeviction, and set the same in redis.conf."
    if policy is None:
        yield _unseen(server, check, "INFO shows no maxmemory_policy", "maxmemory-policy")
    elif not policy.startswith("allkeys-"):
        why = "The hashes of tags have no TTL, so Redis doesn't evict them with this policy."
        yield Check(check, server.name).ok(f"maxmemory-policy is {policy}", why)
    elif limited:
        yield Check(check, server.name).weak(
            f"maxmemory-policy is {policy}, with maxmemory {number(info, 'maxmemory'):,} bytes",
            "When memory is short, Redis deletes hashes of tags. No number is issued twice, but each deletion causes a "
            "gap of up to 2 segments, and the next draw waits for the store. If the store is unavailable, it fails.",
            remedy,
        )
    else:
        yield Check(check, server.name).advice(
            f"maxmemory-policy is {policy}; maxmemory is not set",
            "Redis evicts nothing yet. If maxmemory is set later, Redis deletes hashes of tags when memory is short. "
            "Each deletion causes a gap of up to 2 segments.",
            remedy,
        )


@_each
def memory(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    most, used = number(info, "maxmemory"), number(info, "used_memory")
    if most == 0 or used * 100 < most * NEARLY_FULL:
        yield Check("redis-memory", server.name).ok("it has free memory", "A full Redis rejects every draw.")
        return
    yield Check("redis-memory", server.name).weak(
        f"{used:,} of {most:,} bytes are used",
        "At maxmemory, Redis rejects every draw with OOM, or evicts keys.",
        "Raise maxmemory, or move other data to another Redis. A tag needs about 500 bytes.",
    )


@_each
def persistence(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    check = "redis-persistence"
    failed = [name for name in ("aof_last_write_status", "rdb_last_bgsave_status") if info.get(name, "ok") != "ok"]
    save = server.settings.get("save")
    why = (
        "After a restart, Redis knows neither the numbers of idempotency keys nor the highest numbers, which `recover` "
        "reads if the store was restored. Gaps are the same: after each restart, every tag needs a new segment."
    )
    if failed:
        yield Check(check, server.name).weak(
            f"the last write to disk failed: {', '.join(failed)}",
            "Redis rejects every write with MISCONF until it can write to disk again. Draws are writes.",
            "Check the log of Redis, its disk space and the permissions of its directory.",
        )
    elif info.get("aof_enabled") == "1":
        yield Check(check, server.name).ok("appendonly is on", "After a restart, nearly all data is still there.")
    elif save:
        yield Check(check, server.name).ok(
            f"snapshots are on: save {save}", "After a restart, the fence rejects older data."
        )
    elif "save" not in server.settings:
        yield _unseen(server, check, "appendonly is off, and CONFIG GET save is denied", "save")
    else:
        yield Check(check, server.name).advice(
            "neither appendonly nor save is on", why, "Run CONFIG SET appendonly yes, and set the same in redis.conf."
        )


@_each
def min_replicas(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    check = "redis-min-replicas"
    # INFO has this field only if both min-replicas-to-write and min-replicas-max-lag are set.
    good = number(info, "min_slaves_good_slaves") if "min_slaves_good_slaves" in info else None
    asked = server.settings.get("min-replicas-to-write") or ""
    wanted = max(1, int(asked) if asked.isdecimal() else 1)
    if good is not None and good < wanted:
        yield Check(check, server.name).weak(
            f"min-replicas-to-write is {wanted}; replicas in sync: {good}",
            "Redis rejects every draw with NOREPLICAS until enough replicas are in sync.",
            "Start the missing replicas, or lower min-replicas-to-write.",
        )
    elif good is not None:
        why = "A master without its replicas stops issuing numbers, so the order holds across a failover."
        yield Check(check, server.name).ok(f"min-replicas-to-write is {wanted}", why)
    elif server.replicas:
        yield Check(check, server.name).advice(
            f"min-replicas-to-write is 0; replicas: {len(server.replicas)}",
            "After a network split, the old master still issues numbers while the new one does. No number is issued "
            "twice, but the numbers of strict tags are then out of order.",
            "Run CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 10 on every node, and set the "
            "same in redis.conf.",
        )
    else:
        yield Check(check, server.name).ok(
            "it has no replica", "Without a replica, there can't be two masters at once."
        )


def failover(facts: Facts) -> Iterator[Finding]:
    """Check whether callers of strict tags wait long enough for a replica to take over from a silent master."""
    found = [(facts.redis or "", "down-after-milliseconds", facts.silence)] if facts.silence is not None else []
    found += [
        (server.name, NODE_TIMEOUT, int(server.settings.get(NODE_TIMEOUT) or 0))
        for server in facts.servers
        if server.info is not None and server.info.get("cluster_enabled") == "1"
    ]
    timeout = facts.settings.timeout
    for subject, setting, silent in found:
        check, lasts = Check("redis-failover", subject), silent / 1000 + ELECTION
        what = f"{setting} is {silent:,}; timeout is {lasting(timeout)}"
        why = f"A replica takes over a second or two after {setting}. Until then, calls for strict tags wait."
        if not silent:
            do = f"Allow CONFIG GET and SENTINEL REPLICAS for the user, or compare {setting} with timeout yourself."
            yield check.unknown(f"no {setting} of a replica can be read", why, do)
        elif lasts <= timeout:
            yield check.ok(what, why)
        else:
            do = f"Set {setting} to {max(1000, round((timeout - ELECTION) * 1000))} on every node, or timeout to at "
            yield check.advice(what, f"{why} They raise RedisUnavailable after timeout.", f"{do}least {lasts:g}.")


@_each
def read_only(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether the replicas of the server accept writes. If the server is a replica, check the server itself."""
    itself = ReplicaFacts(name=server.name, read_only=info.get("slave_read_only", "1") == "1")
    for replica in server.replicas if info.get("role") == "master" else (itself,):
        if replica.read_only is None:
            yield Check("redis-replica-read-only", replica.name).unknown(
                f"this replica of {server.name} can't be reached from this machine",
                "A replica that accepts writes could issue numbers, and its master would issue them again.",
                "Run CONFIG GET replica-read-only on the replica. The answer should be yes.",
            )
        elif replica.read_only:
            why = "A read-only replica can't issue numbers itself."
            yield Check("redis-replica-read-only", replica.name).ok("this replica is read-only", why)
        else:
            yield Check("redis-replica-read-only", replica.name).weak(
                "this replica accepts writes: replica-read-only is no",
                "If numbers are drawn from the replica, the master issues the same numbers again. The issuer's scripts "
                "reject replicas, but scripts of other programs may not.",
                "Run CONFIG SET replica-read-only yes, and set the same in redis.conf.",
            )


@_each
def lag(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:  # noqa: ARG001 - every check has it
    for replica in server.replicas:
        if replica.state == "online" and replica.lag < LAG and replica.behind < BEHIND:
            yield Check("redis-lag", replica.name).ok("this replica is in sync", "A failover causes almost no gap.")
            continue
        late = lasting(replica.lag) if replica.lag else "0 s"
        yield Check("redis-lag", replica.name).advice(
            f"this replica of {server.name} is {replica.state or 'in an unknown state'}, {late} and "
            f"{replica.behind:,} bytes behind",
            "If it becomes the master now, the fence rejects its old data. The gap is up to 2 segments of each tag. If "
            "min-replicas-to-write is set, the master may reject draws.",
            "Check the log, the network and the load of the replica.",
        )


@_each
def clock(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:  # noqa: ARG001 - every check has it
    if isinstance(server.clock_error, FenceError):
        yield Check("redis-clock", server.name).weak(
            f"TIME is denied: {server.clock_error}",
            "Loaders are elected by the clock of Redis. Without TIME no segment is loaded, and tags run out of "
            "numbers.",
            "Allow TIME for the user: `ACL SETUSER <user> +time`.",
        )
        return
    yield compared("redis-clock", server.name, server.clock)


def _unseen(server: ServerFacts, check: str, what: str, setting: str) -> Finding:
    return Check(check, server.name).unknown(
        what,
        f"The size of the gap after a fault depends on {setting}.",
        f"Allow CONFIG GET for the user (+config|get), or check {setting} in redis.conf or in the provider's console.",
    )


def number(info: Mapping[str, str], name: str) -> int:
    """Return a field of INFO as a number. 0 if it is missing, or no number."""
    text = info.get(name, "")
    return int(text) if text.isdecimal() else 0


_REACHED = (reachable, info_allowed, kind, role, replid, node, draws, reports)
CHECKS = (*_REACHED, eviction, memory, persistence, min_replicas, failover, read_only, lag, clock)
