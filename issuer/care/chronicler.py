"""Writes and reads the chronicle of an issuer, see chronicle.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from issuer.care import chronicle
from issuer.care.chronicle import Chronicle

if TYPE_CHECKING:
    from collections.abc import Callable

    from issuer.clock import Deadline
    from issuer.drivers.running import Run
    from issuer.operations.config import IssuerConfig


class Chronicler:
    """Reads the chronicle. Without a Redis of its own, an issuer has none: all methods then do nothing."""

    def __init__(self, config: IssuerConfig, *, run: Run, deadline: Callable[[float | None], Deadline]) -> None:
        """`run` runs steps. `deadline` returns the deadline of a call."""
        self._config = config
        self._run = run
        self._deadline = deadline
        self._on = config.redis is not None and config.relay is None

    async def read(self, timeout: float | None = None) -> Chronicle:
        """Return the events, the acts of operators, and the processes. An issuer without Redis has none.

        `timeout`: longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises RedisUnavailable if Redis does not answer, and FenceError if the Redis user has no permission.
        """
        deadline = self._deadline(timeout)
        if not self._on:
            return Chronicle()
        return await self._run(chronicle.read(self._config.settings.prefix), deadline, None)
