"""A world on a MongoDB of three members, and the elections that only it has."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import sleep

from pymongo.errors import PyMongoError

from issuer.chaos.faults import Fault
from issuer.chaos.worker import Job, Setup
from issuer.chaos.world import PLAIN, TREND, Terms
from tests.proofs.chaos.groups import only
from tests.proofs.chaos.more import LASTS, Pair
from tests.proofs.chaos.wire import go_direct
from tests.servers.mongo import ROLLED_BACK, MongoServers, needed_mongod
from tests.waiting import until


class MongoSetWorld(Pair):
    """The pair of servers, on a replica set of three. Segments are so short that each election is felt."""

    def __init__(self, folder: Path, binary: Path, terms: Terms) -> None:
        with ExitStack() as ends:
            self.mongo = ends.enter_context(MongoServers(needed_mongod(), 3))
            # One that looks for a server looks as long as its call may take.
            url = f"{self.mongo.url}/chaos?serverSelectionTimeoutMS=10000"
            super().__init__(folder, binary, replace(terms, step=10, lease=5, most=4, pace=0.01), url)
            self._servers = ends.pop_all()

    def setups(self, config: str) -> list[Setup]:
        """One more works without Redis."""
        served = super().setups(config)
        direct = Job(PLAIN, "plain", "take", 2, 4), Job(TREND, "trend", "run", 1, 10)
        return [*served, replace(served[1], name="w4", redis="none", jobs=[*direct])]

    def __exit__(self, *rest: object) -> None:
        super().__exit__(None, None, None)
        self._servers.close()


def _election(name: str, strike: Callable[[MongoServers], None]) -> Fault:
    """A fault that lasts until there is a primary. All members are there when the next one strikes."""

    def struck(world: MongoSetWorld) -> None:
        with world.fault(f"{name}", segments=4, hits=len(world.crew.workers)):
            strike(world.mongo)
            world.mongo.primary()
        world.more()
        with world.fault(f"{name.partition(' ')[0]} members back", segments=4, hits=len(world.crew.workers)):
            world.mongo.start()

    return Fault(name.partition(" ")[0], name.partition(" ")[2], only(MongoSetWorld, struck))


def _killed(mongo: MongoServers) -> None:
    mongo.primary().kill()


def _frozen(mongo: MongoServers) -> None:
    """Until a majority writes again: for 9 s after the election a secondary may still ask the old primary."""
    primary = mongo.primary()
    with primary.frozen():
        until(lambda: mongo.primary() is not primary, message="another one is elected")
        with mongo.client(w="majority") as client:
            until(
                lambda: client["chaos"]["written"].insert_one({}), message="a majority writes", ignoring=(PyMongoError,)
            )


def _no_majority(mongo: MongoServers) -> None:
    for each in mongo.secondaries():
        each.kill()
    sleep(LASTS["stopped"])
    mongo.start()


def _all_killed(mongo: MongoServers) -> None:
    mongo.kill()
    mongo.start()


def rolled_back(world: MongoSetWorld) -> None:
    """The primary takes reservations that no other member has, and follows one that has others instead."""
    mongo = world.mongo
    old = mongo.primary()
    before = len(old.log(ROLLED_BACK))
    with world.fault("F26f rollback", segments=4, hits=len(world.crew.workers)):
        mongo.diverge(old, lambda: sleep(LASTS["else"]))
    world.more()
    with world.fault("F26f members back", segments=4, hits=len(world.crew.workers)):
        mongo.start()
        until(lambda: len(old.log(ROLLED_BACK)) > before, message="its writes are rolled back")


def election_without_redis(world: MongoSetWorld) -> None:
    """Processes that have no Redis reserve all their numbers in the store, which elects."""
    cut = go_direct(world)
    with world.fault("F26g election, Redis away", segments=4, hits=len(world.crew.workers)):
        world.mongo.step_down()
        world.mongo.primary()
    world.crew.wait_served(world.strikes[-1].back, cut, only=[TREND, PLAIN])
    world.fronts[0].pass_through()
    world.more()


MONGO_SET_FAULTS = [
    _election("F26a MongoDB's primary steps down", MongoServers.step_down),
    _election("F26b MongoDB's primary killed", _killed),
    _election("F26c MongoDB's primary stands still", _frozen),
    _election("F26d MongoDB without a majority", _no_majority),
    _election("F26e all members of MongoDB killed", _all_killed),
    Fault("F26f", "writes of MongoDB's primary rolled back", only(MongoSetWorld, rolled_back)),
    Fault("F26g", "MongoDB elects while processes have no Redis", only(MongoSetWorld, election_without_redis)),
]
