"""The state that all routes of the HTTP API share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from issuer.api.aio import AsyncIssuer
from issuer.clock import monotonic
from issuer.doors.access import Access
from issuer.doors.budget import Budget
from issuer.doors.lookups import LookUps
from issuer.doors.rates import Bucket
from issuer.doors.web.probe import Probe
from issuer.errors import TooManyRequests
from issuer.settings import Settings

#: Seconds for which this process assumes that a tag still has plain numbers: without texts, periods and shards. After
#: this time, it checks whether another process has changed the tag.
PLAIN_FOR: Final = 1.0
#: Maximum number of tags with plain numbers that are remembered.
_PLAIN_MOST: Final = 10_000

#: The path of the console, before the names of its pages.
CONSOLE: Final = "/console"

#: Function that returns the content type and the body of /metrics.
Exposition = Callable[[], tuple[str, bytes]]


@dataclass(slots=True)
class Service:
    """An issuer and the options of the HTTP API.

    Attributes:
        longest: Largest timeout of a call, in seconds.
        document: Content of /openapi.json.
        page: Content of /docs.
        plain: Tags with plain numbers: without texts, periods and shards. The value is the monotonic time until which
            the process assumes this.
    """

    ids: AsyncIssuer
    access: Access
    metrics: Exposition | None
    longest: float
    look_ups: LookUps
    budget: Budget
    settings: Settings
    document: bytes
    page: bytes
    stopping: bool = False
    plain: dict[str, float] = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    _keys: dict[str, tuple[Bucket, Bucket]] = field(default_factory=dict)

    def count_key(self, owner: str, ttl: float) -> tuple[Callable[[], object], TooManyRequests | None]:
        """Count a new Idempotency-Key of the token `owner`. Return a function that undoes the count, and None.

        If the token has used too many new keys in this second, or too many of its keys live, count nothing and return
        the error for a new key. A key that has its number already still gets it.
        """
        buckets = self._keys.get(owner)
        if buckets is None:
            most, rate = self.settings.living_keys, self.settings.keys_per_second
            # The second bucket has seconds of life. If each key takes its ttl, as many keys live as seconds come per
            # second: `most`. The seconds of a full bucket are as many keys again, or fewer: keys that live for less
            # than most / rate seconds are limited by the rate alone.
            full = max(most * most / rate, self.settings.longest_ttl + 1)
            # A token's name has no colon, so the names of these buckets are not the name of a token's own bucket.
            bucket = self.access.rates.bucket
            buckets = bucket(f"{owner}: keys", rate), bucket(f"{owner}: lives", most, full)
            self._keys[owner] = buckets
        keys, lives = buckets
        seconds = ceil(ttl)
        if wait := keys.take():
            problem = f"more than {keys.most} new Idempotency-Keys in a second (keys_per_second)"
            return bool, TooManyRequests(problem, retry_after=wait)
        if wait := lives.take(seconds):
            keys.give_back()
            problem = "too many Idempotency-Keys are kept (living_keys): send a smaller ttl, or fewer new keys"
            return bool, TooManyRequests(problem, retry_after=wait)

        def undo() -> None:
            keys.give_back()
            lives.give_back(seconds)

        return undo, None

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return what AsyncIssuer.composed returns. If it is False, remember the tag in `plain`."""
        if await self.ids.composed(tag, timeout=timeout):
            self.plain.pop(tag, None)
            return True
        if len(self.plain) >= _PLAIN_MOST:
            self.plain.clear()
        self.plain[tag] = monotonic() + PLAIN_FOR
        return False
