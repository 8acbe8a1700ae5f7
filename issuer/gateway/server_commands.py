"""Commands that read the state of Redis servers: one typed function for each command, with a decoder for the reply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from issuer.errors import FenceError
from issuer.gateway.commands import RedisCall, pack, pairs

#: The oldest supported version of Redis.
OLDEST = (6, 2)


def check_server(info: Mapping[str, str]) -> None:
    """Raise FenceError if `INFO server` shows a server that is not supported: an old Redis, or Dragonfly."""
    if "dragonfly_version" in info:
        problem = (
            "its replication id does not change at a restart, so rollbacks cannot be detected; use Redis 6.2 or "
            "newer, or Valkey"
        )
        raise FenceError(f"Dragonfly is not supported: {problem}")
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise FenceError(
            f"Redis {version or 'of unknown version'} is not supported: 6.2 or newer, or Valkey, is needed"
        )


def info() -> RedisCall[dict[str, str]]:
    """`INFO`: the default sections."""
    return RedisCall(pack("INFO"), "", _info, repeatable=True)


def setting(name: str) -> RedisCall[str | None]:
    """`CONFIG GET`: a setting of the server, None if the server has no such setting."""
    return RedisCall(pack("CONFIG", "GET", name), "", _setting, repeatable=True)


def _setting(reply: Any) -> str | None:
    return next((value.decode(errors="replace") for value in pairs(reply).values()), None)


def trials(key: str) -> list[tuple[RedisCall[object], str]]:
    """Return calls that test whether the server allows the commands that the scripts use.

    Each call comes with a part of the text of its expected error, or with "" if it must succeed. A server checks
    permissions, memory, disk and replicas before it checks arguments. So an error about an invalid argument proves that
    the server allows the command. Nothing is changed. `key`: a Redis key that does not exist.
    """
    commands = (
        (("HMGET", key, "cur"), ""),
        (("HGET", key, "cur"), ""),
        (("HDEL", key, "no such field"), ""),
        (("HINCRBY", key, "cur", "x"), "not an integer"),
        (("HSET", key, "cur", "1", "max"), "wrong number of arguments"),
    )
    return [
        (RedisCall(pack(*words), "", lambda reply: reply, repeatable=True, key=key), due) for words, due in commands
    ]


def publish(channel: str, message: str) -> RedisCall[int]:
    """`PUBLISH`: send a message on a channel. Returns how many subscribers of this server receive it."""
    return RedisCall(pack("PUBLISH", channel, message), "", int, repeatable=True)


def set_once(key: str, value: str) -> RedisCall[bool]:
    """`SETNX`: set a key that is not set yet. Returns whether it was set."""
    return RedisCall(pack("SETNX", key, value), "", bool, repeatable=True, key=key)


def value_of(key: str) -> RedisCall[str]:
    """`GET`: the value of a key, "" if it is not set."""
    return RedisCall(
        pack("GET", key), "", lambda reply: (reply or b"").decode(errors="replace"), repeatable=True, key=key
    )


def server_time(key: str = "") -> RedisCall[int]:
    """`TIME`: the clock of the server that has this Redis key, in ms since 1970."""
    return RedisCall(pack("TIME"), "", _milliseconds, repeatable=True, key=key)


def _milliseconds(reply: Any) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def replication_info(key: str) -> RedisCall[dict[str, str]]:
    """`INFO replication` of the server that has this key. `master_replid` in it is the id of the master's term."""
    return RedisCall(pack("INFO", "replication"), "", _info, repeatable=True, key=key)


def _info(reply: Any) -> dict[str, str]:
    return dict(_LINE.findall(reply.decode(errors="replace")))


#: `CLUSTER MYID`: the id of a node of a Cluster.
NODE_ID = RedisCall(pack("CLUSTER", "MYID"), "", bytes.decode, repeatable=True)

#: `INFO server`: the kind of server, and its version.
SERVER_INFO = RedisCall(pack("INFO", "server"), "", _info, repeatable=True)

#: A line of INFO.
_LINE = re.compile(r"^([^:\r\n]*):([^\r\n]*)", re.MULTILINE)
_REPLICA = re.compile(r"slave\d+")
_PAIR = re.compile(r"([^=,]+)=([^,]*)")


def replicas(info: dict[str, str]) -> list[dict[str, str]]:
    """Return the replicas in a master's `INFO replication`, each as a dict with ip, port, state, offset and lag."""
    return [dict(_PAIR.findall(line)) for name, line in info.items() if _REPLICA.fullmatch(name)]


def master_of(name: str, key: str) -> RedisCall[tuple[str, int] | None]:
    """`SENTINEL GET-MASTER-ADDR-BY-NAME`: address of the named master, None if unknown. `key`: for error messages."""
    return RedisCall(pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name), "", _address, repeatable=True, key=key)


def _address(reply: Any) -> tuple[str, int] | None:
    return None if reply is None else (reply[0].decode(), int(reply[1]))


def replicas_of(name: str, key: str) -> RedisCall[list[tuple[str, int]]]:
    """`SENTINEL REPLICAS`: addresses of the named master's replicas, also of failed ones. `key`: for error messages."""
    return RedisCall(pack("SENTINEL", "REPLICAS", name), "", _addresses, repeatable=True, key=key)


def silence(name: str) -> RedisCall[int]:
    """`SENTINEL REPLICAS`: after how many ms of silence this Sentinel replaces the master. 0 if it has no replica."""
    return RedisCall(
        pack("SENTINEL", "REPLICAS", name),
        "",
        lambda reply: max((int(node[b"down-after-milliseconds"]) for node in map(pairs, reply)), default=0),
        repeatable=True,
    )


def _addresses(reply: Any) -> list[tuple[str, int]]:
    return [(node[b"ip"].decode(), int(node[b"port"])) for node in map(pairs, reply)]


@dataclass(frozen=True, slots=True)
class Shard:
    """Slots first..last of a Cluster, and the nodes that serve them, master first. Host "" is the node that replied."""

    first: int
    last: int
    nodes: list[tuple[str, int]]


#: The host of a node that has no hostname, in a Cluster that prefers hostnames.
NAMELESS = "?"


def cluster_slots(key: str) -> RedisCall[list[Shard]]:
    """`CLUSTER SLOTS`: the nodes of all slots. `key`: for error messages."""
    return RedisCall(pack("CLUSTER", "SLOTS"), "", _shards, repeatable=True, key=key)


def _shards(reply: Any) -> list[Shard]:
    return [Shard(int(first), int(last), [*map(_node, nodes)]) for first, last, *nodes in reply]


def _node(node: Any) -> tuple[str, int]:
    host, port, _, *more = node
    if host == NAMELESS.encode():
        host = more[0][b"ip"] if isinstance(more[0], dict) else more[0][more[0].index(b"ip") + 1]
    return (host or b"").decode(), int(port)


def importer(slot: int, key: str) -> RedisCall[str]:
    """`CLUSTER NODES`: IP address of the node that the replying node moves the slot to, "" if it moves it no longer."""
    return RedisCall(pack("CLUSTER", "NODES"), "", partial(_importer, slot), repeatable=True, key=key)


def _importer(slot: int, reply: bytes) -> str:
    moves = re.search(rb"\[%d->-(\w+)]" % slot, reply)
    found = moves and re.search(rb"^%b (\S*):\d+@" % moves[1], reply, re.MULTILINE)
    return found[1].decode() if found else ""


def kin(host: str, key: str) -> RedisCall[list[tuple[str, int]]]:
    """`CLUSTER NODES`: the addresses of nodes that CLUSTER SLOTS may omit. Failed nodes are included.

    These nodes are the replicas of the master that replies, and all masters without slots. CLUSTER SLOTS omits a
    replica that has lost its master, and a master that has lost its slots.

    Args:
        host: Name or IP address of the node that replies. With a name, the result contains names where nodes have one.
        key: The tag's key, for error messages.
    """
    return RedisCall(pack("CLUSTER", "NODES"), "", partial(_kin, host), repeatable=True, key=key)


def _kin(host: str, reply: bytes) -> list[tuple[str, int]]:
    # A line: <id> <ip:port@bus[,hostname,..]> <flag,flag> <its master's id> <ping> <pong> <epoch> <link> [<slots> ..]
    lines = [line.split() for line in reply.decode(errors="replace").splitlines()]
    me, at = next((line[0], line[1]) for line in lines if "myself" in line[2].split(","))
    by_name = host in at.split(",")[1:2]
    found = []
    for id, address, flags, master, _ping, _pong, _epoch, _link, *slots in lines:
        place, *names = address.split(",")
        ip, _, port = place.partition("@")[0].rpartition(":")
        known = names[0] if by_name and names and names[0] else ip
        slotless = "master" in flags.split(",") and not slots
        if known and id != me and (master == me or slotless):
            found.append((known, int(port)))
    return found
