"""The service behind the routes: an issuer, and what the application was made with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from issuer.api.aio import AsyncIssuer
from issuer.care.inspection import Readiness
from issuer.clock import monotonic
from issuer.doors.lookups import LookUps
from issuer.doors.rates import Bucket, RateBuckets
from issuer.errors import StoreUnavailable, TooManyRequests
from issuer.settings import Settings

#: Seconds that a look at Redis and the store may take in all, and for which it holds.
LOOK_WITHIN: Final = 2.0
LOOK_FOR: Final = 1.0
#: Seconds that a reply waits for a look. Kubernetes takes a probe without a reply within 1 s for one that failed.
LOOK_WAITED_FOR: Final = 0.5

#: Seconds for which a tag counts as one without texts: a format that another process gives it is seen after that.
PLAIN_FOR: Final = 1.0
#: The most tags of which that is kept.
_PLAIN_MOST: Final = 10_000

#: Content type and body of /metrics.
Exposition = Callable[[], tuple[str, bytes]]


@dataclass(slots=True)
class Service:
    """An issuer, and what the application was made with. `longest`: seconds that a call may ask for, at most.

    `rates`: where new keys are counted. `look_ups`: of tags that it does not know yet.
    `stopping`: whether a stop of the server has begun.
    `plain`: by tag, until when it is known that its numbers have no texts, on the monotonic clock. `document`, `page`:
    the contents of /openapi.json and /docs; `policy`: the page's Content-Security-Policy.
    """

    ids: AsyncIssuer
    metrics: Exposition | None
    longest: float
    rates: RateBuckets
    look_ups: LookUps
    settings: Settings = field(default_factory=Settings)
    document: bytes = b""
    page: bytes = b""
    policy: bytes = b""
    stopping: bool = False
    plain: dict[str, float] = field(default_factory=dict)
    _keys: dict[str, Bucket] = field(default_factory=dict)
    _seen: Readiness = field(default_factory=lambda: _not_seen(LOOK_WAITED_FOR))
    _seen_until: float = 0.0
    _looking: asyncio.Task[Readiness] | None = None

    def count_key(self, owner: str) -> Callable[[], object]:
        """Count a new Idempotency-Key of a token; return what takes that back. Raises TooManyRequests."""
        bucket = self._keys.get(owner)
        if bucket is None:  # no token has this name
            bucket = self._keys[owner] = self.rates.bucket(f"{owner}: keys", self.settings.keys_per_second)
        if wait := bucket.take():
            problem = f"more than {bucket.most} new Idempotency-Keys in a second (keys_per_second)"
            raise TooManyRequests(problem, retry_after=wait)
        return bucket.give_back

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the tag's numbers have texts, periods or shards; see AsyncIssuer.composed."""
        if await self.ids.composed(tag, timeout=timeout):
            self.plain.pop(tag, None)
            return True
        if len(self.plain) >= _PLAIN_MOST:
            self.plain.clear()
        self.plain[tag] = monotonic() + PLAIN_FOR
        return False

    async def beneath(self) -> Readiness:
        """Return what is known of Redis and the store: of this second if they answer in time, else what was seen last.

        All that ask at once share a look.
        """
        if self._looking is None and monotonic() >= self._seen_until:
            self._looking = asyncio.create_task(self._look())
        looking = self._looking
        if looking is not None:
            await asyncio.wait({looking}, timeout=LOOK_WAITED_FOR)
            if looking.done() and looking is self._looking:
                self._looking, self._seen_until = None, monotonic() + LOOK_FOR
                self._seen = looking.result()
        return self._seen

    async def _look(self) -> Readiness:
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                return await self.ids.ready(timeout=LOOK_WITHIN / 2)
        except TimeoutError:
            return _not_seen(LOOK_WITHIN)


def _not_seen(within: float) -> Readiness:
    return Readiness(store=StoreUnavailable(f"no answer within {within:g} s"))
