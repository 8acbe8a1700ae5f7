"""A world in which Redis's clock is set while it runs, and the faults that only it has."""

import random
import signal
from pathlib import Path
from time import sleep

from issuer.chaos.faults import Fault, trapped
from issuer.chaos.world import now
from tests.proofs.chaos.groups import only
from tests.proofs.chaos.more import HOUR, Pair
from tests.proofs.chaos.wire import COLOURS, jobs, machine_tag, more_wanted
from tests.proofs.chaos.worker import guest, guests
from tests.servers.clocked import ClockedServer
from tests.servers.proxy import FaultProxy

#: A machine number is renewed after a third of its 5 s: so long it lasts at least once nobody renews it.
UNRENEWED = 2.0


class ClockWorld(Pair):
    """The pair of servers, with clocks of their own."""

    master: ClockedServer

    def server(self, binary: Path) -> ClockedServer:
        return ClockedServer(binary)


def clock_set(world: ClockWorld) -> None:
    """An hour off with a load on its way; then right again, while whoever was elected is dead."""
    for off in (HOUR, -HOUR):
        with world.fault("F7b clock of Redis set, a load on its way", segments=4), world.held_load():
            world.master.set_clock(off)
        world.more()
        killed = trapped(world, "reserve", signal.SIGKILL)
        with world.fault("F7b clock of Redis set, the loader killed", segments=4, hits=len(killed)):
            world.master.set_clock(0)
            for worker in killed:
                world.crew.replaced(worker)
        world.more()


def machine_numbers_lapse(world: ClockWorld) -> None:
    """Redis, an hour ahead, gives a machine number away that another process, which is cut off, still uses."""
    at = machine_tag(world, bits=1)
    with FaultProxy(world.master.address) as front:
        holders = [guest(world, front.url, colour, *jobs(world, at)) for colour in COLOURS]
        with guests(world, *holders) as holding:
            world.crew.wait_served(0, holding)
            with more_wanted(world, at, random.choice(COLOURS)) as wanting:
                # The clock is set three times, and each time may cost what it does in F7b.
                with world.fault("F7c clock of Redis set, machine numbers held", segments=3 * 4):
                    front.refuse()
                    world.master.set_clock(HOUR)
                    world.crew.wait_served(now(), wanting)
                    front.pass_through()
                    world.master.set_clock(-HOUR)
                    sleep(UNRENEWED)
                    world.master.set_clock(0)
                world.crew.wait_served(now(), wanting)
    world.ids.delete(world.tags[at].name)


CLOCK_FAULTS = [
    Fault("F7b", "Redis's clock set an hour ahead, back, and right again", only(ClockWorld, clock_set)),
    Fault("F7c", "Redis's clock set while machine numbers are held", only(ClockWorld, machine_numbers_lapse)),
]
