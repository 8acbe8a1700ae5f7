"""Results for many tags. Iterate over them with `for` in a thread, and with `async for` in a task.

They are not async generators: Python would give these to the event loop of the thread, if one runs there, and this loop
would close those that a caller abandons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from issuer.core.batch import TagBatch
from issuer.errors import IssuerError
from issuer.threads import finished
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of an operation for one tag, if the operation handles several tags.

    Attributes:
        tag: Name of the tag.
        of: How many tags the operation handles.
        result: Result for this tag. None if there is none.
        error: Error for this tag, or None.
    """

    tag: str
    of: int
    result: T | None
    error: IssuerError | None


class Results(ABC, Generic[T]):
    """Results that are computed when the caller iterates. Each result is returned once."""

    @abstractmethod
    async def __anext__(self) -> T:
        """Return the next result. Raises StopAsyncIteration after the last one."""

    def __aiter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[T]:
        with suppress(StopAsyncIteration):
            while True:
                yield finished(self.__anext__)


class Outcomes(Results[Outcome[T]]):
    """The outcomes of an operation for several tags."""

    def __init__(
        self, names: Sequence[str], at_once: int, ended: Callable[[Sequence[str]], Coroutine[Any, Any, TagBatch[T]]]
    ) -> None:
        """`names`: names of the tags. `ended`: handles several of them, at most `at_once`."""
        self._names = names
        self._parts = iter([names[first : first + at_once] for first in range(0, len(names), at_once)])
        self._ended = ended
        self._ready: deque[Outcome[T]] = deque()

    async def __anext__(self) -> Outcome[T]:
        if not self._ready:
            try:
                part = next(self._parts)
            except StopIteration:
                raise StopAsyncIteration from None
            batch = await self._ended(part)
            of = len(self._names)
            self._ready.extend(Outcome(name, of, batch.results.get(name), batch.errors.get(name)) for name in part)
        return self._ready.popleft()


class TagPages(Results[list[Tag | Corrupt]]):
    """The records of the tags of a store, page by page."""

    def __init__(
        self, read: Callable[[str | None], Coroutine[Any, Any, list[Tag | Corrupt]]], after: str | None, count: int
    ) -> None:
        """`read`: returns the first `count` records with names above its argument. `after`: the first argument."""
        self._read = read
        self._after = after
        self._count = count
        self._ended = False

    async def __anext__(self) -> list[Tag | Corrupt]:
        if self._ended:
            raise StopAsyncIteration
        page = await self._read(self._after)
        self._ended = len(page) < self._count
        if page:
            self._after = page[-1].tag
        return page
