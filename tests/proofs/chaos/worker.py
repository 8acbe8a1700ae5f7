"""A drawing process of these tests. It knows their guards too, and its wall clock can be set while it runs.

python -m tests.proofs.chaos.worker SETUP, a JSON object: see `MoreSetup`.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from issuer.chaos.crew import Worker
from issuer.chaos.worker import Colour, Job, Setup, told_to_stop, work
from issuer.chaos.world import World
from tests.proofs.chaos.guards import removed, scripts_without, take_out


@dataclass(frozen=True, slots=True)
class MoreSetup(Setup):
    """`clock`: error of the wall clock, in seconds. `without`: guards to remove."""

    clock: float = 0.0
    without: Sequence[str] = ()

    program: ClassVar[str] = "tests.proofs.chaos.worker"


class Guarded(World):
    """A world in which guards can be missing."""

    setup_kind = MoreSetup

    def setups(self, config: str) -> list[Setup]:
        """Return the settings of the workers."""
        return [replace(each, without=removed(self)) for each in super().setups(config)]  # type: ignore[call-arg]  # its kind

    def sha(self, name: str) -> bytes:
        """Return the SHA-1 of a script in hex, as the workers send it."""
        return scripts_without(removed(self))[name].sha.encode()


def guest(world: World, front: str, colour: Colour, *jobs: Job) -> Setup:
    """Return the settings of one more worker. `front`: its URL of Redis."""
    return world.crew.renamed(world.crew.workers[0].setup, redis=front, colour=colour, jobs=[*jobs])


@contextmanager
def guests(world: World, *setups: Setup) -> Iterator[list[Worker]]:
    """Let these workers draw too while the block lasts. They are not waited for."""
    workers = world.crew.start(*setups)
    try:
        yield workers
    finally:
        world.crew.dismiss(workers)


def relieve(world: World) -> list[Setup]:
    """Stop all workers. Return the settings of their successors."""
    setups = [world.crew.renamed(worker.setup) for worker in world.crew.workers]
    world.crew.dismiss()
    return setups


@contextmanager
def closed(world: World) -> Iterator[None]:
    """Close the store in this process while the block lasts. The workers must have ended."""
    with world._sampling:
        world.ids.close()
        yield
        world.ids = world._ends.enter_context(world.connected())


def set_clock(worker: Worker, off: float) -> None:
    """Shift the wall clock of the running process by `off` seconds. 0 resets it."""
    assert worker.process.stdin is not None
    worker.process.stdin.write(b"%r\n" % off)
    worker.process.stdin.flush()


_right, _right_ns = time.time, time.time_ns


def _off(seconds: float) -> None:
    """Shift the wall clock of this process by `seconds` seconds from now on."""
    time.time = lambda: _right() + seconds
    time.time_ns = lambda: _right_ns() + int(seconds * 1e9)


class _Lines:
    """Each line of stdin has the error of the clock in seconds."""

    def __init__(self) -> None:
        self._begun = b""

    def __call__(self, read: bytes) -> None:
        *lines, self._begun = (self._begun + read).split(b"\n")
        for line in lines:
            _off(float(line))


def main(text: str) -> None:
    """Draw according to the setup until stdin ends."""
    setup = MoreSetup.parsed(text)
    _off(setup.clock)
    take_out(setup.without)
    work(setup, told_to_stop(_Lines()))


if __name__ == "__main__":
    main(sys.argv[1])
