"""INCRs that wait for their numbers, and the queue that keeps the replies to a client in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from issuer.doors.resp.replies import failure, number
from issuer.drivers.aio.callers import Owner, Waiter
from issuer.errors import IssuerError

#: Number of bytes in the reply with the largest number.
LONGEST: Final = len(number(2**63 - 1))


class Client(Owner, Protocol):
    """A connection."""

    def rejected(self, tag: str, error_: IssuerError) -> None:
        """Report that INCRs of the tag get this error."""


class Demand(Waiter):
    """Adjacent INCRs of one tag in a client's pipeline, which wait for `n` numbers.

    Attributes:
        missing: Number of INCRs that have no number yet.
        parts: Replies that are ready.
        reply: Replies to all INCRs. None until the last one is ready. b"" if the client has gone.
    """

    __slots__ = ("n", "parts", "reply", "tag")

    client: Client

    def __init__(self, client: Client, tag: str, n: int) -> None:
        self.client = client
        self.tag = tag
        self.n = self.missing = n
        self.parts = b""
        self.reply: bytes | None = None

    def done(self) -> bool:
        """Return whether the INCRs need no numbers any more: all are answered, or the client has gone."""
        return self.reply is not None

    def set_result(self, number: int) -> None:
        """Answer the last INCR with this number. `give` does the same, but takes twice as long for a single INCR."""
        if self.reply is None:
            self.reply = self.parts + b":%d\r\n" % number

    def give(self, numbers_: Sequence[int]) -> None:
        """Answer the next INCRs with these numbers, in order."""
        if numbers_ and self.reply is None:
            self.missing -= len(numbers_)
            self.parts += b":%d\r\n" * len(numbers_) % tuple(numbers_)
            if not self.missing:
                self.reply = self.parts

    def set_exception(self, error: BaseException) -> None:
        """Answer the INCRs that have no number yet with the error of a draw, and report the error."""
        if self.reply is None:
            if isinstance(error, IssuerError):
                self.client.rejected(self.tag, error)
            self.fail(error)
            self.client.flush()

    def fail(self, error: BaseException) -> None:
        """Answer the INCRs that have no number yet with an error."""
        if self.reply is None:
            self.reply = self.parts + failure(error) * self.missing


@dataclass(slots=True, eq=False)
class ReplyQueue:
    """The replies to a client, in the order of its requests.

    Attributes:
        held: Total size, in bytes, of the replies in `waiting`. Each number counts as the longest one, also before it
            is drawn.
        waiting: The replies, in order. A finished reply is an item of type bytes. A `Demand` stands for the replies to
            its INCRs, which may have no numbers yet.
    """

    held: int = 0
    waiting: deque[bytes | Demand] = field(default_factory=deque)

    def add(self, reply: bytes) -> None:
        """Add a reply in the format of the protocol."""
        self.waiting.append(reply)
        self.held += len(reply)

    def demands(self) -> Iterator[Demand]:
        """Return the demands (groups of INCRs) in the queue."""
        return (reply for reply in list(self.waiting) if isinstance(reply, Demand))

    def ready(self) -> bytes:
        """Remove replies from the front of the queue, up to the first that is not ready. Return their bytes."""
        waiting, ready = self.waiting, []
        while waiting:
            first = waiting[0]
            if isinstance(first, bytes):
                self.held -= len(first)
                ready.append(first)
            elif first.reply is not None:
                self.held -= first.n * LONGEST
                ready.append(first.reply)
            else:
                break
            waiting.popleft()
        return ready[0] if len(ready) == 1 else b"".join(ready)
