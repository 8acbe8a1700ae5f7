"""Two servers, as behind a load balancer, whose clients draw over HTTP and Redis's protocol, and what strikes them."""

import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from issuer.chaos.faults import FAULTS, STOPPED, WIRE, Fault, entering
from issuer.chaos.ports import LOOPBACK
from issuer.chaos.worker import Job, Setup
from issuer.chaos.world import PREFIX, Terms, World, now
from issuer.errors import IssuerError
from tests.programs import children
from tests.proofs.chaos.door_client import DoorSetup
from tests.proofs.chaos.guards import removed
from tests.proofs.chaos.more import MORE, Pair
from tests.proofs.chaos.worker import guests
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.servers.watchdog import launch
from tests.waiting import until

#: `issuer` without some guards.
_SERVER = """
import sys
from collections.abc import Sequence
from tests.proofs.chaos.guards import take_out
take_out(sys.argv[1].split())
from issuer.cli import main
main(sys.argv[2:])
"""
WORKERS = 2
#: The workers, the keeper.
PROCESSES = WORKERS + 1

STEP = 20_000
#: The most numbers that a client draws one by one before it writes them down.
ROW = 50

KEYED = "keyed"


class DoorServer:
    """`issuer serve` with both doors. Its clients find each behind a proxy."""

    def __init__(self, folder: Path, redis: str, terms: Terms, without: Sequence[str], **settings: str) -> None:
        """`without`: guards to remove. `settings`: options of the command."""
        self._folder = folder
        self._ports = {door: free_port() for door in ("http", "resp")}
        self.fronts = {door: FaultProxy((LOOPBACK, port)) for door, port in self._ports.items()}
        listening = [word for door, port in self._ports.items() for word in (f"--{door}", f"{LOOPBACK}:{port}")]
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._command = [
            *("env", *(f"--unset={name}" for name in os.environ if name.startswith("ISSUER_"))),
            *(f"TMPDIR={folder}", "ISSUER_REDIS_TIMEOUT=0.5", "ISSUER_STORE_TIMEOUT=0.6"),
            *(f"ISSUER_JOURNAL={folder / 'journal' / 'journal'}" if terms.journal else "ISSUER_JOURNAL=",),
            *(sys.executable, "-c", _SERVER, " ".join(without), "--redis", redis, *options),
            *("serve", *listening, "--workers", str(WORKERS)),
        ]
        self._starts = 0
        self.start()

    @property
    def _log(self) -> Path:
        return self._folder / f"serve.{self._ports['http']}.{self._starts}"

    @property
    def serves(self) -> bool:
        if self._process.poll() is not None:
            raise IssuerError(f"a server has ended: {self._log.read_text()[-1000:]}")
        return "serving " in self._log.read_text()

    def start(self) -> None:
        """Start it, and don't wait until it serves."""
        self._starts += 1
        with self._log.open("wb") as log:
            self._process = launch(self._command, self._folder, log)

    def processes(self) -> list[int]:
        """Its workers and its keeper."""
        return children(self._process.pid)

    @property
    def whole(self) -> bool:
        return len(self.processes()) == PROCESSES

    def kill(self) -> None:
        """Kill all of its processes at once, as a machine does that loses its power."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Tell it to stop, and return its exit code."""
        self._process.terminate()
        return self._process.wait(60)

    def close(self) -> None:
        if self._process.poll() is None:
            self.end()
        for front in self.fronts.values():
            front.close()


class DoorWorld(Pair):
    """The pair of servers, before each front an `issuer serve`, and clients of both. Half of them draw from each."""

    servers: list[DoorServer]

    def __init__(self, folder: Path, binary: Path, terms: Terms, store: str | None = None) -> None:
        # A call through a door brings fewer numbers, and some faults wait until all are drawn.
        super().__init__(folder, binary, replace(terms, step=min(terms.step, STEP)), store)

    def setups(self, config: str) -> list[Setup]:
        self.servers = []
        for front in self.fronts:
            settings = {"store": self.store, "prefix": PREFIX, "timeout": str(self.terms.timeout), "config": config}
            self.servers.append(DoorServer(self.folder, front.url, self.terms, removed(self), **settings))
            self._ends.callback(self.servers[-1].close)
        until(lambda: all(server.serves for server in self.servers), 120, "the servers serve")
        doors = {"w0": (0, "http"), "w1": (1, "resp"), "w2": (1, "http"), "w3": (0, "resp")}
        return [self.client(setup, *doors[setup.name], setup.jobs) for setup in super().setups(config)]

    def client(self, setup: Setup, server: int, door: str, jobs: list[Job]) -> DoorSetup:
        """The settings of a client of this server with these jobs."""
        # A row stands in the record when it is over: each of its numbers takes a round trip here.
        jobs = [replace(job, most=min(job.most, ROW)) if job.manner in ("run", "stream") else job for job in jobs]
        told: dict[str, Any] = {"jobs": jobs, "colour": "threads", "redis": self.fronts[server].url}
        return DoorSetup(**asdict(setup) | told | {"door": door, "port": self.servers[server].fronts[door].port})

    def watch(self, name: str, order: str, base: int, *, keyed: bool = False, counted: bool = True) -> int:
        at = super().watch(name, order, base, keyed=keyed, counted=counted)
        self.tags[at].served = True
        return at


#: Those of the other faults that are about Redis, the store, and what lies between.
THROUGH = ("F2a", "F2b", "F2c", "F3a", "F4", "F5", "F6a", "F9a", "F9b", "F9c", "F10", "F16", "F21", "F23")
FLUSHED = ("F12a", "F12b", "F12c", "F12d", "F12e")

DOOR_FAULTS: list[Fault] = [
    replace(fault, name=f"D{fault.name[1:]}", what=f"servers draw: {fault.what}")
    for fault in [*FAULTS, *MORE]
    if fault.name in (*THROUGH, *FLUSHED)
]
fault = partial(entering, DOOR_FAULTS)


def one(world: World) -> DoorServer:
    assert isinstance(world, DoorWorld)
    return random.choice(world.servers)


@fault("D24a", "a process of a server killed: a worker, or its keeper")
def process_killed(world: World) -> None:
    server = one(world)
    until(lambda: server.whole, world.crew.patience, "all processes run")
    with world.fault("D24a process of a server killed", hits=1):
        os.kill(random.choice(server.processes()), signal.SIGKILL)
    until(lambda: server.whole, world.crew.patience, "another one is started")


@fault("D24b", "a server killed with all its processes, and started again")
def server_killed(world: World) -> None:
    server = one(world)
    with world.fault("D24b server killed", hits=PROCESSES):
        server.kill()
        server.start()


@fault("D24c", "a server told to stop, and started again")
def server_restarted(world: World) -> None:
    server = one(world)
    with world.fault("D24c server restarted", hits=PROCESSES):
        code = server.end()
        server.start()
    if code not in (0, 1):  # 1: the machine stood still, and what had not ended in time was killed
        raise IssuerError(f"a server that was told to stop ended with {code}")


@fault("D24d", "a process of a server stopped for a second")
def process_stopped(world: World) -> None:
    server = one(world)
    with world.fault("D24d process of a server stopped", hits=1):
        stopped = random.choice(server.processes())
        os.kill(stopped, signal.SIGSTOP)
        sleep(STOPPED)
        os.kill(stopped, signal.SIGCONT)


@fault("D24e", "what a client sends dropped, its answer dropped, and late; who has an Idempotency-Key asks again")
def answers_lost(world: World) -> None:
    assert isinstance(world, DoorWorld)
    names = [tag.name for tag in world.tags]
    at = names.index(KEYED) if KEYED in names else world.create(KEYED, "strict", keyed=True)
    # Keys that no run before has used: Redis may have forgotten those, and then gives other numbers.
    job = Job(at, KEYED, "once", callers=2, key=random.getrandbits(48) << 14)
    like = world.crew.workers[0].setup
    setups = [world.client(world.crew.renamed(like), server, "http", [job]) for server in range(len(world.servers))]
    with guests(world, *setups) as drawing:
        world.crew.wait_served(0, drawing)
        for manner, hit in WIRE.items():
            for door, match in {"http": b"Idempotency-Key", "resp": b"INCR"}.items():
                fronts = [server.fronts[door] for server in world.servers]
                before = sum(front.hits for front in fronts)
                with world.fault(f"D24e {manner}: {door}", hits=len(fronts)):
                    for front in fronts:
                        hit(front, match, 3)
                    until(lambda: sum(front.hits for front in fronts) > before, world.crew.patience, f"{door} is hit")  # noqa: B023
                    for front in fronts:
                        front.pass_through()
                world.more()
                world.crew.wait_served(now(), drawing)
