"""Scrambling: each number is replaced by a number with the same count of digits. This hides how many were issued.

A *domain* is a range of numbers with the same count of decimal digits and the same key, up to the tag's limit. Each
domain is permuted onto itself. So no number repeats, and no number is above the limit.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from issuer.errors import InvalidArgument, NotDecodable, SchemeError, brief
from issuer.numbers.permutation import Permutation
from issuer_persistence.records import HIGHEST

#: The shortest key, in bytes.
KEY_LEAST = 16

#: Names of two settings: a tag has the names of its keys in `scramble`, a process has the keys in `keys`.
SETTING, KEYS = "scramble", "keys"


@dataclass(frozen=True, slots=True)
class KeySpan:
    """A range of numbers with one key. The range begins at `start`, and ends at `limit` or before the next range.

    `key`: name of the key. `fingerprint`: digits that identify the key, to reject another key with the same name.
    `limit`: limit of the tag when the range was created.
    """

    start: int
    key: str
    fingerprint: str
    limit: int = HIGHEST


def checked_key(name: str, key: object, source: str = "") -> bytes:
    """Return the key. Raises SchemeError if the key is shorter than 16 bytes. `source`: its origin, for the message."""
    said = f" (from {source})" if source else ""
    if not isinstance(key, bytes):
        raise SchemeError(f"key {brief(name)} must be bytes, not {type(key).__name__}{said}", setting=KEYS, value=name)
    if len(key) < KEY_LEAST:
        raise SchemeError(
            f"key {brief(name)} is too short: {len(key)} bytes of at least {KEY_LEAST}{said}; make one with "
            "`openssl rand -hex 32`",
            setting=KEYS,
            value=name,
        )
    return key


def fingerprint(key: bytes) -> str:
    """Return 16 hexadecimal digits that identify the key. The digits can be public, because keys are random."""
    return hashlib.blake2s(key, digest_size=8).hexdigest()


def known_key(name: str, keys: Mapping[str, bytes]) -> bytes:
    """Return the key of that name. Raises SchemeError if this process does not have the key."""
    if name not in keys:
        held = f"only {', '.join(sorted(keys))}" if keys else "none at all"
        problem = f"this process has no key {brief(name)}, {held}: add it to `keys`, ISSUER_KEYS or the settings file"
        raise SchemeError(problem, setting=SETTING, value=name)
    return checked_key(name, keys[name])


class Scrambling:
    """Scrambles numbers of a tag. `pieces`: ranges of numbers, each with its key. Lower numbers are not changed."""

    __slots__ = ("_domains", "_found", "_keys", "_lows", "pieces")

    def __init__(self, pieces: Sequence[KeySpan], keys: Mapping[str, bytes], *, reading: bool = False) -> None:
        """Check the keys. If `reading` is True, a missing key raises an error only when a number needs this key."""
        self.pieces = tuple(pieces)
        _check(self.pieces)
        self._keys = keys
        for piece in self.pieces:
            if piece.key in keys or not reading:
                _same_key(piece, keys)
        self._domains = [
            (low, high, which)
            for which, piece in enumerate(self.pieces)
            for low, high in _digits(piece.start, self._end(which, piece))
        ]
        self._lows = [low for low, _, _ in self._domains]
        self._found: list[Permutation | None] = [None] * len(self._domains)

    def _end(self, which: int, piece: KeySpan) -> int:
        following = self.pieces[which + 1].start - 1 if which + 1 < len(self.pieces) else HIGHEST
        return min(piece.limit, following)

    @property
    def highest(self) -> int:
        """The highest number that can be scrambled."""
        return self.pieces[-1].limit

    def scramble(self, number: int) -> int:
        """Return the scrambled number. Raises InvalidArgument if the number is above `highest`."""
        which = bisect_right(self._lows, number) - 1
        if which < 0:
            return number
        return (self._found[which] or self._made(which)).forward(number)

    def unscramble(self, number: int) -> int:
        """Return the number before scrambling. Raises NotDecodable if the number is above `highest`.

        Only the key for this number is needed. Raises SchemeError if this key is missing.
        """
        which = bisect_right(self._lows, number) - 1
        if which < 0:
            return number
        try:
            return (self._found[which] or self._made(which)).backward(number)
        except InvalidArgument:
            problem = f"{number} is not a number of the tag: it is above the limit {self.highest}"
            raise NotDecodable(problem, value=number) from None

    def may_begin(self, most: int) -> int:
        """Return the lowest number at which another key may begin, if the numbers up to `most` are reserved.

        The permutation covers all numbers that have as many digits as `most`, and the same key. So each of them may
        have been issued already, and keeps its key.
        """
        which = bisect_right(self._lows, most) - 1
        return most + 1 if which < 0 else self._domains[which][1] + 1

    def _made(self, which: int) -> Permutation:
        low, high, piece = self._domains[which]
        # Several threads can do this at once, without a lock: their results are equal.
        self._found[which] = made = Permutation(_same_key(self.pieces[piece], self._keys), low, high)
        return made


def may_begin(most: int) -> int:
    """Return the first number with more digits than `most`, where another key may begin. Return 1 if `most` is 0."""
    return 10 ** len(str(most)) if most > 0 else 1


def _digits(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Split low..high into ranges of numbers with the same count of digits."""
    while low <= high:
        end = min(high, may_begin(low) - 1)
        yield low, end
        low = end + 1


def _same_key(piece: KeySpan, keys: Mapping[str, bytes]) -> bytes:
    key = known_key(piece.key, keys)
    if fingerprint(key) != piece.fingerprint:
        raise SchemeError(
            f"key {piece.key!r} differs from the key of the tag's numbers (fingerprint {fingerprint(key)}, not "
            f"{piece.fingerprint}), so numbers would be issued twice: use the same key in all processes",
            setting=SETTING,
            value=piece.key,
        )
    return key


def _check(pieces: Sequence[KeySpan]) -> None:
    for piece in pieces:
        if not 1 <= piece.start <= piece.limit <= HIGHEST:
            raise SchemeError(
                f"{piece.start}..{piece.limit} is not a range of numbers", setting=SETTING, value=piece.start
            )
    for piece, after in pairwise(pieces):
        if not piece.start < after.start <= piece.limit + 1:
            problem = f"a key for the numbers from {after.start} can't follow one for {piece.start}..{piece.limit}"
            raise SchemeError(problem, setting=SETTING, value=after.start)
    if not pieces:
        raise SchemeError("there must be at least one key", setting=SETTING, value=())
