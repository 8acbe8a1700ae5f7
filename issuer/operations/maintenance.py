"""Operations on all of an issuer's tags, or on several: verify, recover, doctor; keep, tick, sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from issuer.care import inspection
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.diagnosis import judge
from issuer.care.doctor.examination import Examination
from issuer.care.doctor.finding import Finding
from issuer.care.inspection import Inspection, Readiness
from issuer.care.verification import Audit
from issuer.clock import Deadline, monotonic
from issuer.core import parts, recovery, requests
from issuer.core.recovery import Recovery
from issuer.core.steps import Calls, Steps, ask
from issuer.core.supply.runtime import Runtime
from issuer.errors import ConfigurationError, IssuerError, StoreUnavailable, UnknownTag
from issuer.gateway.keys import check_found
from issuer.interrupts import raise_interrupt
from issuer.operations.config import IssuerConfig
from issuer.operations.registry import AnyCombiner, TagRegistry
from issuer_persistence.journal import Known
from issuer_persistence.records import LEDGER_KEPT, Tag, Upgrade, now_ms

T = TypeVar("T")
L = TypeVar("L", bound=AnyCombiner)

log = logging.getLogger("issuer")

#: An operation of several rounds that ends with a T: steps, each with a fresh deadline, and the tag that they are of.
Rounds = Generator[tuple[Steps[Any], str | None], Any, T]

#: A refresh that has not ended after this many seconds is lost, and another may begin.
REFRESH_LOST = 60.0


def verify(config: IssuerConfig, tag: str | None) -> Rounds[list[Discrepancy]]:
    """Compare ledger, store and Redis; see Issuer.verify."""
    if tag is not None:
        names = yield parts.with_parts(check_found(tag)), tag
    else:
        names = [record.tag for record in (yield inspection.tags(), None)]
    findings: list[Discrepancy] = []
    for name in names:
        audit = Audit(name, config.hash_key(name))
        try:
            while (yield audit.go_on(), name):
                pass
        except UnknownTag:
            if name == tag:
                raise
        else:
            findings += audit.findings
    return findings


def recover(
    config: IssuerConfig, tag: str | None, at_least: int, from_journal: requests.Named, *, dry_run: bool
) -> Rounds[list[Recovery]]:
    """Recover a tag, or all of them, and raise the first error when all have been tried; see Issuer.recover."""
    lowest = requests.checked_at_least(tag, at_least)
    said: dict[str, Known] = {}
    if from_journal != ():
        said = yield recovery.witnesses((yield requests.journals(from_journal), tag)), tag
    if tag is not None:
        names = yield parts.with_parts(tag, said), tag
        if lowest:
            requests.check_whole(tag, names, at_least)
    else:
        names = sorted({*said, *(each.tag for each in (yield inspection.tags(), None))})
    done: list[Recovery] = []
    failed: list[IssuerError] = []
    for name in names:
        key, known = config.hash_key(name), said.get(name)
        try:
            done.append((yield recovery.recover(name, key, at_least=lowest, dry_run=dry_run, said=known), name))
        except IssuerError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return done


def doctor(
    config: IssuerConfig, most: int | None, progress: Callable[[int, int], object] | None
) -> Rounds[list[Finding]]:
    """Examine everything; see Issuer.doctor."""
    facts = config.facts()
    for steps in Examination(facts, config.key, most=most, progress=progress).rounds():
        yield steps, None
    return judge(facts)


def upgrade() -> Steps[Upgrade]:
    """Bring the layout of the store up to date; see Issuer.upgrade."""
    return (yield from ask(lambda store, timeout: store.upgrade(timeout=timeout)))


def ready(config: IssuerConfig) -> Rounds[Readiness]:
    """Look whether numbers can be had; see Issuer.ready."""
    found: Readiness = yield inspection.look_at_store(Readiness()), None
    if config.redis is not None:
        found = yield inspection.look_at_redis(found), None
    return found


class Upkeep(Generic[L]):
    """Looks after the tags that an issuer uses."""

    def __init__(
        self,
        registry: TagRegistry[L],
        config: IssuerConfig,
        runtime: Runtime,
        run: Callable[[Steps[Any], Deadline, None], Any],
    ) -> None:
        """`run`: runs steps that are of no tag."""
        self._run = run
        self._registry = registry
        self._config = config
        self._runtime = runtime
        #: When old ledger entries were taken out last, in ms since 1970.
        self.pruned = 0
        self._refresh_due = 0.0

    def inspect(self, tag: str, *, deleted: bool) -> Steps[Inspection]:
        """Return all that is to be seen of the tag; see Issuer.inspect."""
        seen = yield from inspection.inspect(check_found(tag), self._config.hash_key(tag), deleted=deleted)
        combiner = self._registry.combiners.get(tag)
        return seen if combiner is None else replace(seen, waiting=combiner.waiting)

    def keep(self) -> Steps[list[Tag]]:
        """From now on look after every tag of the store; see Issuer.keep."""
        if not self._runtime.redis:
            raise ConfigurationError("a keeper loads segments into Redis, but no Redis is configured: set its URL")
        records = yield from inspection.tags()
        self._registry.keep(records)
        self._runtime.attend()
        return records

    def tick(self, deadline_of: Callable[[], Deadline]) -> Calls[int]:
        """Load what is due; return the number of segments loaded. `deadline_of` makes a deadline for each tag."""
        loaded = 0
        self._config.events.come_round()
        for combiner in self._registry.in_use():
            deadline = deadline_of()
            try:
                if combiner.serving is not None:
                    yield partial(combiner.run, combiner.serving.sweep(deadline), deadline)
                    continue
                soon = Deadline(min(deadline.left(), self._runtime.window))
                yield partial(combiner.run, combiner.supply.rejoin(), soon)
                loaded += yield partial(combiner.run, combiner.supply.fetch(deadline), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                raise_interrupt(error)  # here alone: a sweep runs in threads of ours
                self._registry.troubled(combiner, error)
        return loaded

    def sweep(self) -> Calls[bool]:
        """Look after each tag in the background; return whether it is time to `refresh`, beside it.

        Not within it: a store that hangs would keep the sweep from what Redis is back for.
        """
        self._config.events.come_round()
        combiners = self._registry.in_use()
        for combiner in combiners:
            if self._registry.closed:
                return False
            deadline = Deadline(self._config.store_timeout)
            try:
                steps = combiner.supply.sweep() if combiner.serving is None else combiner.serving.sweep(deadline)
                yield partial(combiner.run, steps, deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._registry.troubled(combiner, error)
        now = monotonic()
        if now <= self._refresh_due or not (self._prune_due or any(each.supply.stale for each in combiners)):
            return False
        self._refresh_due = now + REFRESH_LOST
        return True

    def refresh(self) -> Calls[None]:
        """Ask the store for what may wait, up to the first time-out."""
        try:
            for combiner in self._registry.in_use():
                if self._registry.closed:
                    return
                try:
                    yield partial(combiner.run, combiner.supply.refresh(), Deadline(self._config.store_timeout))
                except Exception as error:  # noqa: BLE001 - as above
                    self._registry.troubled(combiner, error)
                    if isinstance(error, StoreUnavailable):
                        return
            if self._prune_due:
                yield from self._prune()
        finally:
            self._refresh_due = 0.0

    @property
    def _prune_due(self) -> bool:
        return now_ms() - self.pruned >= LEDGER_KEPT // 90

    def _prune(self) -> Calls[None]:
        """Once a day: old ledger entries."""
        self.pruned = now = now_ms()
        steps = ask(lambda store, left: store.prune(before=now - LEDGER_KEPT, timeout=left))
        try:
            yield partial(self._run, steps, Deadline(self._config.store_timeout), None)
        except IssuerError as error:
            log.debug("old ledger entries could not be deleted: %s", error)
