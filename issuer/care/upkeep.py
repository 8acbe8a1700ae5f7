"""The background work for the tags in use: segments that are due, leases, records that changed, old ledger entries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from issuer.care.pruning import SHARE, Pruning
from issuer.clock import Deadline, monotonic
from issuer.core.steps import pipeline
from issuer.errors import ConfigurationError, FenceError, IssuerError, StoreUnavailable
from issuer.forks import no_fork
from issuer.gateway.tag_scripts import Hash, read_hash
from issuer.interrupts import raise_interrupt
from issuer.reentry import CallLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from issuer.care.chronicler import Chronicler
    from issuer.care.keeper import Keeper
    from issuer.core.supply.runtime import Runtime
    from issuer.drivers.running import Run
    from issuer.drivers.wire import Wire
    from issuer.operations.config import IssuerConfig
    from issuer.operations.registry import AnyCombiner, TagRegistry

log = logging.getLogger("issuer")

#: A sweep, the periodic background work, reads this many hashes at once.
LOOKS = 1000

#: At most one run of `refresh` is in progress. If it has not ended after this many seconds, it counts as lost, because
#: it may never have started. Then another run may begin.
REFRESH_LOST = 60.0

#: Seconds until old ledger entries are deleted again after an error.
PRUNE_AGAIN = 60.0


class Upkeep:
    """Loads the segments of tags in the background.

    A method's `timeout` is the time limit of each request in seconds. None means the issuer's `timeout`.
    """

    def __init__(
        self,
        registry: TagRegistry[Any],
        config: IssuerConfig,
        runtime: Runtime,
        redis: Wire[Any] | None,
        *,
        pruning: Pruning,
        run: Run,
        deadline: Callable[[float | None], Deadline],
        background: Callable[..., bool],
        chronicle: Chronicler,
    ) -> None:
        """`background` runs a job in the background. It returns False if that is impossible."""
        #: Loads the segments of all tags. None until `keep` is called.
        self.keeper: Keeper | None = None
        self._lock = CallLock()
        self._redis = redis
        self._background = background
        self._registry = registry
        self._config = config
        self._runtime = runtime
        self._run = run
        self._deadline = deadline
        self._pruning = pruning
        self._chronicle = chronicle
        self._refresh_due = self._prune_due = 0.0
        #: The combiners of the tags that the last sweep has checked.
        self._moving: list[AnyCombiner] = []

    async def keep(self, timeout: float | None) -> None:
        """Load segments for every tag of the store from now on; see Issuer.keep."""
        if self._redis is None:
            do = "set its URL" if self._config.relay is None else f"make this call at the server, {self._config.redis}"
            raise ConfigurationError(f"a keeper loads segments into Redis, but no Redis is configured: {do}")
        with no_fork():
            from issuer.care.keeper import Keeper

        with self._lock.thread, self._lock.call():
            if self.keeper is None:
                shared = self._registry, self._config, self._runtime
                self.keeper = Keeper(*shared, self._redis, run=self._run, background=self._background)
        await self.keeper.start(self._deadline(timeout))
        self._chronicle.role = self._chronicle.role or "keeper"

    async def tick(self, timeout: float | None) -> int:
        """Load all segments that are due now, and return how many were loaded; see Issuer.tick."""
        loaded = 0
        self._config.events.call_periodic()
        if self.keeper is not None:
            await self.keeper.look()
        for combiner in self._registry.moving():
            deadline = self._deadline(timeout)
            try:
                soon = Deadline(min(deadline.left(), self._runtime.window))
                await combiner.run(combiner.supply.rejoin(), soon)
                loaded += await combiner.run(combiner.supply.fetch(deadline), deadline)
            except Exception as error:  # noqa: BLE001 - after any error, the other tags must still be served
                # `tick` runs in a thread of the user. There, a signal handler of the user may have raised `error`.
                # Then raise it again, because it is meant for the user. `sweep` runs in a thread of the issuer, where
                # no signal handler runs.
                raise_interrupt(error)
                self._registry.troubled(combiner, error)
        await self._forget_idle()
        if self._chronicle.due:
            await self._chronicle.write()
        return loaded

    async def end(self) -> None:
        """End the keeper, if there is one."""
        if self.keeper is not None:
            await self.keeper.end()

    async def sweep(self) -> None:
        """Do the background work of each tag in use.

        `refresh` runs as a separate job, because it waits for the store. So a store that hangs does not delay tags that
        need only Redis. For the same reason, the chronicle is written in a separate job.
        """
        self._config.events.call_periodic()
        if self._chronicle.due:
            self._background(self._chronicle.write)
        if self.keeper is not None:
            self.keeper.swept()
        self._moving = self._registry.moving()
        for first in range(0, len(self._moving), LOOKS):
            if self._registry.closed:
                return
            await self._look(self._moving[first : first + LOOKS])
        now = monotonic()
        idle = self._registry.idle
        walks = self.keeper is not None and self.keeper.walks
        stale = walks or idle or now >= self._prune_due or any(each.supply.stale for each in self._moving)
        if now > self._refresh_due and stale:
            self._refresh_due = now + REFRESH_LOST
            self._background(self.refresh)

    async def _look(self, combiners: list[AnyCombiner]) -> None:
        timeout = self._config.settings.store_timeout
        hashes: dict[AnyCombiner, Hash | IssuerError] = {}
        try:
            asked = [each for each in combiners if each.supply.looks]
            calls = [read_hash(each.supply.state.key) for each in asked]
            replies = await self._run(pipeline(calls), Deadline(timeout), None) if calls else []
            hashes = dict(zip(asked, replies, strict=True))
        except IssuerError as error:
            log.debug("the hashes of tags could not be read: %s", error)
        for combiner in combiners:
            if self._registry.closed:
                return
            hash, deadline = hashes.get(combiner), Deadline(timeout)
            if isinstance(hash, IssuerError):
                self._registry.troubled(combiner, hash)
                if not isinstance(hash, FenceError):
                    continue
                hash = None  # this Redis can no longer be trusted, so the sweep drops the leases
            try:
                await combiner.run(combiner.supply.sweep(hash, deadline), deadline)
            except Exception as error:  # noqa: BLE001 - as in `tick`
                self._registry.troubled(combiner, error)

    async def _forget_idle(self) -> None:
        """Return the unused numbers of tags that nobody uses any more, and forget the tags."""
        for combiner in self._registry.take_idle():
            deadline = Deadline(self._config.settings.store_timeout)
            try:
                await combiner.run(combiner.supply.drain(), deadline)
            except Exception as error:  # noqa: BLE001 - as in `tick`
                self._registry.troubled(combiner, error)
            self._registry.forget(combiner)

    async def refresh(self) -> None:
        """Send the requests to the store that are not urgent. Stop when the store does not answer in time.

        These requests return the unused numbers of idle tags, read changed records, and delete old ledger entries.
        """
        try:
            await self._forget_idle()
            if self.keeper is not None:
                await self.keeper.walk()
            for combiner in [each for each in self._moving if each.supply.stale]:
                if self._registry.closed:
                    return
                try:
                    await combiner.run(combiner.supply.refresh(), Deadline(self._config.settings.store_timeout))
                except Exception as error:  # noqa: BLE001 - as in `tick`
                    self._registry.troubled(combiner, error)
                    if isinstance(error, StoreUnavailable):
                        return
            if monotonic() >= self._prune_due:
                await self._prune()
        finally:
            self._refresh_due = 0.0

    async def _prune(self) -> None:
        wait = PRUNE_AGAIN
        try:
            wait = await self._run(self._pruning.prune(), Deadline(SHARE + self._config.settings.store_timeout), None)
        except IssuerError as error:
            if not self._registry.closed:
                log.warning("old ledger entries could not be deleted: %s", error)
        self._prune_due = monotonic() + wait
