"""Two regions over one central server: the line is cut, the server and a Redis killed, and no number comes twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from issuer_persistence.clock import monotonic
from tests.proofs.regions.drawer import TAGS
from tests.proofs.regions.world import World
from tests.servers.binaries import primary_server
from tests.waiting import until


@pytest.fixture
def binary() -> Path:
    found = primary_server()
    if found is None:
        pytest.skip("no Redis")
    return found


def faults(world: World) -> list[Callable[[], None]]:
    """Return what strikes: each begins and ends a fault, and waits until the region goes on."""
    east, west = world.regions

    def cut() -> None:
        """The line is cut amid calls. The region draws what it has."""
        east.line.cut()
        east.line.refuse()
        east.go_on()
        east.line.pass_through()

    def silent() -> None:
        """Nothing comes through the line, and nobody is told."""
        west.line.blackhole()
        west.go_on()
        west.line.pass_through()

    def replies() -> None:
        """Reservations are made, and their replies are lost."""
        for each in world.regions:
            each.line.drop_replies(b'"reserve"', times=1)
        before = world.tag("strict").max
        until(lambda: world.tag("strict").max > before, timeout=120)
        east.line.pass_through()
        west.line.pass_through()

    def server() -> None:
        """The central server loses its power."""
        world.kill()
        east.go_on()
        world.start()

    def redis() -> None:
        """A region's Redis loses its data."""
        west.redis.kill()
        west.redis.start()

    return [cut, silent, replies, server, redis]


@pytest.mark.covers("N.14")
def test_two_regions_repeat_nothing_and_keep_their_order_whatever_is_cut_or_killed(
    tmp_path: Path, binary: Path
) -> None:
    with World(tmp_path, binary, rate=100, step=2000) as world:
        for each in world.regions:
            each.go_on()
        for fault in faults(world):
            fault()
            for each in world.regions:
                each.go_on()
        world.end()
        world.check()
        assert [each.errors() for each in world.regions] == [[], []]


@pytest.mark.soak
def test_two_regions_repeat_nothing_in_five_minutes_of_faults(tmp_path: Path, binary: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance, end, struck = random.Random(seed), monotonic() + 300, 0
    with World(tmp_path, binary, rate=100, step=5000) as world:
        while monotonic() < end:
            for each in world.regions:
                each.go_on(chance.randrange(20, 300))
            chance.choice(faults(world))()
            struck += 1
        world.end()
        counts = world.check()
        print(f"seed {seed}: {struck} faults, {counts}, errors: {[len(each.errors()) for each in world.regions]}")


#: Seconds for which the line is cut.
CUT = 60
RATE = 100


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
def test_a_region_outlives_the_cut_that_its_tags_survive(tmp_path: Path, binary: Path, fault: str) -> None:
    """Each segment has what two processes use in twice the time."""
    with World(tmp_path, binary, rate=RATE, step=2 * CUT * 2 * RATE, survive=CUT) as world:
        for each in world.regions:
            each.go_on(500)
        for each in world.regions:
            each.line.cut()
            getattr(each.line, fault)()
        end = monotonic() + CUT
        while monotonic() < end:
            for each in world.regions:
                each.go_on()
        before = {tag: world.tag(tag).max for tag in TAGS}
        for each in world.regions:
            each.line.pass_through()
        until(lambda: all(world.tag(tag).max > before[tag] for tag in TAGS), timeout=300)
        world.end()
        slowest = max(one.ended - one.began for each in world.regions for tag in TAGS for one in each.draws(tag))
        print(f"{fault}: {world.check()}, the slowest call took {slowest:.3f} s")
        assert [each.errors() for each in world.regions] == [[], []]
