"""Finds the server that has a tag's hash: a single one, a Sentinel's master, or the owner of a Cluster slot.

A topology stores the answers of servers and decides which server to query next. No I/O: aio/wire.py sends.
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
from issuer.clock import monotonic, pause
from issuer.core.steps import Server
from issuer.drivers.redis_errors import tls_fails
from issuer.errors import ConfigurationError, RedisUnavailable

#: If a server did not answer in less time, it may only be slow. A caller with little time must not block it for all.
EVIDENCE = 0.25

#: After this many seconds another trial may start, even if the last one has not ended. Callers whose numbers come from
#: Redis alone wait for the first trial that succeeds.
TRIAL = 0.5

#: If the server was not tried for this many seconds, any caller may try it: there may be no scheduler to do so.
FORGOTTEN = 5.0


class LeftAlone(redis.ConnectionError):
    """The server was not called, because it did not answer a moment ago. The text has the last error."""


class Breaker:
    """Knowledge of this process whether a server answers.

    Without it, a server behind a cut cable would cost each of 1000 tags its own timeout, and each waiting caller would
    connect again every quarter of a second. With it, the first failed call opens the breaker for all. Then one call at
    a time is a trial, after a random pause that grows from 5 to 250 ms, and all others fail at once. Any reply closes
    the breaker.

    There is no lock: a race only allows one more trial, and an interrupt leaves nothing locked.
    """

    __slots__ = ("_failed_at", "_next", "_why", "failures")

    def __init__(self) -> None:
        #: How many calls in a row got no reply. While it is 0, `admit` and `answered` do nothing.
        self.failures = 0
        self._failed_at = 0.0
        self._next = 0.0
        self._why = ""

    def admit(self, *, probe: bool) -> bool:
        """Allow a call, or raise LeftAlone. Returns whether the call is a trial.

        `probe`: whether this call may wait for the timeout of a trial. False if its caller can do without the server.
        """
        if not self.failures:
            return False
        now = monotonic()
        due = self._next if probe else max(self._next, self._failed_at + FORGOTTEN)
        if now < due:
            raise LeftAlone(self._why)
        self._next = now + TRIAL
        return True

    def answered(self) -> None:
        """Record a reply, which may be an error."""
        self.failures = 0

    def silent(self, why: object, began: float) -> None:
        """Record that a call got no reply. `began`: its start on the monotonic clock.

        Of several concurrent calls only the first one counts.
        """
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = monotonic()
            self._next = self._failed_at + pause(self.failures)
        self._why = str(why)

    def retry_after(self) -> float:
        """Seconds until the next trial, 0.0 if the server may be called now."""
        return max(0.0, self._next - monotonic()) if self.failures else 0.0


@dataclass(frozen=True, slots=True)
class Address:
    """A server. `host` None: the server of the URL or client, maybe a unix socket. `sentinel`: it is a Sentinel."""

    host: str | None = None
    port: int = 0
    sentinel: bool = False

    @property
    def server(self) -> Server:
        """Host and port for the core."""
        return self.host or "", self.port

    @property
    def name(self) -> str:
        """The name in messages."""
        return "this Redis" if self.host is None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call to one server.

    `asking`: send ASKING first, as a slot is moving there. `readonly`: let a replica of a Cluster answer. `share`: how
    many servers share the remaining time. `connects`: allow a new connection; otherwise raise Outdated if one is
    needed.
    """

    address: Address
    call: gateway.RedisCall[Any]
    asking: bool = False
    readonly: bool = False
    share: int = 1
    connects: bool = True


class Outdated(redis.RedisError):
    """A new connection is needed, but it was checked long ago that this server has the key."""


class Unreached(redis.ConnectionError):
    """The connection failed before its first reply."""


class Topology(ABC):
    """Servers that may have a key, as far as they are known.

    `guides`: servers that know which server has a key. The one that answered last comes first.
    """

    #: Whether the key may move to another server.
    moves = True
    #: Whether to search again before each new connection. After a pause of this process, a restarted server may still
    #: claim that it has the key.
    asks_before_connecting = False
    #: Whether each server has only some keys. Replicas then redirect readers to the master, unless an Exchange is
    #: `readonly`.
    sharded = False
    #: How many shares of the time a search leaves for later calls.
    spared = 0

    def __init__(self, guides: Sequence[Address] = ()) -> None:
        self.guides = deque(guides)
        self.checked: set[Address] = set()
        #: The servers that have run a script as a master.
        self.ruled: set[Address] = set()
        #: The breaker of each server. None: the breaker of the search for a key's server.
        self.breakers: defaultdict[Address | None, Breaker] = defaultdict(Breaker)

    def retry_after(self, key: str) -> float:
        """Seconds until a retry for the key's server makes sense; above 0."""
        waits = [self.breakers[address].retry_after() for address in (self.last_owner(key), None)]
        return max(0.005, *waits)

    def silent(self, address: Address, why: object, seconds: float) -> bool:
        """Record that a draw got no reply for `seconds` seconds. Returns whether this was long enough to count."""
        self.lost(address)
        if seconds < EVIDENCE:
            return False
        self.breakers[address].silent(why, monotonic() - seconds)
        return True

    @abstractmethod
    def last_owner(self, key: str) -> Address | None:
        """Return the last known server of the key, None if a search is needed."""

    def question(self, key: str) -> gateway.RedisCall[Any]:
        """Return the call that asks a guide which server has the key."""
        raise NotImplementedError

    def learn(self, guide: Address, answer: Any, key: str) -> Address | None:
        """Process a guide's answer. Returns the server of the key, None if the guide knows none."""
        raise NotImplementedError

    def unfound(self, key: str, trouble: Exception | None, *, unknown: bool) -> Exception:
        """Return the error for a failed search. `trouble`: last error. `unknown`: a guide has no such server."""
        raise NotImplementedError

    def masters(self, found: Address) -> list[Address]:
        """Return the servers that issue numbers. `found`: result of the last search."""
        return [found]

    @abstractmethod
    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Return the calls that list other nodes with the key: replicas and former masters of its owner."""

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the nodes in such an answer."""
        nodes: list[tuple[str, int]] = answer
        return nodes

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
        """Ask it for its replicas."""
        return [Exchange(owner, gateway.replication_info(key))]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return its replicas."""
        return [(each["ip"], int(each["port"])) for each in gateway.replicas(answer)]


class Sentinels(Topology):
    """The named master, as the Sentinels report it."""

    asks_before_connecting = True
    #: The known master may work while all Sentinels hang.
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
        """Ask every Sentinel for its master and the replicas. An isolated one may know another master."""
        return [
            Exchange(sentinel, call, share=left + self.spared)
            for left, sentinel in zip(range(len(self.guides), 0, -1), tuple(self.guides), strict=True)
            for call in (self.question(key), gateway.replicas_of(self._name, key))
        ]

    def kin(self, answer: Any) -> list[tuple[str, int]]:
        """Return the replicas, or the master."""
        return [answer] if isinstance(answer, tuple) else answer or []

    def lost(self, address: Address) -> None:
        """Forget the master, and ask another Sentinel first: an isolated one may report the old master for ever."""
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
        """Store the owners of all slots, and all nodes as guides."""
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
        """Return RedisUnavailable, except for a permanent error."""
        return _unfound(trouble, f"no node of the Cluster reports which node holds {key or 'which slot'}")

    def masters(self, found: Address) -> list[Address]:  # noqa: ARG002 - with it the others were found
        """Return the owners of slots."""
        return sorted(set(self._slots.values()), key=lambda node: node.server)

    def kin_questions(self, owner: Address, key: str) -> list[Exchange]:
        """Ask the owner for its replicas, and for masters whose slots were taken by others."""
        return [Exchange(owner, gateway.kin(owner.host or "", key))]

    def lost(self, address: Address) -> None:
        """Forget all owners, and ask that node last: after a failover another node has its slots."""
        self._slots = {}
        if self.guides[0] == address:
            self.guides.rotate(-1)

    def moved(self, key: str, address: Address) -> None:
        """Follow a MOVED."""
        self._slots[key_slot(key.encode())] = address
        if address not in self.guides:
            self.guides.append(address)


def _unfound(trouble: Exception | None, what: str) -> Exception:
    """Return the error for a failed search: ConfigurationError if it is permanent."""
    if (
        isinstance(trouble, redis.exceptions.AuthenticationError)
        or tls_fails(str(trouble))
        or any(sign in str(trouble).lower() for sign in ("cluster support disabled", "unknown command"))
    ):
        # Unknown commands: SENTINEL sent to a server that is no Sentinel.
        return ConfigurationError(f"{what}: {trouble}")
    return RedisUnavailable(f"{what}: {trouble}")


def judge(breaker: Breaker, error: Exception, began: float) -> None:
    """Inform the breaker about an error. `began`: start of the call on the monotonic clock."""
    match error:
        case Outdated():
            return
        case Unreached() | RedisUnavailable():
            breaker.silent(error, began)
        case redis.TimeoutError():
            if monotonic() - began >= EVIDENCE:
                breaker.silent(error, began)
        case redis.ConnectionError():
            # Cut during the call, or still loading: the next connection shows whether the server is down.
            if breaker.failures:
                breaker.silent(error, began)
        case _:
            breaker.answered()
