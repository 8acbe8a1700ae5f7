"""Faults beyond those that `issuer chaos` offers, for the same world."""

import random
import resource
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from issuer.chaos.call_files import CallFile
from issuer.chaos.faults import Fault, entering, some, trapped
from issuer.chaos.world import PLAIN, STRICT, TREND, World, now
from issuer.clock import Deadline
from issuer.core.supply import direct
from issuer.drivers.blocking.runner import Runner
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.opening import open_store
from tests.proofs.chaos.copies import copied
from tests.proofs.chaos.guards import hand_back_whatever_the_version, removed, scripts_without
from tests.proofs.chaos.worker import Guarded, closed, relieve, set_clock
from tests.servers.disks import filled, is_small
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

MORE: list[Fault] = []
fault = partial(entering, MORE)

#: Seconds that a clock is off.
HOUR = 3600.0
#: How long two masters serve at once, a loader is stopped, and the rest lasts: `make chaos` makes them longer.
LASTS = {"both alive": 1.0, "stopped": 2.0, "else": 0.5}


class Pair(Guarded):
    """The world of `issuer chaos` on servers and before proxies that the faults of these tests ask more of."""

    master: RedisServer
    fronts: list[FaultProxy]  # type: ignore[assignment]

    def server(self, binary: Path) -> RedisServer:
        return RedisServer(binary)

    def proxy(self, upstream: tuple[str, int]) -> FaultProxy:
        return FaultProxy(upstream)


# ------------------------------------------------------------------------------------------------ masters and replicas


@fault("F5", "old and new master both alive")
def both_alive(world: World) -> None:
    world.lag()
    with world.fault("F5 both masters alive", segments=8, hits=len(world.crew.workers), split=True):
        world.other.promote()
        world.fronts[1].redirect(world.other.address)
        sleep(LASTS["both alive"])
        world.more()
        world.master.kill()
        world.swap()


@fault("F16", "half of the processes led to a writable replica")
def writable_replica(world: World) -> None:
    _, led = world.halves()
    world.follow()
    with world.other.client() as client:
        client.config_set("replica-read-only", "no")
    with world.fault("F16 writable replica", hits=len(led)):
        world.fronts[1].redirect(world.other.address)
        sleep(LASTS["else"])
        world.fronts[1].redirect(world.master.address)
    # What was written to it would stay in a partial copy.
    world.other.wipe()


# ------------------------------------------------------------------------------------------------ clocks and processes


@fault("F7a", "the clock of a process an hour off from its start, and that of one set while it runs")
def clock_of_a_process(world: World) -> None:
    with world.fault("F7 clock of a process", hits=2):
        world.crew.replaced(some(world), clock=random.choice([HOUR, -HOUR]))
        running = some(world)
        for off in (HOUR, -HOUR, 0.0):
            set_clock(running, off)
            sleep(LASTS["else"] / 2)
            world.crew.wait_served(now(), [running])


@fault("F8b", "a process stopped between its reservation and its load")
def stopped_before_its_load(world: World) -> None:
    caught = trapped(world, "reserve", signal.SIGSTOP)
    with world.fault("F8 stopped before load", hits=len(caught)):
        for worker in caught:
            until(lambda: worker.halted, 10, "it is stopped")  # noqa: B023
            world.crew.pause(worker)
        sleep(LASTS["stopped"])
        world.crew.wait_served(now(), [worker for worker in world.crew.workers if worker not in caught])
        for worker in caught:
            world.crew.resume(worker)


# ------------------------------------------------------------------------------------------------ tags and their hashes


@fault("F23", "a tag deleted and made again while others draw")
def made_again(world: World) -> None:
    at = random.choice([STRICT, TREND, PLAIN])
    tag = world.tags[at]
    with world.fault("F23 deleted and made again", segments=4, hits=len(world.crew.workers)):
        world.ids.delete(tag.name)
        sleep(LASTS["else"] / 5)
        world.ids.create(tag.name, **made_as(world, at))


def made_as(world: World, at: int) -> dict[str, Any]:
    """How the world has made this one of the tags that its processes draw."""
    tag = world.tags[at]
    lease = {STRICT: None, TREND: tag.lease, PLAIN: 0}[at]
    return {"step": tag.step, "order": "strict" if at == STRICT else "trend", "lease": lease}


# ------------------------------------------------------------------------------------------------ what is handed back


def end_with_a_lease(world: World, seen: Callable[[], object]) -> None:
    """Let one process after the other end and be replaced, until one had something left to give back."""
    for _ in range(2 * len(world.crew.workers)):
        world.crew.wait_served(world.strikes[-1].back if world.strikes else 0)
        world.crew.replaced(world.crew.workers[0])
        if seen():
            return
    raise AssertionError("nobody gave anything back")


@fault("F22c", "a segment handed back to the store, and again when somebody else has it")
def handed_back_again(world: World) -> None:
    hand_back = hand_back_whatever_the_version if "version" in removed(world) else direct.hand_back
    record = CallFile(world.folder, PLAIN, f"desk{secrets.token_hex(4)}", 0)
    opened = open_store(world.store)
    kept = Journalled(opened, world.journal) if world.journal else opened
    with closing(kept) as store, world.fault("F22 handed back again", segments=8):
        runner = Runner(store, None, 2.0)
        if isinstance(store, Journalled):
            # Without the guard the last time's harm stands in the journal, and would be found out here.
            store._compared.add("plain")

        def reserved() -> Reservation:
            return store.reserve("plain", world.terms.step, purpose=Purpose("direct"), timeout=2)

        def taken_by_another() -> tuple[Reservation, Reservation] | None:
            ours = reserved()
            if not runner.run(direct.hand_back([ours], ours.low), Deadline(2)):
                return None  # one of the processes has reserved in between
            theirs = reserved()
            return (ours, theirs) if theirs.low == ours.low else None

        pair = until(taken_by_another, 10, "the segment is somebody else's")
        assert pair
        ours, theirs = pair
        began = now()
        record.note(theirs.low + 1, theirs.high, began, now())
        runner.run(hand_back([ours], ours.low), Deadline(2))


@fault("F22d", "a lease given back again when others have drawn up to its end")
def given_back_again(world: World) -> None:
    record, scripts = CallFile(world.folder, TREND, f"desk{secrets.token_hex(4)}", 0), scripts_without(removed(world))
    with world.master.client() as client, world.fault("F22 given back again", segments=8):

        def script(name: str, *words: object) -> list[bytes]:
            reply: Any = client.eval(scripts[name].text, 1, world.key(TREND), *map(str, words))
            return list(reply)

        def drawn_by_another() -> tuple[Sequence[bytes], int, int] | None:
            status, *ours = script("lease", 7, -1)
            if status != b"ok":
                return None
            low, high, *under = (word.decode() for word in ours)
            if script("giveback", low, high, *under) != [b"back"]:
                return None  # one of the processes has drawn in between
            theirs = script("lease", 7, -1)
            began = now()
            if theirs[0] == b"ok":
                record.note(int(theirs[1]) + 1, int(theirs[2]), began, now())
            return (ours, int(low), int(high)) if theirs[1:3] == ours[:2] else None

        copy, low, high = until(drawn_by_another, 10, "others have drawn up to the same end") or ((), 0, 0)
        script("giveback", low, high, *(word.decode() for word in copy[2:]))


# ------------------------------------------------------------------------------------------------ the store


@fault("F6b", "the store restored from an old copy, the issuers stopped")
def store_restored(world: World) -> None:
    with copied(world) as put_back:
        before = world.ids.inspect("strict").store.max
        until(lambda: world.ids.inspect("strict").store.max > before, world.crew.patience, "max rises")
        with world.fault("F6 store restored", segments=4, hits=len(world.crew.workers)):
            setups = relieve(world)
            put_back()
            # A trend tag may have been served direct since the copy: of that only the journal knows.
            for tag in world.counted[TREND:]:
                world.ids.recover(tag, from_journal=journals(world))
            fresh = world.crew.start(*setups)
            # Redis knows better than the store: whoever extends finds out, and stops everybody's reservations.
            until(lambda: world.ids.inspect("strict").store.halted, world.crew.patience, "the store is found behind")
            world.ids.recover()
        world.crew.wait_served(0, fresh)


@fault("F19", "the disk of the embedded store full")
def disk_full(world: World) -> None:
    """A true one where the store has a small disk of its own; else no process may write beyond a file's first bytes."""
    path = world.folder / "store" / "issuer.db"
    on_disk = is_small(path.parent)
    manner = "ENOSPC" if on_disk else "limit"
    with (
        world.fault(f"F19 disk full ({manner})", hits=len(world.crew.workers)),
        filled(path) if on_disk else no_larger_files(world),
    ):
        sleep(LASTS["else"] * 2)


@contextmanager
def no_larger_files(world: World) -> Iterator[None]:
    pids = [worker.process.pid for worker in world.crew.workers]
    limits = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids]
    for pid, (_, hard) in zip(pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, hard))
    yield
    for pid, limit in zip(pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


@fault("F6d", "the store restored from an old copy, younger segments served direct, Redis wiped")
def store_restored_under_direct_segments(world: World) -> None:
    """What has been issued since has left its only trace in the journal."""
    cut, _ = world.halves()
    with copied(world) as put_back:
        world.fronts[0].refuse()
        sleep(LASTS["else"] * 2)
        world.crew.wait_served(now(), cut, only=[TREND, PLAIN])
        with world.fault("F6 restored, with the journal", segments=8, hits=2 * len(world.crew.workers)):
            world.fronts[0].pass_through()
            setups = relieve(world)
            world.master.wipe()
            with closed(world):
                put_back()
            world.ids.recover(from_journal=journals(world))
            fresh = world.crew.start(*setups)
    world.crew.wait_served(0, fresh)


def journals(world: World) -> list[Path]:
    """The files of the world's journal, none if it keeps none."""
    return [path for path in sorted((world.folder / "journal").glob("journal*")) if path.suffix != ".lock"]
