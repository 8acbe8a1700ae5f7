"""INCRs that wait for their numbers, and the replies of a client in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from issuer.doors.resp.replies import failure, numbers
from issuer.drivers.aio.combiner import Waiter
from issuer.errors import IssuerError


class Client(Protocol):
    """The connection that INCRs came over. `lost`: it is closed. `unanswered`: how many INCRs have no reply yet."""

    lost: bool
    unanswered: int

    def flush(self) -> None:
        """Write the replies that are next, as far as they are there."""

    def rejected(self, tag: str, error_: IssuerError) -> None:
        """Report that INCRs of the tag get an error."""


class Demand(Waiter):
    """INCRs of one tag, side by side in a client's pipeline.

    `reply`: all their replies, None until the last of them is there.
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
        """Whether numbers are of no use to it."""
        return self.reply is not None or self.client.lost

    def set_result(self, number: int) -> None:
        """Answer the last INCR. `give` would take twice as long for a single one."""
        client = self.client
        if self.reply is None and not client.lost:
            self.reply = self.parts + b":%d\r\n" % number
            client.unanswered -= self.n

    def give(self, numbers_: Sequence[int]) -> None:
        """Answer as many of the INCRs, in their order."""
        if numbers_ and self.reply is None and not self.client.lost:
            self.missing -= len(numbers_)
            self.parts += numbers(numbers_)
            if not self.missing:
                self._answer(self.parts)

    def set_exception(self, error: BaseException) -> None:
        """Answer the INCRs that have no number yet with the error of a draw, and report it."""
        if not self.done():
            if isinstance(error, IssuerError):
                self.client.rejected(self.tag, error)
            self.fail(error)
            self.client.flush()

    def fail(self, error: BaseException) -> None:
        """Answer the INCRs that have no number yet with an error."""
        if not self.done():
            self._answer(self.parts + failure(error) * self.missing)

    def _answer(self, reply: bytes) -> None:
        self.reply = reply
        self.client.unanswered -= self.n


class ReplyQueue:
    """Replies in the order of the requests: packed, or still awaited.

    `packed`: bytes of the packed replies, without those of INCRs.
    """

    __slots__ = ("packed", "waiting")

    def __init__(self) -> None:
        self.packed = 0
        self.waiting: deque[bytes | Demand] = deque()

    def add(self, reply: bytes) -> None:
        """Add a packed reply."""
        self.waiting.append(reply)
        self.packed += len(reply)

    def demands(self) -> Iterator[Demand]:
        """Return the INCRs that are in it."""
        return (reply for reply in list(self.waiting) if isinstance(reply, Demand))

    def ready(self) -> bytes:
        """Remove the replies that can be written next, and return their bytes."""
        waiting, ready = self.waiting, []
        while waiting:
            first = waiting[0]
            if isinstance(first, bytes):
                self.packed -= len(first)
                ready.append(first)
            elif first.reply is not None:
                ready.append(first.reply)
            else:
                break
            waiting.popleft()
        return ready[0] if len(ready) == 1 else b"".join(ready)
