"""A number that was issued, with what is known of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Issued:
    """A number that was issued. `str()` gives its text, `int()` its value.

    value: the number itself, what `next` returns. text: as the tag's format shows it; without one the value's digits.
    counter: where it stands in the tag's counter; None if a strategy without one made it. period: the one that it was
    drawn in, as in "2026-11-21"; None if the tag has none. shard: 0.., None if the tag has none.
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
