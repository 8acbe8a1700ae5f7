"""Reserves while the disk of its tables is full: python -m tests.stores.sql.full_disk_app KIND.

It has mounts of its own, in which it starts the server. Prints a JSON object.
"""

import json
import pwd
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import issuer
from issuer_persistence.errors import Full
from issuer_persistence.opening import open_store
from tests.servers.disks import fill, is_small, small_disk
from tests.servers.mariadb import SYNCED, MariaDBServer, find_mariadb
from tests.servers.postgres import PostgresServer, find_postgres
from tests.stores.benches import check_contiguous, create, get, ranges, reserve

E = TypeVar("E", bound=Exception)

#: After so many reservations, the tables need another page of the disk.
FULL_BY = 1000


def owned(folder: Path, user: str) -> None:
    """Give the folder to the user that the server runs as."""
    if user in {each.pw_name for each in pwd.getpwall()}:
        shutil.chown(folder, user)


def main(kind: str) -> None:
    """Reserve until the disk is full, look at the error, and go on when there is room."""
    if kind == "postgres":
        binaries = find_postgres()
        assert binaries
        server: PostgresServer | MariaDBServer = PostgresServer(binaries)
    else:
        program = find_mariadb()
        assert program
        server = MariaDBServer(program, **SYNCED)
    with server:
        # InnoDB has a file for each table, in the folder of its database.
        disk = server.directory / ("disk" if kind == "postgres" else "data/issuer")
        with small_disk(disk) as is_mounted:
            assert is_mounted
            assert is_small(disk)
            owned(disk, "postgres" if kind == "postgres" else "mysql")
            if kind == "postgres":
                server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
                server.execute("ALTER ROLE tester SET default_tablespace = 'small'")
            told = reserving(server.url, disk / "ballast")
            server.end()  # before its disk is gone
    print(json.dumps(told))


def reserving(url: str, ballast: Path) -> dict[str, object]:
    """Return what the calls brought."""
    store = open_store(url)
    create(store, step=10, order="trend")
    reserve(store)
    fill(ballast)
    done, error = until_full(lambda: reserve(store), Full)
    with issuer.connect(redis="none", store=url, scheduler=None, timeout=20) as ids:
        more, refused = until_full(lambda: ids.reserve("orders", 10), issuer.StoreFull)
    ballast.unlink()
    for _ in range(20):
        reserve(store)
    check_contiguous(ranges(store), 0, get(store).max)
    store.close()
    return {"done": done + more, "error": str(error), "code": refused.code}


def until_full(call: Callable[[], object], refusal: type[E]) -> tuple[int, E]:
    """Call until the first refusal. Return how many calls succeeded, and the refusal.

    Also after a refusal some calls may succeed: a server returns a part of the pages that it could not use.
    """
    for done in range(FULL_BY):
        try:
            call()
        except refusal as error:
            return done, error
    raise AssertionError(f"no call of {FULL_BY} was refused")


if __name__ == "__main__":
    main(sys.argv[1])
