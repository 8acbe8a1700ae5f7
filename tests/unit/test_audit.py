"""The auditor itself must be able to find what it looks for."""

from tests.audit import Draw, order_violations, repeats


def test_repeats_are_found() -> None:
    assert repeats([1, 2, 3, 2]) == [2]
    assert repeats(range(10)) == []


def test_a_lower_number_after_a_finished_call_is_a_violation_also_behind_calls_that_overlap() -> None:
    assert order_violations([Draw(5, 0.0, 1.0), Draw(4, 2.0, 3.0)]) == [(5, 4)]
    assert order_violations([Draw(5, 0.0, 2.0), Draw(4, 1.0, 3.0), Draw(6, 4.0, 5.0)]) == []
    assert order_violations([Draw(9, 0.0, 1.0), Draw(3, 0.5, 8.0), Draw(7, 2.0, 3.0)]) == [(9, 7)]
