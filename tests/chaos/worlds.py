"""Worlds for tests: the package's own, on the server that tests prefer."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from issuer.cli.chaos.checker import Verdict
from issuer.cli.chaos.faults import FAULTS, Fault, chosen
from issuer.cli.chaos.play import play
from issuer.cli.chaos.world import Terms, World
from tests.chaos.more import MORE
from tests.servers.absent import absent
from tests.servers.binaries import primary_server

#: Other tests run beside these: what is promised within 2 s may take longer here. `make chaos` holds to it.
PATIENCE = 15.0


def assert_kept(verdict: Verdict) -> None:
    """Every promise but that of the 2 s, which `make chaos` sees to."""
    assert verdict.stuck == []
    assert (verdict.repeats, verdict.above, verdict.disorder) == (0, 0, 0), verdict.examples
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
    return primary_server() or absent("a redis-server")


def suffer(
    names: str,
    *without: str,
    times: int = 1,
    faults: Sequence[Fault] = (*FAULTS, *MORE),
    patience: float = 20.0,
    journal: bool = True,
) -> Verdict:
    """Strike with these faults, so many times, and check what was drawn."""
    terms = Terms(without=without, patience=patience, journal=journal)
    with folder() as path, World(path, binary(), terms) as world:
        return play(world, chosen(names.split(",") if names else [], faults) * times)
