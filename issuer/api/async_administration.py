"""Administration of an AsyncIssuer: see Administration."""

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
from issuer.drivers.asyncio.combiner import Combiner
from issuer.drivers.asyncio.runner import Runner
from issuer.errors import IssuerError, UnknownTag
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


class AsyncAdministration:
    """Administration of an AsyncIssuer: see Administration."""

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

    async def create(
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
        """Make a tag; see Issuer.create."""
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
        return await self._run(steps, deadline, tag)

    async def configure(
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
        """Change what is given, while running; see Issuer.configure."""
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
        return await self._run(steps, self._deadline(timeout), tag)

    async def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on; see Issuer.delete."""
        deadline = self._deadline(timeout)
        await self._run(self._issuing.delete(check_found(tag), self._key, self._registry.drop, deadline), deadline, tag)

    async def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name; see Issuer.tags."""
        return await self._run(inspection.tags(), self._deadline(timeout), None)

    async def inspect(self, tag: str, *, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing; see Issuer.inspect."""
        seen = await self._run(inspection.inspect(check_found(tag), self._key(tag)), self._deadline(timeout), tag)
        combiner = self._registry.combiners.get(tag)
        return seen if combiner is None else replace(seen, waiting=combiner.waiting)

    async def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return the machine numbers of a snowflake tag that were ever used, and which of them in the future.

        Changes nothing. Raises UnknownTag; InvalidArgument where none are kept in Redis or the store.
        """
        return await self._run(self._issuing.machines(check_found(tag)), self._deadline(timeout), tag)

    async def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used in the future; return them.

        For when a clock that was far ahead has been set right: a process that had one of them gets another, and need
        not wait until that time is over. No number comes again, as what was used stays written down; no process takes
        those numbers until then, unless there is no other. Until then the tag's numbers lie below those of the future.
        Stop the processes before, and start them after. Raises UnknownTag, InvalidArgument.
        """
        return await self._run(self._issuing.set_aside(check_found(tag)), self._deadline(timeout), tag)

    # ------------------------------------------------------------------ operations

    async def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the tag's ledger, the store and Redis; see Issuer.verify."""
        findings: list[Discrepancy] = []
        if tag is not None:
            names = await self._run(parts.with_parts(check_found(tag)), self._deadline(timeout), tag)
        else:
            names = [record.tag for record in await self.tags(timeout=timeout)]
        for name in names:
            audit = Audit(name, self._key(name))
            try:
                while await self._run(audit.go_on(), self._deadline(timeout), name):
                    pass
            except UnknownTag:
                if name == tag:
                    raise
            else:
                findings += audit.findings
        return findings

    async def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return what is known of a number; see Issuer.who."""
        wanted = whole(number, "number", 1, HIGHEST)
        return await self._run(who(check_found(tag), self._key(tag), wanted), self._deadline(timeout), tag)

    async def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop the tag's reservations at once, for every process, until `recover`; see Issuer.halt."""
        deadline = self._deadline(timeout)
        for name in await self._run(parts.with_parts(check_found(tag)), deadline, tag):
            try:
                await self._run(recovery.halt(name), deadline, tag)
            except UnknownTag:  # a part that was deleted meanwhile
                if name == tag:
                    raise

    async def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that nothing up to the highest number known is issued again; see Issuer.recover."""
        lowest = requests.checked_at_least(tag, at_least)
        journals = await self._run(requests.journals(from_journal), self._deadline(timeout), tag)
        said = await self._run(recovery.witnesses(journals), self._deadline(timeout), tag)
        if tag is not None:
            names = await self._run(parts.with_parts(tag, said), self._deadline(timeout), tag)
            requests.check_whole(tag, names, lowest)
        else:
            names = sorted({*said, *(each.tag for each in await self.tags(timeout=timeout))})
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        for name in names:
            steps = recovery.recover(name, self._key(name), at_least=lowest, dry_run=dry_run, said=said.get(name))
            try:
                done.append(await self._run(steps, self._deadline(timeout), name))
            except IssuerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

    async def doctor(
        self,
        *,
        most: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> list[Finding]:
        """Examine Redis, the store, the settings and the tags; see Issuer.doctor."""
        redis = self._runner.redis
        facts = self._config.facts(redis.name if redis is not None else None)
        for steps in Examination(facts, self._config.key, most=most, progress=progress).rounds():
            await self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    # ------------------------------------------------------------------ inside

    def _enter(self) -> None:
        """Begin in the running loop."""
        raise NotImplementedError

    def _tell(self, tag: str, error: IssuerError) -> None:
        """Call the rejected handler, unless it is only that this issuer was closed."""
        if not self.closed:
            self._config.rejections.tell(tag, error)

    def _key(self, tag: str) -> str | None:
        return self._config.key(tag) if self._runner.redis is not None else None

    def _seconds(self, timeout: float | None) -> float:
        return self._config.timeout if timeout is None else seconds(timeout, "timeout", zero=True)

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._seconds(timeout))

    async def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        self._enter()
        if self.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return await self._runner.run(steps, deadline, tag)
