"""One guard is taken out, and the harness finds the harm: a harness that can't fail proves nothing."""

import pytest

from issuer.cli.chaos.guards import GUARDS
from tests.chaos.worlds import suffer

pytestmark = pytest.mark.live

#: The guards to take out, the faults to strike with, and what must be found.
HARM = [
    ("fence", "F2a,F4", "repeats"),
    ("prefix", "F3a", "repeats"),
    ("replid", "F4", "repeats"),
    ("role", "F16", "repeats"),
    ("arming", "F2a,F4", "repeats"),
    ("reserved", "F6a", "above"),
    ("load-once,born", "F12d", "repeats"),
    ("version", "F22c", "repeats"),
    ("rejoin", "F21", "disorder"),
    ("fork", "F18", "repeats"),
]
#: Either guard is enough, as another one stands behind it.
BACKED = [
    # A copy of a load is refused by born, or because it lies below what was issued.
    ("load-once", "F9b,F12d"),
    # Nobody sends a load twice, and one that comes late lies above all that was issued, or is refused as below.
    ("born", "F12"),
    # A loader that was overtaken loads under a born that has not moved only if it was elected: one at a time.
    ("below", "F8,F12"),
]


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize(("without", "faults", "harm"), HARM, ids=[without for without, _, _ in HARM])
def test_without_the_guard_the_harness_finds_the_harm(without: str, faults: str, harm: str) -> None:
    verdict = suffer(faults, *without.split(","), times=5, patience=8)
    assert getattr(verdict, harm) > 0
    assert not verdict.kept


@pytest.mark.parametrize(("without", "faults"), BACKED, ids=[without for without, _ in BACKED])
def test_where_one_guard_stands_behind_another_either_is_enough(without: str, faults: str) -> None:
    verdict = suffer(faults, without, times=2)
    assert (verdict.repeats, verdict.disorder, verdict.above) == (0, 0, 0)


@pytest.mark.covers("N.8")
def test_without_the_journal_a_restored_store_repeats_what_it_has_forgotten() -> None:
    assert suffer("F6d", times=2).kept
    assert suffer("F6d", times=2, journal=False, patience=8).repeats > 0


def test_every_guard_is_taken_out_by_one_of_these_tests() -> None:
    named = {name for without, *_ in [*HARM, *BACKED] for name in without.split(",")}
    assert named == set(GUARDS)
