"""Issued numbers, with their text, period and shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Issued:
    """A number that was issued. `str()` returns its text, `int()` its value.

    Attributes:
        tag: Name of the tag.
        value: The number itself, as `next` returns it.
        text: The number in the tag's format. If the tag has no format, the digits of the number.
        counter: Value of the tag's counter. None if the tag's strategy has no counter.
        period: Period in which the number was drawn, such as "2026-11-21". None for tags without periods.
        shard: Number of the shard, 0 or more. None for tags without shards.
    """

    tag: str
    value: int
    text: str
    counter: int | None = None
    period: str | None = None
    shard: int | None = None

    def __str__(self) -> str:
        return self.text

    def __int__(self) -> int:
        return self.value
