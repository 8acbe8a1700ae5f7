"""Passwords that expire: they come from a function or a command, and a rotation fails no call."""

import asyncio
import fcntl
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import ConfigurationError, RedisUnavailable, StoreUnavailable
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.drawers import Drawers
from tests.forks import in_child
from tests.refusals import refused
from tests.servers.cluster import ClusterServers
from tests.servers.mariadb import MariaDBServer
from tests.servers.mongo import MongoServers, needed_mongod
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

USER = "rotating"
ROTATIONS = 5
#: Numbers that are drawn after each rotation.
MORE = 60

StartRedis = Callable[..., RedisServer]
Account = tuple[str, Callable[[str], None], Callable[[], None]]


@dataclass
class Secret:
    """The password of an account: in memory, and in a file that a command prints."""

    file: Path
    password: str = "first"
    asked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.file.write_text(self.password)

    def __call__(self) -> str:
        with self._lock:
            self.asked += 1
            return self.password

    def pair(self) -> tuple[str, str]:
        return USER, self()

    @property
    def command(self) -> str:
        """Prints the password. Its runs are counted in a file."""
        count = f"open({str(self.file) + '.runs'!r}, 'a').write('x')"
        program = f"import fcntl; f = open({str(self.file)!r}); fcntl.flock(f, fcntl.LOCK_EX); print(f.read()); {count}"
        return f'{sys.executable} -S -c "{program}"'

    @property
    def runs(self) -> int:
        counted = Path(f"{self.file}.runs")
        return len(counted.read_text()) if counted.exists() else 0

    @contextmanager
    def rotated(self) -> Iterator[str]:
        """Change the password in the block, before somebody can read the new one or the old one again."""
        with self._lock, self.file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            password = secrets.token_urlsafe(9)
            yield password
            self.password = password
            file.seek(0)
            file.truncate()
            file.write(password)
            file.flush()


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "password")


def acl(*servers: RedisServer) -> Callable[[str], None]:
    """Return what gives the account of these servers a new password, and removes all others."""

    def change(password: str) -> None:
        for server in servers:
            with server.client() as client:
                rights = ("resetpass", f">{password}", "~*", "&*", "+@all")
                client.execute_command("ACL", "SETUSER", USER, "on", *rights)

    return change


def killing(*servers: RedisServer) -> Callable[[], None]:
    def kill() -> None:
        for server in servers:
            with server.client() as client:
                client.execute_command("CLIENT", "KILL", "USER", USER)

    return kill


def assert_rotates(
    connect: Connect, secret: Secret, change: Callable[[str], None], kill: Callable[[], None], **given: Any
) -> None:
    """Rotations under load fail no call, and no number comes twice."""
    change(secret.password)
    with connect(**given) as ids:
        ids.create("a", step=10)
        with Drawers([ids], "a", threads=8) as drawers:
            drawers.more(MORE)
            for _ in range(ROTATIONS):
                with secret.rotated() as password:
                    change(password)
                kill()
                drawers.more(MORE)
    assert drawers.errors == []
    assert repeats(drawers.numbers) == []


def at(url: str, user: str = f"{USER}@") -> str:
    """Return the URL of a server with this user in place of its login."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}{rest.rpartition('@')[2]}"


# ------------------------------------------------------------------ rotation under load


@pytest.mark.covers("U.26")
@pytest.mark.parametrize("way", ["function", "pair", "command"])
def test_a_rotation_in_redis_fails_no_call(
    connect: Connect, start_redis: StartRedis, secret: Secret, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server = start_redis()
    given: dict[str, Any] = {"redis": at(server.url), "store": MemoryStore()}
    if way == "command":
        monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", secret.command)
    elif way == "pair":
        given |= {"redis": server.url, "redis_credentials": secret.pair}
    else:
        given["redis_credentials"] = secret
    assert_rotates(connect, secret, acl(server), killing(server), **given)
    assert way != "command" or secret.runs <= ROTATIONS + 1  # not once for each of the connections


@pytest.mark.covers("U.26")
def test_a_rotation_behind_sentinels_fails_no_call(connect: Connect, sentinels: SentinelServers, secret: Secret) -> None:
    url = at(sentinels.url)
    change, kill = acl(*sentinels.nodes), killing(*sentinels.nodes)
    assert_rotates(connect, secret, change, kill, redis=url, store=MemoryStore(), redis_credentials=secret)


@pytest.mark.covers("U.26")
def test_a_rotation_in_a_cluster_fails_no_call(connect: Connect, cluster: ClusterServers, secret: Secret) -> None:
    url = at(cluster.url)
    change, kill = acl(*cluster.nodes), killing(*cluster.nodes)
    assert_rotates(connect, secret, change, kill, redis=url, store=MemoryStore(), redis_credentials=secret)


@pytest.fixture(params=["postgresql", "mysql", "mongodb"])
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """A URL of a store, what changes the password of its user, and what ends the sessions of its user."""
    with ExitStack() as ends:
        match request.param:
            case "postgresql":
                yield _postgres(request.getfixturevalue("postgres_server"), ends)
            case "mysql":
                yield _mariadb(request.getfixturevalue("mariadb_server"), ends)
            case _:
                yield _mongodb(ends)


def _postgres(server: PostgresServer, ends: ExitStack) -> Account:
    access = server.directory / "data" / "pg_hba.conf"
    before = access.read_text()
    ends.callback(access.write_text, before)
    access.write_text(f"host all {USER} all scram-sha-256\n{before}")
    server.execute("SELECT pg_reload_conf()")
    server.execute(f"CREATE USER {USER} SUPERUSER")
    ends.callback(server.execute, f"DROP USER {USER}")
    ends.callback(server.execute, f"DROP OWNED BY {USER}")
    mine = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
    prefix = f"t{secrets.token_hex(4)}_"
    return (
        f"{at(server.url)}?prefix={prefix}",
        lambda password: void(server.execute(f"ALTER USER {USER} PASSWORD '{password}'")),
        lambda: void(server.execute(mine)),
    )


def _mariadb(server: MariaDBServer, ends: ExitStack) -> Account:
    server.execute(f"CREATE USER {USER}@'%'")
    server.execute(f"GRANT ALL ON *.* TO {USER}@'%'")
    ends.callback(server.execute, f"DROP USER {USER}@'%'")
    prefix = f"t{secrets.token_hex(4)}_"
    return (
        f"{at(server.url)}?prefix={prefix}",
        lambda password: void(server.execute(f"ALTER USER {USER}@'%' IDENTIFIED BY '{password}'")),
        lambda: void(server.execute(f"KILL CONNECTION USER {USER}@'%'")),
    )


def _mongodb(ends: ExitStack) -> Account:
    server = ends.enter_context(MongoServers(needed_mongod(), password="of-root"))
    proxy = ends.enter_context(FaultProxy((LOOPBACK, server.port)))
    admin = ends.enter_context(server.client())
    admin["ids"].command("createUser", USER, pwd="none", roles=["readWrite"])
    return (
        f"mongodb://{USER}@{LOOPBACK}:{proxy.port}/ids?directConnection=true",
        lambda password: void(admin["ids"].command("updateUser", USER, pwd=password)),
        proxy.cut,
    )


def void(_: object) -> None:
    """Return nothing."""


@pytest.mark.covers("U.26")
@pytest.mark.parametrize("way", ["function", "command"])
def test_a_rotation_in_the_store_fails_no_call(
    connect: Connect, account: Account, secret: Secret, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url, change, kill = account
    given: dict[str, Any] = {"redis": "none", "store": url}
    if way == "command":
        monkeypatch.setenv("ISSUER_STORE_PASSWORD_COMMAND", secret.command)
    else:
        given["store_credentials"] = secret
    assert_rotates(connect, secret, change, kill, **given)
