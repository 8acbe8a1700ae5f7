"""A run: fault after fault in a world, each followed by numbers, and what was found in the end."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from issuer.chaos.checker import Verdict
from issuer.chaos.faults import Fault
from issuer.chaos.scratch import binary, without_settings
from issuer.chaos.screen import Screen
from issuer.chaos.world import Terms, World
from issuer.errors import IssuerError

#: After this many faults a world is ended and its numbers are checked; then another one begins.
BOUT = 60


def play(world: World, faults: Iterable[Fault]) -> Verdict:
    """Strike with one fault after the other, wait for numbers after each, and check all of them.

    If no worker gets numbers any more, or a fault can't be brought about, the run ends there, and the verdict says so.
    """
    stuck = []
    turns: Counter[str] = Counter()
    for fault in faults:
        try:
            fault.strike(world)
            world.more()
            turns[fault.name] += 1
        except (IssuerError, AssertionError) as error:
            stuck.append(f"{fault.name}: {error}")
            break
    verdict = world.verdict()
    verdict.stuck += stuck
    verdict.turns += turns
    return verdict


def shuffled(faults: Sequence[Fault], tell: Callable[[Fault], bool]) -> Iterator[Fault]:
    """Yield each of them once, in some order, then again, as long as `tell` says True."""
    while True:
        for fault in random.sample(faults, len(faults)):
            if not tell(fault):
                return
            yield fault


def play_for(seconds: float, faults: Sequence[Fault], without: Sequence[str]) -> Verdict:
    """Go on for `seconds` seconds, on servers of its own, and return what was found. Raises IssuerError."""
    screen = Screen(round(seconds))
    begun = time.monotonic()
    total = Verdict()
    struck = 0

    def left() -> float:
        return begun + seconds - time.monotonic()

    def tell(fault: Fault) -> bool:
        nonlocal struck
        struck += 1
        screen.progress(round(seconds - left()), f"{struck} faults: {fault.what}")
        return left() > 0

    with without_settings():
        while left() > 0 and not total.stuck:
            with ExitStack() as ends:
                total.add(play(_world(ends, Terms(without=tuple(without))), islice(shuffled(faults, tell), BOUT)))
    screen.end()
    return total


def _world(ends: ExitStack, terms: Terms) -> World:
    program = binary()
    folder = tempfile.mkdtemp(prefix="issuer-chaos-")
    ends.callback(shutil.rmtree, folder, ignore_errors=True)
    return ends.enter_context(World(Path(folder), program, terms))
