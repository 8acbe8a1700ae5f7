"""A process's local buffer: each number leaves it once, in order, whoever takes it and however; when it is refilled."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from operator import length_hint
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from issuer.core.supply import local_buffer as module
from issuer.core.supply.local_buffer import (
    BUFFERS,
    QUICK,
    SLOW,
    FastPath,
    LocalBuffer,
    Place,
    share_at_refill,
    stream_lease,
    take_all,
    threshold,
)
from issuer_persistence.records import HIGHEST, LEASE_MOST, Tag


@dataclass(frozen=True)
class Piece:
    low: int
    high: int


def made(*pieces: tuple[int, int]) -> tuple[LocalBuffer[Piece], dict[str, Iterator[int]]]:
    """Return a hand that holds them, and where it lays its numbers open."""
    fast_path = FastPath()
    hand: LocalBuffer[Piece] = LocalBuffer("a", fast_path)
    for low, high in pieces:
        assert hand.add(Piece(low, high))
    return hand, fast_path.numbers


def test_the_number_at_the_mark_and_the_last_before_a_refill_never_come_out_of_the_open_range() -> None:
    for size in (1, 2, 4, 5, 6, 10, 100, 4096, 4097, 4098, 20_480):
        hand, laid = made((1000, 1000 + size))
        at = threshold(1000, 1000 + size)
        for number in range(1001, 1001 + size):
            opened = next(laid.get("a", iter(())), None)
            if opened is None:
                assert hand.take(1) == (number - 1, number), size
                assert hand.due == (number >= at), size
            else:
                assert opened == number != at, size
        assert hand.take(1) is None


def test_a_second_piece_held_is_not_due_before_its_own_mark() -> None:
    hand, _ = made((0, 10), (10, 20))
    assert hand.take(10) == (0, 10)
    assert not hand.due
    assert hand.take(1) == (10, 11)
    assert not hand.due
    assert hand.take(1) == (11, 12)
    assert hand.due


def test_callers_that_found_it_empty_are_served_in_their_row_before_anything_is_laid_open() -> None:
    hand, laid = made()
    first, second, gone, third, last = (Place(n) for n in (1, 3, 1, 2, 2))
    for place in (first, second, gone, third, last):
        assert hand.take(place.n, place) is None
    hand.leave(gone)
    assert hand.add(Piece(0, 5))
    assert hand.take(1) is None
    assert [hand.take(place.n, place) for place in (last, third, second, first)] == [None, (4, 5), (1, 4), (0, 1)]
    assert hand.add(Piece(5, 20))
    assert hand.take(2, last) == (5, 7)
    assert hand.take(1) == (7, 8)
    assert list(laid["a"]) == list(range(9, 21))


class Both:
    """A hand, and the same in plain lists: what is left of each piece. Each call is made of both, and compared."""

    def __init__(self, base: int, *, open: bool) -> None:
        fast_path = FastPath()
        self.laid = fast_path.numbers
        self.hand: LocalBuffer[Piece] = LocalBuffer("a", fast_path if open else None)
        self.left: list[list[int]] = []
        self.base = self.end = base
        self.top = self.issued = 0
        self.out: list[int] = []

    def _leave(self, numbers: list[int]) -> None:
        """Let them leave, which have to be the next ones."""
        while self.left and not self.left[0]:
            self.left.pop(0)
        there = self.left[0][: len(numbers) or 1] if self.left else []
        assert numbers == there
        del (self.left[0] if self.left else [])[: len(numbers)]
        self.issued = max([self.issued, *numbers])
        self.out += numbers

    def take(self, n: int) -> None:
        # It may bring fewer than are there, at the end of what is open; then the next call brings the rest.
        taken = self.hand.take(n)
        self._leave([] if taken is None else list(range(taken[0] + 1, taken[1] + 1)))

    def next(self, n: int) -> None:
        for number in itertools.islice(self.laid.get("a", iter(())), n):
            self._leave([number])

    def add(self, gap: int, size: int) -> None:
        low = max(self.base, self.end + gap)
        held = [numbers for numbers in self.left if numbers]
        fits = len(held) < BUFFERS and low >= (self.top if held else self.issued)
        assert self.hand.add(Piece(low, low + size)) == fits
        if fits:
            self.left = [*held, list(range(low + 1, low + size + 1))]
            self.top = self.end = low + size

    def pass_by(self, gap: int, size: int) -> None:
        low = max(self.base, self.end + gap)
        fits = not self.hand.held and low >= self.issued
        assert self.hand.issue_outside(low, low + size) == fits
        if fits:
            assert not any(self.left)
            self.out += range(low + 1, low + size + 1)
            self.end = self.issued = low + size

    def empty(self) -> None:
        held, used = self.hand.empty()
        left = [number for piece in held for number in range(max(piece.low, used) + 1, piece.high + 1)]
        assert left == [number for numbers in self.left for number in numbers]
        assert (self.hand.held, list(self.laid.get("a", ()))) == ((), [])
        self.left.clear()
        self.top = 0

    def shut(self) -> None:
        self.hand.unpublish()
        assert list(self.laid.get("a", ())) == []

    def check(self, chunk: int) -> None:
        assert self.hand.issued == self.issued
        assert self.hand.highest == max(self.top, self.issued)
        assert self.hand.upcoming == next((number for numbers in self.left for number in numbers), None)
        assert len(self.hand.held) <= BUFFERS == 2
        assert length_hint(self.laid.get("a", ())) <= chunk


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 8)),
        st.tuples(st.just("next"), st.integers(1, 6)),
        st.tuples(st.just("add"), st.integers(-1, 3), st.integers(1, 8)),
        st.tuples(st.just("pass_by"), st.integers(-1, 3), st.integers(1, 8)),
        st.sampled_from([("empty",), ("shut",)]),
    ),
    max_size=60,
)


@given(calls=CALLS, open=st.booleans(), chunk=st.sampled_from([1, 3, 4096]), base=st.sampled_from([0, HIGHEST - 900]))
@settings(max_examples=200)
def test_in_any_order_of_calls_each_number_leaves_once_in_order_and_all_is_told_right(
    calls: list[tuple[str, *tuple[int, ...]]], open: bool, chunk: int, base: int
) -> None:
    both = Both(base, open=open)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPEN", chunk)
        for call, *values in calls:
            getattr(both, call)(*values)
            both.check(chunk)
    assert both.out == sorted(set(both.out))


def test_a_number_that_another_caller_draws_while_it_is_emptied_is_not_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand, laid = made((0, 100))
    assert hand.take(1) == (0, 1)
    came = [1]

    def beside(numbers: Iterator[int]) -> list[int]:
        """Be another thread, which draws right before the range is taken away, and right after."""
        came.extend(itertools.islice(laid["a"], 1))
        left = take_all(numbers)
        came.extend(itertools.islice(laid["a"], 1))
        return left

    monkeypatch.setattr(module, "take_all", beside)
    _, used = hand.empty()
    assert came == [1, 2]
    assert used == 2


NEAR_2_53 = range(2**53 - 12, 2**53 + 13)


def expected(low: int, high: int, share: str = "0.2") -> int:
    return low + ceil((high - low) * Fraction(share))


class TestMark:
    def test_it_lies_a_fifth_into_the_segment_rounded_up(self) -> None:
        after = {1: 1, 2: 1, 4: 1, 5: 1, 6: 2, 10: 2, 11: 3, 100: 20, 101: 21, 1000: 200}
        assert {size: threshold(4711, 4711 + size) - 4711 for size in after} == after

    def test_it_is_exact_for_every_size_wherever_the_segment_lies(self) -> None:
        near_the_end = range(HIGHEST - 12, HIGHEST + 1)
        for size in (*range(1, 300), *NEAR_2_53, *near_the_end):
            for share in ("0.2", "0.01", "0.333", "0.8", "0.9"):
                assert 0 < threshold(0, size, float(share)) == expected(0, size, share) <= size, size
        for low in (*NEAR_2_53, *(end - 301 for end in near_the_end)):
            for size in range(1, 302):
                assert low < threshold(low, low + size) == expected(low, low + size) <= low + size, (low, size)


def record(step: int = 1000, **settings: Any) -> Tag:
    return Tag(tag="a", max=0, step=step, step_mode="auto", created=0, timestamp=0, version="", **settings)


@pytest.mark.covers("U.18")
def test_the_rest_of_a_segment_lasts_for_the_outage_to_survive_if_the_segment_is_large_enough() -> None:
    kept = record(survive=100, refill_at=0.5)
    assert [share_at_refill(kept, 1000, rate) for rate in (None, 0.0, 4.9, 5.0)] == [0.5] * 4
    assert [share_at_refill(kept, 1000, rate) for rate in (7.0, 9.9, 10.0, 10**9)] == pytest.approx(
        [0.3, 0.01, 0.001, 0.001]
    )
    assert share_at_refill(record(refill_at=0.5), 1000, 10**9) == 0.5
    assert threshold(0, 1000, share_at_refill(kept, 1000, 7.0)) == 300


def test_what_is_used_up_quickly_is_drawn_ahead_in_twice_the_number_within_a_fifth_of_a_segment() -> None:
    moments = (0, QUICK, SLOW, 2 * SLOW)
    assert [stream_lease(8000, lasted, least=1000, segment=100_000) for lasted in moments] == [16_000, 8000, 8000, 4000]
    assert [stream_lease(9000, 0, least=1000, segment=each) for each in (50_000, 1000)] == [10_000, 1000]
    assert stream_lease(LEASE_MOST, 0, least=1000, segment=HIGHEST) == LEASE_MOST
