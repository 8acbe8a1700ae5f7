"""One guard is taken out, and the harness finds the harm: a harness that can't fail proves nothing."""

import pytest

from issuer.cli.chaos.faults import FAULTS
from issuer.cli.chaos.guards import GUARDS
from tests.chaos.kinds import KINDS, Kind
from tests.chaos.worlds import named, suffer

pytestmark = pytest.mark.live

#: The guards to take out, the faults to strike with, how often in a run, and what must be found.
HARM = [
    ("fence", "F2a", 1, "repeats"),
    ("prefix", "F3a", 2, "repeats"),
    ("replid", "F4", 2, "repeats"),
    ("role", "F16", 2, "repeats"),
    ("arming", "F2a,F4", 2, "repeats"),
    ("reserved", "F6a", 1, "above"),
    ("load-once,born", "F12d", 2, "repeats"),
    ("version", "F22c", 2, "repeats"),
    ("rejoin", "F21", 1, "disorder"),
    ("fork", "F18a", 1, "repeats"),
    ("unmoved", "F9g", 1, "repeats"),
    ("backs", "F22d", 2, "repeats"),
    ("skips", "F9h", 1, "repeats"),
    ("kept", "F9i", 1, "changed"),
    ("held,ceiling", "F9j", 1, "repeats"),
    ("forgotten", "F9k", 1, "disorder"),
    ("set-back", "F7b", 1, "stuck"),
    ("ceiling", "F7c", 1, "repeats"),
]
#: Quick, and no matter of luck; together they do each kind of harm. lua/test_mutations, lua/test_lease_mutations and
#: model/test_mutations take the other guards out as well.
CERTAIN = {"fence", "reserved", "version", "rejoin", "fork", "kept", "set-back"}
#: How many runs without the guard may pass before its harm is found. They are short, and mostly the first one finds it.
TRIES = 12

#: Either guard is enough, as another one stands behind it.
BACKED = [
    # A copy of a load is refused by born, or because it lies below what was issued.
    ("load-once", "F9b,F12d"),
    # Nobody sends a load twice, and one that comes late lies above all that was issued, or is refused as below.
    ("born", "F12"),
    # A loader that was overtaken loads under a born that has not moved only if it was elected: one at a time.
    ("below", "F8,F12"),
    # Who leases a number that is held starts above its holder, who then leases it back in the same way, and so on.
    ("held", "F9j"),
]


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize(
    ("without", "faults", "times", "harm"),
    [pytest.param(*row, marks=[] if row[0] in CERTAIN else pytest.mark.soak, id=row[0]) for row in HARM],
)
def test_without_the_guard_the_harness_finds_the_harm(without: str, faults: str, times: int, harm: str) -> None:
    # In vain it waits for what the harm hinders: a run that gets stuck waits for so long.
    patience = 3 if without in CERTAIN else 8
    # It takes two processes at the same moment, which a busy machine may keep apart. With the guard there is none.
    tries = (suffer(named(faults), *without.split(","), times=times, patience=patience) for _ in range(TRIES))
    verdict = next((verdict for verdict in tries if getattr(verdict, harm)), None)
    assert verdict is not None
    assert not verdict.kept


@pytest.mark.soak  # as lua/test_lease_mutations, model/test_walks and the tests of groups in integration do
@pytest.mark.parametrize("kind", KINDS[1:3], ids=lambda kind: kind.name)
def test_without_the_fence_a_failover_of_a_group_repeats_numbers(kind: Kind) -> None:
    assert suffer(kind.faults, "fence", times=3, patience=8).repeats > 0


@pytest.mark.soak  # model/test_mutations has these pairs too
@pytest.mark.parametrize(("without", "faults"), BACKED, ids=[without for without, _ in BACKED])
def test_where_one_guard_stands_behind_another_either_is_enough(without: str, faults: str) -> None:
    verdict = suffer(named(faults), without, times=2, patience=8)
    assert (verdict.repeats, verdict.disorder, verdict.above) == (0, 0, 0)


@pytest.mark.soak  # as faults/test_journal_faults and e2e/test_recover_journal do
@pytest.mark.covers("N.8")
@pytest.mark.parametrize("faults", ["F6d", "F6f"], ids=["SQLite", "MongoDB"])
def test_without_the_journal_a_restored_store_repeats_what_it_has_forgotten(faults: str) -> None:
    assert suffer(named(faults), times=2).kept
    assert suffer(named(faults), times=2, journal=False, patience=8).repeats > 0


def test_every_guard_is_taken_out_by_one_of_these_tests() -> None:
    taken_out = {name for without, *_ in [*HARM, *BACKED] for name in str(without).split(",")}
    assert taken_out == set(GUARDS)


def test_the_command_tells_which_guards_its_own_faults_can_show() -> None:
    rows = [(str(without).split(","), named(str(faults))) for without, faults, *_ in [*HARM, *BACKED]]
    shown = {name for names, faults in rows for name in names if any(fault in FAULTS for fault in faults)}
    assert shown == {name for name, guard in GUARDS.items() if guard.shown}
