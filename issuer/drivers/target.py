"""Parses a Redis URL or client: one server, a master behind Sentinels, or a Cluster, and how to connect to it."""

from __future__ import annotations

# Otherwise the first connection imports it. If another thread forks at that moment, the child waits for the import's
# lock for ever (seen).
import encodings.idna  # noqa: F401
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import redis
import redis.asyncio

from issuer.drivers.topology import Address, Cluster, OneServer, Sentinels, Topology
from issuer.errors import ConfigurationError
from issuer_persistence.urls import ENCODE, flaw

#: Settings of redis-py that would repeat calls, or count and time them differently.
_OURS: Mapping[str, Any] = {"retry_on_error": [], "retry_on_timeout": False}

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
        """Take it from a connection pool. The pool's own method counts connections, at most 100."""
        return cls(pool.connection_class, pool.connection_kwargs)


@dataclass(frozen=True, slots=True)
class Target:
    """The servers of a URL. `route` makes a new topology. `data` and `sentinel` connect to the nodes."""

    name: str
    route: Callable[[], Topology]
    data: Recipe
    sentinel: Recipe | None = None

    def connection(self, address: Address, retry: Any = None, base: type | None = None) -> Any:
        """Return a new redis-py connection to the server, not yet connected. `base`: see `_with_base`."""
        recipe = self.sentinel if address.sentinel and self.sentinel else self.data
        if address.host is not None and "path" in recipe.settings:
            raise redis.ConnectionError(f"{address.host}:{address.port} can't be reached through a Unix socket")
        place = {"host": address.host, "port": address.port} if address.host is not None else {}
        kind = recipe.kind if base is None else _with_base(recipe.kind, base)
        return kind(**{**recipe.settings, **_OURS, "retry": retry, **place})


@cache
def _with_base(kind: type, base: type) -> type:
    """Return redis-py's class with a base class of ours in front, for the methods that a driver needs."""
    return type(kind.__name__, (base, kind), {})


def from_url(url: str, name: str, pool: Any) -> Target:
    """Take a URL apart. redis://, rediss:// and unix:// are as redis-py knows them; besides there are

    redis+sentinel://[user:password@]host[:26379][,host...]/master[/db][?sentinel_username=..&sentinel_password=..&..]
    redis+cluster://[user:password@]host[:7000][,host...][?..]

    With rediss+sentinel:// and rediss+cluster:// everything goes through TLS. All other parameters are redis-py's own.
    `pool`: the ConnectionPool class of the driver's colour. Raises ConfigurationError.
    """  # noqa: D400 - the URLs end the sentence
    # Behind a # parsers see nothing.
    if wrong := flaw(url) or ("#" in url and ENCODE):
        raise ConfigurationError(f"redis {name}: {wrong}")
    try:
        found = _taken_apart(url, name, pool)
        # No I/O. It checks the parameters.
        found.connection(Address())
    except (ValueError, TypeError, OSError, redis.RedisError) as error:
        # Neither shown nor chained: the text may contain a part of the URL.
        raise ConfigurationError(f"redis {name}: {_refusal(str(error), url)}") from None
    return found


def _refusal(text: str, url: str) -> str:
    """Return the reason why redis-py or the standard library rejects the URL. `text`: their message."""
    for number, (name, _) in enumerate(parse_qsl(url.partition("?")[2], keep_blank_values=True), 1):
        if f"'{name}'" in text:  # not shown: it may be a part of a password
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
    """Connect like the client, which is not changed. Its own connections would retry, and could send a `load` twice."""
    pool: Any = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return Target("client", OneServer, Recipe.of(pool))
    # A client of redis-py's Sentinel: each of its connections looks up the master with timeouts and retries that ignore
    # our deadlines (seen: 9 s instead of 1). So we look it up, and connect in the same way.
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
