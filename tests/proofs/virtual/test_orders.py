"""Several processes, several callers in each, and faults that come and go, in any order that a seed names."""

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.drivers.running import SHORTEST
from issuer.operations.config import CLOSING
from tests.audit import Draw, order_violations, repeats
from tests.colours import COLOURS
from tests.proofs.virtual.test_outages import BACK, GRACE
from tests.proofs.virtual.world import Call, World, world
from tests.seeds import seeded

#: How processes are connected.
KINDS: tuple[dict[str, Any], ...] = ({}, {"lease": 6}, {"scheduler": None}, {"lease": 4, "scheduler": None})

TAGS = "st"
CALLERS = 3
STORE_TIMEOUT = 1.0

#: What a call may take above its deadline: one that checks its leases first makes two round trips.
LATE = GRACE + SHORTEST


class Story:
    """What happens in one world."""

    def __init__(self, made: World, seed: int) -> None:
        self.made = made
        self.chance = random.Random(seed)
        self.over = False
        self.made_so_far: list[Issuer] = []
        self.processes = [self.process(kind) for kind in KINDS]
        self.processes[0].create("s", step=7)
        self.processes[0].create("t", step=9, order="trend")
        #: By tag; those of trend tags by process as well.
        self.draws: dict[object, list[Draw]] = defaultdict(list)
        self.late: list[str] = []

    def process(self, kind: dict[str, Any]) -> Issuer:
        self.made_so_far.append(self.made.connect(timeout=5, store_timeout=STORE_TIMEOUT, **kind))
        return self.made_so_far[-1]

    def go_on(self, place: int) -> None:
        """Draw until it is over, from whatever process is in this place."""
        while not self.over:
            ids, tag = self.processes[place], self.chance.choice(TAGS)
            timeout = self.chance.choice((0.0, 0.2, 1.0, 5.0))
            began = self.made.now
            number = None
            with suppress(issuer.RedisUnavailable, issuer.StoreUnavailable):
                try:
                    number = ids.next(tag, timeout=timeout)
                except issuer.IssuerError as error:
                    if "closed" not in str(error):
                        raise
            ended = self.made.now
            if ended - began > timeout + LATE:
                self.late.append(f"{ended - began:.3f} s for {timeout} s of {tag} in {place}, at {began:.3f}")
            if number is not None:
                draw = Draw(number, began, ended)
                self.draws[tag].append(draw)
                self.draws[tag, self.made_so_far.index(ids)].append(draw)
            self.made.turns.sleep(self.chance.uniform(0.0, 0.1))

    def something_happens(self) -> None:
        wire, store = self.made.wire, self.made.store
        events: list[Callable[[], object]] = [wire.refuse, wire.blackhole, wire.drop_requests]
        events += [wire.pass_through, wire.pass_through]
        events += [store.hang, store.resume, store.resume, wire.server.new_reign, wire.server.wipe]
        events.append(self.a_process_ends)
        self.chance.choice(events)()
        store.seconds = self.chance.choice((0.0, 0.0, 0.3, 0.9))
        self.made.turns.sleep(self.chance.choice((0.01, 0.3, 1.0, 4.0)))

    def a_process_ends(self) -> None:
        place = self.chance.randrange(len(KINDS))
        ids, self.processes[place] = self.processes[place], self.process(KINDS[place])
        closing = self.made.call(ids.close)
        assert closing.took <= CLOSING + GRACE
        assert closing.answer is None

    def tell(self, events: int) -> None:
        """Let so many things happen, then let all go well, and look at what came of it."""
        places = [*range(len(KINDS))] * CALLERS
        callers = [self.made.call(partial(self.go_on, place)) for place in places]
        for _ in range(events):
            self.something_happens()
        self.made.wire.pass_through()
        self.made.store.resume()
        self.made.store.seconds = 0.0
        self.made.turns.sleep(STORE_TIMEOUT + BACK)
        last = [self.made.draws(ids, tag, 1.0) for ids in self.processes for tag in TAGS]
        self.over = True
        assert [call.answer for call in callers if call.took and call.answer is not None] == []
        assert [call.answer for call in last if call.took and not isinstance(call.answer, int)] == []
        self.look(last)
        for ids in self.processes:
            ids.__exit__(None, None, None)

    def look(self, last: list[Call]) -> None:
        assert self.late == []
        for tag in TAGS:
            numbers = [draw.number for draw in self.draws[tag]]
            assert repeats([*numbers, *(call.number for call in last[TAGS.index(tag) :: len(TAGS)])]) == []
            assert max(numbers) <= self.made.store.top(tag)
        assert order_violations(self.draws["s"]) == []
        for which, draws in self.draws.items():
            assert which == "t" or order_violations(draws) == [], which


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seed", [1, 3, 191, *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 40))])
def test_no_number_comes_twice_or_late_or_out_of_order(colour: str, seed: int) -> None:
    with world(colour, seeded(seed)) as made:
        Story(made, seeded(seed)).tell(events=12)
