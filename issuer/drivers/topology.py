"""Finds the server that has a tag's hash: a single one, a Sentinel's master, or the owner of a Cluster slot.

A topology stores the answers of servers and decides which server to query next. The I/O is in wire.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from issuer.clock import monotonic, pause
from issuer.core.steps import Server
from issuer.errors import ConfigurationError, RedisUnavailable
from issuer.gateway import server_commands
from issuer.gateway.commands import RedisCall
from issuer_persistence.errors import tls_fails

#: If a call times out after less than this many seconds, the server may only be slow. So the call does not open the
#: server's circuit breaker.
EVIDENCE = 0.25

#: A trial is a call that tests whether a server answers again. If a trial has not ended after this many seconds,
#: another trial may start. Callers of strict tags wait for the first trial that succeeds.
TRIAL = 0.5

#: Normally only calls with `probe`, such as the scheduler's, are trials. If no trial has failed for this many seconds,
#: any other call may be a trial, because the process may have no scheduler.
FORGOTTEN = 5.0


class LeftAlone(redis.ConnectionError):
    """The server was not called, because it did not answer a moment ago. The text contains the last error."""


class Breaker:
    """Circuit breaker of one server: rejects calls while the server does not answer.

    Without the breaker, a server behind a cut cable would cost each of 1000 tags its own timeout, and each waiting
    caller would connect again every quarter of a second. With the breaker, the first call that fails opens it for all
    callers. Then one call at a time may test the server, after a random pause that grows from 5 to 250 ms. All other
    calls fail at once. Any reply closes the breaker.

    There is no lock: a race only allows one more trial, and an interrupt leaves nothing locked.
    """

    __slots__ = ("_failed_at", "_next", "_why", "failures")

    def __init__(self) -> None:
        #: How many calls in a row got no reply. While this count is 0, `admit` and `answered` do nothing.
        self.failures = 0
        self._failed_at = 0.0
        self._next = 0.0
        self._why = ""

    def admit(self, *, probe: bool) -> bool:
        """Allow a call, or raise LeftAlone. Returns True if the call is a trial: it tests if the server answers again.

        `probe`: True if the caller may wait for the timeout of a trial, False if it can do without this server.
        """
        if not self.failures:
            return False
        now = monotonic()
        due = self._next if probe else max(self._next, self._failed_at + FORGOTTEN)
        if 0 < due - now <= FORGOTTEN:  # a longer pause would be an error of the clock
            raise LeftAlone(self._why)
        self._next = now + TRIAL
        return True

    def answered(self) -> None:
        """Record that the server has replied, even if the reply is an error. This closes the breaker."""
        self.failures = 0

    def silent(self, why: object, began: float) -> None:
        """Record that a call got no reply. `began`: start of the call on the monotonic clock.

        If several calls ran at the same time and failed, only the first failure counts.
        """
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = monotonic()
            self._next = self._failed_at + pause(self.failures)
        self._why = str(why)

    def retry_after(self) -> float:
        """Return the seconds until the next trial may start. 0.0 if the server may be called now."""
        return min(TRIAL, max(0.0, self._next - monotonic())) if self.failures else 0.0


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    `host`: None for the server of the URL or client, which may be a unix socket. `sentinel`: whether it is a Sentinel.
    """

    host: str | None = None
    port: int = 0
    sentinel: bool = False

    @property
    def server(self) -> Server:
        """The host and port, as `core` uses them. The host is "" if `host` is None."""
        return self.host or "", self.port

    @property
    def name(self) -> str:
        """The name of the server in messages."""
        return "this Redis" if self.host is None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call to one server, or several calls at once.

    Attributes:
        address: The server.
        call: The call, or several calls packed into one.
        asking: Send ASKING first, because the Cluster is moving a slot to this server.
        readonly: Let a replica of a Cluster answer.
        share: The remaining time is divided among this many exchanges.
        connects: Allow a new connection. If this is False and a new connection is needed, Outdated is raised.
        replies: 0 if `call` is a single call. Otherwise the number of calls in `call`: the reply is a list, which
            contains an error for each call that the server rejected.
    """

    address: Address
    call: RedisCall[Any]
    asking: bool = False
    readonly: bool = False
    share: int = 1
    connects: bool = True
    replies: int = 0


class Outdated(redis.RedisError):
    """The call needs a new connection. Before connecting, the caller must search again for the server with the key."""


class Unreached(redis.ConnectionError):
    """The connection failed before its first reply."""


class Topology(ABC):
    """Stores which servers are known, and which server has a key.

    `guides`: servers that can report which server has a key. The guide that answered last comes first.
    """

    #: Whether the key may move to another server.
    moves = True
    #: Whether to search again before each new connection. While this process was paused, the known server may have been
    #: replaced. If it was also restarted, it may still claim that it has the key.
    asks_before_connecting = False
    #: Whether each server has only some of the keys, as in a Cluster. Such replicas answer only if `Exchange.readonly`.
    sharded = False
    #: A search divides its time into equal shares: one for each guide, and this many for the call after the search.
    spared = 0

    def __init__(self, guides: Sequence[Address] = ()) -> None:
        self.guides = deque(guides)
        self.checked: set[Address] = set()
        #: The servers that have run a script of ours. They were masters then, because only a master runs these scripts.
        self.ruled: set[Address] = set()
        #: The circuit breaker of each server. The key None holds the breaker of searches for the server that has a key.
        self.breakers: defaultdict[Address | None, Breaker] = defaultdict(Breaker)

    def retry_after(self, key: str) -> float:
        """Return the seconds until it makes sense to call the server of the key again. Always above 0."""
        waits = [self.breakers[address].retry_after() for address in (self.last_owner(key), None)]
        return max(0.005, *waits)

    def silent(self, address: Address, why: object, seconds: float) -> bool:
        """Record that a draw got no reply for `seconds` seconds. Returns whether that counts as a failed call."""
        self.lost(address)
        if seconds < EVIDENCE:
            return False
        self.breakers[address].silent(why, monotonic() - seconds)
        return True

    @abstractmethod
    def last_owner(self, key: str) -> Address | None:
        """Return the last known server of the key. None if a search is needed."""

    def question(self, key: str) -> RedisCall[Any]:
        """Return the call that asks a guide which server has the key."""
        raise NotImplementedError

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:
        """Process a guide's answer to `question`. Returns the server that has the key, None if unknown."""
        raise NotImplementedError

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:
        """Return the error for a failed search.

        `trouble`: last error of a guide, or None. `unknown`: whether a guide answered that no server has the key.
        """
        raise NotImplementedError

    def masters(self, found: Address) -> list[Address]:
        """Return the servers that issue numbers. `found`: result of the last search."""
        return [found]

    @abstractmethod
    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Return the calls that list the other nodes that may have the key: replicas and former masters of `owner`."""

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the host and port of each node in `answer`, the answer to one of `kin_questions`."""
        nodes: list[tuple[str, int]] = answer
        return nodes

    def silence(self) -> list[Exchange]:
        """Return the calls that ask each Sentinel after how many ms of silence it replaces the master."""
        return []

    def lost(self, address: Address) -> None:  # noqa: B027 - where there is no other server
        """Record that this server does not answer, or is no longer a master."""

    def moved(self, key: str, address: Address) -> None:  # noqa: B027 - only a Cluster sends calls elsewhere
        """Record that another server has the key now."""


class OneServer(Topology):
    """The single server of the URL or client. No search is needed."""

    moves = False
    HERE = Address()

    def last_owner(self, key: str) -> Address:  # noqa: ARG002 - it holds every key
        """Return that server."""
        return self.HERE

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Return the call that asks the server for its replicas."""
        return [Exchange(owner, server_commands.replication_info(key))]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the replicas of the server."""
        return [(each["ip"], int(each["port"])) for each in server_commands.replicas(answer)]


class Sentinels(Topology):
    """The named master, as the Sentinels report it."""

    asks_before_connecting = True
    #: If all Sentinels hang, the known master may still work. One share of the time is left for a call to this master.
    spared = 1

    def __init__(self, sentinels: Sequence[Address], master: str) -> None:
        super().__init__(sentinels)
        self._name = master
        self._master: Address | None = None

    def last_owner(self, key: str) -> Address | None:  # noqa: ARG002 - the master holds every key
        """Return the master."""
        return self._master

    def question(self, key: str) -> RedisCall[Any]:
        """Return the call that asks a Sentinel for the master."""
        return server_commands.master_of(self._name, key)

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:  # noqa: ARG002 - one holds every key
        """Remember the master."""
        if answer is None:
            return None
        self._master = found = Address(*answer)
        return found

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:  # noqa: ARG002 - as above
        """Return the error. It is a ConfigurationError if the Sentinels have no master with this name."""
        if unknown:
            return ConfigurationError(f"the Sentinels have no master {self._name!r}: correct its name in the URL")
        return _unfound(trouble, "no Sentinel answers")

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:  # noqa: ARG002 - the Sentinels know its kin
        """Return the calls that ask each Sentinel for the master and the replicas.

        All are asked, because an isolated Sentinel may report another master.
        """
        return [
            Exchange(sentinel, call, share=left + self.spared)
            for left, sentinel in zip(range(len(self.guides), 0, -1), tuple(self.guides), strict=True)
            for call in (self.question(key), server_commands.replicas_of(self._name, key))
        ]

    def silence(self) -> list[Exchange]:
        """Return the calls. They need no other permission than those of `kin_questions`."""
        call = server_commands.silence(self._name)
        return [Exchange(sentinel, call, share=left) for left, sentinel in enumerate(self.guides, 1)][::-1]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the nodes in the answer: the replicas, or only the master."""
        return [answer] if isinstance(answer, tuple) else answer or []

    def lost(self, address: Address) -> None:
        """Forget the master. Next time another Sentinel is asked first: an isolated one may report the old master."""
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
        """Return the known owner of the key's slot, or None."""
        return self._slots.get(key_slot(key.encode()))

    def question(self, key: str) -> RedisCall[Any]:
        """Return the call that asks a node for the owners of all slots."""
        return server_commands.cluster_slots(key)

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:
        """Store the owners of all slots, and add all nodes to the guides. Returns the owner of the key's slot."""
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
        """Return RedisUnavailable, or ConfigurationError if the failure is permanent."""
        return _unfound(trouble, f"no node of the Cluster reports which node holds {key or 'which slot'}")

    def masters(self, found: Address) -> list[Address]:  # noqa: ARG002 - with it the others were found
        """Return the nodes that own slots."""
        return sorted(set(self._slots.values()), key=lambda node: node.server)

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Return the call that asks the owner for its replicas, and for masters that have lost their slots."""
        return [Exchange(owner, server_commands.kin(owner.host or "", key))]

    def lost(self, address: Address) -> None:
        """Forget the owners of all slots, and ask this node last: after a failover another node has its slots."""
        self._slots = {}
        if self.guides[0] == address:
            self.guides.rotate(-1)

    def moved(self, key: str, address: Address) -> None:
        """Record the server that a MOVED reply names as the owner of the key's slot. If it has no name, forget all."""
        if address.host == server_commands.NAMELESS:
            self.lost(self.guides[0])
            return
        self._slots[key_slot(key.encode())] = address
        if address not in self.guides:
            self.guides.append(address)


def _unfound(trouble: Exception | None, what: str) -> Exception:
    """Return the error for a failed search: ConfigurationError if the failure is permanent."""
    # The text "unknown command" means that SENTINEL was sent to a server that is no Sentinel.
    if (
        isinstance(trouble, redis.exceptions.AuthenticationError)
        or tls_fails(str(trouble))
        or any(sign in str(trouble).lower() for sign in ("cluster support disabled", "unknown command"))
    ):
        return ConfigurationError(f"{what}: {trouble}")
    return RedisUnavailable(f"{what}: {trouble}")


def judge(breaker: Breaker, error: Exception, began: float) -> None:
    """Record an error in the server's circuit breaker. `began`: start of the call on the monotonic clock."""
    match error:
        case Outdated():
            return
        case Unreached() | RedisUnavailable():
            breaker.silent(error, began)
        case redis.TimeoutError():
            if monotonic() - began >= EVIDENCE:
                breaker.silent(error, began)
        case redis.ConnectionError():
            # The connection was cut, or the server is still loading. The next connection shows whether it is down.
            if breaker.failures:
                breaker.silent(error, began)
        case _:
            breaker.answered()
