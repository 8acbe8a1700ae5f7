"""The state that all routes of the HTTP API share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from issuer.api.aio import AsyncIssuer
from issuer.care.inspection import HaltedTags, Readiness
from issuer.clock import monotonic
from issuer.doors.lookups import LookUps
from issuer.doors.rates import Bucket, RateBuckets
from issuer.errors import StoreUnavailable, TooManyRequests
from issuer.settings import Settings

#: Maximum duration of one check of Redis and the store, in seconds.
LOOK_WITHIN: Final = 2.0
#: Seconds for which the result of such a check is used again.
LOOK_FOR: Final = 1.0
#: Seconds that /readyz waits for a check. Kubernetes counts a probe as failed if it gets no reply within 1 s.
LOOK_WAITED_FOR: Final = 0.5

#: Seconds for which this process assumes that a tag still has plain numbers: without texts, periods and shards. After
#: this time, it checks whether another process has changed the tag.
PLAIN_FOR: Final = 1.0
#: Maximum number of tags with plain numbers that are remembered.
_PLAIN_MOST: Final = 10_000

#: Function that returns the content type and the body of /metrics.
Exposition = Callable[[], tuple[str, bytes]]


@dataclass(slots=True)
class Service:
    """An issuer and the options of the HTTP API.

    Attributes:
        longest: Largest timeout of a call, in seconds.
        rates: Rate limits of new Idempotency-Keys.
        look_ups: Look-ups of tags that this process has not used yet.
        document: Content of /openapi.json.
        page: Content of /docs.
        stopping: Whether the server has begun to stop.
        plain: Tags with plain numbers: without texts, periods and shards. The value is the monotonic time until which
            the process assumes this.
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
    _halted: HaltedTags = field(default_factory=HaltedTags)
    _looking: asyncio.Task[Readiness] | None = None

    def count_key(self, owner: str) -> Callable[[], object]:
        """Count a new Idempotency-Key of the token `owner`. Return a function that undoes the count.

        Raises TooManyRequests if the token has used too many new keys in this second.
        """
        bucket = self._keys.get(owner)
        if bucket is None:
            # A token's name has no colon, so the name of this bucket is not the name of a token's own bucket.
            bucket = self._keys[owner] = self.rates.bucket(f"{owner}: keys", self.settings.keys_per_second)
        if wait := bucket.take():
            problem = f"more than {bucket.most} new Idempotency-Keys in a second (keys_per_second)"
            raise TooManyRequests(problem, retry_after=wait)
        return bucket.give_back

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the numbers of the tag have texts, periods or shards, as AsyncIssuer.composed does.

        If the numbers have none of these, remember the tag in `plain`.
        """
        if await self.ids.composed(tag, timeout=timeout):
            self.plain.pop(tag, None)
            return True
        if len(self.plain) >= _PLAIN_MOST:
            self.plain.clear()
        self.plain[tag] = monotonic() + PLAIN_FOR
        return False

    async def beneath(self) -> Readiness:
        """Return whether Redis and the store answer. Requests that arrive at the same time share one check.

        Each check reads the next page of the tags, and looks for halted ones.
        If the check takes longer than LOOK_WAITED_FOR, return the previous result.
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
                return await self.ids.engine.care.ready(LOOK_WITHIN / 2, self._halted)
        except TimeoutError:
            return _not_seen(LOOK_WITHIN)


def _not_seen(within: float) -> Readiness:
    return Readiness(store=StoreUnavailable(f"no answer within {within:g} s"))
