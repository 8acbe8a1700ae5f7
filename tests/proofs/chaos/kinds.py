"""The kinds of worlds, and which faults strike each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from issuer.chaos.faults import FAULTS, Fault
from issuer.chaos.world import Terms, World
from tests.proofs.chaos.clocks import CLOCK_FAULTS, ClockWorld
from tests.proofs.chaos.doors import DOOR_FAULTS, DoorWorld
from tests.proofs.chaos.groups import (
    CLUSTER_FAULTS,
    MONGO_FAULTS,
    SENTINEL_FAULTS,
    ClusterWorld,
    MongoWorld,
    SentinelWorld,
)
from tests.proofs.chaos.mongo_set import MONGO_SET_FAULTS, MongoSetWorld
from tests.proofs.chaos.more import MORE, Pair
from tests.proofs.chaos.sql import MARIADB_FAULTS, POSTGRES_FAULTS, MariaDBWorld, PostgresWorld
from tests.proofs.chaos.wire import WIRED
from tests.servers.clocked import clocked_binary, find_clocked
from tests.servers.mariadb import find_mariadb
from tests.servers.mongo import find_mongod
from tests.servers.postgres import find_postgres

#: How many turns of faults come between two checks, after which a new world is made.
BOUT = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """`make` a world in a folder, on that server. `here`: whether this machine has what it needs.

    `server`: the one that it takes when that one is preferred.
    """

    name: str
    make: Callable[[Path, Path, Terms], World]
    faults: Sequence[Fault]
    here: Callable[[], bool] = lambda: True
    server: Callable[[Path], Path] = lambda preferred: preferred


KINDS = [
    Kind("two servers", Pair, [*FAULTS, *MORE, *WIRED]),
    Kind("Sentinel", SentinelWorld, SENTINEL_FAULTS),
    Kind("Cluster", ClusterWorld, CLUSTER_FAULTS),
    Kind("MongoDB", MongoWorld, MONGO_FAULTS, lambda: find_mongod() is not None),
    Kind("MongoDB set", MongoSetWorld, MONGO_SET_FAULTS, lambda: find_mongod() is not None),
    Kind("PostgreSQL", PostgresWorld, POSTGRES_FAULTS, lambda: find_postgres() is not None),
    Kind("MariaDB", MariaDBWorld, MARIADB_FAULTS, lambda: find_mariadb() is not None),
    Kind("doors", DoorWorld, DOOR_FAULTS),
    Kind("clocks", ClockWorld, CLOCK_FAULTS, lambda: find_clocked() is not None, clocked_binary),
]
