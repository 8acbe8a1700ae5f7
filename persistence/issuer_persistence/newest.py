"""A dictionary with a limited number of entries, for what a store keeps in memory of each tag."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

V = TypeVar("V")


class Newest(dict[str, V]):
    """The entries that were set last. Without a limit, memory would grow with the number of tags.

    Args:
        most: Maximum number of entries. The one that was set first is dropped for a new one.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, tag: str, value: V) -> None:
        self.pop(tag, None)
        super().__setitem__(tag, value)
        if len(self) > self._most:
            with suppress(KeyError, RuntimeError):  # another thread has changed the dictionary
                del self[next(iter(self))]
