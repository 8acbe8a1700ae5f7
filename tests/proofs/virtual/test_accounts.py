"""Each reserved number is issued, still in Redis, or counted as wasted, while no fault occurs."""

import random
from functools import partial
from typing import Any

import pytest

from issuer import Issuer, events
from tests.audit import repeats
from tests.colours import COLOURS
from tests.proofs.virtual.world import World, world
from tests.seeds import seeded

#: Ways to draw. A number for a key always comes from Redis, so it wastes the leases of others.
KEYED = "keyed"


def draw(made: World, ids: Issuer, chance: random.Random, numbers: list[int]) -> None:
    """Draw a few times from a tag that this process may not have used before."""
    for _ in range(chance.randrange(1, 12)):
        match chance.choice(("next", "next", "take", KEYED)):
            case "take":
                numbers += ids.take("a", chance.randrange(1, 9))
            case "keyed":
                numbers.append(ids.next("a", key=chance.randbytes(9).hex()))
            case _:
                numbers.append(ids.next("a"))
        made.turns.sleep(chance.choice((0.0, 0.0, 0.3, 4.0)))


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("settings", [{}, {"order": "trend", "lease": 7}], ids=["strict", "trend"])
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 30))])
def test_what_was_reserved_is_issued_or_left_or_wasted(colour: str, settings: dict[str, Any], seed: int) -> None:
    chance, seen, numbers = random.Random(seeded(seed)), list[events.Event](), list[int]()
    with world(colour, seeded(seed)) as made:
        with made.connect() as first:
            first.create("a", step=40, **settings)
        for _ in range(4):
            processes = [made.connect(idle_after=2.0) for _ in range(3)]
            for ids in processes:
                ids.observe(seen.append)
            calls = [made.call(partial(draw, made, ids, chance, numbers)) for ids in processes for _ in range(3)]
            assert [call.answer for call in calls if call.took and call.answer is not None] == []
            for ids in processes:
                ids.close()
        with made.connect() as last:
            hash = last.inspect("a").redis
        assert hash is not None
        left = (hash.max or 0) - (hash.cur or 0) + (hash.next_max or 0) - (hash.next_cur or 0)
        wasted = sum(each.numbers for each in seen if isinstance(each, events.NumbersWasted))
        kinds = [type(each) for each in seen]
        assert kinds.count(events.Reserved) == kinds.count(events.SegmentLoaded)
        assert repeats(numbers) == []
        assert (len(numbers), left, wasted) == (made.store.top("a") - left - wasted, left, wasted)


@pytest.mark.covers("1.24")
@pytest.mark.parametrize(("where", "drained"), [({}, 3), ({"redis": "none"}, 101)], ids=["leased", "direct"])
def test_a_changed_drain_is_used_after_the_next_draw(made: World, where: dict[str, str], drained: int) -> None:
    """The store takes no segment back if the tag's record was changed: in direct mode, the rest is wasted."""
    with made.connect(lease=20, **where) as ids:
        ids.create("a", step=100, order="trend", drain=False)
        assert ids.next("a") == 1
        made.turns.sleep(3600.0)
        ids.configure("a", drain=True)
        made.turns.sleep(7200.0)
        # Nobody draws, so the process does not know the new value.
        assert "a" in ids.engine.registry.combiners
        assert ids.next("a") == 2
        made.turns.sleep(3600.0)
        assert "a" not in ids.engine.registry.combiners
        ids.configure("a", drain=False)
        assert ids.next("a") == drained
        made.turns.sleep(3600.0)
        assert "a" in ids.engine.registry.combiners
        assert ids.next("a") == drained + 1
