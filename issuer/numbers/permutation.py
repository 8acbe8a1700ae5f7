"""A keyed bijection of a range of integers onto itself: every number goes to another one, and no two to the same.

This is obfuscation, not encryption: it hides how many numbers were given from people who see some of them, and it isn't
meant to protect a secret. With the key it can be undone.
"""

from __future__ import annotations

import hashlib
from math import isqrt
from typing import Literal

from issuer.errors import InvalidArgument
from issuer_persistence.records import HIGHEST

#: Rounds of the Feistel network, in pairs: 8 in all.
_PAIRS = 4

_ORDER: Literal["little"] = "little"


class Permutation:
    """The numbers low..high in an order that only the key tells.

    `key`: at least one byte; `low` and `high`: 0..2^63-1. A range of its own order for each key, low and high. What a
    number comes to is the same in every version of this program: a change would repeat numbers that were given.

    A Feistel network over pairs (left, right) of about the square root of the size each, whose round function is keyed
    BLAKE2s. Pairs beyond the range are put through again until one lies inside; about one in a root of the size does.
    """

    __slots__ = ("_lefts", "_rights", "_rounds", "_size", "high", "low")

    def __init__(self, key: bytes, low: int, high: int) -> None:
        if not key:
            raise InvalidArgument("the key of a permutation is empty")
        if not 0 <= low <= high <= HIGHEST:
            raise InvalidArgument(
                f"a permutation needs 0 <= low <= high <= 2^63-1, not {low}..{high}", value=(low, high)
            )
        self.low = low
        self.high = high
        self._size = size = high - low + 1
        self._lefts = isqrt(size - 1) + 1
        self._rights = -(-size // self._lefts)
        # BLAKE2s takes keys of up to 32 bytes. A state that has seen key and range already is copied for each round,
        # which takes 0.5 us where a new one takes 0.9.
        subkey = hashlib.blake2s(key).digest()
        header = low.to_bytes(8, _ORDER) + high.to_bytes(8, _ORDER)
        states = [hashlib.blake2s(header + bytes([n]), key=subkey, digest_size=8).copy for n in range(2 * _PAIRS)]
        self._rounds = tuple(zip(states[::2], states[1::2], strict=True))

    def forward(self, number: int) -> int:
        """Return where the number goes. InvalidArgument if it lies outside low..high."""
        low, size, lefts, rights = self.low, self._size, self._lefts, self._rights
        place = number - low
        if not 0 <= place < size:
            raise self._outside(number)
        decode = int.from_bytes
        while True:
            left, right = divmod(place, rights)
            for first, second in self._rounds:
                state = first()
                state.update(right.to_bytes(4, "little"))
                left = (left + decode(state.digest(), "little")) % lefts
                state = second()
                state.update(left.to_bytes(4, "little"))
                right = (right + decode(state.digest(), "little")) % rights
            place = left * rights + right
            if place < size:
                return low + place

    def backward(self, number: int) -> int:
        """Return what goes to this number. InvalidArgument if it lies outside low..high."""
        low, size, lefts, rights = self.low, self._size, self._lefts, self._rights
        place = number - low
        if not 0 <= place < size:
            raise self._outside(number)
        decode = int.from_bytes
        while True:
            left, right = divmod(place, rights)
            for first, second in reversed(self._rounds):
                state = second()
                state.update(left.to_bytes(4, "little"))
                right = (right - decode(state.digest(), "little")) % rights
                state = first()
                state.update(right.to_bytes(4, "little"))
                left = (left - decode(state.digest(), "little")) % lefts
            place = left * rights + right
            if place < size:
                return low + place

    def _outside(self, number: int) -> InvalidArgument:
        return InvalidArgument(f"{number} is outside {self.low}..{self.high}", value=number)
