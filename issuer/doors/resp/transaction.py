"""Transactions: the queue of the commands between MULTI and EXEC."""

from __future__ import annotations

from typing import Final

from issuer.doors.resp.catalogue import SPECS
from issuer.doors.resp.parsing import REQUEST_MOST, Request
from issuer.doors.resp.refusals import unsupported, wrong_number
from issuer.doors.resp.replies import OK, error, simple

QUEUED: Final = simple("QUEUED")
ABORTED: Final = error("EXECABORT Transaction discarded because of previous errors.")

#: Maximum number of commands in a transaction. Together the commands have at most REQUEST_MOST bytes.
COMMANDS_MOST: Final = 10_000


class CommandQueue:
    """Commands that wait for EXEC. `refused`: whether a command was rejected. If one was, EXEC runs no command.

    No number is drawn before EXEC. At EXEC, the commands run like a pipeline: INCRs of a tag share a draw.
    """

    __slots__ = ("_size", "queue", "refused")

    def __init__(self) -> None:
        self.queue: list[Request] = []
        self.refused = False
        self._size = 0

    def add(self, request: Request) -> bytes:
        """Queue a command, or reject it. Return the reply."""
        problem = self._problem(request)
        if problem is None:
            self.queue.append(request)
            return QUEUED
        self.refuse()
        return problem

    def end(self, name: bytes) -> tuple[bytes, list[Request]]:
        """Return the reply to EXEC or DISCARD, and the commands to run.

        The reply to EXEC is the beginning of an array. The replies to the commands are the elements of this array.
        """
        if name == b"DISCARD":
            return OK, []
        if self.refused:
            return ABORTED, []
        return b"*%d\r\n" % len(self.queue), self.queue

    def refuse(self) -> None:
        """Drop the queued commands, and let EXEC fail."""
        self.refused = True
        self.queue.clear()

    def _problem(self, request: Request) -> bytes | None:
        name = request[0].decode(errors="backslashreplace").upper()
        spec = SPECS.get(name)
        if spec is None:
            return unsupported(request[0])
        if not spec.takes(len(request) - 1):
            return wrong_number(name)
        if spec.early or name in ("MULTI", "WATCH"):
            return error(f"ERR {name} is not allowed inside a transaction")
        self._size += sum(map(len, request))
        if len(self.queue) >= COMMANDS_MOST or self._size > REQUEST_MOST:
            return error(f"ERR transaction too large: the limits are {COMMANDS_MOST} commands and {REQUEST_MOST} bytes")
        return None
