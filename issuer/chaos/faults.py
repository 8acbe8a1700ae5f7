"""The faults of `issuer chaos`. Each is a function that causes the fault, and returns when all servers work again."""

from __future__ import annotations

import random
import signal
import sqlite3
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any

from issuer.chaos.call_files import Follower
from issuer.chaos.crew import Worker
from issuer.chaos.proxy import FaultProxy
from issuer.chaos.waiting import until
from issuer.chaos.worker import POINTS
from issuer.chaos.world import PLAIN, STRICT, TREND, World, now
from issuer.errors import ConfigurationError, Unavailable

Strike = Callable[[World], None]

SCRIPTS = ("next", "lease", "open", "load")

#: Durations in seconds. DELAY: how late a reply is. STOPPED: how long a process is suspended. CUT_OFF: how long
#: processes have no Redis. REJOINED: time until these processes use Redis again. RUN_OUT: how long a tag has no
#: numbers.
DELAY, STOPPED, CUT_OFF, REJOINED, RUN_OUT = 0.3, 1.0, 0.5, 1.2, 0.5

#: Faults on the network, by their names in a report. Arguments of each function: a proxy, bytes that the affected
#: requests contain, and how many requests to affect.
WIRE: Mapping[str, Callable[[FaultProxy, bytes, int], None]] = {
    "request dropped": FaultProxy.drop_requests,
    "reply dropped": FaultProxy.drop_replies,
    "300 ms late": lambda front, match, times: front.delay_replies(DELAY, match, times),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `name`: value of --faults. `what`: what happens, for tables. `strike`: function that causes it."""

    name: str
    what: str
    strike: Strike


def entering(faults: list[Fault], name: str, what: str) -> Callable[[Strike], Strike]:
    """Return a decorator that adds a function to `faults`, as a fault with this name. `what`: what happens."""

    def entered(strike: Strike) -> Strike:
        faults.append(Fault(name, what, strike))
        return strike

    return entered


FAULTS: list[Fault] = []
fault = partial(entering, FAULTS)


def chosen(names: Iterable[str], among: Iterable[Fault]) -> list[Fault]:
    """Return the faults with these names; F2 means F2a, F2b and so on. Without names, return all faults."""
    wanted = {name.strip() for name in names}
    answering = {one: {one.name, one.name.rstrip(string.ascii_lowercase)} for one in among}
    for name in wanted.difference(*answering.values()):
        raise ConfigurationError(f"no fault {name!r}; there are {', '.join(one.name for one in answering)}")
    return [one for one, known in answering.items() if not wanted or wanted & known]


def some(world: World) -> Worker:
    return random.choice(world.crew.workers)  # noqa: S311 - no secret


# ---------------------------------------------------------------------- processes


def trapped(world: World, point: str, number: int) -> list[Worker]:
    """Send a signal to a worker that loads a segment. Return the workers that the signal hit.

    `point`: point of the load at which the signal is sent, one of worker.POINTS. `number`: number of the signal. The
    signal can hit several workers, because each tag has its own loader.
    """
    for worker in world.crew.workers:
        worker.trap(point, number)
    until(
        lambda: any(worker.sprung for worker in world.crew.workers),
        world.crew.patience,
        f"signal {number} hits a process after {point}",
    )
    return [worker for worker in world.crew.workers if not worker.untrap()]


def _killed_at(world: World, *, name: str, point: str) -> None:
    """Kill a worker while it loads a segment. `point`: the point of the load, one of worker.POINTS."""
    killed = trapped(world, point, signal.SIGKILL)
    with world.fault(f"{name} killed after {point}", hits=len(killed)):
        for worker in killed:
            world.crew.replaced(worker)


for name, point, what in zip(
    ("F1a", "F1b", "F1c"),
    POINTS,
    ("after `open`, before it reserves", "after it reserved, before `load`", "after `load`"),
    strict=True,
):
    fault(name, f"a loading process is killed {what}")(partial(_killed_at, name=name, point=point))


@fault("F8", "a process is stopped for a second")
def stopped(world: World) -> None:
    worker = some(world)
    others = [one for one in world.crew.workers if one is not worker]
    with world.fault("F8 process stopped", hits=1):
        world.crew.pause(worker)
        sleep(STOPPED)
        world.crew.wait_served(world.crew.stopped[worker.name][-1].began, others)
        world.crew.resume(worker)


# ---------------------------------------------------------------------- Redis goes back in time


@fault("F2a", "Redis is killed and restarted from a snapshot")
def back_from_a_snapshot(world: World) -> None:
    snapshot = world.master.snapshot()
    world.more()
    with world.fault("F2a back from a snapshot", hits=len(world.crew.workers)):
        world.master.restore(snapshot)


@fault("F2b", "Redis is killed and restarted without the end of its AOF")
def aof_tail_cut(world: World) -> None:
    master = world.master
    with master.client() as client:
        client.config_set("appendonly", "yes")
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 20, "the AOF is there")
    size = master.aof_size()
    world.more()
    master.appendonly = True
    try:
        with world.fault("F2b AOF tail cut", hits=len(world.crew.workers)):
            master.cut_aof(max(1, master.aof_size() - size))
    finally:
        with master.client() as client:
            client.config_set("appendonly", "no")
        master.appendonly = False


@fault("F2c", "Redis is killed and restarted without data")
def wiped(world: World) -> None:
    with world.fault("F2c wiped", hits=len(world.crew.workers)):
        world.master.wipe()


# ---------------------------------------------------------------------- failovers


@fault("F3a", "an operator fails over to a replica that lags")
def failover_by_hand(world: World) -> None:
    world.lag()
    with world.fault("F3a failover by hand", segments=4, hits=len(world.crew.workers)):
        world.master.kill()
        world.other.promote()
        world.swap()


@fault("F4", "master A follows B and is master again; connections stay open")
def there_and_back(world: World) -> None:
    """Make A a replica of B, so that A loses the last draws, and then a master again. Clients of A stay connected."""
    world.lag()
    with world.fault("F4 A -> B -> A", segments=4, hits=len(world.crew.workers)):
        world.link.pass_through()
        world.other.promote()
        world.master.replicaof(world.other)
        world.master.promote()


# ---------------------------------------------------------------------- the store


@fault("F6a", "the store is locked until Redis has no number left")
def store_locked(world: World) -> None:
    with closing(sqlite3.connect(world.folder / "store" / "issuer.db", timeout=10, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        with world.fault("F6a store locked", hits=len(world.crew.workers)):
            with world.master.client(decode_responses=True) as client:
                key = world.key(STRICT)
                until(lambda: used_up(client.hgetall(key)), world.crew.patience, "all is drawn")
            sleep(RUN_OUT)
            store.execute("ROLLBACK")


def used_up(fields: Any) -> bool:
    return bool(fields) and fields["cur"] == fields["max"] and "next_max" not in fields


# ---------------------------------------------------------------------- the network


def on_the_wire(world: World, name: str, manner: str, scripts: Sequence[str] = SCRIPTS) -> None:
    """Cause a fault on the network for the calls of one script, then of the next script, and so on.

    `name`: name of the fault. `manner`: kind of the fault, a key of WIRE. `scripts`: names of the scripts.
    """
    for script in scripts:
        before = sum(front.hits for front in world.fronts)
        with world.fault(f"{name} {manner}: {script}", hits=len(world.crew.workers)):
            for front in world.fronts:
                WIRE[manner](front, world.sha(script), 3)
            until(lambda: sum(front.hits for front in world.fronts) > before, world.crew.patience, f"{script} is hit")  # noqa: B023
            world.deliver()
        # Wait until all workers receive numbers again. Otherwise the next fault could affect the calls with which they
        # recover from this one.
        world.more()


for name, manner, what in (
    ("F9a", "request dropped", "a request to Redis is lost"),
    ("F9b", "reply dropped", "a reply of Redis is lost after the script has run"),
    ("F9c", "300 ms late", "replies of Redis are 300 ms late"),
):
    fault(name, what)(partial(on_the_wire, name=name, manner=manner))


# ---------------------------------------------------------------------- recover, and lost keys or scripts


def insisted(world: World, tag: str) -> None:
    """Recover the tag with `recover`. After a timeout, try again, as an operator would."""
    until(lambda: world.ids.recover(tag), world.crew.patience, f"{tag} is recovered", ignoring=(Unavailable,))


@fault("F10", "eight `recover` run at once, under load")
def recovered_at_once(world: World) -> None:
    one = random.choice(world.counted)  # noqa: S311 - no secret
    with world.fault("F10 eight recover", segments=2 * 2 * 8):
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(insisted, world, tag) for tag in world.counted for _ in range(8)]:
                done.result()
        world.commanded(8, "recover", one, "--yes")


@fault("F12a", "FLUSHALL while a load is under way")
def flushed(world: World) -> None:
    with world.fault("F12a FLUSHALL", hits=len(world.crew.workers)), world.held_load(), world.master.client() as client:
        client.flushall()


@fault("F12b", "SCRIPT FLUSH while a load is under way")
def scripts_flushed(world: World) -> None:
    with world.fault("F12b SCRIPT FLUSH"), world.held_load(), world.master.client() as client:
        client.script_flush()


@fault("F12c", "the key of a tag is deleted while a load is under way")
def key_deleted(world: World) -> None:
    hits = len(world.crew.workers)
    with world.fault("F12c key deleted", hits=hits), world.held_load(), world.master.client() as client:
        client.delete(*map(world.key, range(len(world.tags))))


@fault("F12d", "the reply of a load is lost, then the key is deleted")
def load_in_doubt(world: World) -> None:
    """Drop the reply of a load, draw its numbers, and delete the hash. A second load would repeat the numbers."""
    for front in world.fronts:
        front.drop_reply_then_hold(world.sha("load"))
    held = until(world.held, world.crew.patience, "a load is lost, the next one held")
    key = next(world.key(at) for at in range(len(world.tags)) if world.key(at).encode() in held[0])
    with world.master.client(decode_responses=True) as client:
        # Wait until all loaded numbers are drawn. No more arrive while loads are held.
        until(lambda: used_up(client.hgetall(key)), world.crew.patience, "all is drawn")
        with world.fault("F12d load in doubt", segments=4, hits=len(world.crew.workers)):
            client.delete(key)
            until(lambda: client.exists(key), 10, "the hash is prepared again")
            world.deliver()


@fault("F12e", "Redis evicts all keys while a load is under way")
def evicted(world: World) -> None:
    keys = [world.key(at) for at in range(len(world.tags))]
    fault = world.fault("F12e evicted", segments=4, hits=len(world.crew.workers))
    with fault, world.held_load() as held, world.master.client() as client:
        before = client.info("stats")["evicted_keys"]
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", 1)
        # Redis accepts no writes now, so evicted keys stay deleted.
        until(lambda: client.info("stats")["evicted_keys"] > before and not client.exists(*keys), 10, "all are evicted")
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        of_held = [key for key in keys if any(key.encode() in one for one in held)]
        until(lambda: client.exists(*of_held) == len(of_held), world.crew.patience, "the hash is prepared again")


# ---------------------------------------------------------------------- forks, and processes without Redis


def _fork(world: World, forking: Sequence[Worker], only: Sequence[int]) -> None:
    """Let workers fork, one after another. Return when each child has drawn numbers. `only`: indices of the tags."""
    for worker in forking:
        since = now()
        worker.process.send_signal(signal.SIGUSR1)
        for at in only:
            drawn = partial(_child_served, world, worker, at, since)
            until(drawn, world.crew.patience, f"the child draws {world.tags[at].name}")


def _child_served(world: World, worker: Worker, at: int, since: int) -> bool:
    children = {path.name.split(".")[1] for path in world.folder.glob(f"{at}.{worker.name}f*")}
    return any(Follower(world.folder, child).served(at, since) for child in children)


def _forking(workers: Iterable[Worker]) -> list[Worker]:
    return [worker for worker in workers if any(job.manner == "run" for job in worker.setup.jobs)]


@fault("F18a", "a process with a lease forks")
def forked(world: World) -> None:
    forking = _forking(world.crew.workers)
    with world.fault("F18a fork in mid-lease", hits=len(forking)):
        _fork(world, forking, [TREND])


@fault("F18b", "processes that are cut off from Redis fork")
def forked_direct(world: World) -> None:
    cut, _ = world.halves()
    forking = _forking(cut)
    world.fronts[0].refuse()
    with world.fault("F18b fork in direct mode", hits=2 * len(cut)):
        world.crew.wait_served(now(), cut, only=[TREND, PLAIN])
        _fork(world, forking, [TREND, PLAIN])
        world.fronts[0].pass_through()


@fault("F21", "half of the processes are cut off from Redis")
def cut_off(world: World) -> None:
    cut, others = world.halves()
    world.fronts[0].refuse()
    since = now()
    try:
        world.crew.wait_served(since, others)
        world.crew.wait_served(since, cut, only=[TREND, PLAIN])
        sleep(CUT_OFF)
    finally:
        # When a process uses Redis again, Redis skips the numbers that the process has issued without Redis. A segment
        # that is being loaded at this moment can be lower than these numbers. Its load is rejected, so it is lost.
        with world.fault("F21 cut off", hits=len(cut), segments=2 + len(cut)):
            world.fronts[0].pass_through()
    # The processes use Redis again after their next periodic check, within a second.
    sleep(REJOINED)
