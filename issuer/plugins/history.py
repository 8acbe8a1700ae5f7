"""A history: each number with its caller and time. In this process's memory, bounded; the ledger has segments only."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from issuer.core.requests import whole
from issuer.errors import InvalidArgument, brief
from issuer.persistence.records import HIGHEST, now_ms
from issuer.plugins.contract import Call, Plugin

#: How many numbers a history remembers by default: 2 MB.
KEPT = 10_000

#: The most that it may be told to remember: 200 MB.
KEPT_MOST = 1_000_000

_context: ContextVar[str] = ContextVar("issuer.plugins.history", default="")


@contextmanager
def noted(context: str) -> Iterator[None]:
    """Have the numbers that are drawn in this block remembered with these words.

    `with noted("GET /checkout"):` They hold for this thread or task, and for tasks that it starts. Raises
    InvalidArgument for what is no text.
    """
    given: object = context
    if not isinstance(given, str):
        raise InvalidArgument(f"the context of a history is a text, not {brief(given)}", value=given)
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


#: A number as it is kept, at a quarter of what a Record costs: at, tag, number, pid, caller, context.
_Entry = tuple[int, str, int, int, str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """That a number was given to a caller.

    at: Unix time in milliseconds. number: what the caller got, unless plugins of a smaller order have changed it.
    caller: the name of the task, or of the thread where there is none. context: what `noted` said, "" if nothing.
    """

    at: int
    tag: str
    number: int
    host: str
    pid: int
    caller: str
    context: str

    def content(self) -> dict[str, str | int]:
        """Return it as JSON shows it."""
        return asdict(self)


class History(Plugin):
    """Remembers the last numbers that were given, of all tags that it surrounds. Safe to share among threads.

    Its `after` is the last to run unless another plugin's order is smaller still, so that it sees what the caller gets.
    A forked child goes on with a copy. A caller may yet be cancelled or interrupted after its number was remembered.
    """

    order = -1000

    def __init__(
        self,
        kept: int = KEPT,
        *,
        order: int | None = None,
        strategies: Collection[str] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`kept`: how many numbers to remember, 1..1 000 000; `clock`: Unix time in ms. Raises InvalidArgument."""
        super().__init__(order=order, strategies=strategies)
        self._clock = clock
        self._host = socket.gethostname()
        # Appending and copying are one step each, so that no lock is needed, and a fork or an interrupt leaves none.
        self._entries: deque[_Entry] = deque(maxlen=whole(kept, "kept", 1, KEPT_MOST))

    def after(self, call: Call, number: int) -> None:
        """Remember the number, and forget the oldest if there are too many."""
        self._entries.append((self._clock(), call.tag, number, os.getpid(), _caller(), _context.get()))

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, *, tag: str | None = None, number: int | None = None, since: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return what is remembered and fits all that is given, the last first.

        since: Unix time in ms, that moment included. limit: how many at most, 1 or more; None: all. Raises
        InvalidArgument.
        """
        most = KEPT_MOST if limit is None else whole(limit, "limit", 1, HIGHEST)
        wanted = None if number is None else whole(number, "number", 0, HIGHEST)
        first = 0 if since is None else whole(since, "since", 0, HIGHEST)
        found: list[Record] = []
        for at, name, given, pid, caller, context in reversed(self._entries.copy()):
            if tag in (None, name) and wanted in (None, given) and at >= first:
                found.append(Record(at, name, given, self._host, pid, caller, context))
                if len(found) >= most:
                    break
        return found


def _caller() -> str:
    """Return the name of the task that runs this, else of the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None  # no loop runs in this thread
    return threading.current_thread().name if task is None else task.get_name()
