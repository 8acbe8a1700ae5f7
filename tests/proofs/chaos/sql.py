"""Worlds on PostgreSQL and MariaDB, and the faults that only they have."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import ClassVar

from issuer.chaos.faults import WIRE, Fault
from issuer.chaos.world import Terms
from tests.proofs.chaos.groups import hand_backs_hit, only
from tests.proofs.chaos.more import LASTS, Pair, store_restored
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer, find_postgres
from tests.servers.proxy import FaultProxy
from tests.waiting import until

#: Prefix of the tables.
TABLES = "chaos_"


class SQLWorld(Pair):
    """The pair of servers on an SQL database behind a proxy."""

    #: What the requests of a reservation contain, by name, and those of a hand-back.
    calls: ClassVar[Mapping[str, bytes]]
    hand_back: ClassVar[Mapping[str, bytes]]

    def __init__(self, folder: Path, binary: Path, terms: Terms) -> None:
        with ExitStack() as ends:
            self.sql = self.database()
            ends.enter_context(self.sql)
            self.store_proxy = ends.enter_context(FaultProxy((LOOPBACK, self.sql.port)))
            url = self.sql.url.replace(f":{self.sql.port}/", f":{self.store_proxy.port}/")
            super().__init__(folder, binary, terms, f"{url}?prefix={TABLES}")
            self._servers = ends.pop_all()

    def database(self) -> PostgresServer | MariaDBServer:
        """Return the server, which is not started yet."""
        raise NotImplementedError

    def __exit__(self, *rest: object) -> None:
        super().__exit__(None, None, None)
        self._servers.close()


class PostgresWorld(SQLWorld):
    calls: ClassVar = {"begin": b"BEGIN ISOLATION", "reserve": b'INSERT INTO "chaos_segments"', "commit": b"COMMIT\0"}
    hand_back: ClassVar = {"shorten": b'UPDATE "chaos_segments"', "hand back": b'UPDATE "chaos_tags" SET "tag"'}

    def database(self) -> PostgresServer:
        return PostgresServer(find_postgres() or absent("postgres and initdb", "postgresql"))


class MariaDBWorld(SQLWorld):
    calls: ClassVar = {
        "begin": b"START TRANSACTION",
        "read": b"FOR UPDATE",
        "write": b'UPDATE "chaos_tags"',
        "ledger": b'INSERT INTO "chaos_segments"',
        "commit": b"\x03COMMIT",
    }
    hand_back: ClassVar = {"shorten": b'UPDATE "chaos_segments"', "hand back": b'UPDATE "chaos_tags"'}

    def database(self) -> MariaDBServer:
        return MariaDBServer(find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server"))


def killed(world: SQLWorld) -> None:
    """A reservation, and then a commit, is on its way when the server dies."""
    for call in ("reserve" if "reserve" in world.calls else "ledger", "commit"):
        world.store_proxy.hold(world.calls[call], times=1)
        until(lambda: world.store_proxy.held, world.crew.patience, f"{call} is on its way")
        with world.fault(f"SQL server killed: {call}", hits=len(world.crew.workers), segments=4):
            world.store_proxy.release()
            world.sql.kill()
            world.store_proxy.pass_through()
            sleep(LASTS["else"])
            world.sql.start()
        world.more()


def sessions_ended(world: SQLWorld) -> None:
    """All sessions end, some of them in the middle of a transaction."""
    world.store_proxy.hold(world.calls["commit"], times=1)
    until(lambda: world.store_proxy.held, world.crew.patience, "a commit is on its way")
    with world.fault("SQL sessions ended", hits=len(world.crew.workers), segments=4):
        world.sql.end_sessions()
        world.store_proxy.pass_through()
        world.store_proxy.release()
    world.more()


def frozen(world: SQLWorld) -> None:
    with world.fault("SQL server frozen", hits=len(world.crew.workers), segments=4), world.sql.frozen():
        sleep(LASTS["stopped"])
    world.more()


def on_the_wire(manner: str) -> Callable[[SQLWorld], None]:
    def strike(world: SQLWorld) -> None:
        for call, match in world.calls.items():
            before = world.store_proxy.hits
            with world.fault(f"SQL {manner}: {call}", hits=len(world.crew.workers), segments=4):
                WIRE[manner](world.store_proxy, match, 1)
                until(lambda: world.store_proxy.hits > before, world.crew.patience, f"{call} is hit")  # noqa: B023
                world.store_proxy.pass_through()
            # Else the next call to be hit may be the one that was to bring the service back.
            world.more()

    return strike


def handing_back_hit(world: SQLWorld) -> None:
    hand_backs_hit(world, world.store_proxy, world.hand_back, "SQL")


def _faults(family: str, database: str, kind: type[SQLWorld]) -> list[Fault]:
    return [
        Fault(f"{family}a", f"{database} killed in mid-reserve and in mid-commit", only(kind, killed)),
        Fault(f"{family}b", f"all sessions of {database} ended", only(kind, sessions_ended)),
        Fault(f"{family}c", f"{database} stands still", only(kind, frozen)),
        Fault(f"{family}d", f"a request to {database} dropped", only(kind, on_the_wire("request dropped"))),
        Fault(f"{family}e", f"a reply of {database} dropped", only(kind, on_the_wire("reply dropped"))),
        Fault(f"{family}f", f"replies of {database} 300 ms late", only(kind, on_the_wire("300 ms late"))),
        Fault(f"{family}g", f"what hands a segment back to {database} dropped, late", only(kind, handing_back_hit)),
        Fault(f"{family}h", f"{database} restored from an old copy, the issuers stopped", store_restored),
    ]


POSTGRES_FAULTS = _faults("F24", "PostgreSQL", PostgresWorld)
MARIADB_FAULTS = _faults("F25", "MariaDB", MariaDBWorld)
