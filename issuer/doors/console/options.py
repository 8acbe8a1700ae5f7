"""Options of the console, which all workers of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Values that the workers of a server share.

    Attributes:
        file: Path of the file of the board.
        key: Random bytes that sign logins.
        changes: Whether callers may change tags if the server has no tokens.
        alone: Whether the server serves only the console.
    """

    file: Path
    key: bytes
    changes: bool = False
    alone: bool = False
