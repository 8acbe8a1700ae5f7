"""Transactions: the queue of the commands between MULTI and EXEC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from issuer.doors.resp.catalogue import unsupported
from issuer.doors.resp.commands import SPECS
from issuer.doors.resp.parsing import REQUEST_MOST, Request, packed
from issuer.doors.resp.replies import OK, error, simple

QUEUED: Final = simple("QUEUED")
ABORTED: Final = error("EXECABORT Transaction discarded because of previous errors.")

#: Maximum number of commands in a transaction. Together the commands have at most REQUEST_MOST bytes.
COMMANDS_MOST: Final = 10_000

TOO_LARGE: Final = error(f"ERR transaction too large: the limits are {COMMANDS_MOST} commands and {REQUEST_MOST} bytes")


@dataclass(slots=True)
class CommandQueue:
    """Commands that wait for EXEC. No number is drawn before EXEC. At EXEC, the commands run like a pipeline.

    Attributes:
        packed: The commands, as clients send them.
        refused: Whether a command was rejected. If one was, EXEC runs no command.
    """

    packed: bytearray = field(default_factory=bytearray)
    refused: bool = False
    _commands: int = 0

    def add(self, request: Request, times: int) -> bytes:
        """Queue a command `times` times, or reject it. Return the replies."""
        problem = self._problem(request)
        if problem is None:
            command = packed(request)
            room = min(COMMANDS_MOST - self._commands, (REQUEST_MOST - len(self.packed)) // len(command))
            queued = min(times, room)
            self.packed += command * queued
            self._commands += queued
            if queued == times:
                return QUEUED * times
            problem, times = QUEUED * queued + TOO_LARGE * (times - queued), 1
        self.refuse()
        return problem * times

    def end(self, name: bytes) -> tuple[bytes, bytes]:
        """Return the reply to EXEC or DISCARD, and the commands to run, as clients send them.

        The reply to EXEC is the beginning of an array. The replies to the commands are the elements of this array.
        """
        if name == b"DISCARD":
            return OK, b""
        if self.refused:
            return ABORTED, b""
        return b"*%d\r\n" % self._commands, bytes(self.packed)

    def refuse(self) -> None:
        """Drop the queued commands, and let EXEC fail."""
        self.refused = True
        self.packed.clear()
        self._commands = 0

    def _problem(self, request: Request) -> bytes | None:
        name = request[0].decode(errors="backslashreplace").upper()
        spec = SPECS.get(name)
        if spec is None:
            return unsupported(request[0])
        if spec.early or name in ("MULTI", "WATCH"):
            return error(f"ERR {name} is not allowed inside a transaction")
        return spec.refused(len(request) - 1)
