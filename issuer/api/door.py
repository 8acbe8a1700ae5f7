# ruff: noqa: SLF001 - a second face of AsyncIssuer, apart as programs have no use for it and both colours share theirs
"""Numbers of an AsyncIssuer for a server that answers many callers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from operator import call

from issuer.api.aio import AsyncIssuer
from issuer.clock import Deadline
from issuer.core.issued import Issued
from issuer.core.record import read_record
from issuer.core.requests import TAKE_MOST
from issuer.core.scheme_record import OtherStrategyError
from issuer.drivers.aio.connections import drive
from issuer.errors import IssuerError, UnknownTag
from issuer.gateway.keys import check_tag
from issuer.operations.numbers import DrawOptions


class Door:
    """A way to an AsyncIssuer's numbers that costs a future and a task for a batch, not for each caller.

    The issuer stays its owner's: it opens and closes it, and may draw from it beside this.
    """

    def __init__(self, ids: AsyncIssuer) -> None:
        self._ids = ids
        #: Seconds that a caller waits at most.
        self.timeout = ids._config.settings.timeout

    def at_hand(self, tag: str, n: int) -> list[int]:
        """Return up to n numbers that need no waiting, perhaps none: of a trend tag that is leased, or served direct.

        Nothing is looked up, and no plugin called: where that is needed, there are none.
        """
        numbers = self._ids._runtime.fast_path.numbers.get(tag) if self._ids._chain is None else None
        return [] if numbers is None else list(islice(numbers, n))

    async def draw(self, tag: str, n: int, deadline: Deadline, waiting: Callable[[], int]) -> Sequence[int]:
        """Draw up to n numbers, at least one, in increasing order. Raises as `next`.

        Fewer at the end of a segment: what is there already doesn't wait for the next one. `waiting`: counts those that
        wait for numbers of the tag, from now on.
        """
        ids = self._ids
        if ids._chain is not None:
            return await self._taken(tag, min(n, TAKE_MOST), deadline)
        try:
            combiner = ids._combiner(tag)
            combiner.beside = waiting
            if combiner.serving is None:
                with suppress(OtherStrategyError):
                    drawn = await combiner.draw(n, deadline)
                    return drawn if combiner.state.scheme is None else _values(combiner.state.value, drawn)
            return await drive(ids._issuing.generated(combiner, n, deadline), call)
        except IssuerError as error:
            ids._issuing.failed(tag, error)
            raise

    async def _taken(self, tag: str, n: int, deadline: Deadline) -> Sequence[int]:
        try:
            return await self._ids.take(tag, n, timeout=deadline.left())
        except IssuerError as error:
            if error.drawn:
                return error.drawn  # the next draw says what is wrong
            raise

    async def contiguous(self, tag: str, n: int) -> range:
        """Return n contiguous numbers, 1..1 000 000, of a strict tag too; what doesn't fit into a segment is a gap.

        Raises as `next`; InvalidArgument for a tag whose numbers aren't its counter; Unavailable if others drew in
        between each time.
        """
        return await self._ids._attempt(tag, self._ids._issuing.contiguous(tag, n, Deadline(self.timeout)))

    async def last(self, tag: str) -> int | None:
        """Return the highest number issued as far as Redis knows, None if there is none.

        Numbers that a process holds count as issued. Without Redis: the highest that this process has issued, or else
        the highest that any process has reserved. Raises UnknownTag; InvalidArgument for a tag without a counter.
        """
        return await self._ids._run(self._ids._issuing.last(tag), Deadline(self.timeout), tag)

    def knows(self, tag: str) -> bool:
        """Whether this process draws from the tag already, or is about to: no name that is made up stays."""
        return tag in self._ids._registry.combiners

    async def find(self, tag: str, seconds: float) -> bool:
        """Whether the tag is there; False: its first draw makes it. Raises UnknownTag, InvalidArgument, Unavailable."""
        try:
            await self._ids._run(read_record(check_tag(tag)), Deadline(seconds), tag)
        except UnknownTag:
            if not self._ids._config.settings.embedded:
                raise
            return False
        return True

    def refused(self, tag: str, error: IssuerError) -> None:
        """Take note that a caller got no number, and why."""
        self._ids._issuing.failed(tag, error)

    async def exists(self, tag: str) -> bool:
        """Whether the tag is there. A deletion by another process may be a minute old before this one knows."""
        return await self._ids._run(self._ids._issuing.exists(tag), Deadline(self.timeout), tag)

    async def number(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        """Return the next number of the tag by these options; see AsyncIssuer.next."""
        ids = self._ids
        return await ids._attempt(tag, ids._issuing.number(tag, how, ids._deadline(timeout)))

    async def issue(self, tag: str, how: DrawOptions, timeout: float | None) -> Issued:
        """Issue one number by these options; see AsyncIssuer.issue."""
        ids = self._ids
        return await ids._attempt(tag, ids._issuing.issue(tag, how, ids._deadline(timeout)))

    def overdue(self, tag: str) -> IssuerError:
        """Return the error for a caller whose time is over while others of the tag are drawn for."""
        return self._ids._combiner(tag).supply.overdue()


def _values(value: Callable[[int], int], counters: Iterable[int]) -> list[int]:
    """Return the numbers of these counters; the error of one, as at the limit, if none comes before it."""
    numbers: list[int] = []
    try:
        numbers.extend(map(value, counters))
    except IssuerError:
        if not numbers:
            raise
    return numbers
