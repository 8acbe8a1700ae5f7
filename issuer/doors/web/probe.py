"""The check of Redis and the store that the health routes report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from issuer.api.aio import AsyncIssuer
from issuer.care.inspection import HaltedTags, Readiness
from issuer.clock import monotonic
from issuer.errors import StoreUnavailable
from issuer.views import view

#: Maximum duration of one check of Redis and the store, in seconds.
LOOK_WITHIN: Final = 2.0
#: Seconds for which the result of such a check is used again.
LOOK_FOR: Final = 1.0
#: Seconds that /readyz waits for a check. Kubernetes counts a probe as failed if it gets no reply within 1 s.
LOOK_WAITED_FOR: Final = 0.5


@dataclass(slots=True)
class Probe:
    """The newest check of what one issuer needs. It is kept as a view: errors would keep the frames of their calls."""

    _seen: dict[str, Any] = field(default_factory=lambda: _not_seen(LOOK_WAITED_FOR))
    _seen_until: float = 0.0
    _halted: HaltedTags = field(default_factory=HaltedTags)
    _looking: asyncio.Task[dict[str, Any]] | None = None

    async def readiness(self, ids: AsyncIssuer) -> dict[str, Any]:
        """Return a view of whether Redis and the store answer. Requests that arrive at the same time share one check.

        Each check reads the next page of the tags, and looks for halted ones.
        If the check takes longer than LOOK_WAITED_FOR, return the previous result.
        """
        if self._looking is None and monotonic() >= self._seen_until:
            self._looking = asyncio.create_task(self._look(ids))
        looking = self._looking
        if looking is not None:
            await asyncio.wait({looking}, timeout=LOOK_WAITED_FOR)
            if looking.done() and looking is self._looking:
                self._looking, self._seen_until = None, monotonic() + LOOK_FOR
                self._seen = looking.result()
        return self._seen

    async def _look(self, ids: AsyncIssuer) -> dict[str, Any]:
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                return view(await ids.engine.care.ready(LOOK_WITHIN / 2, self._halted))
        except TimeoutError:
            return _not_seen(LOOK_WITHIN)


def _not_seen(within: float) -> dict[str, Any]:
    return view(Readiness(store=StoreUnavailable(f"no answer within {within:g} s")))
