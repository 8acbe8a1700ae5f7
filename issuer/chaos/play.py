"""A run: causes one fault after another, waits for new numbers after each, and checks all numbers at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from issuer.chaos.checker import Verdict
from issuer.chaos.faults import Fault
from issuer.chaos.scratch import binary
from issuer.chaos.screen import Screen
from issuer.chaos.world import Terms, World
from issuer.clock import monotonic
from issuer.errors import IssuerError

#: After this many faults, the numbers of a world (the servers and processes of a run) are checked, and a new world is
#: started.
BOUT = 60


def play(world: World, faults: Iterable[Fault]) -> Verdict:
    """Cause one fault after another, wait for numbers after each, and check all numbers at the end.

    If a worker receives no more numbers, or a fault cannot be caused, the run ends early. The verdict's `stuck` then
    contains the reason.
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


def play_for(seconds: int, faults: Sequence[Fault]) -> Verdict:
    screen = Screen(seconds)
    begun = monotonic()
    program, total = binary(), Verdict()
    struck = 0

    def left() -> float:
        return begun + seconds - monotonic()

    def shuffled() -> Iterator[Fault]:
        nonlocal struck
        while True:
            for fault in random.sample(faults, len(faults)):
                struck += 1
                screen.progress(round(seconds - left()), f"{struck} faults: {fault.what}")
                if left() <= 0:
                    return
                yield fault

    while left() > 0 and not total.stuck:
        made = TemporaryDirectory(prefix="issuer-chaos-", ignore_cleanup_errors=True)
        with made as folder, World(Path(folder), program, Terms()) as world:
            total.add(play(world, islice(shuffled(), BOUT)))
    screen.clear()
    return total
