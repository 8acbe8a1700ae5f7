"""Administration of an issuer: its tags, and checks that nothing is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar, Unpack

from issuer.clock import Deadline
from issuer.core import parts, recovery, requests
from issuer.core.inspect import inspection
from issuer.core.inspect.discrepancies import Discrepancy
from issuer.core.inspect.doctor.diagnosis import judge
from issuer.core.inspect.doctor.examination import Examination
from issuer.core.inspect.doctor.finding import Finding
from issuer.core.inspect.inspection import Inspection
from issuer.core.inspect.verification import Audit, Provenance, who
from issuer.core.recovery import Recovery
from issuer.core.requests import Named, whole
from issuer.core.steps import Steps
from issuer.drivers.blocking.combiner import Combiner
from issuer.drivers.blocking.runner import Runner
from issuer.errors import IssuerError, UnknownTag
from issuer.forks import notice
from issuer.gateway.keys import check_found
from issuer.numbers.given import SchemeOptions
from issuer.operations import tags
from issuer.operations.config import IssuerConfig
from issuer.operations.numbers import Issuing
from issuer.operations.registry import TagRegistry
from issuer.operations.tag_options import TagOptions
from issuer.persistence.records import HIGHEST, Order, Tag
from issuer.plugins.rejected import Handler
from issuer.settings import seconds
from issuer.strategies.aside import MachineNumber, MachineNumbers

T = TypeVar("T")


class Administration:
    """Administration of an issuer: its tags, and checks that nothing is wrong with them."""

    _config: IssuerConfig
    _runner: Runner
    _registry: TagRegistry[Combiner]
    _issuing: Issuing[Combiner]

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._registry.closed

    @property
    def rejected(self) -> Handler:
        """The handler of refusals: called with the tag and the error whenever no number can be given. Replaceable."""
        return self._config.rejections.handler

    @rejected.setter
    def rejected(self, handler: Handler) -> None:
        self._config.rejections.handler = handler

    # ------------------------------------------------------------------ tags

    def create(
        self,
        tag: str,
        *,
        start: int | None = None,
        above: int | None = None,
        step: int | Literal["auto"] | None = None,
        limit: int | str = HIGHEST,
        order: Order | None = None,
        lease: int | None = None,
        ahead: int = 1,
        description: str = "",
        exist_ok: bool = False,
        timeout: float | None = None,
        **given: Unpack[SchemeOptions],
    ) -> Tag:
        """Make a tag. Its first number is `start` (1..limit), or `above` + 1 (`above` 0..limit-1), or 1.

        step: numbers per segment, 1..2^63-1; None or "auto": 1000, and the tag's `step_mode` is "auto". limit: the last
        number there will be. order: "strict" (the default with Redis) or "trend" (the only one without, and where a
        strategy has no counter). lease: how many numbers of a trend tag each process draws ahead from Redis, 0 (none)
        .. 1 000 000; None: as `connect` says. ahead: how many steps a segment holds, 1..1000: if a step lasts ten
        minutes, ahead=6 makes an outage of the store of most of an hour cost nothing. A deleted tag, made again, goes
        on above its old numbers. exist_ok: a tag that is there is returned as it is, unless it differs in what is said
        here, or makes its numbers otherwise: then TagDiffers names the differences. Raises TagExists, InvalidArgument.
        """
        deadline = self._deadline(timeout)
        asked = TagOptions(
            start=start,
            above=above,
            step=step,
            limit=limit,
            order=order,
            lease=lease,
            ahead=ahead,
            description=description,
            given=given,
        )
        redis = self._runner.redis is not None
        steps = self._issuing.create(tag, asked, deadline, exist_ok=exist_ok, redis=redis)
        return self._run(steps, deadline, tag)

    def configure(
        self,
        tag: str,
        *,
        step: int | Literal["auto"] | None = None,
        limit: int | str | None = None,
        start: int | None = None,
        above: int | None = None,
        lease: int | None = None,
        ahead: int | None = None,
        description: str | None = None,
        timeout: float | None = None,
        **given: Unpack[SchemeOptions],
    ) -> Tag:
        """Change what is given, while running: every process follows at its next reservation. Returns the tag after.

        `start` and `above` only raise: numbers below are skipped, in Redis too. If numbers begin again, as in a tag
        with periods or a cycle, they are refused. With a stride they are numbers that users see, as the limit is. A
        `limit` below `max` is refused, unless the tag has periods: then it holds in each, at once. A changed `lease`
        reaches every process within a minute. Of a tag that is in parts `step`, `lease` and `ahead` are changed in each
        of them; a part alone can't be changed.
        """
        asked = TagOptions(
            start=start,
            above=above,
            step=step,
            limit=limit,
            lease=lease,
            ahead=ahead,
            description=description,
            given=given,
        )
        steps = tags.configure(tag, self._key(tag), asked, keys=self._config.keys)
        return self._run(steps, self._deadline(timeout), tag)

    def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on. Made again, it goes on above.

        Raises UnknownTag; InvalidArgument for a part of a tag, which goes with its tag.
        """
        deadline = self._deadline(timeout)
        self._run(self._issuing.delete(check_found(tag), self._key, self._registry.drop, deadline), deadline, tag)

    def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name."""
        return self._run(inspection.tags(), self._deadline(timeout), None)

    def inspect(self, tag: str, *, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing. Raises UnknownTag.

        If Redis can't be reached, `redis_error` says so; if the store can't, StoreUnavailable is raised.
        """
        seen = self._run(inspection.inspect(check_found(tag), self._key(tag)), self._deadline(timeout), tag)
        combiner = self._registry.combiners.get(tag)
        return seen if combiner is None else replace(seen, waiting=combiner.waiting)

    def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return the machine numbers of a snowflake tag that were ever used, and which of them in the future.

        Changes nothing. Raises UnknownTag; InvalidArgument where none are kept in Redis or the store.
        """
        return self._run(self._issuing.machines(check_found(tag)), self._deadline(timeout), tag)

    def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used in the future; return them.

        For when a clock that was far ahead has been set right: a process that had one of them gets another, and need
        not wait until that time is over. No number comes again, as what was used stays written down; no process takes
        those numbers until then, unless there is no other. Until then the tag's numbers lie below those of the future.
        Stop the processes before, and start them after. Raises UnknownTag, InvalidArgument.
        """
        return self._run(self._issuing.set_aside(check_found(tag)), self._deadline(timeout), tag)

    # ------------------------------------------------------------------ operations

    def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the tag's ledger, the store and Redis, changing nothing; return what is wrong.

        An empty list: no two segments overlap, and nothing lies above the store's max. No tag: all of them. At most 100
        findings a tag; of one that is in parts, each of them is verified. Reads the whole ledger, 2000 entries at a
        time; `timeout` is for each such piece. Safe under load: what others do meanwhile is no finding. With Redis away
        the rest is looked at, and RedisUnseen is in the list. Raises UnknownTag, StoreUnavailable.
        """
        findings: list[Discrepancy] = []
        if tag is not None:
            names = self._run(parts.with_parts(check_found(tag)), self._deadline(timeout), tag)
        else:
            names = [record.tag for record in self.tags(timeout=timeout)]
        for name in names:
            audit = Audit(name, self._key(name))
            try:
                while self._run(audit.go_on(), self._deadline(timeout), name):
                    pass
            except UnknownTag:
                if name == tag:
                    raise
            else:
                findings += audit.findings
        return findings

    def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return what is known of a number, 1..2^63-1: who reserved its segment, when, and what for.

        With Redis away only the store is asked. Raises UnknownTag.
        """
        wanted = whole(number, "number", 1, HIGHEST)
        return self._run(who(check_found(tag), self._key(tag), wanted), self._deadline(timeout), tag)

    def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop the tag's reservations at once, for every process, until `recover`; then StoreBehind is raised.

        What has been reserved is issued still: both buffers in Redis, leases, segments of processes. With its parts, if
        it has any. Twice is harmless. Raises UnknownTag.
        """
        deadline = self._deadline(timeout)
        for name in self._run(parts.with_parts(check_found(tag)), deadline, tag):
            try:
                self._run(recovery.halt(name), deadline, tag)
            except UnknownTag:  # a part that was deleted meanwhile
                if name == tag:
                    raise

    def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that nothing up to the highest number known is issued again, then let reservations go on.

        The highest number known: what the store, its ledger, Redis, the journals and `at_least` (one tag only) say, as
        the tag's counter counts: `decode` tells it of a number that is made of it. No tag: all of them; a tag in parts:
        it and these; each has `timeout` for itself, and the first error is raised when all have been tried.
        Idempotent; safe from several machines at once and under load. `dry_run` changes nothing, and goes on
        without a Redis that is away: see `Recovery.redis_error`. Replicas and old masters are asked too, if they answer
        soon: see `Recovery.unasked`.

        from_journal: paths of journals, in any order, or what `issuer.persistence.journal.read` returned. A tag that
        they know and the store has lost is made again. Journals of another store count if this one is empty, or was
        made from them; ConfigurationError otherwise. Raises UnknownTag, JournalDamaged, StoreUnavailable,
        RedisUnavailable.
        """
        lowest = requests.checked_at_least(tag, at_least)
        journals = self._run(requests.journals(from_journal), self._deadline(timeout), tag)
        said = self._run(recovery.witnesses(journals), self._deadline(timeout), tag)
        if tag is not None:
            names = self._run(parts.with_parts(tag, said), self._deadline(timeout), tag)
            requests.check_whole(tag, names, lowest)
        else:
            names = sorted({*said, *(each.tag for each in self.tags(timeout=timeout))})
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        for name in names:
            steps = recovery.recover(name, self._key(name), at_least=lowest, dry_run=dry_run, said=said.get(name))
            try:
                done.append(self._run(steps, self._deadline(timeout), name))
            except IssuerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

    def doctor(
        self,
        *,
        most: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> list[Finding]:
        """Examine Redis, the store, the settings and the tags; return what is found, the worst first. Changes nothing.

        A Finding of level "weak" names what weakens the promise; nothing is raised for what can't be seen or reached.
        `most`: how many tags to look at closely, those used last first, 0..2^63-1; None: 1000. `progress` is called
        after each of them, with how many were looked at and how many will be. Each request has `timeout` for itself.
        """
        redis = self._runner.redis
        facts = self._config.facts(redis.name if redis is not None else None)
        for steps in Examination(facts, self._config.key, most=most, progress=progress).rounds():
            self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    # ------------------------------------------------------------------ inside

    def _tell(self, tag: str, error: IssuerError) -> None:
        """Call the rejected handler, unless it is only that this issuer was closed."""
        if not self.closed:
            self._config.rejections.tell(tag, error)

    def _key(self, tag: str) -> str | None:
        return self._config.key(tag) if self._runner.redis is not None else None

    def _deadline(self, timeout: float | None) -> Deadline:
        notice()  # every call that isn't answered out of hand comes here before anything else
        return Deadline(self._config.timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        if self.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return self._runner.run(steps, deadline, tag)
