"""Configuration of an issuer, for both drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from issuer.clock import Deadline
from issuer.core.events import Observers
from issuer.core.record import Identity
from issuer.core.steps import Flight, Steps
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.runtime import Job, Runtime
from issuer.errors import IssuerError, SchemeError
from issuer.gateway.keys import redis_key
from issuer.numbers.codec import Scheme
from issuer.plugins.rejected import Rejections
from issuer.settings import Settings
from issuer.strategies.contract import Context, Instance
from issuer_persistence.contract import Store
from issuer_persistence.records import Tag

#: How long a `close` or an exit may take to return unused numbers, in seconds.
CLOSING = 3.0

#: How many numbers a stream of a trend tag draws ahead, if neither the tag nor `connect` sets it.
STREAM_LEASE = 1000

#: Maximum number of cached schemes.
SCHEMES_MOST = 10_000


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """Configuration of an issuer: the settings, and the other arguments of `connect`.

    `redis`: name in messages; None: no Redis. `own_store`: a store to close with the issuer. `plugins`: as given.
    `rejections`: handler that is called if no number can be issued. `instance`: identity of this process. `alarm`:
    called with errors that an operator must handle. `events`: the observers; the first one is the log.
    """

    settings: Settings
    redis: str | None
    store: Store
    own_store: bool
    plugins: Sequence[Any]
    rejections: Rejections
    instance: Instance
    alarm: Callable[[IssuerError], None]
    events: Observers
    _schemes: dict[tuple[str, str], Scheme] = field(default_factory=dict)
    _identity: Identity = field(default_factory=Identity)

    def scheme(self, tag: Tag) -> Scheme | None:
        """Return the scheme that converts the tag's counter. None if users see the counter."""
        return self.texts(tag) if tag.scheme_id else None

    def texts(self, tag: Tag) -> Scheme:
        """Return a scheme that also makes texts, for any tag. Raises ConfigurationError."""
        known = tag.tag, tag.version
        scheme = self._schemes.get(known)
        if scheme is None:
            if len(self._schemes) >= SCHEMES_MOST:
                self._schemes.clear()
            scheme = self._schemes[known] = Scheme(tag, self.settings.keys)
        return scheme

    def reader(self, tag: Tag) -> Scheme:
        """Return the scheme that decodes values, with the keys that this process has. Raises ConfigurationError."""
        try:
            return self.texts(tag)
        except SchemeError:
            return Scheme(tag, self.settings.keys, reading=True)

    def context(self, tag: Tag, runtime: Runtime, run: Callable[[Steps[Any], Deadline], Any]) -> Context:
        """Return the context of the tag's strategy. `run`: see Context."""
        return Context(
            tag=tag.tag,
            options=tag.scheme.get("options", {}),
            prefix=self.settings.prefix,
            timeout=self.settings.timeout,
            instance=self.instance,
            alarm=self.alarm,
            run=run,
            flight=runtime.flight,
            redis=runtime.redis,
            background=runtime.background,
            window=self.settings.window,
        )

    def key(self, tag: str) -> str:
        """Return the key of the tag's hash."""
        return redis_key(self.settings.prefix, tag)

    def hash_key(self, tag: str) -> str | None:
        """Return the key of the tag's hash. None if there is no Redis."""
        return None if self.redis is None else redis_key(self.settings.prefix, tag)

    def described(self, kind: str) -> str:
        """Return the `repr` of an issuer of that kind."""
        return f"<{kind} redis={self.redis!r} store={self.store.url!r} prefix={self.settings.prefix!r}>"

    def runtime(
        self,
        flight: Callable[[], Flight],
        background: Callable[[float, Job], bool],
        attend: Callable[[], None],
        *,
        scheduler: object,
    ) -> Runtime:
        """Return what all tags share, see Runtime. `background` receives the duration in seconds, and the job.

        `scheduler`: the scheduler, or None.
        """
        return Runtime(
            settings=self.settings,
            window=self.settings.window,
            makes=self.settings.embedded,
            redis=self.redis is not None,
            store=self.store.url,
            background=partial(background, self.settings.window),
            scheduled=scheduler is not None,
            flight=flight,
            attend=attend,
            fast_path=FastPath(),
            scheme=self.scheme,
            identity=self._identity,
            emit=self.events.emit,
            application=self.instance.application,
        )
