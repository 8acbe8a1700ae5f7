"""One guard is taken out, and the harness finds the harm: a harness that can't fail proves nothing."""

import pytest

from tests.proofs.chaos.guards import GUARDS
from tests.proofs.chaos.worlds import named, suffer

pytestmark = pytest.mark.live

#: The guards to take out, the faults to strike with, how often in a run, and what must be found; nothing where another
#: guard stands behind.
HARM = [
    ("fence", "F2a", 1, "repeats"),
    ("prefix", "F3a", 2, "repeats"),
    ("replid", "F4", 2, "repeats"),
    ("role", "F16", 2, "repeats"),
    ("arming", "F2a,F4", 2, "repeats"),
    ("reserved", "F6a", 1, "above"),
    ("load-once,born", "F12d", 2, "repeats"),
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
    # A copy of a load is refused by born, or because it lies below what was issued.
    ("load-once", "F9b,F12d", 2, ""),
    # The store reserves nothing below what stands in its ledger.
    ("version", "F22c", 1, ""),
    # Nobody sends a load twice, and one that comes late lies above all that was issued, or is refused as below.
    ("born", "F12", 2, ""),
    # A loader that was overtaken loads under a born that has not moved only if it was elected: one at a time.
    ("below", "F8,F12", 2, ""),
    # Who leases a number that is held starts above its holder, who then leases it back in the same way, and so on.
    ("held", "F9j", 2, ""),
]
#: Quick, and no matter of luck; together they do each kind of harm. model/test_mutations takes the other guards out
#: as well, and tests/lua shows each refusal.
CERTAIN = {"fence", "reserved", "rejoin", "fork", "kept", "set-back"}
#: How many runs without the guard may pass before its harm is found. They are short, and mostly the first one finds it.
TRIES = 12


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize(
    ("without", "faults", "times", "harm"),
    [pytest.param(*row, marks=[] if row[0] in CERTAIN else pytest.mark.soak, id=row[0]) for row in HARM],
)
def test_without_the_guard_the_harness_finds_the_harm_unless_another_stands_behind_it(
    without: str, faults: str, times: int, harm: str
) -> None:
    if not harm:
        verdict = suffer(named(faults), without, times=times, patience=8)
        assert (verdict.repeats, verdict.disorder, verdict.above) == (0, 0, 0)
        return
    # In vain it waits for what the harm hinders: a run that gets stuck waits for so long.
    patience = 3 if without in CERTAIN else 8
    # It takes two processes at the same moment, which a busy machine may keep apart. With the guard there is none.
    tries = (suffer(named(faults), *without.split(","), times=times, patience=patience) for _ in range(TRIES))
    verdict = next(verdict for verdict in tries if getattr(verdict, harm))
    assert not verdict.kept


def test_every_guard_is_taken_out() -> None:
    assert {name for without, *_ in HARM for name in without.split(",")} == set(GUARDS)
