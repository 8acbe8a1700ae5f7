"""The check of Redis and the store that the health routes report."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from issuer.api.aio import AsyncIssuer
from issuer.care.inspection import HaltedTags
from issuer.clock import monotonic
from issuer.errors import IssuerError, RedisUnavailable, StoreUnavailable

if TYPE_CHECKING:
    from issuer.care.care import Care

#: Maximum duration of one check of Redis and the store, in seconds.
LOOK_WITHIN: Final = 2.0
#: Seconds for which the result of such a check is used again.
LOOK_FOR: Final = 1.0
#: Seconds that /readyz waits for a check. Kubernetes counts a probe as failed if it gets no reply within 1 s.
LOOK_WAITED_FOR: Final = 0.5


@dataclass(slots=True)
class Probe:
    """The newest check of what one issuer needs. It keeps codes: errors would keep the frames of their calls."""

    #: None for a server that answers, "unknown" until its first check has ended.
    _seen: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(("store", "redis"), "unknown"))
    _seen_until: float = 0.0
    _halted: HaltedTags = field(default_factory=HaltedTags)
    _looking: asyncio.Task[None] | None = None

    async def readiness(self, ids: AsyncIssuer) -> dict[str, Any]:
        """Return whether Redis and the store answer. Requests that arrive at the same time share one check.

        Each check reads the next page of the tags, and looks for halted ones.
        If the check of a server takes longer than LOOK_WAITED_FOR, return its previous result.
        """
        if self._looking is None and monotonic() >= self._seen_until:
            # A task, and no bare `gather`: if the loop ends during a check, asyncio logs an error for that one.
            self._looking = asyncio.create_task(self._look_at_both(ids.engine.care))
        looking = self._looking
        if looking is not None:
            await asyncio.wait({looking}, timeout=LOOK_WAITED_FOR)
            if looking.done() and looking is self._looking:
                self._looking, self._seen_until = None, monotonic() + LOOK_FOR
                looking.result()
        return {"ready": True, **self._seen, "halted": sorted(self._halted.names)}

    async def _look_at_both(self, care: Care) -> None:
        await asyncio.gather(
            self._look("store", care.store_ready(LOOK_WITHIN / 2, self._halted), StoreUnavailable.code),
            self._look("redis", care.redis_ready(LOOK_WITHIN / 2), RedisUnavailable.code),
        )

    async def _look(self, server: str, check: Coroutine[Any, Any, IssuerError | None], silent: str) -> None:
        """Keep the code of what a check finds. `silent`: the code if it does not end."""
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                error = await check
        except TimeoutError:
            self._seen[server] = silent
        else:
            self._seen[server] = None if error is None else error.code
