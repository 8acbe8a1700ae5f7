"""History: records the last issued numbers with their caller and time, in the memory of this process."""

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
from issuer.plugins.contract import Call, Plugin
from issuer_persistence.records import HIGHEST, now_ms

#: Default number of records in a history. 10 000 records take 2 MB.
KEPT = 10_000

#: Maximum number of records in a history. 1 000 000 records take 200 MB.
KEPT_MOST = 1_000_000

_context: ContextVar[str] = ContextVar("issuer.plugins.history", default="")


@contextmanager
def noted(context: str) -> Iterator[None]:
    """Add a text to the records of all numbers drawn in this block.

    Use it as in `with noted("GET /checkout"):`. The text applies to this thread or task, and to tasks that it starts.

    Args:
        context: The text.

    Raises:
        InvalidArgument: `context` is not a text.
    """
    given: object = context
    if not isinstance(given, str):
        raise InvalidArgument(f"context must be a text, not {brief(given)}", value=given)
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


#: A record in memory: at, tag, number, pid, caller, context. This tuple takes a quarter of the memory of a Record.
_Entry = tuple[int, str, int, int, str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """A number that a caller received.

    Attributes:
        at: Time in ms since 1970.
        tag: Name of the tag.
        number: Number as this plugin received it. The `after` of a plugin with a lower `order` runs later, and can
            still change the number before the caller receives it.
        host: Host name of the process.
        pid: Id of the process.
        caller: Name of the task that drew the number, or of the thread if there was no task.
        context: Text that was set with `noted`. "" if no text was set.
    """

    at: int
    tag: str
    number: int
    host: str
    pid: int
    caller: str
    context: str

    def content(self) -> dict[str, str | int]:
        """Return the attributes as a dict for JSON."""
        return asdict(self)


class History(Plugin):
    """Plugin that records the last issued numbers of all tags. Threads can share it.

    Its `after` runs last, unless another plugin has a lower `order`. So the records contain the numbers that callers
    receive. A caller can still be cancelled or interrupted after its number was recorded. A forked child continues with
    a copy of the records.

    Args:
        kept: How many numbers to keep, 1..1 000 000.
        order: Position among plugins. None means -1000.
        strategies: Names of strategies. Only numbers of tags with these strategies are recorded. None means all.
        clock: Function that returns the time in ms since 1970.

    Raises:
        InvalidArgument: `kept` is out of its range.
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
        """See the class."""
        super().__init__(order=order, strategies=strategies)
        self._clock = clock
        self._host = socket.gethostname()
        # No lock is needed, because `append` and `copy` of a deque are atomic. So a fork cannot copy a held lock.
        self._entries: deque[_Entry] = deque(maxlen=whole(kept, "kept", 1, KEPT_MOST))

    def after(self, call: Call, number: int) -> None:
        """Record the number. If there are more than `kept` records, the oldest one is dropped.

        Args:
            call: The call for numbers.
            number: The number.
        """
        self._entries.append((self._clock(), call.tag, number, os.getpid(), _caller(), _context.get()))

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, *, tag: str | None = None, number: int | None = None, since: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the records that match all arguments, the newest first.

        Args:
            tag: Name of the tag. None means any tag.
            number: The number. None means any number.
            since: Earliest time in ms since 1970. None means any time.
            limit: Maximum number of records to return, 1 or more. None means all.

        Raises:
            InvalidArgument: An argument is out of its range.
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
    """Return the name of the current task, or of the thread if no task is running."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None  # no loop runs in this thread
    return threading.current_thread().name if task is None else task.get_name()
