"""A process's hand: each number leaves it once, in order, whoever takes it and however."""

import itertools
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from issuer.core import hand as module
from issuer.core.arithmetic import mark
from issuer.core.hand import BUFFERS, OPEN, Hand, spend
from persistence.records import HIGHEST
from tests.audit import repeats
from tests.unit.together import together
from tests.waiting import until

#: Of the pieces that threads draw from while they are given back.
SIZE = 10**7


@dataclass(frozen=True)
class Piece:
    """A range of numbers."""

    low: int
    high: int


def made(*pieces: tuple[int, int], open: bool = True) -> tuple[Hand[Piece], dict[str, Iterator[int]]]:
    """Return a hand that holds them, and where it lays its numbers open."""
    laid: dict[str, Iterator[int]] = {}
    hand: Hand[Piece] = Hand("a", laid if open else None)
    for low, high in pieces:
        assert hand.add(Piece(low, high))
    return hand, laid


def drawn(hand: Hand[Piece], laid: dict[str, Iterator[int]]) -> int | None:
    """Draw one number as `next(tag)` does."""
    for number in laid.get("a", ()):
        return number
    taken = hand.take(1)
    return None if taken is None else taken[1]


# ------------------------------------------------------------------ one after the other


@pytest.mark.parametrize("open", [True, False])
def test_its_numbers_come_one_after_the_other_over_the_border_of_two_pieces(open: bool) -> None:
    hand, laid = made((0, 10), (10, 20), open=open)
    assert [drawn(hand, laid) for _ in range(21)] == [*range(1, 21), None]
    assert hand.issued == 20


def test_the_number_at_the_mark_and_the_last_before_a_refill_never_come_out_of_the_open_range() -> None:
    for size in (1, 2, 4, 5, 6, 10, 100, 4096, 4097, 4098, 20_480):
        hand, laid = made((1000, 1000 + size))
        at = mark(1000, 1000 + size)
        for number in range(1001, 1001 + size):
            opened = next(laid.get("a", iter(())), None)
            if opened is None:
                assert hand.take(1) == (number - 1, number), size
                assert hand.due == (number >= at), size
            else:
                assert opened == number != at, size
        assert hand.take(1) is None


def test_no_more_than_4096_numbers_are_laid_open_at_once() -> None:
    for size in (5000, 100_000):
        hand, laid = made((0, size))
        longest = 0
        while hand.take(1):
            longest = max(longest, len(spend(laid["a"])))
        assert longest == min(OPEN, size - mark(0, size)) <= OPEN == 4096


def test_more_than_two_pieces_are_never_held() -> None:
    hand, _ = made((0, 10), (10, 20))
    assert not hand.add(Piece(20, 30))
    assert hand.take(10) == (0, 10)
    assert hand.add(Piece(20, 30))
    assert hand.held == (Piece(10, 20), Piece(20, 30))
    assert BUFFERS == 2


def test_a_piece_used_up_through_the_open_range_makes_room() -> None:
    hand, laid = made((0, 10), (10, 20))
    hand.take(2)
    assert list(laid["a"]) == list(range(3, 11))
    assert hand.add(Piece(20, 30))
    assert hand.issued == 10
    assert hand.take(100) == (10, 20)


def test_a_piece_that_is_not_above_all_that_is_held_or_was_issued_is_refused() -> None:
    hand, _ = made((10, 20))
    for low, high in ((0, 10), (19, 30), (5, 15)):
        assert not hand.add(Piece(low, high))
    assert hand.held == (Piece(10, 20),)
    hand.take(5)
    hand.empty()
    assert not hand.add(Piece(14, 40))
    assert hand.add(Piece(15, 40))
    assert hand.take(1) == (15, 16)


def test_what_is_issued_past_it_lies_above_all_that_left_it_and_below_all_that_will() -> None:
    hand, _ = made((10, 20))
    assert not hand.pass_by(30, 40)
    hand.take(5)
    hand.empty()
    assert not hand.pass_by(14, 40)
    assert hand.pass_by(15, 40)
    assert not hand.add(Piece(39, 50))
    assert hand.issued == 40


def test_a_second_piece_held_is_not_due_before_its_own_mark() -> None:
    hand, _ = made((0, 10), (10, 20))
    assert hand.take(10) == (0, 10)
    assert not hand.due
    assert hand.take(1) == (10, 11)
    assert not hand.due
    assert hand.take(1) == (11, 12)
    assert hand.due


def test_what_was_held_and_not_used_was_not_issued() -> None:
    hand, _ = made((1000, 2000), (2000, 3000))
    assert hand.issued == 0
    assert hand.highest == 3000
    assert hand.empty() == ((Piece(1000, 2000), Piece(2000, 3000)), 1000)
    assert (hand.issued, hand.highest) == (0, 0)


def test_emptied_it_tells_the_last_number_used_and_whoever_holds_the_open_range_finds_nothing() -> None:
    hand, laid = made((0, 100), (100, 200))
    hand.take(1)
    stream = laid["a"]
    assert [next(stream), next(stream)] == [2, 3]
    assert hand.empty() == ((Piece(0, 100), Piece(100, 200)), 3)
    assert list(stream) == []
    assert (hand.issued, hand.held, hand.take(1)) == (3, (), None)


def test_shut_lays_nothing_open_and_loses_nothing() -> None:
    hand, laid = made((0, 100))
    hand.take(1)
    assert next(laid["a"]) == 2
    hand.shut()
    assert list(laid["a"]) == []
    assert hand.issued == 2
    assert hand.take(1) == (2, 3)
    hand.shut()
    hand.shut()
    assert hand.take(200) == (3, 100)


@pytest.mark.parametrize("last", [2**53 + 10, HIGHEST])
def test_the_highest_numbers_are_exact(last: int) -> None:
    hand, laid = made((last - 20, last))
    assert [drawn(hand, laid) for _ in range(21)] == [*range(last - 19, last + 1), None]
    assert (hand.issued, hand.highest) == (last, last)


# ------------------------------------------------------------------ any order of calls


@dataclass
class Model:
    """The same, in plain lists: the pieces with what is left of each."""

    left: list[list[int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    issued: int = 0

    def take(self, n: int) -> list[int]:
        while self.left and not self.left[0]:
            self.left.pop(0)
        numbers = self.left[0][:n] if self.left else []
        del (self.left[0] if self.left else [])[:n]
        self.issued = max([self.issued, *numbers])
        return numbers

    def room(self) -> bool:
        while self.left and not self.left[0]:
            self.left.pop(0)
        return len(self.left) < BUFFERS


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("next"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["add", "pass"]), st.tuples(st.integers(-1, 3), st.integers(1, 12))),
        st.sampled_from([("empty", 0), ("shut", 0)]),
    ),
    max_size=60,
)


@given(calls=CALLS, open=st.booleans(), chunk=st.sampled_from([1, 3, 4096]), base=st.sampled_from([0, HIGHEST - 900]))
@settings(max_examples=200)
def test_in_any_order_of_calls_each_number_leaves_once_in_order_and_all_is_told_right(
    calls: list[tuple[str, int | tuple[int, int]]], open: bool, chunk: int, base: int
) -> None:
    laid: dict[str, Iterator[int]] = {}
    hand: Hand[Piece] = Hand("a", laid if open else None)
    model, out, end = Model(), list[int](), base
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPEN", chunk)
        for call, value in calls:
            if call == "take":
                assert isinstance(value, int)
                taken = hand.take(value)
                numbers = [] if taken is None else list(range(taken[0] + 1, taken[1] + 1))
                # It may bring fewer than are there, at the end of what is open; then the next call brings the rest.
                assert numbers == model.take(len(numbers) or 1)
                out += numbers
            elif call == "next":
                assert isinstance(value, int)
                for number in itertools.islice(laid.get("a", iter(())), value):
                    assert [number] == model.take(1)
                    out.append(number)
            elif call == "add":
                assert isinstance(value, tuple)
                gap, size = value
                low = max(base, end + gap)
                fits = low >= (hand.held[-1].high if model.left else hand.issued)
                assert hand.add(Piece(low, low + size)) == (model.room() and fits)
                if model.room() and fits:
                    model.left.append(list(range(low + 1, low + size + 1)))
                    end = low + size
            elif call == "pass":
                assert isinstance(value, tuple)
                gap, size = value
                low = max(base, end + gap)
                passed = hand.pass_by(low, low + size)
                assert passed == (not hand.held and low >= model.issued)
                if passed:
                    assert not any(model.left)
                    out += range(low + 1, low + size + 1)
                    end = model.issued = low + size
            elif call == "empty":
                held, used = hand.empty()
                left = [number for piece in held for number in range(max(piece.low, used) + 1, piece.high + 1)]
                assert left == [number for piece in model.left for number in piece]
                model.left.clear()
                assert list(laid.get("a", ())) == []
            else:
                hand.shut()
            assert hand.issued == model.issued
            assert len(hand.held) <= BUFFERS
            assert hand.highest >= hand.issued
            left_of_open = laid["a"].__length_hint__() if "a" in laid else 0  # type: ignore[attr-defined]  # a range's
            assert left_of_open <= chunk
    assert out == sorted(set(out))


# ------------------------------------------------------------------ threads


class ReadsFirst(Hand[Piece]):
    """Reads how far the open range was used before it takes the range away from those who draw from it."""

    def empty(self) -> tuple[tuple[Piece, ...], int]:
        with self._lock:
            held, cur, _, shown, issued = self._state
            used = cur - shown.__length_hint__()  # type: ignore[attr-defined]  # a range's
            module.spend(shown)
            self._state = ((), 0, 0, iter(()), max(issued, used))
            return held, used


@pytest.mark.parametrize(("kind", "twice"), [(Hand[Piece], []), (ReadsFirst, [2])])
def test_a_number_that_another_caller_draws_while_it_is_emptied_is_not_given_back(
    kind: type[Hand[Piece]], twice: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    laid: dict[str, Iterator[int]] = {}
    hand = kind("a", laid)
    hand.add(Piece(0, 100))
    came = [drawn(hand, laid)]

    def beside(numbers: Iterator[int]) -> list[int]:
        """Be another thread, which draws right before the range is taken away, and right after."""
        came.extend(itertools.islice(laid["a"], 1))
        left = spend(numbers)
        came.extend(itertools.islice(laid["a"], 1))
        return left

    monkeypatch.setattr(module, "spend", beside)
    _, used = hand.empty()
    assert came == [1, 2]
    assert [number for number in came if number in range(used + 1, 101)] == twice


@pytest.mark.live
def test_a_number_that_is_given_back_was_not_issued_however_many_draw_meanwhile() -> None:
    laid: dict[str, Iterator[int]] = {}
    hand: Hand[Piece] = Hand("a", laid)
    stop = threading.Event()

    def work() -> list[int]:
        mine = []
        while not stop.is_set():
            number = drawn(hand, laid)
            if number is not None:
                mine.append(number)
        return mine

    def giving_back() -> list[int]:
        """Return the last number used of each piece; by then some of the piece were drawn."""
        used = []
        try:
            for low in range(0, 20 * SIZE, SIZE):
                hand.add(Piece(low, low + SIZE))
                until(lambda low=low: hand.issued > low, timeout=60)  # type: ignore[misc]  # bound at once
                used.append(hand.empty()[1])
        finally:
            stop.set()
        return used

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        used, *came = together(giving_back, work, work, work)
    finally:
        sys.setswitchinterval(before)
    numbers = [number for each in came for number in each]
    assert repeats(numbers) == []
    assert [number for number in numbers if number > used[(number - 1) // SIZE]] == []
