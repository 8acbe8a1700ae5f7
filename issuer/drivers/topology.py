"""The server that holds a tag's hash: the only one, a Sentinel's master, or the owner of a Cluster slot.

A topology remembers what servers have answered and says which server to ask next. It sends nothing: aio/wire.py does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from issuer import gateway
from issuer.clock import monotonic
from issuer.core.steps import Server
from issuer.drivers.breaker import EVIDENCE, Breaker
from issuer.drivers.redis_errors import tls_fails
from issuer.errors import ConfigurationError, RedisUnavailable


@dataclass(frozen=True, slots=True)
class Address:
    """A server. `host` None: the one that the URL or client names, be it a unix socket. `sentinel`: no data node."""

    host: str | None = None
    port: int = 0
    sentinel: bool = False

    @property
    def server(self) -> Server:
        """Host and port as the core knows them."""
        return self.host or "", self.port

    @property
    def name(self) -> str:
        """The name in messages."""
        return "this Redis" if self.host is None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange with one server.

    `asking`: it takes a slot over. `readonly`: a replica of a Cluster is to answer by itself. `share`: the number of
    servers that share the time left. `connects`: a new connection may be made for it; else Outdated is raised where one
    is needed.
    """

    address: Address
    call: gateway.RedisCall[Any]
    asking: bool = False
    readonly: bool = False
    share: int = 1
    connects: bool = True


class Outdated(redis.RedisError):
    """A new connection is needed to a server of which it was found out earlier that it holds the key."""


class Unreached(redis.ConnectionError):
    """No connection to a server could be made, or a new one was cut before its first call was answered."""


class Topology(ABC):
    """Servers that may hold a key, as far as they are known.

    `guides`: the servers that are asked which one holds a key. The one that answered last comes first.
    """

    #: Whether another server may hold a key later.
    moves = True
    #: Whether that is found out again before each new connection: to a process that was asleep meanwhile, a server that
    #: starts again may still say that it holds the key.
    asks_before_connecting = False
    #: Whether each server holds some keys only. Replicas then send readers to the master, unless an Exchange is
    #: `readonly`.
    sharded = False
    #: How many shares of the time a search leaves for the calls that follow it.
    spared = 0

    def __init__(self, guides: Sequence[Address] = ()) -> None:
        self.guides = deque(guides)
        self.checked: set[Address] = set()
        #: The servers that have run a script as a master.
        self.ruled: set[Address] = set()
        #: Each server's breaker; None: that of the search for the holder of a key.
        self.breakers: defaultdict[Address | None, Breaker] = defaultdict(Breaker)

    def retry_after(self, key: str) -> float:
        """Seconds after which it makes sense to ask again for what holds the key; above 0."""
        waits = [self.breakers[address].retry_after() for address in (self.last_owner(key), None)]
        return max(0.005, *waits)

    def silent(self, address: Address, why: object, seconds: float) -> bool:
        """Take note that a draw got no answer for `seconds` seconds; return whether that says a thing of the server."""
        self.lost(address)
        if seconds < EVIDENCE:
            return False
        self.breakers[address].silent(why, monotonic() - seconds)
        return True

    @abstractmethod
    def last_owner(self, key: str) -> Address | None:
        """Return the server that held the key last, None if that has to be found out."""

    def question(self, key: str) -> gateway.RedisCall[Any]:
        """Return the call that asks a guide which server holds the key."""
        raise NotImplementedError

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:
        """Take note of a guide's answer; return the server that holds the key, None if the guide knows none."""
        raise NotImplementedError

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:
        """Return the error for a search in vain. `trouble`: the last error; `unknown`: a guide knows no such server."""
        raise NotImplementedError

    def masters(self, found: Address) -> list[Address]:
        """Return the servers that issue numbers. `found`: the one that a search has just found."""
        return [found]

    @abstractmethod
    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Return what to ask for the nodes that may hold the key, besides its owner: its replicas and old masters."""

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the nodes that an answer to one of those names."""
        nodes: list[tuple[str, int]] = answer
        return nodes

    def lost(self, address: Address) -> None:  # noqa: B027 - where there is no other server
        """Take note that this server doesn't answer, or is no master any more."""

    def moved(self, key: str, address: Address) -> None:  # noqa: B027 - only a Cluster sends calls elsewhere
        """Take note that another server holds the key now."""


class OneServer(Topology):
    """The server that the URL or the client names. It is never searched for."""

    moves = False
    HERE = Address()

    def last_owner(self, key: str) -> Address:  # noqa: ARG002 - it holds every key
        """Return that server."""
        return self.HERE

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Ask it for its replicas."""
        return [Exchange(owner, gateway.replication_info(key))]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return its replicas."""
        return [(each["ip"], int(each["port"])) for each in gateway.replicas(answer)]


class Sentinels(Topology):
    """The master of a name, as the Sentinels see it."""

    asks_before_connecting = True
    #: The master may be known, and well, while every Sentinel hangs.
    spared = 1

    def __init__(self, sentinels: Sequence[Address], master: str) -> None:
        super().__init__(sentinels)
        self._name = master
        self._master: Address | None = None

    def last_owner(self, key: str) -> Address | None:  # noqa: ARG002 - the master holds every key
        """Return the master."""
        return self._master

    def question(self, key: str) -> gateway.RedisCall[Any]:
        """Ask for the master."""
        return gateway.master_of(self._name, key)

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:  # noqa: ARG002 - one holds every key
        """Remember the master."""
        if answer is None:
            return None
        self._master = found = Address(*answer)
        return found

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:  # noqa: ARG002 - as above
        """Return ConfigurationError if the Sentinels have no such master."""
        if unknown:
            return ConfigurationError(f"the Sentinels have no master {self._name!r}: correct its name in the URL")
        return _unfound(trouble, "no Sentinel answers")

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:  # noqa: ARG002 - the Sentinels know its kin
        """Ask every Sentinel for its master and the replicas: one that was cut off may know another master."""
        return [
            Exchange(sentinel, call, share=left + self.spared)
            for left, sentinel in zip(range(len(self.guides), 0, -1), tuple(self.guides), strict=True)
            for call in (self.question(key), gateway.replicas_of(self._name, key))
        ]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the replicas, or the master."""
        return [answer] if isinstance(answer, tuple) else answer or []

    def lost(self, address: Address) -> None:
        """Forget the master, and ask another Sentinel first: one that is cut off names the old master for ever."""
        if self._master == address:
            self._master = None
            self.guides.rotate(-1)


class Cluster(Topology):
    """The owners of a Cluster's slots, as its nodes report them."""

    sharded = True

    def __init__(self, nodes: Sequence[Address]) -> None:
        super().__init__(nodes)
        self._slots: dict[int, Address] = {}

    def last_owner(self, key: str) -> Address | None:
        """Return the owner of the key's slot."""
        return self._slots.get(key_slot(key.encode()))

    def question(self, key: str) -> gateway.RedisCall[Any]:
        """Ask for the owners of all slots."""
        return gateway.cluster_slots(key)

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:
        """Remember the owners of all slots; and each node, to ask it too."""
        slots: dict[int, Address] = {}
        for shard in answer:
            owner, *replicas = [Address(host or guide.host, port) for host, port in shard.nodes]
            slots.update(dict.fromkeys(range(shard.first, shard.last + 1), owner))
            for node in (owner, *replicas):
                if node not in self.guides:
                    self.guides.append(node)
        self._slots = slots
        return slots.get(key_slot(key.encode()))

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:  # noqa: ARG002 - it may move
        """Return RedisUnavailable, unless waiting won't help."""
        return _unfound(trouble, f"no node of the Cluster reports which node holds {key or 'which slot'}")

    def masters(self, found: Address) -> list[Address]:  # noqa: ARG002 - with it the others were found
        """Return the owners of slots."""
        return sorted(set(self._slots.values()), key=lambda node: node.server)

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Ask the owner for its replicas, and for masters whose slots were taken by others."""
        return [Exchange(owner, gateway.kin(owner.host or "", key))]

    def lost(self, address: Address) -> None:
        """Forget the owners of all slots, and ask that node last: after a failover its slots are another node's."""
        self._slots = {}
        if self.guides[0] == address:
            self.guides.rotate(-1)

    def moved(self, key: str, address: Address) -> None:
        """Follow a MOVED."""
        self._slots[key_slot(key.encode())] = address
        if address not in self.guides:
            self.guides.append(address)


def _unfound(trouble: Exception | None, what: str) -> Exception:
    """Return the error for a search in vain: ConfigurationError for what won't get better by itself."""
    if (
        isinstance(trouble, redis.exceptions.AuthenticationError)
        or tls_fails(str(trouble))
        or any(sign in str(trouble).lower() for sign in ("cluster support disabled", "unknown command"))
    ):
        # Unknown commands: SENTINEL, asked of a Redis that is no Sentinel.
        return ConfigurationError(f"{what}: {trouble}")
    return RedisUnavailable(f"{what}: {trouble}")


def judge(breaker: Breaker, error: Exception, began: float) -> None:
    """Report to the breaker what the error of a call that began at that moment says of the server."""
    match error:
        case Outdated():
            return
        case Unreached() | RedisUnavailable():
            breaker.silent(error, began)
        case redis.TimeoutError():
            if monotonic() - began >= EVIDENCE:
                breaker.silent(error, began)
        case redis.ConnectionError():
            # Cut while it was in use, or it is still loading: whether the server is gone, the next connection tells.
            if breaker.failures:
                breaker.silent(error, began)
        case _:
            breaker.answered()
