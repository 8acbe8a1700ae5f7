"""Operations on many tags (verify, recover, doctor, ready). Loaded when one is called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from issuer.care import inspection, recovery
from issuer.care.chronicler import Chronicler
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.examination import Examination, judge
from issuer.care.doctor.findings import Facts, Finding
from issuer.care.inspection import HaltedTags, Inspection, Readiness
from issuer.care.recovery import Named, Recovery
from issuer.care.results import Outcome, Outcomes, TagPages
from issuer.care.verification import Audit
from issuer.clock import Deadline
from issuer.core.batch import TagBatch
from issuer.core.record import PAGE, identity, page_of_tags
from issuer.core.scheme_record import in_true_order
from issuer.core.steps import Steps
from issuer.drivers.running import Run
from issuer.errors import IssuerError, UnknownTag
from issuer.gateway.keys import check_found
from issuer.operations.config import IssuerConfig
from issuer_persistence.errors import Corrupt
from issuer_persistence.journal import Known
from issuer_persistence.records import Tag

T = TypeVar("T")

log = logging.getLogger("issuer")

#: Result of `verified` for one tag: the discrepancies found, or an error.
Verdict = Outcome[list[Discrepancy]]

#: How many tags are inspected at once. Up to 100 ledger entries of each tag are then in memory.
TOGETHER = 100


class Care:
    """Checks and repairs tags.

    A method's `timeout` is the time limit of each request in seconds. None means the issuer's `timeout`.
    """

    def __init__(
        self,
        config: IssuerConfig,
        waiting: Callable[[str], int | None],
        chronicle: Chronicler,
        *,
        run: Run,
        deadline: Callable[[float | None], Deadline],
    ) -> None:
        """Create the object. `waiting`: how many callers of this process wait for a tag. None: tag unused here."""
        self._config = config
        self._waiting = waiting
        self._chronicle = chronicle
        self._run = run
        self._deadline = deadline

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
            batch = await self.ended(audits, timeout, probe=False)
            for name, error in [*batch.errors.items()]:
                if isinstance(error, UnknownTag) and name != tag:
                    del batch.errors[name]
            return batch

        return Outcomes(names, PAGE, ended)

    async def verify(self, tag: str | None, timeout: float | None) -> list[Discrepancy]:
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
            batch = await self.ended({name: recovered(name) for name in part}, timeout, probe=True)
            if not dry_run:
                done = {name: f"max {each.old} -> {each.new}" for name, each in batch.results.items()}
                await self._chronicle.act("recover", done)
            return batch

        return Outcomes(names, PAGE, ended)

    async def recover(
        self, tag: str | None, at_least: int, from_journal: Named, *, dry_run: bool, timeout: float | None
    ) -> list[Recovery]:
        """Recover a tag with its shards or series, or all tags; see Issuer.recover.

        If a tag fails, the other tags are still recovered. At the end, the first error is raised.
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
        config = self._config
        if config.relay is not None:
            found = await self._run(config.relay.findings(), self._deadline(timeout), None)
            return [Finding(**each) for each in found]
        facts = Facts(settings=config.settings, store=config.store.url, redis=config.redis)
        for steps in Examination(facts, config.key, progress).rounds():
            await self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    async def ready(self, timeout: float | None) -> Readiness:
        halted = HaltedTags()
        store = await self.store_ready(timeout, halted)
        while halted.after is not None and store is None:
            store = await self.store_ready(timeout, halted)
        return Readiness(store, await self.redis_ready(timeout), sorted(halted.names))

    async def store_ready(self, timeout: float | None, halted: HaltedTags) -> IssuerError | None:
        """Return the error if the store does not answer. Otherwise note which tags of its next page are halted."""
        return await self._run(inspection.look_at_store(halted), self._deadline(timeout), None)

    async def redis_ready(self, timeout: float | None) -> IssuerError | None:
        if self._config.redis is None or self._config.relay is not None:
            return None
        return await self._run(inspection.look_at_redis(), self._deadline(timeout), None)

    def tag_pages(self, timeout: float | None, *, after: str | None = None, count: int = PAGE) -> TagPages:
        """Return the records of the tags of the store by pages, sorted by name. See `Store.tags` for damaged ones.

        `after`: name after which the tags begin. `count`: how many tags are read at once.
        """

        async def read(after: str | None) -> list[Tag | Corrupt]:
            page = await self._run(page_of_tags(after, count), self._deadline(timeout), None)
            return [in_true_order(record) if isinstance(record, Tag) else record for record in page]

        return TagPages(read, after, count)

    async def inspect(self, tag: str, timeout: float | None, *, deleted: bool) -> Inspection:
        steps = inspection.inspect(check_found(tag), self._config.hash_key(tag), deleted=deleted)
        found = await self._run(steps, self._deadline(timeout), tag)
        waiting = self._waiting(tag)
        return found if waiting is None else replace(found, waiting=waiting)

    def inspected(self, tags: Sequence[Tag], timeout: float | None) -> Outcomes[Inspection]:
        """Inspect the tags with these records, which were read a moment ago."""
        records = {each.tag: each for each in tags}

        async def ended(part: Sequence[str]) -> TagBatch[Inspection]:
            steps = {name: inspection.inspect(name, self._config.hash_key(name), records[name]) for name in part}
            return await self.ended(steps, timeout, probe=False)

        return Outcomes(list(records), TOGETHER, ended)

    async def ended(self, every: Mapping[str, Steps[T]], timeout: float | None, *, probe: bool = True) -> TagBatch[T]:
        """Return a result or an error for each tag. `timeout`: for each request, in seconds. `probe`: see TagBatch."""
        batch = TagBatch(every, self._config.store, probe=probe)
        only = next(iter(every)) if len(every) == 1 else None
        while batch.pending:
            await self._run(batch.go_on(), self._deadline(timeout), only)
        return batch

    async def _tags(self, timeout: float | None) -> list[str]:
        return [record.tag async for page in self.tag_pages(timeout) for record in page]
