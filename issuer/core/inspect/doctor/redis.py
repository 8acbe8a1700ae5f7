"""The checks of Redis. Each takes the facts and yields what it finds, for every server that issues numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import PurePosixPath

from issuer.core.inspect.doctor.clocks import compared
from issuer.core.inspect.doctor.facts import Facts, ReplicaFacts, ServerFacts
from issuer.core.inspect.doctor.finding import Check, Finding
from issuer.errors import FenceError

#: The oldest Redis whose scripts behave as ours need it.
OLDEST = (6, 2)

#: A replica says once a second how far it is: from this many seconds on it doesn't keep up.
LAG = 3

#: Bytes that a replica may lack: about 5000 draws, some 200 bytes each in the replication stream.
BEHIND = 1_000_000

#: The share of maxmemory from which on the end is near, in percent.
NEARLY_FULL = 90

_REPLID = re.compile(r"[0-9a-f]{40}")

ServerCheck = Callable[[ServerFacts, Mapping[str, str]], Iterable[Finding]]


def _each(check: ServerCheck) -> Callable[[Facts], Iterator[Finding]]:
    """Make a check of all servers that told something out of a check of one."""

    @wraps(check)
    def checked(facts: Facts) -> Iterator[Finding]:
        for server in facts.servers:
            if server.info is not None:
                yield from check(server, server.info)

    return checked


# ---------------------------------------------------------------------- can it be reached, and seen


def reachable(facts: Facts) -> Iterator[Finding]:
    """Whether each server answers."""
    if facts.redis is None:
        yield Check("redis-reachable", "settings").ok(
            "no Redis is set: direct", "Each process serves segments that it reserved itself: unique, in trend order."
        )
        return
    remedy = "Start it, or correct the URL: `issuer config` shows which one holds and where it was set."
    why = "While Redis can't be used callers of strict tags get an error, and trend tags serve segments of their own."
    if facts.redis_error is not None:
        yield Check("redis-reachable", facts.redis).weak(str(facts.redis_error), why, remedy, error=facts.redis_error)
    for server in facts.servers:
        if server.info is not None:
            yield Check("redis-reachable", server.name).ok("it answers", "Numbers can be drawn.")
        elif not isinstance(server.error, FenceError):
            yield Check("redis-reachable", server.name).weak(str(server.error), why, remedy, error=server.error)


def info_allowed(facts: Facts) -> Iterator[Finding]:
    """Whether INFO, which the fence stands on, is allowed."""
    for server in facts.servers:
        if isinstance(server.error, FenceError):
            yield Check("redis-info", server.name).weak(
                f"INFO is denied: {server.error}",
                "Every script reads the master's replid from INFO: that is the fence. Without it every draw is refused "
                "with FenceError, and nothing is issued.",
                "Give the user +info: `ACL SETUSER <user> +info`; lua/README.md has the whole line.",
            )
        elif server.info is not None:
            yield Check("redis-info", server.name).ok("INFO is allowed", "The fence stands on it.")


def draws(facts: Facts) -> Iterator[Finding]:
    """Whether a script runs, and may do what it does, tried on a hash that isn't there."""
    if facts.draw is None:
        return
    subject = facts.redis or ""
    if facts.draw.status == "empty":
        yield Check("redis-draw", subject).ok("a draw is answered", "Scripts run, and the fence is seen.")
        return
    seen = facts.draw.error or f"a draw is answered with {facts.draw.status!r}"
    yield Check("redis-draw", subject).weak(
        str(seen),
        "No number can be drawn from here.",
        "Do what the message says; the user needs the rights that lua/README.md lists.",
    )


# ---------------------------------------------------------------------- what it is


@_each
def kind(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether it is a Redis >= 6.2 or a Valkey."""
    what, trouble = _what_it_is(info, server.settings.get("active-replica"))
    if trouble:
        yield Check("redis-kind", server.name).weak(
            f"{what} is not supported", trouble, "Use Redis 6.2 or newer, or Valkey."
        )
    elif what.startswith("KeyDB"):
        yield Check("redis-kind", server.name).advice(
            f"{what}, without active replication",
            "It is not among the servers that the fence is tested on. With active-replica two masters would share one "
            "reign, and numbers would repeat.",
            "Use Redis 6.2 or newer, or Valkey; at least leave active-replica and multi-master off.",
        )
    else:
        yield Check("redis-kind", server.name).ok(f"{what} is supported", "The fence is tested on it.")


def _what_it_is(info: Mapping[str, str], active_replica: str | None) -> tuple[str, str]:
    """Return the server's name and version, and why it can't be trusted; "" if it can."""
    version = info.get("redis_version", "of unknown version")
    for field in ("dragonfly_version", "dfly_version"):
        if field in info:
            why = "All its restarts look like one reign: the fence can't see it go back in time, and numbers repeat."
            return f"Dragonfly {info[field]}", why
    active = info.get("role") == "active-replica" or active_replica == "yes"
    if active or PurePosixPath(info.get("executable", "")).name.startswith("keydb"):
        why = "Two masters would write the same hash within one reign: the fence can't see it, and numbers repeat."
        return f"KeyDB {version}{' with active-replica' if active else ''}", why if active else ""
    if "valkey_version" in info or info.get("server_name") == "valkey":
        return f"Valkey {info.get('valkey_version', 'of unknown version')}", ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return f"Redis {version}", "" if numbers >= OLDEST else "Its scripts don't behave as ours need it: no draw is sent."


@_each
def role(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether it is a master."""
    if info.get("role") == "master":
        yield Check("redis-role", server.name).ok("it is a master", "Numbers come from masters only.")
        return
    yield Check("redis-role", server.name).weak(
        f"its role is {info.get('role', 'unknown')!r}, not 'master'",
        "Each draw is refused: what a replica counts up, its master doesn't know of.",
        "Point the issuer at the master, or at the Sentinels: redis+sentinel://.",
    )


@_each
def replid(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether it shows the id of its reign."""
    shown = info.get("master_replid", "")
    if _REPLID.fullmatch(shown) and shown.strip("0"):
        yield Check("redis-replid", server.name).ok("it shows its master_replid", "That names the reign.")
        return
    yield Check("redis-replid", server.name).weak(
        f"its master_replid is {shown!r}" if shown else "it shows no master_replid",
        "The fence names a reign by it: without it going back in time can't be seen, and every draw is refused.",
        "Use Redis 6.2 or newer, or Valkey, without a proxy that rewrites INFO.",
    )


# ---------------------------------------------------------------------- memory and disk


@_each
def eviction(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether a tag's hash may be thrown out for want of memory."""
    policy, limited = info.get("maxmemory_policy"), _number(info, "maxmemory") > 0
    check, remedy = "redis-eviction", "CONFIG SET maxmemory-policy noeviction, in redis.conf too."
    if policy is None:
        yield _unseen(server, check, "INFO shows no maxmemory_policy", "maxmemory-policy")
    elif not policy.startswith("allkeys-"):
        why = "Hashes have no TTL: only allkeys-* policies evict them."
        yield Check(check, server.name).ok(f"maxmemory-policy is {policy}", why)
    elif limited:
        yield Check(check, server.name).weak(
            f"maxmemory-policy is {policy}, with {info['maxmemory']} bytes",
            "When memory is short Redis throws hashes of tags away. No number repeats, but each time up to 2 segments "
            "are lost and the next draw has to wait for the store; if that is away, it fails.",
            remedy,
        )
    else:
        yield Check(check, server.name).advice(
            f"maxmemory-policy is {policy}; maxmemory is not set",
            "Nothing is evicted yet. As soon as maxmemory is set, hashes of tags are thrown away: up to 2 segments a "
            "time.",
            remedy,
        )


@_each
def memory(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether it is nearly full."""
    most, used = _number(info, "maxmemory"), _number(info, "used_memory")
    if most == 0 or used * 100 < most * NEARLY_FULL:
        yield Check("redis-memory", server.name).ok("there is memory left", "A full Redis refuses each draw.")
        return
    yield Check("redis-memory", server.name).weak(
        f"{used} of {most} bytes are used",
        "At maxmemory Redis answers each draw with OOM, or evicts: no numbers while the server is well.",
        "Raise maxmemory, or move other data away: a tag needs some 500 bytes.",
    )


@_each
def persistence(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether a restart finds the hashes again, and whether writing them works."""
    check = "redis-persistence"
    failed = [name for name in ("aof_last_write_status", "rdb_last_bgsave_status") if info.get(name, "ok") != "ok"]
    save = server.settings.get("save")
    why = "After a restart without its data every tag starts a fresh segment: up to 2 segments of each are lost."
    if failed:
        yield Check(check, server.name).weak(
            f"the last write to disk failed: {', '.join(failed)}",
            "Redis answers writes, each draw too, with MISCONF until it can write again.",
            "Look at its log, disk space and permissions.",
        )
    elif info.get("aof_enabled") == "1":
        yield Check(check, server.name).ok("appendonly is on", "A restart finds nearly all again.")
    elif save:
        yield Check(check, server.name).ok(f"snapshots are on: save {save}", "The fence refuses what is too old.")
    elif "save" not in server.settings:
        yield _unseen(server, check, "appendonly is off, and CONFIG GET save is denied", "save")
    else:
        yield Check(check, server.name).advice("neither appendonly nor save is on", why, "CONFIG SET appendonly yes.")


# ---------------------------------------------------------------------- replicas


@_each
def min_replicas(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether an old master stops when it is cut off from its replicas."""
    check = "redis-min-replicas"
    # INFO shows the field if, and only if, min-replicas-to-write and min-replicas-max-lag are set.
    good = _number(info, "min_slaves_good_slaves") if "min_slaves_good_slaves" in info else None
    asked = server.settings.get("min-replicas-to-write") or ""
    wanted = max(1, int(asked) if asked.isdecimal() else 1)
    if good is not None and good < wanted:
        yield Check(check, server.name).weak(
            f"min-replicas-to-write is {wanted}, and {good} replicas keep up",
            "Redis answers each draw with NOREPLICAS until more do.",
            "Bring the replicas back, or lower min-replicas-to-write.",
        )
    elif good is not None:
        why = "A master that is cut off stops issuing, so that order holds across a failover."
        yield Check(check, server.name).ok(f"min-replicas-to-write is {wanted}", why)
    elif server.replicas:
        yield Check(check, server.name).advice(
            f"min-replicas-to-write is 0; replicas: {len(server.replicas)}",
            "After a split the old master goes on beside the new one. Nothing repeats, but a strict tag's numbers then "
            "come from two sides, out of order.",
            "CONFIG SET min-replicas-to-write 1 (and min-replicas-max-lag 10), in redis.conf of every node.",
        )
    else:
        yield Check(check, server.name).ok("it has no replica", "No other master can take over beside it.")


@_each
def read_only(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether its replicas take writes; or it does itself, being one."""
    itself = ReplicaFacts(name=server.name, read_only=info.get("slave_read_only", "1") == "1")
    for replica in server.replicas if info.get("role") == "master" else (itself,):
        if replica.read_only is None:
            yield Check("redis-replica-read-only", replica.name).unknown(
                "this replica of " + server.name + " can't be asked from here",
                "A replica that takes writes counts up numbers of its own.",
                "Look there: CONFIG GET replica-read-only should be yes.",
            )
        elif replica.read_only:
            why = "It takes no writes of its own."
            yield Check("redis-replica-read-only", replica.name).ok("this replica is read-only", why)
        else:
            yield Check("redis-replica-read-only", replica.name).weak(
                "this replica takes writes: replica-read-only is no",
                "What is drawn there its master doesn't know of, and gives out again. Our scripts refuse a replica by "
                "its role; that is the only guard left, and programs with scripts of their own don't have it.",
                "CONFIG SET replica-read-only yes, in redis.conf too.",
            )


@_each
def lag(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:  # noqa: ARG001 - a check's shape
    """Whether its replicas keep up."""
    for replica in server.replicas:
        if replica.state == "online" and replica.lag < LAG and replica.behind < BEHIND:
            yield Check("redis-lag", replica.name).ok("this replica keeps up", "A failover loses next to nothing.")
            continue
        yield Check("redis-lag", replica.name).advice(
            f"this replica of {server.name} is {replica.state or 'in no known state'}, {replica.lag} s and "
            f"{replica.behind} bytes behind",
            "If it is promoted now the fence refuses its old state: up to 2 segments of each tag are lost. With "
            "min-replicas-to-write its master may stop.",
            "Look at its log, its network and its load.",
        )


@_each
def clock(server: ServerFacts, info: Mapping[str, str]) -> Iterator[Finding]:  # noqa: ARG001 - the same
    """Whether its clock can be read, and agrees with this machine's."""
    if isinstance(server.clock_error, FenceError):
        yield Check("redis-clock", server.name).weak(
            f"TIME is denied: {server.clock_error}",
            "Loaders are elected by Redis's clock: without it no segment is loaded, and tags run dry.",
            "Give the user +time: `ACL SETUSER <user> +time`.",
        )
        return
    yield compared("redis-clock", server.name, server.clock)


def _unseen(server: ServerFacts, check: str, what: str, setting: str) -> Finding:
    return Check(check, server.name).unknown(
        what,
        "It decides what a fault of this server costs.",
        f"Give the user +config|get, or look at {setting} in redis.conf or the provider's console.",
    )


def _number(info: Mapping[str, str], name: str) -> int:
    text = info.get(name, "")
    return int(text) if text.isdecimal() else 0


_REACHED = (reachable, info_allowed, kind, role, replid, draws)
CHECKS = (*_REACHED, eviction, memory, persistence, min_replicas, read_only, lag, clock)
