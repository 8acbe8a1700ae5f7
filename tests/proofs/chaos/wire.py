"""Faults on the wire that hit what the drawing processes seldom send: hand-backs, floors, keys, machine numbers."""

import random
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle

from issuer.chaos.crew import Worker
from issuer.chaos.faults import WIRE, Fault, entering, on_the_wire
from issuer.chaos.worker import Colour, Job, Setup
from issuer.chaos.world import PLAIN, TREND, World, now
from issuer.errors import RedisUnavailable
from issuer.gateway.commands import script
from tests.proofs.chaos.more import end_with_a_lease
from tests.proofs.chaos.worker import guest, guests
from tests.servers.proxy import FaultProxy
from tests.waiting import until

WIRED: list[Fault] = []
fault = partial(entering, WIRED)

KEYED = "keyed"
COLOURS: tuple[Colour, Colour] = ("threads", "tasks")
MACHINE_SCRIPTS = ("machine_claim", "machine_renew", "machine_release")


def hits(world: World) -> int:
    return sum(front.hits for front in world.fronts)


def go_direct(world: World) -> list[Worker]:
    """Cut half of the processes off from Redis, and return them when they draw from segments of their own."""
    cut, _ = world.halves()
    world.fronts[0].refuse()
    world.crew.wait_served(now(), cut, only=[TREND, PLAIN])
    return cut


@fault("F9g", "what gives a lease back dropped, its reply dropped, and late")
def giving_back_hit(world: World) -> None:
    for manner, hit in WIRE.items():
        before = hits(world)
        for front in world.fronts:
            hit(front, world.sha("giveback"), 1)
        with world.fault(f"F9g {manner}: giveback", hits=2):
            end_with_a_lease(world, lambda: hits(world) > before)  # noqa: B023
            for front in world.fronts:
                front.pass_through()
        # What others have drawn meanwhile must not come back.
        world.more()


@fault("F9h", "a floor dropped, its reply dropped, and late: from `recover`, and from who comes back to Redis")
def floor_hit(world: World) -> None:
    for manner, hit in WIRE.items():
        with world.fault(f"F9h {manner}: floor of recover", segments=4):
            before = world.desk.hits
            hit(world.desk, script("floor").sha.encode(), 1)
            try:
                world.ids.recover("strict")
            except RedisUnavailable:
                world.ids.recover("strict")
            else:
                assert manner not in ("request dropped", "reply dropped"), "recover didn't say that it doesn't know"
            assert world.desk.hits > before
            world.desk.pass_through()
        cut, before = go_direct(world), hits(world)
        with world.fault(f"F9h {manner}: floor", hits=len(cut)):
            hit(world.fronts[0], world.sha("floor"), 1)
            until(lambda: hits(world) > before, world.crew.patience, "a floor is hit")  # noqa: B023
            world.fronts[0].pass_through()


@fault("F9i", "a draw for a key dropped, its reply dropped, and late; two processes draw for the same keys")
def draws_for_keys_hit(world: World) -> None:
    names = [tag.name for tag in world.tags]
    at = names.index(KEYED) if KEYED in names else world.create(KEYED, "strict", keyed=True)
    # Keys that no run before has used: Redis may have forgotten those, and then gives other numbers.
    job = Job(at, KEYED, "once", callers=2, key=random.getrandbits(48) << 14)
    setups = guest(world, world.front_url(0), "threads", job), guest(world, world.front_url(1), "tasks", job)
    with guests(world, *setups) as drawing:
        world.crew.wait_served(0, drawing)
        for manner in WIRE:
            on_the_wire(world, "F9i", manner, ["once"])
            world.crew.wait_served(now(), drawing)


@contextmanager
def each_hit(world: World, fronts: Mapping[str, FaultProxy], name: str) -> Iterator[None]:
    """Hit the next call of that script before each of these proxies in the manner that it is named by."""
    before = {manner: front.hits for manner, front in fronts.items()}
    with ExitStack() as faults:
        for manner, front in fronts.items():
            WIRE[manner](front, world.sha(name), 1)
            faults.enter_context(world.fault(f"F9j {manner}: {name}", hits=1, segments=0))
        yield
        for manner, front in fronts.items():
            until(lambda: front.hits > before[manner], world.crew.patience, f"{name}: {manner}")  # noqa: B023
            front.pass_through()


def machine_tag(world: World, bits: int) -> int:
    """Make a tag whose numbers are made of machine numbers of so many bits, all of them free; return its place."""
    name = f"machines-{secrets.token_hex(4)}"
    # It holds one itself until it is closed.
    with world.connected() as ids:
        ids.create(name, strategy="snowflake", options={"machine_bits": bits, "lease": 5})
    return world.watch(name, "trend", 0, counted=False)


def jobs(world: World, at: int) -> list[Job]:
    """What a worker does with such a tag."""
    return [Job(at, world.tags[at].name, "next", world.terms.callers), Job(at, world.tags[at].name, "take", 1, 20)]


@contextmanager
def more_wanted(world: World, at: int, *colours: Colour) -> Iterator[list[Worker]]:
    """Processes that want machine numbers too while the block lasts, and have asked for them."""
    setups = [guest(world, world.front_url(1), colour, *jobs(world, at)) for colour in colours]
    with guests(world, *setups) as drawing:
        for setup in setups:
            until(lambda: [*world.folder.glob(f"{at}.{setup.name}.*")], world.crew.patience, "it asks")  # noqa: B023
        yield drawing


@fault("F9j", "a machine number claimed, renewed, released: each dropped, its reply dropped, and late")
def machine_calls_hit(world: World) -> None:
    # One for each process, and the one whose claim has its reply dropped: it is nobody's until it lapses.
    at = machine_tag(world, bits=2)
    with ExitStack() as ends:
        fronts = {manner: ends.enter_context(FaultProxy(world.master.address)) for manner in WIRE}

        def setups() -> list[Setup]:
            return [
                guest(world, front.url, colour, *jobs(world, at))
                for front, colour in zip(fronts.values(), cycle(COLOURS), strict=False)
            ]

        with each_hit(world, fronts, "machine_claim"):
            drawing = ends.enter_context(guests(world, *setups()))
            world.crew.wait_served(0, drawing)
        with more_wanted(world, at, *COLOURS):
            with each_hit(world, fronts, "machine_renew"):
                pass
            world.crew.wait_served(now(), drawing)
        with each_hit(world, fronts, "machine_release"):
            world.crew.dismiss(drawing)
        # What they had goes to others at once.
        with guests(world, *setups()) as successors:
            world.crew.wait_served(0, successors)
    world.ids.delete(world.tags[at].name)
