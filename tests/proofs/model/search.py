"""The search: every state that the bounds allow, breadth first, so that the first harm found has a shortest trace."""

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.proofs.model import faults, operators, processes
from tests.proofs.model.issuing import gap
from tests.proofs.model.state import State, Step, World


@dataclass(frozen=True, slots=True)
class Found:
    """`harm` is empty if all `states` keep the promises; otherwise `trace` leads to it."""

    states: int
    harm: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{number:3}. {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([self.harm or "no harm", f"{self.states} states", *lines])


def steps(world: World, state: State) -> Iterator[Step]:
    """All that may happen in that state."""
    yield from processes.steps(world, state)
    yield from faults.steps(world, state)
    yield from operators.steps(world, state)


def _key(state: State) -> State:
    """Processes have no names: states that differ in who is who are one."""
    return state._replace(processes=tuple(sorted(state.processes)))


def search(world: World, harm: str = "", most: int = 1_000_000) -> Found:
    """Visit every state, until one breaks a promise. AssertionError if there are more than `most`.

    `harm`: the one kind of harm that counts, by its first word; by default each does.
    """
    with _uncollected():
        return _search(world, harm, most)


def _search(world: World, harm: str, most: int) -> Found:
    start = world.start()
    first = _key(start)
    came: dict[State, tuple[State, str] | None] = {first: None}
    # As the steps left them: most steps lead where another one has led, and that is seen before anything is forgotten.
    met = {start}
    queue = deque([(start, first)])
    while queue:
        state, key = queue.popleft()
        for label, after, harmed in steps(world, state):
            if after in met and not harmed:
                continue
            met.add(after)
            broken = harmed or gap(world, after)
            if broken and broken.startswith(harm):
                return Found(len(came), broken, [*_trace(came, key), label])
            next_state = faults.forgotten(world, after)
            next_key = _key(next_state)
            if next_key not in came:
                came[next_key] = (key, label)
                queue.append((next_state, next_key))
        assert len(came) <= most, f"more than {most} states: make the bounds of {world} smaller"
    return Found(len(came))


@contextmanager
def _uncollected() -> Iterator[None]:
    """States form no cycles, and the collector would go through all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _trace(came: dict[State, tuple[State, str] | None], key: State) -> list[str]:
    labels = []
    at = came[key]
    while at is not None:
        key, label = at
        labels.append(label)
        at = came[key]
    return labels[::-1]
