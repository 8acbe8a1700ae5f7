"""Creates issuers from settings. Stores and connections to Redis are opened only here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from issuer import settings as settings_
from issuer.core.error_mapping import store_error
from issuer.core.event_log import log_event
from issuer.core.events import Observers
from issuer.errors import ConfigurationError, IssuerError, brief
from issuer.forks import no_fork
from issuer.numbers.scrambling import checked_key
from issuer.operations.config import IssuerConfig
from issuer.plugins.chain import AsyncChain, Chain
from issuer.plugins.contract import AsyncPlugin, Plugin
from issuer.plugins.hooks import named
from issuer.plugins.rejected import Handler, Rejections
from issuer.strategies.contract import Instance
from issuer.strategies.registry import strategy_names
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError
from issuer_persistence.journalled import Journalled
from issuer_persistence.opening import open_store
from issuer_persistence.urls import mask

if TYPE_CHECKING:
    import redis as redis_py
    import redis.asyncio
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from apscheduler.schedulers.base import BaseScheduler

    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer
    from issuer.drivers.aio.connections import Connections as AsyncConnections
    from issuer.drivers.blocking.connections import Connections

    #: Has an issuer's metrics counted, or nothing.
    Measure = Callable[[Issuer | AsyncIssuer], object]

    #: Connections of either colour.
    T = TypeVar("T", bound=Connections | AsyncConnections)

log = logging.getLogger("issuer")


class _Unset:
    def __repr__(self) -> str:
        return "from the settings"


UNSET: Final = _Unset()


def connect(
    *,
    redis: str | redis_py.Redis | _Unset = UNSET,
    store: str | Store | _Unset = UNSET,
    prefix: str | None = None,
    timeout: float | None = None,
    store_timeout: float | None = None,
    redis_timeout: float | None = None,
    redis_connections: int | None = None,
    insist: float | None = None,
    lease: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    keys: Mapping[str, str | bytes] | None = None,
    plugins: Iterable[Plugin] = (),
    rejected: Handler | None = None,
    instance: Instance | None = None,
    alarm: Callable[[IssuerError], None] | None = None,
    scheduler: Literal["background"] | BaseScheduler | None = "background",
    metrics: bool | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Issuer:
    """Create an Issuer. No server is contacted before the first call.

    Settings that are not given come from environment variables, the settings file or the defaults. If neither `redis`
    nor `store` is set anywhere, numbers come from an SQLite file of this machine, and a warning names it. Clients,
    stores and schedulers that are passed in are not closed by the issuer.

    Args:
        redis: URL (redis://, rediss://, unix://, redis+sentinel://h1:26379,h2:26379/master/db,
            redis+cluster://h1:7000,h2:7000) or a redis-py client, also one from `Sentinel.master_for`. "none" means no
            Redis: numbers are drawn from the store alone, and `store` must be given. Default: from the settings.
        store: URL (mongodb://, mongodb+srv://, sqlite:///path, memory://, memory://name) or a Store. Default: from the
            settings.
        prefix: Start of all Redis keys: printable characters without braces.
        timeout: Longest wait of a call in seconds, 0 or more.
        store_timeout: Longest time of one request to the store in seconds, above 0.
        redis_timeout: Longest time of one round trip to Redis in seconds, above 0.
        redis_connections: Most connections to Redis, 1..10 000. If all are in use, calls wait for a free connection.
        insist: How long calls wait during a store outage if no numbers are left, in seconds, 0 or more. After this
            time, calls fail immediately until the store is back.
        lease: How many numbers of a trend tag to draw ahead, 0 (none)..1 000 000. A tag's own `lease` has precedence.
        journal: Path of a file to which every reservation is appended before its numbers are used. Its directory must
            exist. "" means no journal.
        keys: Secrets for scrambled numbers by name, each at least 16 bytes.
        plugins: Plugins that run around every call for numbers, see `issuer.plugins`.
        rejected: Function that is called with the tag and the error when a call for numbers fails. Default: the error
            is logged, once a minute for each tag and cause.
        instance: Identity of this process for machine numbers, see `issuer.strategies`. Default: from the settings.
        alarm: Function that is called with each error that an operator must handle, such as a clock that went back.
        scheduler: "background" (threads of the issuer's own), an APScheduler scheduler, or None. If it is None, `tick`
            loads segments, or the caller when no number is left.
        metrics: If True, count events for Prometheus, see `issuer.metrics`. Needs the extra `metrics`.
        config: Path of the settings file. Default: the file that $ISSUER_CONFIG names, else ./issuer.toml, else
            issuer/issuer.toml in $XDG_CONFIG_HOME.

    Raises:
        ConfigurationError: A setting is invalid, or settings contradict each other.
    """
    given = _settings_of(locals())
    with no_fork():
        from issuer.api.blocking import Issuer
    if scheduler is not None and scheduler != "background" and not hasattr(scheduler, "add_job"):
        raise ConfigurationError(
            f"scheduler must be 'background', None or an APScheduler scheduler, not {brief(scheduler)}"
        )
    hooks = Hooks(Chain(plugins), rejected, instance, alarm)
    settings, to_redis, measure = _parts(redis, store, given, config, hooks, connections=_redis)
    ids = Issuer(settings, to_redis, scheduler)
    measure(ids)
    return ids


def aconnect(
    *,
    redis: str | redis_py.asyncio.Redis | _Unset = UNSET,
    store: str | Store | _Unset = UNSET,
    prefix: str | None = None,
    timeout: float | None = None,
    store_timeout: float | None = None,
    redis_timeout: float | None = None,
    redis_connections: int | None = None,
    insist: float | None = None,
    lease: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    keys: Mapping[str, str | bytes] | None = None,
    plugins: Iterable[Plugin | AsyncPlugin] = (),
    rejected: Handler | None = None,
    instance: Instance | None = None,
    alarm: Callable[[IssuerError], None] | None = None,
    scheduler: Literal["background"] | AsyncIOScheduler | None = "background",
    metrics: bool | None = None,
    config: str | os.PathLike[str] | None = None,
) -> AsyncIssuer:
    """Create an AsyncIssuer, as in `async with issuer.aconnect() as ids:`.

    No server is contacted before the first call.

    Settings that are not given come from environment variables, the settings file or the defaults. If neither `redis`
    nor `store` is set anywhere, numbers come from an SQLite file of this machine, and a warning names it. Clients,
    stores and schedulers that are passed in are not closed by the issuer.

    Args:
        redis: URL (redis://, rediss://, unix://, redis+sentinel://h1:26379,h2:26379/master/db,
            redis+cluster://h1:7000,h2:7000) or a client of redis.asyncio. "none" means no Redis: numbers are drawn from
            the store alone, and `store` must be given. Default: from the settings.
        store: URL (mongodb://, mongodb+srv://, sqlite:///path, memory://, memory://name) or a Store. Default: from the
            settings.
        prefix: Start of all Redis keys: printable characters without braces.
        timeout: Longest wait of a call in seconds, 0 or more.
        store_timeout: Longest time of one request to the store in seconds, above 0.
        redis_timeout: Longest time of one round trip to Redis in seconds, above 0.
        redis_connections: Most connections to Redis, 1..10 000. If all are in use, calls wait for a free connection.
        insist: How long calls wait during a store outage if no numbers are left, in seconds, 0 or more. After this
            time, calls fail immediately until the store is back.
        lease: How many numbers of a trend tag to draw ahead, 0 (none)..1 000 000. A tag's own `lease` has precedence.
        journal: Path of a file to which every reservation is appended before its numbers are used. Its directory must
            exist. "" means no journal.
        keys: Secrets for scrambled numbers by name, each at least 16 bytes.
        plugins: Plugins that run around every call for numbers, see `issuer.plugins`.
        rejected: Function that is called with the tag and the error when a call for numbers fails. Default: the error
            is logged, once a minute for each tag and cause.
        instance: Identity of this process for machine numbers, see `issuer.strategies`. Default: from the settings.
        alarm: Function that is called with each error that an operator must handle, such as a clock that went back.
        scheduler: "background" (tasks of the event loop), an AsyncIOScheduler, or None. If it is None, `tick` loads
            segments, or the caller when no number is left.
        metrics: If True, count events for Prometheus, see `issuer.metrics`. Needs the extra `metrics`.
        config: Path of the settings file. Default: the file that $ISSUER_CONFIG names, else ./issuer.toml, else
            issuer/issuer.toml in $XDG_CONFIG_HOME.

    Raises:
        ConfigurationError: A setting is invalid, or settings contradict each other.
    """
    given = _settings_of(locals())
    with no_fork():
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        from issuer.api.aio import AsyncIssuer
    if scheduler is not None and scheduler != "background" and not isinstance(scheduler, AsyncIOScheduler):
        raise ConfigurationError(f"scheduler must be 'background', None or an AsyncIOScheduler, not {brief(scheduler)}")
    hooks = Hooks(AsyncChain(plugins), rejected, instance, alarm)
    settings, to_redis, measure = _parts(redis, store, given, config, hooks, connections=_async_redis)
    ids = AsyncIssuer(settings, to_redis, scheduler)
    measure(ids)
    return ids


def _settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a call's arguments that are settings: which they are, `Settings` alone says."""
    return {name: value for name, value in arguments.items() if name in settings_.DEFINITIONS}


class Hooks(NamedTuple):
    """Arguments of `connect` that are not settings: they cannot be in a file or a variable."""

    plugins: Chain | AsyncChain
    rejected: Handler | None
    instance: Instance | None
    alarm: Callable[[IssuerError], None] | None


def _parts(
    redis: object,
    store: object,
    given: dict[str, Any],
    config: str | os.PathLike[str] | None,
    hooks: Hooks,
    *,
    connections: Callable[[object, float, int], T | None],
) -> tuple[IssuerConfig, T | None, Measure]:
    """Put together what both colours need. What can be refused without a store is refused before one is opened."""
    _check_hooks(hooks)
    events = Observers([log_event])
    rejections = Rejections(hooks.rejected, events.emit)
    named = {"redis_url": _named("redis", redis), "store_url": _named("store", store)}
    settings = settings_.load({**given, **named}, config=config)
    for name, key in settings.keys.value.items():
        checked_key(name, key, settings.keys.source)
    instance = _instance(settings) if hooks.instance is None else hooks.instance
    measure = _metrics() if settings.metrics.value else _unmeasured
    if settings.embedded:
        _tell_of_default(settings.store_url.value)
    named_store = settings.store_url.value
    opened = _store(named_store, settings.journal.value)
    own_store = not isinstance(named_store, Store)
    try:
        to_redis = connections(settings.redis_url.value, settings.redis_timeout.value, settings.redis_connections.value)
    except ConfigurationError:
        if own_store:
            opened.close()
        raise
    resolved = IssuerConfig(
        redis=None if to_redis is None else to_redis.name,
        store=opened,
        own_store=own_store,
        prefix=settings.prefix.value,
        timeout=settings.timeout.value,
        store_timeout=settings.store_timeout.value,
        insist=settings.insist.value,
        auto_create=settings.embedded,
        lease=settings.lease.value,
        keys=settings.keys.value,
        plugins=hooks.plugins.plugins,
        rejections=rejections,
        events=events,
        instance=instance,
        alarm=_no_alarm if hooks.alarm is None else hooks.alarm,
    )
    return resolved, to_redis, measure


def _metrics() -> Measure:
    """Return what has an issuer's metrics counted. ConfigurationError if their package isn't installed."""
    with no_fork():
        from issuer.metrics import install

    return install


def _unmeasured(ids: Issuer | AsyncIssuer) -> None:
    """Count nothing."""


def _named(name: str, given: object) -> object:
    """Return what was given, None if nothing was. ConfigurationError for a None: it is never meant.

    It is what `os.environ.get` gives for a variable that isn't set. Two pods that fell back to files of their own then
    would count 1, 2, ... each.
    """
    if given is None:
        way_out = ', or "none" for numbers from the store alone' if name == "redis" else ""
        raise ConfigurationError(
            f"{name} is None: omit it to use the settings (ISSUER_{name.upper()}_URL), or give a value{way_out}"
        )
    return None if given is UNSET else given


_told_of_default = False


def _tell_of_default(url: str) -> None:
    """Warn once in a process that its numbers are this machine's alone."""
    global _told_of_default  # noqa: PLW0603 - one per process is what it is for
    if not _told_of_default:
        _told_of_default = True
        log.warning(
            "no Redis and no store are configured, so numbers come from %s, a file of this machine: another machine "
            "would issue the same numbers. Set ISSUER_STORE_URL, or set ISSUER_REQUIRE_SERVERS=1 to forbid this "
            "default",
            url,
        )


def default_is_known() -> None:
    """Turn off the warning about the default store, for a caller that has chosen it."""
    global _told_of_default  # noqa: PLW0603 - the same
    _told_of_default = True


def _check_hooks(hooks: Hooks) -> None:
    """Refuse what can't be used, and a plugin that names an unknown strategy: it would never run."""
    if hooks.instance is not None and not isinstance(hooks.instance, Instance):
        raise ConfigurationError(f"instance must be an issuer.strategies.Instance or None, not {brief(hooks.instance)}")
    if hooks.alarm is not None and not callable(hooks.alarm):
        raise ConfigurationError(f"alarm must be None or a function that takes one error, not {brief(hooks.alarm)}")
    there = strategy_names() if hooks.plugins.strategies else []
    for plugin in hooks.plugins.plugins:
        for name in sorted({*(plugin.strategies or ())} - {*there}):
            raise ConfigurationError(
                f"{named(plugin)}.strategies: unknown strategy {name!r}; the strategies are {', '.join(there)}. "
                "Register your own strategy before the plugin that uses its name"
            )


def _instance(settings: settings_.Settings) -> Instance:
    """Return what this process is known by, as the settings say it."""
    machine, rack = settings.machine.value, settings.rack.value
    return Instance(
        application=settings.application.value,
        port=settings.port_number.value,
        ip=settings.ip_address.value,
        machine=None if machine < 0 else machine,
        rack=None if rack < 0 else rack,
        directory=settings.machine_files.value,
    )


def _no_alarm(error: IssuerError) -> None:
    """Do nothing: what is wrong is logged anyway."""


def _store(named: object, journal: str) -> Store:
    """Return the store, and its journal beside it if there is to be one."""
    store = _opened(named)
    return Journalled(store, journal) if journal else store


def _opened(named: object) -> Store:
    if isinstance(named, Store):
        return named
    if not isinstance(named, str):
        raise ConfigurationError(f"store must be a URL or a Store, not {type(named).__name__}")
    try:
        with no_fork():  # it imports the store's driver
            return open_store(named)
    except StoreError as error:
        raise store_error(error, None) from error


def _redis(named: object, timeout: float, most: int) -> Connections | None:
    import redis as redis_py

    from issuer.drivers.blocking.connections import Connections

    if named == "none":
        return None
    if isinstance(named, str):
        return Connections.from_url(named, timeout, mask(named), most)
    if isinstance(named, redis_py.Redis):
        return Connections.from_client(named, timeout, most)
    raise ConfigurationError(f"redis must be a URL, 'none' or a redis-py client, not {type(named).__name__}")


def _async_redis(named: object, timeout: float, most: int) -> AsyncConnections | None:
    import redis as redis_py

    from issuer.drivers.aio.connections import Connections as AsyncConnections

    if named == "none":
        return None
    if isinstance(named, str):
        return AsyncConnections.from_url(named, timeout, mask(named), most)
    if isinstance(named, redis_py.asyncio.Redis):
        return AsyncConnections.from_client(named, timeout, most)
    raise ConfigurationError(f"redis must be a URL, 'none' or a redis.asyncio client, not {type(named).__name__}")
