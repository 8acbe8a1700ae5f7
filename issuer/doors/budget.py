"""The budget of a worker: what all its clients together may make it hold, in bytes and in time."""

from __future__ import annotations

from typing import Final

#: Bytes that the clients of a worker may make it hold: incomplete requests, queued commands, and replies not yet read.
BYTES_MOST: Final = 64 * 1024 * 1024

#: The share of it for clients that have not sent a token, if the server requires tokens.
STRANGERS_SHARE: Final = 0.25

#: Seconds that a client has to complete a request that it has begun, to read replies that the system takes no more of,
#: and to send its token.
PROGRESS: Final = 10.0


class Budget:
    """A number of bytes.

    Attributes:
        held: Bytes that are held at present.
        most: Largest number of bytes.
        strangers: The budget of clients that have not sent a token. Its bytes count in both.
    """

    __slots__ = ("_whole", "held", "most", "strangers")

    def __init__(self, most: int = BYTES_MOST, whole: Budget | None = None) -> None:
        self.held, self.most, self._whole = 0, most, whole
        self.strangers = Budget(int(most * STRANGERS_SHARE), self) if whole is None else self

    def hold(self, more: int) -> bool:
        """Count `more` bytes; a negative number releases bytes. If they are too many, count none and return False."""
        if more > 0 and self.held + more > self.most:
            return False
        if self._whole is not None and not self._whole.hold(more):
            return False
        self.held += more
        return True
