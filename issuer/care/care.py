"""Operations on many tags (verify, recover, doctor, ready), and the background work for the tags in use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from issuer.care import inspection, recovery
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.examination import Examination, judge
from issuer.care.doctor.findings import Facts, Finding
from issuer.care.inspection import HaltedTags, Inspection, Readiness
from issuer.care.keeper import Keeper, Run
from issuer.care.pruning import SHARE, Pruning
from issuer.care.recovery import Named, Recovery
from issuer.care.results import Outcome, Outcomes, TagPages
from issuer.care.verification import Audit
from issuer.clock import Deadline, monotonic
from issuer.core.batch import TagBatch
from issuer.core.record import PAGE, identity, page_of_tags
from issuer.core.scheme_record import in_true_order
from issuer.core.steps import Steps, pipeline
from issuer.core.supply.runtime import Runtime
from issuer.drivers.wire import Wire
from issuer.errors import ConfigurationError, FenceError, IssuerError, StoreUnavailable, UnknownTag
from issuer.gateway.keys import check_found
from issuer.gateway.tag_scripts import Hash, read_hash
from issuer.interrupts import raise_interrupt
from issuer.operations.config import IssuerConfig
from issuer.operations.registry import AnyCombiner, TagRegistry
from issuer.reentry import CallLock
from issuer_persistence.errors import Corrupt
from issuer_persistence.journal import Known
from issuer_persistence.records import Tag

T = TypeVar("T")

log = logging.getLogger("issuer")

#: Result of `verified` for one tag: the discrepancies found, or an error.
Verdict = Outcome[list[Discrepancy]]

#: How many tags are inspected at once. Up to 100 ledger entries of each tag are then in memory.
TOGETHER = 100

#: A sweep, the periodic background work, reads this many hashes at once.
LOOKS = 1000

#: At most one run of `refresh` is in progress. If it has not ended after this many seconds, it counts as lost, because
#: it may never have started. Then another run may begin.
REFRESH_LOST = 60.0

#: Seconds until old ledger entries are deleted again after an error.
PRUNE_AGAIN = 60.0


class Care:
    """Checks and repairs tags, and loads their segments in the background.

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
    ) -> None:
        """Create the object for one issuer.

        Args:
            registry: The tags in use, with a combiner for each. A combiner groups concurrent draws of a tag.
            config: Configuration of the issuer.
            runtime: Services that all tags of the issuer share.
            redis: Connections to Redis. None if there is no Redis.
            pruning: Deletes old ledger entries.
            run: Function that runs steps: generators that yield the requests to Redis and to the store.
            deadline: Function that converts a `timeout` to a deadline.
            background: Function that runs a job in the background. It returns False if that is impossible.
        """
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
        self._refresh_due = self._prune_due = 0.0
        #: The combiners of the tags that the last sweep has checked.
        self._moving: list[AnyCombiner] = []

    async def verified(self, tag: str | None, timeout: float | None) -> Outcomes[list[Discrepancy]]:
        """Verify a tag with its shards or series, or all tags, sorted by name; see Issuer.verify.

        A shard, a series or a tag may be deleted while this runs. Its outcome then has no result and no error. But if
        `tag` itself was deleted, its outcome has the error UnknownTag.
        """
        if tag is None:
            names = await self._tags(timeout)
        else:
            names = await self._run(recovery.with_parts(check_found(tag)), self._deadline(timeout), tag)
        store_id = await self._run(identity(), self._deadline(timeout), tag)
        last: str | None = None

        async def ended(part: Sequence[str]) -> TagBatch[list[Discrepancy]]:
            nonlocal last
            known: dict[str, Tag] = {}
            if tag is None:
                records = await self._run(page_of_tags(last, PAGE), self._deadline(timeout), None)
                known = {record.tag: record for record in records if isinstance(record, Tag)}
                last = part[-1]
            key = self._config.hash_key
            audits = {name: Audit(name, key(name), store_id, known.get(name)).whole() for name in part}
            batch = await self._ended(audits, timeout, probe=False)
            for name, error in [*batch.errors.items()]:
                if isinstance(error, UnknownTag) and name != tag:
                    del batch.errors[name]
            return batch

        return Outcomes(names, PAGE, ended)

    async def verify(self, tag: str | None, timeout: float | None) -> list[Discrepancy]:
        """Verify a tag with its shards or series, or all tags. Return all discrepancies; see Issuer.verify."""
        findings: list[Discrepancy] = []
        async for outcome in await self.verified(tag, timeout):
            if outcome.error is not None:
                raise outcome.error
            findings += outcome.result or ()
        return findings

    async def recovered(
        self,
        tag: str | None,
        at_least: int = 0,
        from_journal: Named = (),
        *,
        dry_run: bool,
        timeout: float | None = None,
        spared: Container[str] = (),
        after: str = "",
    ) -> Outcomes[Recovery]:
        """Recover a tag with its shards or series, or all tags, sorted by name; see Issuer.recover.

        `spared`: names of tags to leave out. `after`: all tags up to this name are left out, too. "" leaves out none.
        """
        lowest = recovery.checked_at_least(tag, at_least)
        known: Mapping[str, Known] = {}
        if from_journal != ():
            journals = await self._run(recovery.journals(from_journal), self._deadline(timeout), tag)
            known = await self._run(recovery.witnesses(journals), self._deadline(timeout), tag)
        if tag is None:
            names = [*{*known, *await self._tags(timeout)}]
        else:
            names = await self._run(recovery.with_parts(tag, known), self._deadline(timeout), tag)
            if lowest:
                recovery.check_whole(tag, names, lowest)
        names = sorted(name for name in names if name > after and name not in spared)

        def recovered(name: str) -> Steps[Recovery]:
            key = self._config.hash_key(name)
            return recovery.recover(name, key, at_least=lowest, dry_run=dry_run, said=known.get(name))

        async def ended(part: Sequence[str]) -> TagBatch[Recovery]:
            return await self._ended({name: recovered(name) for name in part}, timeout, probe=True)

        return Outcomes(names, PAGE, ended)

    async def recover(
        self, tag: str | None, at_least: int, from_journal: Named, *, dry_run: bool, timeout: float | None
    ) -> list[Recovery]:
        """Recover a tag with its shards or series, or all tags; see Issuer.recover.

        After an error, the other tags are recovered nevertheless. At the end, the first error is raised.
        """
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        async for outcome in await self.recovered(tag, at_least, from_journal, dry_run=dry_run, timeout=timeout):
            done += [outcome.result] if outcome.result is not None else []
            failed += [outcome.error] if outcome.error is not None else []
        if failed:
            raise failed[0]
        return done

    async def doctor(self, progress: Callable[[int, int], object] | None, timeout: float | None) -> list[Finding]:
        """Examine Redis, the store, the settings and the tags; see Issuer.doctor."""
        config = self._config
        facts = Facts(settings=config.settings, store=config.store.url, redis=config.redis)
        for steps in Examination(facts, config.key, progress).rounds():
            await self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    async def ready(self, timeout: float | None) -> Readiness:
        """Check whether numbers can be drawn and reserved; see Issuer.ready."""
        halted = HaltedTags()
        store = await self.store_ready(timeout, halted)
        while halted.after is not None and store is None:
            store = await self.store_ready(timeout, halted)
        return Readiness(store, await self.redis_ready(timeout), sorted(halted.names))

    async def store_ready(self, timeout: float | None, halted: HaltedTags) -> IssuerError | None:
        """Return the error if the store does not answer. Otherwise note which tags of its next page are halted."""
        return await self._run(inspection.look_at_store(halted), self._deadline(timeout), None)

    async def redis_ready(self, timeout: float | None) -> IssuerError | None:
        """Return the error if Redis does not answer."""
        if self._config.redis is None:
            return None
        return await self._run(inspection.look_at_redis(), self._deadline(timeout), None)

    def tag_pages(self, timeout: float | None, *, after: str | None = None, count: int = PAGE) -> TagPages:
        """Return the records of the tags of the store by pages, sorted by name. See `Store.tags` for damaged ones.

        Args:
            timeout: Time limit of each page in seconds, or None.
            after: Name after which the tags begin. None means the first tag.
            count: How many tags are read at once.
        """

        async def read(after: str | None) -> list[Tag | Corrupt]:
            page = await self._run(page_of_tags(after, count), self._deadline(timeout), None)
            return [in_true_order(record) if isinstance(record, Tag) else record for record in page]

        return TagPages(read, after, count)

    async def inspect(self, tag: str, timeout: float | None, *, deleted: bool) -> Inspection:
        """Return the state of a tag; see Issuer.inspect."""
        steps = inspection.inspect(check_found(tag), self._config.hash_key(tag), deleted=deleted)
        found = await self._run(steps, self._deadline(timeout), tag)
        combiner = self._registry.combiners.get(tag)
        return found if combiner is None else replace(found, waiting=combiner.waiting)

    def inspected(self, tags: Sequence[Tag], timeout: float | None) -> Outcomes[Inspection]:
        """Inspect the tags with these records, which were read a moment ago."""
        records = {each.tag: each for each in tags}

        async def ended(part: Sequence[str]) -> TagBatch[Inspection]:
            steps = {name: inspection.inspect(name, self._config.hash_key(name), records[name]) for name in part}
            return await self._ended(steps, timeout, probe=False)

        return Outcomes(list(records), TOGETHER, ended)

    async def _ended(self, every: Mapping[str, Steps[T]], timeout: float | None, *, probe: bool) -> TagBatch[T]:
        """Run the steps of several tags to their end. Return the batch, which has a result or an error for each tag.

        `every`: the steps of each tag, by the tag's name. `timeout`: time limit of each request in seconds. `probe`:
        see TagBatch.
        """
        batch = TagBatch(every, self._config.store, probe=probe)
        only = next(iter(every)) if len(every) == 1 else None
        while batch.pending:
            await self._run(batch.go_on(), self._deadline(timeout), only)
        return batch

    async def _tags(self, timeout: float | None) -> list[str]:
        """Return the names of all tags of the store, sorted."""
        return [record.tag async for page in self.tag_pages(timeout) for record in page]

    async def keep(self, timeout: float | None) -> None:
        """Load segments for every tag of the store from now on; see Issuer.keep."""
        if self._redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, but no Redis is configured: set its URL")
        with self._lock.thread, self._lock.call():
            if self.keeper is None:
                shared = self._registry, self._config, self._runtime
                self.keeper = Keeper(*shared, self._redis, run=self._run, background=self._background)
        await self.keeper.start(self._deadline(timeout))

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
        return loaded

    async def sweep(self) -> None:
        """Do the background work of each tag in use.

        `refresh` runs as a separate job, because it waits for the store. So a store that hangs does not delay tags that
        need only Redis.
        """
        self._config.events.call_periodic()
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
        """Read the hashes of these tags together, and do the background work of each tag."""
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
        """Delete some old ledger entries."""
        wait = PRUNE_AGAIN
        try:
            wait = await self._run(self._pruning.prune(), Deadline(SHARE + self._config.settings.store_timeout), None)
        except IssuerError as error:
            if not self._registry.closed:
                log.warning("old ledger entries could not be deleted: %s", error)
        self._prune_due = monotonic() + wait
