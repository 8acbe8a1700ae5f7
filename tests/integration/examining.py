"""What the tests of `doctor` ask of its findings."""

from __future__ import annotations

from collections.abc import Callable

from issuer import Finding, Issuer
from issuer.core.doctor.diagnosis import Check
from tests.servers.redis import RedisServer
from tests.waiting import until

Opened = Callable[..., Issuer]
Fires = Callable[[Issuer, Check, str], Finding]
StartRedis = Callable[..., RedisServer]

#: What lua/README.md tells an administrator to grant.
RIGHTS = ["+info", "+evalsha", "+eval", "+script|load", "+time", "+hmget", "+hget", "+hset", "+hdel", "+hincrby"]


def levels(findings: list[Finding], check: str) -> set[tuple[str, str]]:
    """Which levels the check came to, and of what."""
    return {(finding.level, finding.subject) for finding in findings if finding.check == check}


def at(level: str, findings: list[Finding]) -> set[str]:
    """Which checks came to that level."""
    return {finding.check for finding in findings if finding.level == level}


def weak(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.level == "weak"]


def drawer(server: RedisServer, *rights: str) -> str:
    """Give these rights to a user of that name, and return the URL to log in with."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "drawer", "on", ">secret", "~issuer:*", *rights)
    return server.url.replace("redis://", "redis://drawer:secret@")


def follow(replica: RedisServer, master: RedisServer) -> None:
    """Make it a replica, and return when its master knows that it keeps up: that is later than its own link is up."""
    replica.replicaof(master)
    until(lambda: master.replication()["slave0"]["state"] == "online", 10, f"{master!r} knows {replica!r}")
