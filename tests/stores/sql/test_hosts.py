"""A URL of MySQL with several hosts: those that are away or read-only are passed over."""

from collections.abc import Iterator
from contextlib import closing

import pytest

import issuer
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.audit import repeats
from tests.colours import Connect
from tests.drawers import Drawers
from tests.refusals import refused
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.ports import LOOPBACK, free_port
from tests.stores.benches import TIMEOUT
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("unhurried")]

#: Whose privileges don't let it write to a server that is read-only.
USER = "program"


@pytest.fixture
def servers() -> Iterator[list[MariaDBServer]]:
    """A primary, and a replica that is read-only."""
    program = find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server")
    with (
        MariaDBServer(program, **{"server-id": 1, "log-bin": "bin"}) as primary,
        MariaDBServer(program, **{"server-id": 2, "log-bin": "bin"}) as replica,
    ):
        replica.follow(primary)
        primary.execute(f"CREATE USER {USER}@'%'")
        primary.execute(f"GRANT ALL ON issuer.* TO {USER}@'%'")
        there = f"SELECT 1 FROM mysql.user WHERE user = '{USER}'"  # noqa: S608 - no foreign text
        until(lambda: replica.execute(there), 60, "the replica has the user")
        replica.execute("SET GLOBAL read_only = ON")
        yield [primary, replica]


def url(*servers: MariaDBServer | int) -> str:
    ports = [each if isinstance(each, int) else each.port for each in servers]
    return f"mariadb://{USER}@{','.join(f'{LOOPBACK}:{port}' for port in ports)}/issuer"


def position(server: MariaDBServer) -> str:
    [(found,)] = server.execute("SELECT @@gtid_current_pos")
    return str(found)


def test_a_promotion_under_load_fails_no_call_and_repeats_no_number(
    connect: Connect, servers: list[MariaDBServer]
) -> None:
    primary, replica = servers
    with connect(redis="none", store=url(free_port(), replica, primary)) as ids:
        ids.create("a", step=5)
        with Drawers([ids], "a", threads=4) as drawers:
            drawers.more(100)
            primary.execute("SET GLOBAL read_only = ON")
            until(lambda: position(replica) == position(primary), 60, "the replica has everything")
            replica.execute("STOP SLAVE")
            replica.execute("SET GLOBAL read_only = OFF")
            drawers.more(100)
            primary.kill()
            drawers.more(100)
    assert drawers.errors == []
    assert repeats(drawers.numbers) == []


def test_an_open_connection_to_the_old_primary_reserves_nothing(servers: list[MariaDBServer]) -> None:
    """The program has all rights, so the old primary would accept what it writes."""
    primary, replica = servers
    with closing(open_store(url(primary, replica).replace(USER, "tester"))) as store:
        store.create("a", TagSettings(step=10), timeout=TIMEOUT)
        assert store.reserve("a", 10, purpose=Purpose("load"), timeout=TIMEOUT).high == 10
        until(lambda: position(replica) == position(primary), 60, "the replica has everything")
        primary.execute("SET GLOBAL read_only = ON")
        replica.execute("STOP SLAVE")
        replica.execute("SET GLOBAL read_only = OFF")
        refused(Unconfirmed, "became read-only", store.reserve, "a", 10, purpose=Purpose("load"), timeout=TIMEOUT)
        assert store.reserve("a", 10, purpose=Purpose("load"), timeout=TIMEOUT).high == 20
    assert replica.execute("SELECT max FROM issuer_tags WHERE tag = 'a'") == [(20,)]


def test_no_host_that_accepts_writes(servers: list[MariaDBServer]) -> None:
    primary, replica = servers
    with closing(open_store(url(free_port(), replica))) as store:
        refused(Unconfirmed, f"{replica.port} is read-only", store.made_id, timeout=TIMEOUT)
    with closing(open_store(url(replica))) as alone:  # a single one is used as before
        assert alone.get("a", timeout=TIMEOUT) is None
    with closing(open_store(url(primary, replica).replace(USER, "nobody:x"))) as store:
        error = refused(issuer.ConfigurationError, "nobody", issuer.connect(redis="none", store=store).create, "a")
        assert "x" not in str(error).split()


def test_the_host_that_worked_last_comes_first(servers: list[MariaDBServer]) -> None:
    primary, replica = servers
    with closing(open_store(url(replica, primary))) as store:
        assert isinstance(store.made_id(timeout=TIMEOUT), str)
        before = connections(replica)
        primary.end_sessions()
        primary.execute(f"KILL CONNECTION USER {USER}@'%'")
        assert store.get("a", timeout=TIMEOUT) is None
        assert connections(replica) == before + 1  # that of this look


def test_a_host_that_hangs_leaves_time_for_the_others(servers: list[MariaDBServer]) -> None:
    primary, replica = servers
    with replica.frozen(), closing(open_store(url(replica, primary))) as store:
        assert isinstance(store.made_id(timeout=8), str)


def connections(server: MariaDBServer) -> int:
    [(_, count)] = server.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
    return int(count)
