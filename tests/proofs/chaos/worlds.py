"""Worlds for tests, on the server that tests prefer."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from issuer.chaos.checker import Verdict
from issuer.chaos.faults import Fault, chosen
from issuer.chaos.play import play
from tests.proofs.chaos.guards import MoreTerms
from tests.proofs.chaos.kinds import BOUT, KINDS, Kind
from tests.servers.absent import absent
from tests.servers.binaries import primary_server

#: Other tests run beside these: what is promised within 2 s may take longer here. `make chaos` holds to it.
PATIENCE = 15.0


def assert_kept(verdict: Verdict) -> None:
    """Every promise but those that a machine which stands still can't keep, and `make chaos` sees to.

    They are the 2 s, and the gap of each strike by itself: a call that times out costs one too.
    """
    assert verdict.stuck == [], "\n".join(verdict.stuck)
    assert (verdict.repeats, verdict.above, verdict.disorder, verdict.changed) == (0, 0, 0, 0), verdict.examples
    assert verdict.gap <= verdict.allowed_gap
    assert verdict.without_service < PATIENCE, verdict.slowest
    assert verdict.latest < PATIENCE


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own; in memory where it can be, as a run writes a lot."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=shm if shm.is_dir() else None) as name:
        yield Path(name)


def binary() -> Path:
    return primary_server() or absent("a redis-server", "redis-server")


def suffer(
    faults: Sequence[Fault], *without: str, times: int = 1, patience: float = 20.0, journal: bool = True
) -> Verdict:
    """Strike with these faults, all of one kind of worlds, so many times, and check what was drawn.

    A world is made anew when its bout is over.
    """
    terms = MoreTerms(without=without, patience=patience, journal=journal)
    kind = kind_of(faults)
    plan = [*faults] * times
    total = Verdict()
    for at in range(0, len(plan), BOUT):
        with folder() as path, kind.make(path, kind.server(binary()), terms) as world:
            total.add(play(world, plan[at : at + BOUT]))
    return total


def named(names: str) -> list[Fault]:
    """The faults that these words choose, F2 meaning F2a, F2b and so on; all if there are none."""
    return chosen(names.split(",") if names else [], [fault for kind in KINDS for fault in kind.faults])


def kind_of(faults: Sequence[Fault]) -> Kind:
    return next(kind for kind in KINDS if all(fault in kind.faults for fault in faults))
