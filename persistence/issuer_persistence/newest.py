"""A dictionary with a limited number of entries. Stores use it to keep data of tags in memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

V = TypeVar("V")


class Newest(dict[str, V]):
    """A dict that keeps only the entries that were set last. Otherwise memory would grow with the number of tags.

    Args:
        most: Maximum number of entries. If a further entry is set, the entry that was set first is removed.
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
