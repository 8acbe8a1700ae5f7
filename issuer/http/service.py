"""The service behind the routes: an issuer, and what the application was made with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from issuer.api.asyncio import AsyncIssuer
from issuer.api.door import Door
from issuer.clock import monotonic
from issuer.core.inspect.inspection import Readiness
from issuer.errors import StoreUnavailable

#: Seconds that a look at Redis and the store may take in all, and for which it holds.
READY_WITHIN: Final = 2.0
READY_FOR: Final = 1.0

#: Seconds for which a tag counts as one without texts: a format that another process gives it is seen after that.
PLAIN_FOR: Final = 1.0
#: The most tags of which that is kept.
_PLAIN_MOST: Final = 10_000

#: Content type and body of /metrics.
Exposition = Callable[[], tuple[str, bytes]]


@dataclass(slots=True)
class Service:
    """An issuer, and the application's settings. `longest`: seconds that a call may ask for, at most.

    `plain`: by tag, until when it is known that its numbers have no texts, on the monotonic clock. `document`, `page`:
    the contents of /openapi.json and /docs; `policy`: the page's Content-Security-Policy.
    """

    ids: AsyncIssuer
    metrics: Exposition | None
    longest: float
    document: bytes = b""
    page: bytes = b""
    policy: bytes = b""
    plain: dict[str, float] = field(default_factory=dict)
    door: Door = field(init=False)
    _seen: Readiness | None = None
    _seen_at: float = 0.0
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.door = Door(self.ids)

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the tag's numbers have texts, periods or shards; see AsyncIssuer.composed."""
        if await self.ids.composed(tag, timeout=timeout):
            self.plain.pop(tag, None)
            return True
        if len(self.plain) >= _PLAIN_MOST:
            self.plain.clear()
        self.plain[tag] = monotonic() + PLAIN_FOR
        return False

    async def ready(self) -> Readiness:
        """Return the issuer's readiness, of this second; of all that ask at once one looks."""
        async with self._looking:
            if self._seen is None or monotonic() - self._seen_at >= READY_FOR:
                self._seen = await self._look()
                self._seen_at = monotonic()
            return self._seen

    async def _look(self) -> Readiness:
        try:
            async with asyncio.timeout(READY_WITHIN):
                return await self.ids.ready(timeout=READY_WITHIN / 2)
        except TimeoutError:
            return Readiness(store=StoreUnavailable(f"not looked at within {READY_WITHIN:g} s"))
