"""The server that holds a tag's hash: the one that was named, a Sentinel's master, or the owner of a Cluster slot.

Written once for both drivers: a call is a generator that yields each exchange with one server, and is sent the reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from redis.crc import key_slot

from issuer import gateway
from issuer.clock import monotonic
from issuer.core.steps import Server, Sighting
from issuer.drivers.breaker import EVIDENCE, Breaker, Refused
from issuer.drivers.redis_errors import check_server, tls_fails
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable

T = TypeVar("T")

#: How often a call follows a Cluster from node to node. While slots move, two are usual.
REDIRECTS = 5


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


Talks = Generator[Exchange, Any, T]


class Outdated(redis.RedisError):
    """A new connection is needed to a server of which it was found out earlier that it holds the key."""


class Unreached(redis.ConnectionError):
    """No connection to a server could be made, or a new one was cut before its first call was answered."""


def unreached(error: Exception) -> Exception:
    """Return the error for a new connection that ended: Unreached, or the error itself, if that is an answer."""
    return Unreached(str(error)) if type(error) is redis.ConnectionError else error


class Topology(ABC):
    """Knows which server holds a key. `moves`: whether another server may hold it later."""

    moves = True
    #: Whether that is found out again before each new connection: to a process that was asleep meanwhile, a server that
    #: starts again may still say that it holds the key.
    asks_before_connecting = False
    #: Whether replicas send readers to the master, unless an Exchange is `readonly`.
    replicas_redirect = False

    def __init__(self) -> None:
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

    @abstractmethod
    def find(self, key: str) -> Talks[Address]:
        """Find out which server holds the key. Raises RedisUnavailable, ConfigurationError."""

    @abstractmethod
    def masters(self) -> Talks[list[Address]]:
        """Find out which servers issue numbers now. Raises RedisUnavailable, ConfigurationError."""

    @abstractmethod
    def others(self, key: str) -> Talks[dict[Address, Exception | None]]:
        """Find out which nodes besides the master may hold the key: its replicas, and those that were masters.

        An error stands by each node that could not be asked for them. Raises RedisUnavailable, ConfigurationError.
        """

    @abstractmethod
    def lost(self, address: Address) -> None:
        """Take note that this server doesn't answer, or is no master any more."""

    @abstractmethod
    def moved(self, key: str, address: Address) -> None:
        """Take note that another server holds the key now."""


class Fixed(Topology):
    """The server that the URL or the client names."""

    moves = False
    HERE = Address()

    def last_owner(self, key: str) -> Address | None:  # noqa: ARG002 - it holds every key
        """Return that server."""
        return self.HERE

    def find(self, key: str) -> Talks[Address]:  # noqa: ARG002 - the same
        """Return that server."""
        return self.HERE
        yield

    def masters(self) -> Talks[list[Address]]:
        """Return that server, master or not."""
        return [self.HERE]
        yield

    def others(self, key: str) -> Talks[dict[Address, Exception | None]]:
        """Ask it for its replicas."""
        info = yield from _attempted(self, Exchange(self.HERE, gateway.replication_info(key)))
        if isinstance(info, Exception):
            return {self.HERE: info}
        return {Address(each["ip"], int(each["port"])): None for each in gateway.replicas(info)}

    def lost(self, address: Address) -> None:
        """There is no other one."""

    def moved(self, key: str, address: Address) -> None:
        """Stay: only a Cluster sends calls elsewhere."""


class Sentinels(Topology):
    """The master of a name, as the Sentinels see it. The Sentinel that answered last is asked first."""

    asks_before_connecting = True

    def __init__(self, sentinels: Sequence[Address], master: str) -> None:
        super().__init__()
        self._sentinels = deque(sentinels)
        self._name = master
        self._master: Address | None = None

    def last_owner(self, key: str) -> Address | None:  # noqa: ARG002 - the master holds every key
        """Return the master."""
        return self._master

    def find(self, key: str) -> Talks[Address]:
        """Ask one Sentinel after the other."""
        trouble: Exception | None = None
        unknown = False
        for left in range(len(self._sentinels), 0, -1):
            sentinel = self._sentinels[0]
            try:
                # One share stays for the master: it may be known, and well, while every Sentinel hangs.
                found = yield Exchange(sentinel, gateway.master_of(self._name, key), share=left + 1)
            except redis.RedisError as error:
                trouble = error
            else:
                if found is not None:
                    self._master = Address(*found)
                    return self._master
                unknown = True
            self._sentinels.rotate(-1)
        if unknown:
            raise ConfigurationError(f"the Sentinels have no master {self._name!r}: correct its name in the URL")
        raise _untold(trouble, "no Sentinel answers") from trouble

    def masters(self) -> Talks[list[Address]]:
        """Ask the Sentinels again, even if they have answered before."""
        return [(yield from self.find(""))]

    def others(self, key: str) -> Talks[dict[Address, Exception | None]]:
        """Ask every Sentinel for its master and the replicas: one that was cut off may know another master."""
        master = self._master or (yield from self.find(key))
        found: dict[Address, Exception | None] = {}
        for left, sentinel in zip(range(len(self._sentinels), 0, -1), tuple(self._sentinels), strict=True):
            named = yield from _attempted(self, Exchange(sentinel, gateway.master_of(self._name, key), share=left + 1))
            told = yield from _attempted(self, Exchange(sentinel, gateway.replicas_of(self._name, key), share=left + 1))
            for answer in (named, told):
                if isinstance(answer, Exception):
                    found[sentinel] = answer
                elif answer:
                    servers = [answer] if answer is named else answer
                    found.update(dict.fromkeys(Address(*server) for server in servers))
        found.pop(master, None)
        return found

    def lost(self, address: Address) -> None:
        """Forget the master, and ask another Sentinel first: one that is cut off names the old master for ever."""
        if self._master == address:
            self._master = None
            self._sentinels.rotate(-1)

    def moved(self, key: str, address: Address) -> None:
        """Stay: only a Cluster sends calls elsewhere."""


class Cluster(Topology):
    """The owners of a Cluster's slots, as its nodes tell."""

    replicas_redirect = True

    def __init__(self, nodes: Sequence[Address]) -> None:
        super().__init__()
        self._nodes = deque(nodes)
        self._slots: dict[int, Address] = {}

    def last_owner(self, key: str) -> Address | None:
        """Return the owner of the key's slot."""
        return self._slots.get(key_slot(key.encode()))

    def find(self, key: str) -> Talks[Address]:
        """Ask one node after the other for the owners of all slots."""
        trouble: Exception | None = None
        for left in range(len(self._nodes), 0, -1):
            node = self._nodes[0]
            try:
                shards = yield Exchange(node, gateway.cluster_slots(key), share=left)
            except redis.RedisError as error:
                trouble = error
            else:
                self._learn(node, shards)
                address = self.last_owner(key)
                if address is not None:
                    return address
            self._nodes.rotate(-1)
        raise _untold(trouble, f"no node of the Cluster reports which node holds {key or 'which slot'}") from trouble

    def masters(self) -> Talks[list[Address]]:
        """Ask for the owners of all slots again, even if the nodes have answered before."""
        yield from self.find("")
        return sorted(set(self._slots.values()), key=lambda node: node.server)

    def others(self, key: str) -> Talks[dict[Address, Exception | None]]:
        """Ask for the replicas of the slot's owner, and for masters whose slots were taken by others."""
        owner = yield from self.find(key)
        told = yield from _attempted(self, Exchange(owner, gateway.kin(owner.host or "", key)))
        if isinstance(told, Exception):
            return {owner: told}
        return dict.fromkeys(Address(*server) for server in told)

    def _learn(self, told_by: Address, shards: Sequence[gateway.Shard]) -> None:
        slots: dict[int, Address] = {}
        for shard in shards:
            owner, *replicas = [Address(host or told_by.host, port) for host, port in shard.nodes]
            slots.update(dict.fromkeys(range(shard.first, shard.last + 1), owner))
            for node in (owner, *replicas):
                if node not in self._nodes:
                    self._nodes.append(node)
        self._slots = slots

    def lost(self, address: Address) -> None:
        """Forget the owners of all slots, and ask that node last: after a failover its slots are another node's."""
        self._slots = {}
        if self._nodes[0] == address:
            self._nodes.rotate(-1)

    def moved(self, key: str, address: Address) -> None:
        """Follow a MOVED."""
        self._slots[key_slot(key.encode())] = address
        if address not in self._nodes:
            self._nodes.append(address)


def _untold(trouble: Exception | None, what: str) -> Exception:
    """Return the error for a search in vain: ConfigurationError for what won't get better by itself."""
    if (
        isinstance(trouble, redis.exceptions.AuthenticationError)
        or tls_fails(str(trouble))
        or any(sign in str(trouble).lower() for sign in ("cluster support disabled", "unknown command"))
    ):
        # Unknown commands: SENTINEL, asked of a Redis that is no Sentinel.
        return ConfigurationError(f"{what}: {trouble}")
    return RedisUnavailable(f"{what}: {trouble}")


def _judge(breaker: Breaker, error: Exception, began: float) -> None:
    """Tell the breaker what the error of a call that began at that moment says of the server."""
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
            if breaker.open:
                breaker.silent(error, began)
        case _:
            breaker.answered()


def _asked(route: Topology, talk: Exchange, *, trusts: bool) -> Talks[Any]:
    """Return the reply, and tell the server's breaker whether it has answered.

    `trusts`: only of a server that can be trusted with numbers, as it says once; or FenceError.
    """
    breaker, began = route.breakers[talk.address], monotonic()
    try:
        if trusts and talk.address not in route.checked:
            check_server((yield Exchange(talk.address, gateway.server_info(), connects=talk.connects)))
            route.checked.add(talk.address)
        reply = yield talk
    except (redis.RedisError, IssuerError) as error:
        _judge(breaker, error, began)
        raise
    breaker.answered()
    return reply


def _searched(route: Topology, key: str, *, probe: bool) -> Talks[Address]:
    """Find out which server holds the key, if the servers that know it may be asked now."""
    breaker, began = route.breakers[None], monotonic()
    breaker.admit(probe=probe)
    try:
        found = yield from route.find(key)
    except (redis.RedisError, IssuerError) as error:
        _judge(breaker, error, began)
        raise
    breaker.answered()
    return found


def _found(route: Topology, key: str, *, probe: bool, anew: bool) -> Talks[tuple[Address, bool]]:
    """Return the server that holds the key, if it may be asked now, and whether a new connection may be made to it.

    Raises Refused, RedisUnavailable.
    """
    known = route.last_owner(key)
    if known is not None and not anew:
        trial = route.breakers[known].admit(probe=probe)
        if not (trial and route.moves):
            return known, not route.asks_before_connecting
        route.lost(known)  # it was silent, and by now perhaps another one is in its place
    try:
        found = yield from _searched(route, key, probe=probe)
    except (Refused, RedisUnavailable):
        if known is None or not anew:
            raise
        # Sentinels that don't answer make no other master either.
        found = known
    if found != known:
        route.breakers[found].admit(probe=probe)
    return found, True


def route_call(route: Topology, call: gateway.RedisCall[T], *, probe: bool = True) -> Talks[T]:
    """Bring the call to the server that holds its key, and return the decoded reply.

    After MOVED and ASK nothing can have happened, so going on to the server that they name is no second sending.
    `probe`: see `Breaker.admit`.
    """
    anew = False
    for _ in range(REDIRECTS):
        address, connects = yield from _found(route, call.key, probe=probe, anew=anew)
        try:
            talk = Exchange(address, call, connects=connects)
            reply: T = yield from _asked(route, talk, trusts=True)
        except Outdated:
            anew = True
            continue
        except redis.exceptions.AskError as redirect:  # a MovedError is one too
            there = Address(redirect.host or address.host, redirect.port)
            if isinstance(redirect, redis.exceptions.MovedError):
                route.moved(call.key, there)
                continue
            asked: T = yield Exchange(there, call, asking=True)
            return asked
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterDownError):
            route.lost(address)
            raise
        match getattr(reply, "status", None):
            case "notmaster" if route.moves or address in route.ruled:
                # A failover: another server is the master, here or behind the same name, or this one will be again.
                route.lost(address)
                raise RedisUnavailable(
                    f"{address.name} is no longer a master; waiting until it or another server is the master"
                )
            case str(status) if status != "notmaster":
                route.ruled.add(address)
        return reply
    raise RedisUnavailable(f"the nodes of the Cluster redirect {call.key} to each other")


def find_masters(route: Topology) -> Talks[list[Server]]:
    """Return the servers that issue numbers now."""
    return [address.server for address in (yield from route.masters())]


def visit(server: Server, call: gateway.RedisCall[T]) -> Talks[T]:
    """Bring the call to that server, supported or not, and return the decoded reply."""
    host, port = server
    reply: T = yield Exchange(Address(host or None, port), call)
    return reply


def look_elsewhere(route: Topology, call: gateway.RedisCall[T]) -> Talks[list[Sighting[T]]]:
    """Bring the call to every other node that may hold its key, and return what each answered, or why it did not."""
    found = yield from route.others(call.key)
    seen: list[Sighting[T]] = []
    left = [*found.values()].count(None)
    for node, error in found.items():
        answer: Any = error
        if error is None:
            answer = yield from _attempted(route, Exchange(node, call, readonly=route.replicas_redirect, share=left))
            left -= 1
        failed = isinstance(answer, Exception)
        seen.append(Sighting(node.name, error=str(answer)) if failed else Sighting(node.name, answer))
    return seen


def _attempted(route: Topology, talk: Exchange) -> Talks[Any]:
    """Return the reply, or the error of a node that can be done without: a silent one is not asked again soon."""
    try:
        route.breakers[talk.address].admit(probe=False)
        return (yield from _asked(route, talk, trusts=False))
    except (redis.RedisError, IssuerError) as error:
        return error
