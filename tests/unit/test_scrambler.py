"""A second scrambling of the user's own, as a plugin."""

import pytest

from issuer.errors import ConfigurationError, TransformFailed
from issuer.numbers.scrambling import Piece, Scrambling, fingerprint
from issuer.plugins import Call, Scrambler
from tests.surrounding import Faced, drawing
from tests.unit.refusals import refused


class Times:
    """Multiplies modulo a prime: one to one over 0..p-1."""

    def __init__(self, factor: int, prime: int = 10_007) -> None:
        self.factor = factor
        self.prime = prime

    def scramble(self, n: int) -> int:
        if n >= self.prime:
            raise ValueError(f"{n} is out of the permutation's range")
        return n * self.factor % self.prime


@pytest.mark.covers("3.5", "3.41")
def test_numbers_come_as_the_permutation_has_them_and_none_comes_twice(face: Faced) -> None:
    numbers = face(Scrambler(Times(1234))).around(Call("a", 10_006), drawing(range(1, 10_007)))
    assert numbers == [n * 1234 % 10_007 for n in range(1, 10_007)]
    assert sorted(numbers) == list(range(1, 10_007))


def test_a_keyed_scrambling_of_numbers_will_do(face: Faced) -> None:
    key = b"a key of 16 bytes"
    scrambling = Scrambling([Piece(1, "k", fingerprint(key))], {"k": key})
    numbers = face(Scrambler(scrambling)).around(Call("a", 999), drawing(range(1, 1000)))
    assert numbers == [scrambling.scramble(n) for n in range(1, 1000)] != sorted(numbers)


def test_a_number_that_the_permutation_does_not_know_is_given_to_nobody(face: Faced) -> None:
    around = face(Scrambler(Times(1234))).around
    failed = refused(TransformFailed, "", around, Call("a", 3), drawing((10_006, 10_007, 10_008)))
    assert (failed.numbers, failed.drawn) == ([10_007, 10_008], [8773])


def test_what_cannot_scramble_is_refused() -> None:
    for permutation in (None, 7, object()):
        refused(ConfigurationError, "can't scramble numbers", Scrambler, permutation)
