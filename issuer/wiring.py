"""Creates issuers from settings. Only this module opens stores and connections to Redis for an issuer."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from issuer.core.error_mapping import store_error
from issuer.core.events import Observers, RejectedLog, log_event
from issuer.errors import ConfigurationError, brief
from issuer.forks import no_fork
from issuer.instance import Instance
from issuer.operations.config import IssuerConfig
from issuer.settings import DEFINITIONS, Settings, load
from issuer_persistence.contract import Store
from issuer_persistence.credentials import CommandCredentials, Credentials
from issuer_persistence.errors import StoreError
from issuer_persistence.opening import open_store, store_class
from issuer_persistence.urls import mask

if TYPE_CHECKING:
    import redis as redis_py
    import redis.asyncio
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from apscheduler.schedulers.base import BaseScheduler

    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer
    from issuer.drivers.aio.connections import AsyncConnections
    from issuer.drivers.blocking.connections import Connections
    from issuer.drivers.relay import Relay
    from issuer.drivers.servers import Target
    from issuer.plugins.contract import AsyncPlugin, Plugin

    #: A function that is called with an issuer. From then on, the issuer's events are counted for the metrics.
    Measure = Callable[[Issuer | AsyncIssuer], object]

    #: The class of the connections to Redis: one for the blocking interface, one for the asyncio interface.
    T = TypeVar("T", bound=Connections | AsyncConnections)

#: An issuer: Issuer or AsyncIssuer.
Ids = TypeVar("Ids")

log = logging.getLogger("issuer")


class _Unset:
    def __repr__(self) -> str:
        return "from the settings"


UNSET: Final = _Unset()


def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    redis: str | redis_py.Redis | _Unset = UNSET,
    store: str | Store | _Unset = UNSET,
    redis_credentials: Callable[[], str | tuple[str, str]] | None = None,
    store_credentials: Callable[[], str | tuple[str, str]] | None = None,
    prefix: str | None = None,
    redis_address_map: Mapping[str, str] | None = None,
    timeout: float | None = None,
    store_timeout: float | None = None,
    redis_timeout: float | None = None,
    redis_connections: int | None = None,
    insist: float | None = None,
    lease: int | None = None,
    idle_after: float | None = None,
    journal: str | os.PathLike[str] | None = None,
    keys: Mapping[str, str | bytes] | None = None,
    plugins: Iterable[Plugin] = (),
    instance: Instance | None = None,
    scheduler: Literal["background"] | BaseScheduler | None = "background",
    metrics: bool | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Issuer:
    """Create an Issuer. No server is contacted before the first call.

    Settings that are not given come from environment variables, the settings file or the defaults. If neither `redis`
    nor `store` is set anywhere, numbers come from an SQLite file of this machine, and a warning names this file. The
    issuer does not close clients, stores and schedulers that are passed in.

    Args:
        server: URL of an `issuer serve`, as in "https://numbers.example:8000". Then `redis`, `store` and `journal` must
            not be given: the process needs the server alone. Default: from the settings.
        token: Token for `server`.
        token_file: Path of a file that contains the token.
        redis: URL (redis://, rediss://, unix://, redis+sentinel://h1:26379,h2:26379/master/db,
            redis+cluster://h1:7000,h2:7000) or a redis-py client, also one from `Sentinel.master_for`. "none" means no
            Redis: numbers are drawn from the store alone, and `store` must be given. Default: from the settings.
        store: URL (mongodb://, postgresql://, mysql://, mariadb://, sqlite:///path, memory://) or a Store. Default:
            from the settings.
        redis_credentials: Function that returns the password of Redis, or a pair (user, password), for passwords that
            expire. Each new connection calls it, several threads at the same time. `redis` must be a URL without a
            password. Default: the setting `redis_password_command`.
        store_credentials: The same for the store, with a URL. Default: the setting `store_password_command`.
        prefix: Start of all Redis keys: printable characters without braces.
        redis_address_map: Addresses that a Cluster or Sentinels report and this process cannot reach, as behind NAT,
            each with the address to connect to instead: {"10.0.0.5:6379": "127.0.0.1:7001"}.
        timeout: Longest wait of a call in seconds, 0 or more.
        store_timeout: Longest time of one request to the store in seconds, above 0.
        redis_timeout: Longest time of one round trip to Redis in seconds, above 0.
        redis_connections: Maximum number of connections to Redis, 1..10 000. If all are in use, calls wait for a free
            connection.
        insist: How long calls wait during a store outage if no numbers are left, in seconds, 0 or more. After this
            time, calls fail immediately until the store is back.
        lease: How many numbers of a trend tag to draw ahead, 0 (none)..1 000 000. A tag's own `lease` has precedence.
        idle_after: Time in seconds, 0 or more. If nobody has drawn from a tag for this time, the unused numbers of the
            tag in memory are returned, and the tag is forgotten until its next use.
        journal: Path of a file to which every reservation is appended before its numbers are used. Its directory must
            exist. "" means no journal.
        keys: Secrets for scrambled numbers by name, each at least 16 bytes.
        plugins: Plugins that run around every call for numbers, see `issuer.plugins`.
        instance: Identity of this process for machine numbers, see `issuer.strategies`. Default: from the settings.
        scheduler: "background" (threads of the issuer's own), an APScheduler scheduler, or None. If it is None, there
            is no background work: `tick` loads segments, or a caller loads one when no number is left.
        metrics: If True, count events for Prometheus, see `issuer.metrics`. Needs the extra `metrics`.
        config: Path of the settings file. Default: the file that $ISSUER_CONFIG names, else ./issuer.toml, else
            issuer/issuer.toml in $XDG_CONFIG_HOME.

    Raises:
        ConfigurationError: A setting is invalid, or settings contradict each other.
    """
    return _connect(locals(), os.environ)


def aconnect(
    server: str | None = None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    redis: str | redis_py.asyncio.Redis | _Unset = UNSET,
    store: str | Store | _Unset = UNSET,
    redis_credentials: Callable[[], str | tuple[str, str]] | None = None,
    store_credentials: Callable[[], str | tuple[str, str]] | None = None,
    prefix: str | None = None,
    redis_address_map: Mapping[str, str] | None = None,
    timeout: float | None = None,
    store_timeout: float | None = None,
    redis_timeout: float | None = None,
    redis_connections: int | None = None,
    insist: float | None = None,
    lease: int | None = None,
    idle_after: float | None = None,
    journal: str | os.PathLike[str] | None = None,
    keys: Mapping[str, str | bytes] | None = None,
    plugins: Iterable[Plugin | AsyncPlugin] = (),
    instance: Instance | None = None,
    scheduler: Literal["background"] | AsyncIOScheduler | None = "background",
    metrics: bool | None = None,
    config: str | os.PathLike[str] | None = None,
) -> AsyncIssuer:
    """Create an AsyncIssuer, as in `async with issuer.aconnect() as ids:`.

    No server is contacted before the first call.

    Settings that are not given come from environment variables, the settings file or the defaults. If neither `redis`
    nor `store` is set anywhere, numbers come from an SQLite file of this machine, and a warning names this file. The
    issuer does not close clients, stores and schedulers that are passed in.

    Args:
        server: URL of an `issuer serve`, as in "https://numbers.example:8000". Then `redis`, `store` and `journal` must
            not be given: the process needs the server alone. Default: from the settings.
        token: Token for `server`.
        token_file: Path of a file that contains the token.
        redis: URL (redis://, rediss://, unix://, redis+sentinel://h1:26379,h2:26379/master/db,
            redis+cluster://h1:7000,h2:7000) or a client of redis.asyncio. "none" means no Redis: numbers are drawn from
            the store alone, and `store` must be given. Default: from the settings.
        store: URL (mongodb://, postgresql://, mysql://, mariadb://, sqlite:///path, memory://) or a Store. Default:
            from the settings.
        redis_credentials: Function that returns the password of Redis, or a pair (user, password), for passwords that
            expire. Each new connection calls it, several threads at the same time. `redis` must be a URL without a
            password. Default: the setting `redis_password_command`.
        store_credentials: The same for the store, with a URL. Default: the setting `store_password_command`.
        prefix: Start of all Redis keys: printable characters without braces.
        redis_address_map: Addresses that a Cluster or Sentinels report and this process cannot reach, as behind NAT,
            each with the address to connect to instead: {"10.0.0.5:6379": "127.0.0.1:7001"}.
        timeout: Longest wait of a call in seconds, 0 or more.
        store_timeout: Longest time of one request to the store in seconds, above 0.
        redis_timeout: Longest time of one round trip to Redis in seconds, above 0.
        redis_connections: Maximum number of connections to Redis, 1..10 000. If all are in use, calls wait for a free
            connection.
        insist: How long calls wait during a store outage if no numbers are left, in seconds, 0 or more. After this
            time, calls fail immediately until the store is back.
        lease: How many numbers of a trend tag to draw ahead, 0 (none)..1 000 000. A tag's own `lease` has precedence.
        idle_after: Time in seconds, 0 or more. If nobody has drawn from a tag for this time, the unused numbers of the
            tag in memory are returned, and the tag is forgotten until its next use.
        journal: Path of a file to which every reservation is appended before its numbers are used. Its directory must
            exist. "" means no journal.
        keys: Secrets for scrambled numbers by name, each at least 16 bytes.
        plugins: Plugins that run around every call for numbers, see `issuer.plugins`.
        instance: Identity of this process for machine numbers, see `issuer.strategies`. Default: from the settings.
        scheduler: "background" (tasks of the event loop), an AsyncIOScheduler, or None. If it is None, there is no
            background work: `tick` loads segments, or a caller loads one when no number is left.
        metrics: If True, count events for Prometheus, see `issuer.metrics`. Needs the extra `metrics`.
        config: Path of the settings file. Default: the file that $ISSUER_CONFIG names, else ./issuer.toml, else
            issuer/issuer.toml in $XDG_CONFIG_HOME.

    Raises:
        ConfigurationError: A setting is invalid, or settings contradict each other.
    """
    return _aconnect(locals(), os.environ)


def without_environment(connect: Callable[..., Ids], /, **given: Any) -> Ids:
    """Call `connect` or `aconnect` as if no environment variable were set. `given`: its arguments.

    The environment of the process stays unchanged, because other threads may use it at the same time.
    """
    call = signature(connect).bind(**given)
    call.apply_defaults()
    made: Ids = _CALLS[connect](call.arguments, {})
    return made


def _connect(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Issuer:
    with no_fork():
        from issuer.api.blocking import Issuer
    scheduler = arguments["scheduler"]
    if scheduler is not None and scheduler != "background" and not hasattr(scheduler, "add_job"):
        raise ConfigurationError(
            f"scheduler must be 'background', None or an APScheduler scheduler, not {brief(scheduler)}"
        )
    resolved, to_redis, measure = _parts(arguments, environ, connections=_redis, tasks=False)
    ids = Issuer(resolved, to_redis, scheduler)
    if measure is not None:
        measure(ids)
    return ids


def _aconnect(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> AsyncIssuer:
    with no_fork():
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        from issuer.api.aio import AsyncIssuer
    scheduler = arguments["scheduler"]
    if scheduler is not None and scheduler != "background" and not isinstance(scheduler, AsyncIOScheduler):
        raise ConfigurationError(f"scheduler must be 'background', None or an AsyncIOScheduler, not {brief(scheduler)}")
    resolved, to_redis, measure = _parts(arguments, environ, connections=_async_redis, tasks=True)
    ids = AsyncIssuer(resolved, to_redis, scheduler)
    if measure is not None:
        measure(ids)
    return ids


_CALLS: Final[Mapping[Any, Callable[..., Any]]] = {connect: _connect, aconnect: _aconnect}


def _parts(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    connections: Callable[[Settings, Credentials | None], T | None],
    tasks: bool,
) -> tuple[IssuerConfig, T | None, Measure | None]:
    """Return the configuration, the connections (None: no Redis) and the metrics (None: turned off).

    Invalid settings are reported before a store is opened. `connections` gets the settings, and the credentials for
    Redis. `tasks`: whether tasks of an event loop use the issuer.
    """
    instance = arguments["instance"]
    if instance is not None and not isinstance(instance, Instance):
        raise ConfigurationError(f"instance must be an issuer.strategies.Instance or None, not {brief(instance)}")
    plugins = _plugins(arguments["plugins"], tasks=tasks)
    given = {
        each.name: _given(each.argument, arguments[each.argument]) for each in DEFINITIONS.values() if each.connect
    }
    settings = load(given, config=arguments["config"], environ=environ)
    for name, key in settings.keys.items():
        with no_fork():
            from issuer.numbers.scrambling import checked_key

        checked_key(name, key, settings.sources["keys"])
    if not settings.server and not hasattr(os, "register_at_fork"):
        raise ConfigurationError(
            "a process with Redis or a store of its own needs a POSIX system such as Linux or macOS. On Windows, draw "
            "from an `issuer serve`: set server (ISSUER_SERVER) to its URL"
        )
    instance = _instance(settings) if instance is None else instance
    measure = _metrics() if settings.metrics else None
    if settings.embedded:
        _tell_of_default(settings.store_url)
    logins = {each: _credentials(each, arguments, settings) for each in ("redis", "store")}
    store, relay = _client(settings) if settings.server else (_store(settings, logins["store"]), None)
    own_store = not isinstance(settings.store_url, Store)
    try:
        to_redis = connections(settings, logins["redis"])
    except ConfigurationError:
        if own_store:
            store.close()
        raise
    resolved = IssuerConfig(
        settings=settings,
        redis=(None if relay is None else settings.server) if to_redis is None else to_redis.name,
        store=store,
        own_store=own_store,
        plugins=plugins,
        events=Observers([log_event, RejectedLog()]),
        instance=instance,
        relay=relay,
    )
    return resolved, to_redis, measure


def _metrics() -> Measure:
    """Return the function that counts an issuer's events. If the extra `metrics` is not installed, raise an error."""
    with no_fork():
        from issuer.metrics import install

    return install


def _given(name: str, value: object) -> object:
    """Return an argument of `connect`, or None if it was not given.

    If the program has passed None as `redis` or `store`, raise ConfigurationError. A program may pass
    `os.environ.get("STORE")`, which is None if the variable is not set. If None meant the default store, two pods would
    each use a file of their own, and both would count from 1.
    """
    if value is None and name in ("redis", "store"):
        way_out = ', or "none" for numbers from the store alone' if name == "redis" else ""
        raise ConfigurationError(
            f"{name} is None: omit it to use the settings (ISSUER_{name.upper()}_URL), or give a value{way_out}"
        )
    return None if value is UNSET else value


_told_of_default = False


def _tell_of_default(url: str) -> None:
    """Log a warning that the numbers come from a file of this machine. Each process logs it only once."""
    global _told_of_default  # noqa: PLW0603 - once per process
    if not _told_of_default:
        _told_of_default = True
        log.warning(
            "no Redis and no store are configured, so numbers come from %s, a file of this machine: another machine "
            "would issue the same numbers. Set ISSUER_STORE_URL, or set ISSUER_REQUIRE_SERVERS=1 to forbid this "
            "default",
            url,
        )


def default_is_known() -> None:
    """Turn off the warning about the default store. A caller that uses this store on purpose calls this function."""
    global _told_of_default  # noqa: PLW0603 - once per process
    _told_of_default = True


def _plugins(given: Iterable[Any], *, tasks: bool) -> Sequence[Plugin | AsyncPlugin]:
    """Reject a plugin for an unknown strategy, because it would never run. Raises ConfigurationError."""
    plugins = list(given)
    if not plugins:
        return plugins
    with no_fork():
        from issuer.plugins.chain import AsyncChain, Chain
        from issuer.strategies.registry import strategy_names

    chain = AsyncChain(plugins) if tasks else Chain(plugins)
    for plugin in chain.plugins:
        there = strategy_names() if plugin.strategies else []
        for name in sorted({*(plugin.strategies or ())} - {*there}):
            raise ConfigurationError(
                f"{type(plugin).__name__}.strategies: unknown strategy {name!r}; the strategies are "
                f"{', '.join(there)}. Register your own strategy before the plugin that uses its name"
            )
    return chain.plugins


def _instance(settings: Settings) -> Instance:
    return Instance(
        application=settings.application,
        port=settings.port_number,
        ip=settings.ip_address,
        machine=None if settings.machine < 0 else settings.machine,
        rack=None if settings.rack < 0 else settings.rack,
        directory=settings.machine_files,
    )


def _credentials(
    server: Literal["redis", "store"], arguments: Mapping[str, Any], settings: Settings
) -> Credentials | None:
    """Return what gives the passwords of the connections to a server: a function, or a command. None if neither."""
    name, ask = f"{server}_credentials", arguments[f"{server}_credentials"]
    command = getattr(settings, f"{server}_password_command")
    if ask is not None and not callable(ask):
        raise ConfigurationError(f"{name} must be a function that returns a password, not {type(ask).__name__}")
    found = Credentials(name, ask) if ask is not None else None
    if found is None and command:
        found = CommandCredentials(f"{server}_password_command", shlex.split(command))
    given = getattr(settings, f"{server}_url")
    if found is not None and not isinstance(given, str):
        raise ConfigurationError(
            f"{found.name}: {server} must be a URL, as the {type(given).__name__} has its own login"
        )
    return found


def _store(settings: Settings, credentials: Credentials | None) -> Store:
    store = settings.store_url
    if isinstance(store, str):
        try:
            with no_fork():  # `open_store` imports the store's driver
                store = open_store(store) if credentials is None else store_class(store).open_with(store, credentials)
        except StoreError as error:
            raise store_error(error, None) from error
    if not isinstance(store, Store):
        raise ConfigurationError(f"store must be a URL or a Store, not {type(store).__name__}")
    if not settings.journal:
        return store
    with no_fork():
        from issuer_persistence.journalled import Journalled

    return Journalled(store, settings.journal)


def _connections(kind: type[T], target: Target, settings: Settings) -> T:
    known = replace(target, addresses=settings.redis_address_map)
    return kind(known, settings.redis_timeout, settings.redis_connections)


def _client(settings: Settings) -> tuple[Store, Relay]:
    """Return the store and the Redis of a server, for a client that has neither."""
    with no_fork():
        from issuer.drivers.relay import Relay
        from issuer_persistence.remote.channel import HTTPChannel
        from issuer_persistence.remote.store import RemoteStore

    token = settings.token
    if settings.token_file:
        try:
            token = Path(settings.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"token_file {settings.token_file}: {error}") from None
    try:
        channel = HTTPChannel(f"issuer+{settings.server}", token)
    except StoreError as error:
        raise store_error(error, None) from error
    return RemoteStore(channel), Relay(channel, settings.prefix)


def _redis(settings: Settings, credentials: Credentials | None) -> Connections | None:
    named = settings.redis_url
    if named == "none":
        return None
    with no_fork():
        import redis as redis_py

        from issuer.drivers.blocking.connections import Connections
        from issuer.drivers.servers import from_client, from_url

    if isinstance(named, str):
        target = from_url(named, mask(named), Connections.pool_class)
        target = target if credentials is None else target.logging_in(credentials)
    elif isinstance(named, redis_py.Redis):
        target = from_client(named)
    else:
        raise ConfigurationError(f"redis must be a URL, 'none' or a redis-py client, not {type(named).__name__}")
    return _connections(Connections, target, settings)


def _async_redis(settings: Settings, credentials: Credentials | None) -> AsyncConnections | None:
    named = settings.redis_url
    if named == "none":
        return None
    with no_fork():
        import redis as redis_py

        from issuer.drivers.aio.connections import AsyncConnections
        from issuer.drivers.servers import from_client, from_url

    if isinstance(named, str):
        target = from_url(named, mask(named), AsyncConnections.pool_class)
        target = target if credentials is None else target.logging_in(credentials)
    elif isinstance(named, redis_py.asyncio.Redis):
        target = from_client(named)
    else:
        raise ConfigurationError(f"redis must be a URL, 'none' or a redis.asyncio client, not {type(named).__name__}")
    return _connections(AsyncConnections, target, settings)
