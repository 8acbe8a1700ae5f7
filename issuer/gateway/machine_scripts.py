"""One typed function for each script that leases machine numbers.

Each Snowflake number contains the machine number of its process, so no two processes issue the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from issuer.gateway.commands import RedisCall, evalsha, pack, pairs
from issuer.gateway.keys import redis_key


@dataclass(frozen=True, slots=True)
class Claimed:
    """The reply of `machine_claim`. If the status is "yours", use only timestamps above `floor` (ms since 1970).

    `wait`, in seconds, depends on the status. "held": another process has the machine number, and `wait` is the time
    until it is free. "settling": Redis may have lost leases, and `wait` is the time until all of them are over.
    "ahead": `wait` is how much the ceiling exceeds the latest time that is allowed. `store`: for "otherstore", id of
    the store that the hash belongs to.
    """

    status: Literal["yours", "held", "settling", "ahead", "otherstore", "notmaster", "corrupt"]
    floor: int = 0
    wait: float = 0.0
    store: str = ""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The reply of `machine_renew`. "lost": another process may have the machine number.

    "yours": use only timestamps above `floor` (ms since 1970). "ahead": `wait` is how much the ceiling exceeds the
    latest time that is allowed, in seconds.
    """

    status: Literal["yours", "lost", "ahead", "notmaster", "corrupt"]
    floor: int = 0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Released:
    """The reply of `machine_release`. "lost": this process no longer had the machine number."""

    status: Literal["free", "lost", "notmaster", "corrupt"]


def machine_claim(
    key: str, number: int, holder: str, token: str, ceiling: int, *, lease: float, margin: float, first: int, store: str
) -> RedisCall[Claimed]:
    """`machine_claim`: lease the machine number `number` for `lease` seconds.

    `holder`: name of the process, for people. `token`: random text that renewals must send: a claim that is repeated
    with it is the same claim. `ceiling`: the highest
    timestamp, in ms since 1970, that the process may put into its numbers. `margin`: how much clocks may differ, in
    seconds. `first`: 1 if this process has just created the tag, and the tag does not share a namespace: then no
    earlier lease can exist, and the claim need not wait for one. Otherwise 0. `store`: id of the store.
    """
    words = (number, holder, token, ceiling, _ms(lease), _ms(margin), first, store)
    return evalsha("machine_claim", (key,), words, partial(_granted, Claimed), repeatable=True)


def machine_renew(
    key: str, number: int, token: str, ceiling: int, *, lease: float, margin: float
) -> RedisCall[Renewed]:
    """`machine_renew`: extend the lease of a machine number to `lease` seconds from now.

    `ceiling`: the new highest timestamp, in ms since 1970, that the process may put into its numbers. `token`,
    `margin`: as in `machine_claim`.
    """
    words = (number, token, ceiling, _ms(lease), _ms(margin))
    return evalsha("machine_renew", (key,), words, partial(_granted, Renewed), repeatable=True)


def machine_release(key: str, number: int, token: str, used: int) -> RedisCall[Released]:
    """`machine_release`: release the machine number. `used`: last timestamp in its numbers, in ms since 1970."""
    return evalsha("machine_release", (key,), (number, token, used), _released, repeatable=True)


def machine_unbind(key: str, number: int) -> tuple[RedisCall[int], ...]:
    """Return commands that take a machine number from its holder. The recorded timestamps stay in Redis.

    The holder loses the machine number at its next renewal. Until then it can use timestamps up to the recorded
    ceiling. The next holder starts above this ceiling, so the commands need not be atomic, and no script is needed. The
    holder's name is deleted first, so that an interrupted call can be repeated.
    """
    words = (pack("HSET", key, f"{number}:holder", ""), pack("HDEL", key, f"{number}:token", f"{number}:lapses"))
    return tuple(RedisCall(each, "", int, repeatable=True, key=key) for each in words)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine number in Redis. `holder`: name of the process that has or had it.

    `held`: the holder has not released it. If the process was killed, its lease may have ended.
    `lapses`: end of the lease. `last`: last timestamp that the holder may use. Both are in ms since 1970; 0: unknown.
    """

    holder: str
    held: bool
    lapses: int
    last: int


def machines(key: str) -> RedisCall[Mapping[int, Machine]]:
    """Return a command that reads all machine numbers that were ever leased. `key`: from `machines_key`."""
    return RedisCall(pack("HGETALL", key), "", _machines, repeatable=True, key=key)


def machines_key(prefix: str, tag: str, namespace: str | None) -> str:
    """Return the Redis key for the machine numbers of a tag, or of a namespace that several tags share.

    A tag and a namespace with the same name have different keys, because their machine numbers are independent.
    """
    return redis_key(f"{prefix}:machines", tag) if namespace is None else redis_key(f"{prefix}:namespace", namespace)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _granted(kind: Any, reply: Any) -> Any:
    status, *rest = [word.decode() for word in reply]
    if status == "yours":
        return kind(status, floor=int(rest[0]))
    if status == "otherstore":
        return kind(status, store=rest[0])
    return kind(status, wait=int(rest[0]) / 1000 if rest else 0.0)


def _released(reply: Any) -> Released:
    return Released(reply[0].decode())


def _machines(reply: Any) -> dict[int, Machine]:
    fields = {name.decode(errors="replace"): word.decode(errors="replace") for name, word in pairs(reply).items()}
    numbers = {name.partition(":")[0] for name in fields if ":" in name}
    return {
        int(number): Machine(
            fields.get(f"{number}:holder", ""),
            f"{number}:token" in fields,
            _whole(fields.get(f"{number}:lapses")),
            _whole(fields.get(f"{number}:last")),
        )
        for number in numbers
        if number.isascii() and number.isdigit()
    }


def _whole(word: str | None) -> int:
    return int(word) if word and word.isascii() and word.isdigit() else 0
