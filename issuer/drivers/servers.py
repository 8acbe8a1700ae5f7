"""Redis servers of a process and the connections to them, for both drivers."""

from __future__ import annotations

# Without these lines, redis-py would import these modules with its first pool and connection. If another thread forked
# at that moment, the child would wait for the import's lock for ever (seen).
import encodings.idna  # noqa: F401
import re
import secrets  # noqa: F401
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import redis
import redis.asyncio
from redis.connection import AbstractConnection, PythonRespSerializer
from redis.maint_notifications import MaintNotificationsConfig

from issuer import clock
from issuer.clock import Deadline
from issuer.core.steps import Elsewhere, Masters, Pipeline, Send, Silence, Visit
from issuer.drivers.credentials import Provider
from issuer.drivers.inherited import AnyLink
from issuer.drivers.topology import Address, Cluster, OneServer, Sentinels, Topology
from issuer.errors import ConfigurationError, RedisUnavailable
from issuer.settings import REDIS_CONNECTIONS, host_and_port
from issuer_persistence.credentials import Credentials
from issuer_persistence.urls import ENCODE, flaw

#: Settings of a connection with which redis-py does not repeat calls by itself.
_OURS: Mapping[str, Any] = {"retry_on_error": [], "retry_on_timeout": False}

#: redis-py would subscribe each connection to messages about the maintenance of a server: one more round trip, and a
#: message would replace our timeouts. Only some classes of connections have this setting, depending on the version.
_MAINTENANCE, _IGNORED = "maint_notifications_config", MaintNotificationsConfig(enabled=False)

#: redis-py sends arguments of more bytes than this apart. The value is redis-py's own.
PACKED = 6000

_FOR_SENTINELS = "sentinel_"
_DEFAULT_PORT = {"sentinel": 26379, "cluster": 7000}

_PLAIN = ("redis", "rediss", "unix")
_SCHEMES = "write redis://, unix://, redis+sentinel:// or redis+cluster://; rediss in place of redis goes through TLS"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Class and settings of a redis-py connection."""

    kind: type
    settings: Mapping[str, Any] = field(repr=False)  # may contain a password

    @classmethod
    def of(cls, pool: Any) -> Recipe:
        """Return the recipe of the connections of a pool. The pool itself would make at most 100 connections."""
        return cls(pool.connection_class, pool.connection_kwargs)

    @property
    def provider(self) -> Provider | None:
        """Gives the login of each connection. None: the URL or the client has it."""
        found = self.settings.get("credential_provider")
        return found if isinstance(found, Provider) else None


@dataclass(frozen=True, slots=True)
class Target:
    """The servers of a URL or a client, and how to connect to them.

    Attributes:
        name: Name of the servers in messages.
        route: Makes a new topology.
        data: Class and settings of a connection to Redis.
        sentinel: Class and settings of a connection to a Sentinel. None if there are no Sentinels.
        addresses: Where to connect to instead of an address that a server reports, each as HOST:PORT.
    """

    name: str
    route: Callable[[], Topology]
    data: Recipe
    sentinel: Recipe | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, address: Address, retry: Any = None, base: type | None = None) -> Recipe:
        """Return the class and the settings of a connection to the server.

        `base`: a class of ours that adds methods to redis-py's class. None: nothing is added.
        """
        recipe = self.sentinel if address.sentinel and self.sentinel else self.data
        if address.host is not None and "path" in recipe.settings:
            raise redis.ConnectionError(f"{address.host}:{address.port} can't be reached through a Unix socket")
        place: dict[str, Any] = {}
        if address.host is not None:
            host = f"[{address.host}]" if ":" in address.host else address.host
            mapped = self.addresses.get(f"{host}:{address.port}")
            at = (address.host, address.port) if mapped is None else host_and_port(mapped)
            place = dict(zip(("host", "port"), at, strict=True))
        kind = recipe.kind if base is None else _with_base(recipe.kind, base)
        quiet = {_MAINTENANCE: _IGNORED} if _MAINTENANCE in recipe.settings else {}
        # If a signal handler raises an exception while hiredis packs a command, hiredis crashes the interpreter (seen).
        packs = {"command_packer": _packer(recipe.settings)} if issubclass(recipe.kind, AbstractConnection) else {}
        return Recipe(kind, {**recipe.settings, **_OURS, **quiet, **packs, "retry": retry, **place})

    def logging_in(self, credentials: Credentials) -> Target:
        """Return this target with these credentials for Redis. Sentinels keep their login of the URL."""
        settings = dict(self.data.settings)
        if settings.pop("password", None):
            raise ConfigurationError(
                f"redis {self.name}: the URL has a password, and there is {credentials.name}: remove one of them"
            )
        provider = Provider(credentials, settings.pop("username", None) or "")
        return replace(self, data=Recipe(self.data.kind, {**settings, "credential_provider": provider}))


def _packer(settings: Mapping[str, Any]) -> PythonRespSerializer:
    encoding, errors = settings.get("encoding", "utf-8"), settings.get("encoding_errors", "strict")
    return PythonRespSerializer(
        PACKED, lambda word: word if isinstance(word, bytes) else str(word).encode(encoding, errors)
    )


@cache
def _with_base(kind: type, base: type) -> type:
    """Return redis-py's class `kind` with our class `base` in front, which adds methods for a driver."""
    return type(kind.__name__, (base, kind), {})


def from_url(url: str, name: str, pool: Any) -> Target:
    """Parse a URL. redis://, rediss:// and unix:// have the same form as in redis-py. There are also

    redis+sentinel://[user:password@]host[:26379][,host...]/master[/db][?sentinel_username=..&sentinel_password=..&..]
    redis+cluster://[user:password@]host[:7000][,host...][?..]

    With rediss+sentinel:// and rediss+cluster:// all connections use TLS. All other parameters are those of redis-py.
    `pool`: the blocking or the asyncio class ConnectionPool. Raises ConfigurationError.
    """  # noqa: D400 - the URLs end the sentence
    # Parsers of URLs ignore everything after a #, so a password with a # would be cut there.
    if wrong := flaw(url) or ("#" in url and ENCODE):
        raise ConfigurationError(f"redis {name}: {wrong}")
    try:
        found = _taken_apart(url, name, pool)
        recipe = found.recipe(Address())
        # This call does no I/O. It only checks the parameters.
        recipe.kind(**recipe.settings)
    except (ValueError, TypeError, OSError, redis.RedisError) as error:
        # The error is not shown or chained, because its text may contain a part of the URL.
        raise ConfigurationError(f"redis {name}: {_refusal(str(error), url)}") from None
    return found


def _refusal(text: str, url: str) -> str:
    """Return the reason why redis-py or the standard library rejects the URL. `text`: their message."""
    for number, (name, _) in enumerate(parse_qsl(url.partition("?")[2], keep_blank_values=True), 1):
        if f"'{name}'" in text:  # the name is not shown: it may be a part of a password
            return f"redis-py does not support parameter {number} of the URL, or its value is invalid"
    return f"the login, a host or a parameter is invalid; {ENCODE}"


def _taken_apart(url: str, name: str, pool: Any) -> Target:
    def recipe(plain: str) -> Recipe:
        return Recipe.of(pool.from_url(plain, driver_info=None))

    scheme, _, rest = url.partition("://")
    plain, plus, kind = scheme.partition("+")
    if plain not in _PLAIN or (plus and (plain == "unix" or kind not in _DEFAULT_PORT)):
        raise ConfigurationError(f"redis {name}: unknown URL scheme; {_SCHEMES}")
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    if not plus:
        return Target(name, OneServer, recipe(url))
    login, at, hosts = authority.rpartition("@")
    nodes = [_address(host, kind, name) for host in hosts.split(",")]
    parameters = parse_qsl(query, keep_blank_values=True)
    others = urlencode([pair for pair in parameters if not pair[0].startswith(_FOR_SENTINELS)])
    if kind == "cluster":
        if path not in ("", "0"):
            raise ConfigurationError(f"redis {name}: a Cluster has only database 0: omit the number")
        return Target(name, lambda: Cluster(nodes), recipe(f"{plain}://{login}{at}localhost?{others}"))
    master, _, db = path.partition("/")
    if not master:
        raise ConfigurationError(f"redis {name}: the master's name is missing: {scheme}://host:26379/mymaster/0")
    theirs = {key.removeprefix(_FOR_SENTINELS): value for key, value in parameters if key.startswith(_FOR_SENTINELS)}
    user, password = theirs.pop("username", ""), theirs.pop("password", "")
    if db.rstrip("/") and not re.fullmatch("[0-9]+/?", db):
        raise ConfigurationError(f"redis {name}: the part after the master's name must be a database number; {ENCODE}")
    if theirs:
        known = f"{_FOR_SENTINELS}username and {_FOR_SENTINELS}password"
        raise ConfigurationError(f"redis {name}: unknown parameter {_FOR_SENTINELS}...; allowed are {known}")
    their_login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    return Target(
        name,
        lambda: Sentinels(nodes, master),
        recipe(f"{plain}://{login}{at}localhost/{db or 0}?{others}"),
        recipe(f"{plain}://{their_login}localhost?{others}"),
    )


def _address(node: str, kind: str, name: str) -> Address:
    """Parse host, host:port, [::1] or [::1]:port."""
    host, colon, port = node.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = node, str(_DEFAULT_PORT[kind])
    if not host.strip("[]"):
        raise ConfigurationError(f"redis {name}: one of the hosts has no name")
    return Address(host.strip("[]"), int(port), sentinel=kind == "sentinel")


def from_client(client: redis.Redis | redis.asyncio.Redis) -> Target:
    """Return a target with the settings of this client.

    The client's own connections are not used: they could retry, and so run the script `load` twice.
    """
    pool: Any = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return Target("client", OneServer, Recipe.of(pool))
    # The client comes from redis-py's Sentinel. Its connections look up the master with timeouts and retries that
    # ignore our deadlines (seen: 9 s instead of 1). So we look up the master, and connect with the same settings.
    sentinels = [sentinel.connection_pool for sentinel in manager.sentinels]
    if not pool.is_master or not sentinels:
        raise ConfigurationError(
            "this client connects to a replica, but numbers come from the master: use Sentinel.master_for()"
        )
    plain = next(kind for kind in pool.connection_class.__mro__ if "Sentinel" not in kind.__name__)
    nodes = [Address(at.connection_kwargs["host"], at.connection_kwargs["port"], sentinel=True) for at in sentinels]
    return Target(
        "client",
        lambda: Sentinels(nodes, pool.service_name),
        Recipe(plain, {key: value for key, value in pool.connection_kwargs.items() if key != "connection_pool"}),
        Recipe.of(sentinels[0]),
    )


#: A waiting call checks again after this many seconds, as the thread that should wake it may have been interrupted.
LOOK_AGAIN = 0.25


class Permit:
    """Permission for one connection. The permit returns to its pool when its last reference is gone.

    So if a connection is lost, for example in an interrupt, its permit is not lost.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: weakref.ref[Pool[Any]]) -> None:
        self._pool = pool

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            # Put a new Permit into the pool, because Python finalizes an object only once.
            pool.free.append(Permit(self._pool))
            pool.settle()


class AnyWaker(Protocol):
    """Lets a call sleep until a connection is free."""

    def wake(self) -> None:
        """Wake the call. If it is not asleep, its next sleep ends at once. May be called from any thread."""

    async def wait(self, seconds: float) -> None:
        """Sleep until `wake`, at most `seconds` seconds."""


W = TypeVar("W", bound=AnyWaker)


class Turn(Generic[W]):
    """A place in the queue for a connection.

    Attributes:
        node: The server that the call needs a connection to.
        waker: Wakes the call.
        until: Deadline of the call, on the monotonic clock.
        given: The connection or permit that the call got from another call. Empty while the call waits.
    """

    __slots__ = ("given", "node", "until", "waker")

    def __init__(self, node: AnyNode[Any], waker: W, until: float) -> None:
        self.node = node
        self.waker = waker
        self.until = until
        self.given: list[Any] = []


class Pool(Generic[W]):
    """Permits for at most `most` connections to any servers, and the queue of calls that wait for a connection.

    A call that frees a connection or a permit gives it to the call that came first, and wakes that call. So while calls
    wait, nothing is free, and calls that come later need not check the queue. There is no lock: each step is one atomic
    operation of a deque or a list. A call that waits checks again whether something is free.
    """

    def __init__(self, most: int, waker: Callable[[], W]) -> None:
        self.most = most
        self._waker = waker
        itself = weakref.ref(self)
        self.free = deque(Permit(itself) for _ in range(most))
        #: The queue of waiting calls.
        self.waiting: deque[Turn[W]] = deque()

    def permit(self) -> Permit | None:
        """Return a permit for one more connection, None if no permit is free."""
        try:
            return self.free.pop()
        except IndexError:
            return None

    def queue(self, node: AnyNode[Any], end: Deadline) -> Turn[W]:
        """Take a place in the queue, and return the place. `end`: deadline of the call."""
        turn = Turn(node, self._waker(), end.at)
        self.waiting.append(turn)
        return turn

    def leave(self, turn: Turn[W]) -> None:
        """Leave the queue without a connection. What the call was given goes to the next call."""
        with suppress(ValueError):
            self.waiting.remove(turn)
        while turn.given:
            turn.node.put_back(turn.given.pop())

    def hand(self, found: Any, node: AnyNode[Any] | None = None) -> bool:
        """Give a connection to `node`, or a permit, to the first call in the queue. False if no call waits.

        If that call needs a connection to another server, the connection is closed. Then the call gets its permit.
        """
        while True:
            try:
                turn = self.waiting[0]
            except IndexError:
                return False
            waits = not turn.given and turn.until > clock.monotonic()  # otherwise its thread was interrupted
            if waits and node is not None and turn.node is not node:
                found.drop()
                return True
            if waits:
                turn.given.append(found)
            with suppress(ValueError):  # another thread was faster
                self.waiting.remove(turn)
            turn.waker.wake()
            if waits:
                return True

    def settle(self) -> None:
        """Give the free permits to the calls that wait."""
        while self.waiting and (permit := self.permit()) is not None:
            self.hand(permit)


#: How long to poll for a reply before sleeping, in seconds. Waking up takes longer than the reply of a nearby Redis,
#: which takes 20 us from this machine, and 60 us from a neighbouring machine.
LOOK_OUT = 0.0001

#: If a call polled and no reply came, this many of the next calls do not poll: with a distant server, each poll would
#: waste 2 us.
FAR = 50

#: A step that Redis executes.
RedisStep = Send | Pipeline | Masters | Silence | Visit | Elsewhere


L = TypeVar("L", bound=AnyLink)


class AnyNode(Generic[L]):
    """The idle connections to one server. `waiting`: the pool's queue, stored here so that draws read it quickly."""

    __slots__ = ("address", "closed", "idle", "pool", "waiting")

    def __init__(self, address: Address, pool: Pool[Any]) -> None:
        self.address = address
        self.pool = pool
        self.waiting = pool.waiting
        self.idle: deque[L] = deque()
        self.closed = False

    def put_back(self, found: L | Permit | None) -> None:
        """Make a connection idle after its call. Do nothing with a permit: it returns to its pool by itself."""
        if found is not None and not isinstance(found, Permit):
            self.idle.append(found)
            self.settle()

    def settle(self) -> None:
        """Give the idle connections to the calls that wait. If this node is closed, close them."""
        while self.closed or self.waiting:
            try:
                link = self.idle.pop()
            except IndexError:
                return
            if self.closed:
                link.drop()
            elif not self.pool.hand(link, self):
                self.idle.append(link)

    def drop_idle(self) -> None:
        """Close the idle connections."""
        while True:
            try:
                self.idle.pop().drop()
            except IndexError:
                return


N_co = TypeVar("N_co", bound=AnyNode[Any], covariant=True)


class Servers(Generic[N_co]):
    """Redis servers, and the connections to them.

    Each call is sent once. redis-py's retries are off, because the server may have executed a call without a reply.
    After an error or an interrupt the connection is dropped, so that no late reply is taken for another call's reply.
    """

    #: The classes of a driver. The pool class is redis-py's: it parses URLs and holds connections of subscriptions.
    node_class: type[N_co]
    waker_class: type[AnyWaker]
    pool_class: type[redis.ConnectionPool | redis.asyncio.ConnectionPool]
    pubsub_class: type[Any]
    link_class: type[Any]
    #: See `Target.recipe`.
    shown_class: type
    no_retry: Any
    #: Calls a function that may wait, and returns its result. The event loop does not wait.
    aside: Callable[..., Any]

    def __init__(self, target: Target, timeout: float, most: int = REDIS_CONNECTIONS) -> None:
        """`timeout`: limit of one round trip, in seconds. `most`: maximum number of connections."""
        self.target = target
        self.timeout = timeout
        self.name = target.name
        self.closed = False
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Forget all connections. They belong to another event loop, or to the parent of a fork."""
        self.route = self.target.route()
        self.nodes: dict[Address, N_co] = {}
        self.pool = Pool(self._most, self.waker_class)

    def connection_pool(self, address: Address) -> Any:
        """Return a connection pool of redis-py for one server. Its connections do not count against our maximum."""
        recipe = self.target.recipe(address, self.no_retry)
        limits = {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}
        return self.pool_class(connection_class=recipe.kind, **{**recipe.settings, **limits})

    def make_node(self, address: Address) -> N_co:
        """Return the node for a new server."""
        node = self.nodes.setdefault(address, self.node_class(address, self.pool))
        node.closed = self.closed
        return node

    @staticmethod
    def abandoned() -> bool:
        """Whether the current call is a draw with a cancelled caller. Only tasks can be cancelled."""
        return False

    def find(self, node: AnyNode[L]) -> L | Permit | None:
        """Return an idle connection to `node`, or a permit for a new one. None if all connections are in use."""
        others: list[AnyNode[Any]] = [] if self.pool.free or len(self.nodes) == 1 else [*self.nodes.values()]
        with suppress(IndexError):  # another thread was faster
            if node.idle:
                return node.idle.pop()
            for other in others:
                if other.idle:
                    other.idle.pop().drop()
                    break
        return self.pool.permit()

    def drop_idle(self) -> None:
        """Close every idle connection."""
        for node in list(self.nodes.values()):
            node.closed = self.closed
            node.drop_idle()

    def unanswered(self, node: AnyNode[Any], why: object, seconds: float, tag: str | None = None) -> RedisUnavailable:
        """Record that a draw got no reply for `seconds` seconds, and return the error for it."""
        if self.route.silent(node.address, why, seconds):
            node.drop_idle()  # each idle connection would cost a caller a timeout
        return RedisUnavailable(f"redis {self.name}: {why}", tag=tag, retry_after=self.route.retry_after(""))
