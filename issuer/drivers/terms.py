"""What an issuer was connected with, of either colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Protocol

from issuer.core.doctor.facts import Facts
from issuer.core.flight import Flight
from issuer.core.source import Job, Means
from issuer.keys import redis_key
from persistence.contract import Store

#: An elected loader that is silent for so many seconds longer than the store's timeout is replaced.
GRACE = 1.0

#: How long a `close` or an exit may take to give numbers back, in seconds.
CLOSING = 3.0

#: A refresh that has not ended after so many seconds is lost, and another may begin.
REFRESH_LOST = 60.0

#: How many numbers a stream of a trend tag draws ahead if nobody says it.
STREAM_LEASE = 1000


class Named(Protocol):
    """Connections of either colour."""

    name: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What `connect` was given, or found in the settings; times in seconds. `own_store`: to be closed with the issuer.

    `auto_create`: make a tag at its first use. `lease`: for trend tags that don't say it themselves.
    """

    store: Store
    own_store: bool
    prefix: str
    timeout: float
    store_timeout: float
    auto_create: bool
    lease: int

    def key(self, tag: str) -> str:
        """Return the name of the tag's hash in Redis."""
        return redis_key(self.prefix, tag)

    def facts(self, redis: str | None) -> Facts:
        """Return what is known before anybody is asked, for `doctor`; `redis` is its name, None if there is none."""
        window = self.store_timeout + GRACE
        return Facts(store=self.store.url, timeout=self.timeout, window=window, redis=redis)

    def described(self, kind: str, redis: Named | None) -> str:
        """Return how an issuer of that kind shows itself; `redis` None: direct."""
        return f"<{kind} redis={redis.name if redis else None!r} store={self.store.url!r} prefix={self.prefix!r}>"

    def means(
        self,
        *,
        redis: bool,
        background: Callable[[Job], bool],
        scheduled: bool,
        flight: Callable[[], Flight],
        attend: Callable[[], None],
        open: MutableMapping[str, Iterator[int]],
    ) -> Means:
        """Return what the tags' supplies share; see Means for the arguments."""
        return Means(
            redis=redis,
            store=self.store.url,
            background=background,
            scheduled=scheduled,
            flight=flight,
            attend=attend,
            window=self.store_timeout + GRACE,
            auto_create=self.auto_create,
            lease=self.lease,
            open=open,
        )
