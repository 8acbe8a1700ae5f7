"""Configuration of an issuer of either colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from issuer.clock import Deadline
from issuer.core.events import Observers
from issuer.core.steps import Flight, Steps
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.ownership import Identity
from issuer.core.supply.runtime import Job, Runtime
from issuer.errors import IssuerError, SchemeError
from issuer.gateway.keys import redis_key
from issuer.numbers.codec import Scheme
from issuer.plugins.rejected import Rejections
from issuer.strategies.contract import Context, Instance
from issuer_persistence.contract import Store
from issuer_persistence.records import Tag

#: An elected loader that is silent for this many seconds longer than the store's timeout is replaced.
GRACE = 1.0

#: How long a `close` or an exit may take to give numbers back, in seconds.
CLOSING = 3.0

#: How many numbers a stream of a trend tag draws ahead if neither the tag nor `connect` says it.
STREAM_LEASE = 1000

#: How many tags' schemes are kept ready.
SCHEMES_MOST = 10_000


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """Resolved configuration, from the arguments of `connect` and the settings; times in seconds.

    `redis`: its name in messages; None: direct. `own_store`: to be closed with the issuer. `insist`: during an outage
    of the store callers wait for it this long. `auto_create`: make a tag at its first use. `lease`: for trend tags that
    don't say it themselves. `keys`: for scrambling, by name. `plugins`: as they were given, of either colour.
    `rejections`: the handler that is called whenever no number can be given. `instance`: what tells this process from
    others. `alarm`: called with what people should hear of. `events`: the issuer's observers, of which the log is the
    first.
    """

    redis: str | None
    store: Store
    own_store: bool
    prefix: str
    timeout: float
    store_timeout: float
    insist: float
    auto_create: bool
    lease: int
    keys: Mapping[str, bytes]
    plugins: Sequence[Any]
    rejections: Rejections
    instance: Instance
    alarm: Callable[[IssuerError], None]
    events: Observers
    _schemes: dict[tuple[str, str], Scheme] = field(default_factory=dict)
    _identity: Identity = field(default_factory=Identity)

    def scheme(self, tag: Tag) -> Scheme | None:
        """Return how the tag's numbers are made of its counter; None: they are the counter."""
        return self.texts(tag) if tag.scheme_id else None

    def texts(self, tag: Tag) -> Scheme:
        """Return the same for any tag, with how its texts are made. Raises ConfigurationError."""
        known = tag.tag, tag.version
        scheme = self._schemes.get(known)
        if scheme is None:
            if len(self._schemes) >= SCHEMES_MOST:
                self._schemes.clear()
            scheme = self._schemes[known] = Scheme.of(tag, self.keys)
        return scheme

    def reader(self, tag: Tag) -> Scheme:
        """Return what decodes the tag's values, with such keys as this process has. Raises ConfigurationError."""
        try:
            return self.texts(tag)
        except SchemeError:
            return Scheme(tag, self.keys, reading=True)

    def context(self, tag: Tag, runtime: Runtime, run: Callable[[Steps[Any], Deadline], Any]) -> Context:
        """Return what the tag's strategy is given; `run`: see Context."""
        return Context(
            tag=tag.tag,
            options=tag.scheme.get("options", {}),
            prefix=self.prefix,
            timeout=self.timeout,
            instance=self.instance,
            alarm=self.alarm,
            run=run,
            flight=runtime.flight,
            redis=runtime.redis,
            background=runtime.background,
            window=runtime.window,
        )

    def key(self, tag: str) -> str:
        """Return the name of the tag's hash in Redis."""
        return redis_key(self.prefix, tag)

    def hash_key(self, tag: str) -> str | None:
        """Return the same, None if there is no Redis."""
        return None if self.redis is None else redis_key(self.prefix, tag)

    def described(self, kind: str) -> str:
        """Return how an issuer of that kind shows itself."""
        return f"<{kind} redis={self.redis!r} store={self.store.url!r} prefix={self.prefix!r}>"

    def runtime(
        self,
        flight: Callable[[], Flight],
        background: Callable[[float, Job], bool],
        attend: Callable[[], None],
        *,
        scheduler: object,
    ) -> Runtime:
        """Return what the tags' supplies share; see Runtime. `background` takes the seconds of a job, and the job.

        `scheduler`: the one that there should be, None for none.
        """
        window = self.store_timeout + GRACE
        return Runtime(
            redis=self.redis is not None,
            store=self.store.url,
            background=partial(background, window),
            scheduled=scheduler is not None,
            flight=flight,
            attend=attend,
            window=window,
            auto_create=self.auto_create,
            lease=self.lease,
            fast_path=FastPath(),
            scheme=self.scheme,
            identity=self._identity,
            insist=self.insist,
            emit=self.events.emit,
            application=self.instance.application,
        )
