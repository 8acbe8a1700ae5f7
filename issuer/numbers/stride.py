"""Strides: several sites with separate stores share one series. With stride n, each site issues every n-th number.

Example with two sites and stride 2: offset 1 gives 1, 3, 5, and offset 2 gives 2, 4, 6. If the stride changes, counter
values that were already reserved keep their numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from issuer.errors import NotDecodable, SchemeError, brief
from issuer_persistence.records import HIGHEST

#: The largest stride, and so the largest number of sites.
STRIDE_MOST = 1 << 32

SETTING = "stride"


@dataclass(frozen=True, slots=True)
class StrideSpan:
    """Counter values from `start` on become first, first + stride, first + 2 x stride, and so on."""

    start: int
    first: int
    stride: int


class Strides:
    """The stride of a tag, and its earlier strides. Below the first StrideSpan, counter value and number are equal."""

    __slots__ = ("_firsts", "_starts", "pieces")

    def __init__(self, pieces: Sequence[StrideSpan]) -> None:
        self.pieces = tuple(pieces)
        self._starts = [piece.start for piece in self.pieces]
        self._firsts = [piece.first for piece in self.pieces]
        _check(self.pieces)

    def value(self, counter: int) -> int:
        """Return the number for a counter value. The number can be above 2^63-1."""
        which = bisect_right(self._starts, counter) - 1
        if which < 0:
            return counter
        piece = self.pieces[which]
        return piece.first + (counter - piece.start) * piece.stride

    def counter(self, value: int) -> int:
        """Return the counter value for a number. Raises NotDecodable if no counter value gives this number."""
        which = bisect_right(self._firsts, value) - 1
        piece = self.pieces[which] if which >= 0 else StrideSpan(0, 0, 1)
        steps, rest = divmod(value - piece.first, piece.stride)
        counter = piece.start + steps
        if which + 1 < len(self._starts) and counter >= self._starts[which + 1]:
            last = self.value(self._starts[which + 1] - 1)
            why = f"it has no numbers between {last} and {self._firsts[which + 1]}"
        elif rest or not 0 <= counter <= HIGHEST:
            why = f"from {piece.first} on its numbers are {piece.stride} apart"
        else:
            return counter
        raise NotDecodable(f"{value} is not a number of the tag: {why}", value=value)

    def highest(self, limit: int) -> int:
        """Return the highest counter value that gives a number up to `limit`. 0 if there is none."""
        which = bisect_right(self._firsts, limit) - 1
        following = self._starts[which + 1] - 1 if which + 1 < len(self._starts) else HIGHEST
        if which < 0:
            return min(limit, following)
        piece = self.pieces[which]
        return min(piece.start + (limit - piece.first) // piece.stride, following)


def checked(stride: object, offset: object) -> tuple[int, int]:
    """Return stride and offset. Raises SchemeError if `stride` is not in 1..2^32, or `offset` not in 1..stride."""
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= STRIDE_MOST:
        raise SchemeError(f"must be an integer in 1..2^32, not {brief(stride)}", setting=SETTING, value=stride)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 1 <= offset <= stride:
        raise SchemeError(
            f"must be an integer from 1 to the stride ({stride}), not {brief(offset)}", setting="offset", value=offset
        )
    return stride, offset


def changed(
    pieces: Sequence[StrideSpan], max: int, stride: int, offset: int, *, above: int | None = None
) -> tuple[StrideSpan, ...]:
    """Return the spans of a tag after a change of its stride. `pieces`: its spans before the change.

    `max`: the highest counter value that is reserved. `stride`, `offset`: the new settings.

    The next number is the lowest number with the new offset that is above all issued numbers and above `above`. Sites
    do not change their stride at the same moment. Until all sites have changed it, one site could issue a number with
    the old stride and another site the same number with the new stride. So give all sites the same `above`, a number
    that no site has reached yet. Raises SchemeError if this site has passed `above`, or if a setting is out of its
    range.
    """
    checked(stride, offset)
    kept = tuple(piece for piece in pieces if piece.start <= max)
    given = Strides(kept).value(max)
    if above is not None and above < given:
        problem = f"this site has issued numbers up to {given}: choose a higher number, the same at every site"
        raise SchemeError(problem, setting="above", value=above)
    base = given if above is None else above
    first = base + 1 + (offset - base - 1) % stride
    if first > HIGHEST:
        raise SchemeError(f"no 64-bit number above {brief(base)} is left", setting=SETTING, value=stride)
    return (*kept, StrideSpan(max + 1, first, stride))


def _check(pieces: Sequence[StrideSpan]) -> None:
    for piece in pieces:
        checked(piece.stride, 1)
        if piece.start < 1 or not piece.start <= piece.first <= HIGHEST:
            raise SchemeError(
                f"piece {piece} must have 1 <= from <= first <= 2^63-1", setting=SETTING, value=piece.start
            )
    for piece, after in pairwise(pieces):
        last = piece.first + (after.start - 1 - piece.start) * piece.stride
        if piece.start >= after.start or last >= after.first:
            raise SchemeError(f"piece {after} begins within {piece}", setting=SETTING, value=after.start)
