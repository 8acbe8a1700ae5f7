"""State that all routes of an application share."""

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

#: Seconds that one check of Redis and the store may take in total, and for which its result is valid.
LOOK_WITHIN: Final = 2.0
LOOK_FOR: Final = 1.0
#: Seconds that a reply waits for a check. Kubernetes counts a probe without a reply within 1 s as failed.
LOOK_WAITED_FOR: Final = 0.5

#: For so many seconds this process takes a tag to have no format. After that it sees a format that another has set.
PLAIN_FOR: Final = 1.0
#: Largest number of tags for which this is remembered.
_PLAIN_MOST: Final = 10_000

#: Function that returns the content type and the body of /metrics.
Exposition = Callable[[], tuple[str, bytes]]


@dataclass(slots=True)
class Service:
    """An issuer and the options of the application.

    Attributes:
        longest: Largest timeout of a call, in seconds.
        rates: Rate limits of new Idempotency-Keys.
        look_ups: Look-ups of tags that this process has not used yet.
        document: Content of /openapi.json.
        page: Content of /docs.
        stopping: The server has begun to stop.
        plain: Tags whose numbers have no texts, each with the monotonic time until which this is valid.
    """

    ids: AsyncIssuer
    metrics: Exposition | None
    longest: float
    rates: RateBuckets
    look_ups: LookUps
    settings: Settings = field(default_factory=Settings)
    document: bytes = b""
    page: bytes = b""
    stopping: bool = False
    plain: dict[str, float] = field(default_factory=dict)
    _keys: dict[str, Bucket] = field(default_factory=dict)
    _seen: Readiness = field(default_factory=lambda: _not_seen(LOOK_WAITED_FOR))
    _seen_until: float = 0.0
    _looking: asyncio.Task[Readiness] | None = None

    def count_key(self, owner: str) -> Callable[[], object]:
        """Count a new Idempotency-Key of a token. Return a function that undoes this. Raises TooManyRequests."""
        bucket = self._keys.get(owner)
        if bucket is None:  # a name with a colon cannot be the name of a token
            bucket = self._keys[owner] = self.rates.bucket(f"{owner}: keys", self.settings.keys_per_second)
        if wait := bucket.take():
            problem = f"more than {bucket.most} new Idempotency-Keys in a second (keys_per_second)"
            raise TooManyRequests(problem, retry_after=wait)
        return bucket.give_back

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the numbers of the tag have texts, periods or shards; see AsyncIssuer.composed."""
        if await self.ids.composed(tag, timeout=timeout):
            self.plain.pop(tag, None)
            return True
        if len(self.plain) >= _PLAIN_MOST:
            self.plain.clear()
        self.plain[tag] = monotonic() + PLAIN_FOR
        return False

    async def beneath(self) -> Readiness:
        """Return whether Redis and the store answer: the result of this second, or the previous one if they are late.

        Requests that arrive at the same time share one check.
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
