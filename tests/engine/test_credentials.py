"""Passwords that expire: they come from a function or a command, and a rotation fails no call."""

import asyncio
import fcntl
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import issuer
from issuer import ConfigurationError, RedisUnavailable, StoreUnavailable
from issuer.cli import main
from issuer.clock import monotonic
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import TagSettings
from tests.audit import repeats
from tests.colours import Connect
from tests.drawers import Drawers
from tests.engine.test_secrets import MARK, said
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
from tests.waiting import eventually, until

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
def test_a_rotation_with_sentinels_fails_no_call(connect: Connect, sentinels: SentinelServers, secret: Secret) -> None:
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
    mine = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"  # noqa: S608 - no foreign text
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


# ------------------------------------------------------------------ one call


@pytest.mark.covers("U.26")
def test_each_call_after_a_rotation_succeeds_at_once(
    connect: Connect, start_redis: StartRedis, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of the commands is kept, so the first login of each call is refused."""
    server, secrets_ = start_redis(), (Secret(tmp_path / "redis"), Secret(tmp_path / "store"))
    url, change, kill = account
    for name, each in zip(("REDIS", "STORE"), secrets_, strict=True):
        monkeypatch.setenv(f"ISSUER_{name}_PASSWORD_COMMAND", each.command)
    changes = ((secrets_[0], acl(server), killing(server)), (secrets_[1], change, kill))

    def rotate() -> None:
        for each, set_password, end in changes:
            with each.rotated() as password:
                set_password(password)
            end()

    rotate()
    with connect(redis=at(server.url), store=url, scheduler=None) as ids:
        assert ids.create("a", step=10).tag == "a"
        for call in (
            lambda: ids.inspect("a"),
            lambda: ids.create("b"),
            lambda: ids.configure("a", step=20),
            lambda: ids.peek("a"),
            lambda: ids.recover("a"),
            ids.tags,
            lambda: ids.delete("b"),
        ):
            rotate()
            call()
        rotate()
        assert [each.what for each in ids.doctor() if each.error] == []


def test_a_burst_of_connections_runs_the_command_once(
    connect: Connect, start_redis: StartRedis, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    acl(server)(secret.password)
    monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", secret.command)
    with connect(redis=at(server.url), store=MemoryStore()) as ids:
        tags = [f"t{number}" for number in range(32)]
        ids.create_many({tag: {"step": 10} for tag in tags})
        with ExitStack() as ends:
            threads = [threading.Thread(target=ids.take, args=(tag, 50)) for tag in tags]
            for each in threads:
                each.start()
                ends.callback(each.join)
        assert secret.runs == 1


def test_a_subscription_gets_a_new_password_too(
    connect: Connect, start_redis: StartRedis, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    acl(server)(secret.password)
    monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", secret.command)
    with connect(redis=at(server.url), store=MemoryStore()) as ids, server.client() as client:

        def subscribed() -> bool:
            return bool(client.execute_command("CLIENT", "LIST", "TYPE", "pubsub"))

        ids.keep()
        until(subscribed, 60)
        with secret.rotated() as password:
            acl(server)(password)
        killing(server)()
        until(subscribed, 60)


# ------------------------------------------------------------------ what is refused, and what is shown


def test_an_url_with_a_password_and_credentials_contradict_each_other(secret: Secret) -> None:
    for url in ("redis://:p@h", "redis://u:p@h/1", "redis://h?password=p", "redis+cluster://u:p@h", "rediss://u:p@h"):
        for connect in (issuer.connect, issuer.aconnect):
            error = refused(
                ConfigurationError,
                "the URL has a password, and there is redis_credentials",
                connect,
                redis=url,
                store="memory://",
                redis_credentials=secret,
            )
            assert ":p@" not in str(error)
    for url in (
        "postgresql://u:p@h/d",
        "postgresql://h/d?password=p",
        "mysql://u:p@h/d",
        "mariadb://u:p@h/d",
        "mongodb://u:p@h/d",
        "mysql://u:p@h/d?layout=leaf",
    ):
        refused(
            ConfigurationError, "URL has a password", issuer.connect, store=url, redis="none", store_credentials=secret
        )
    for url in ("postgresql://u@h/d", "mysql://h/d", "mongodb://u@h/d", "mongodb://h/d", "mysql://u@h/d?layout=leaf"):
        issuer.connect(store=url, redis="none", store_credentials=secret).close()


def test_credentials_need_a_url_that_takes_them(secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis.Redis() as client:
        for given, said in (
            ({"store": MemoryStore(), "store_credentials": secret}, "must be a URL"),
            ({"store": "memory://", "store_credentials": secret}, "takes no password: remove store_credentials"),
            ({"store": "sqlite:///a.db", "store_credentials": secret}, "takes no password"),
            ({"store": "memory://", "redis": client, "redis_credentials": secret}, "must be a URL"),
            ({"store": "memory://", "redis_credentials": "secret"}, "a function that returns a password, not str"),
        ):
            error = refused(ConfigurationError, said, issuer.connect, **{"redis": "none", **given})
            assert "'secret'" not in str(error)
    monkeypatch.setenv("ISSUER_STORE_PASSWORD_COMMAND", "cat 'hunter2")
    error = refused(ConfigurationError, "matching quotes", issuer.connect, store="memory://", redis="none")
    assert "hunter2" not in str(error)


def test_a_refused_password_is_unavailable_and_shown_nowhere(
    start_redis: StartRedis,
    account: Account,
    secret: Secret,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The command prints a wrong password."""
    caplog.set_level(logging.DEBUG)
    url, change, _ = account
    change("right")
    secret.file.write_text(MARK)
    monkeypatch.setenv("ISSUER_STORE_PASSWORD_COMMAND", secret.command)
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        shown = said(refused(StoreUnavailable, "password|Authentication failed", ids.create, "a")) + repr(vars(ids))
    monkeypatch.delenv("ISSUER_STORE_PASSWORD_COMMAND")
    server = start_redis()
    acl(server)("right")
    monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", secret.command)
    with issuer.connect(redis=at(server.url), store="memory://", scheduler=None) as ids:
        ids.create("a")
        began, runs = monotonic(), secret.runs
        shown += said(refused(RedisUnavailable, "refuses the password", ids.next, "a", timeout=3)) + repr(vars(ids))
        assert secret.runs - runs <= monotonic() - began + 2  # once a second
        assert "refuses the password" in str(ids.inspect("a").redis_error)
    assert MARK not in shown + caplog.text


def test_the_command_line_uses_the_command_and_shows_its_program_only(
    start_redis: StartRedis, secret: Secret, tmp_path: Path
) -> None:
    server = start_redis()
    acl(server)(secret.password)
    file = tmp_path / "issuer.toml"
    command = secret.command.replace("\\", "\\\\").replace('"', '\\"')
    file.write_text(
        f'redis_url = "{at(server.url)}"\nstore_url = "sqlite:///ids.db"\nredis_password_command = "{command}"\n'
    )
    assert CliRunner().invoke(main, ["--config", str(file), "create", "a"]).exit_code == 0
    assert CliRunner().invoke(main, ["--config", str(file), "next", "a"]).output == "1\n"
    shown = CliRunner().invoke(main, ["--config", str(file), "config"]).output
    assert f"{sys.executable} ***" in shown
    assert "flock" not in shown


# ------------------------------------------------------------------ time and forks


def with_tag() -> MemoryStore:
    """Return a store with the tag `a`."""
    store = MemoryStore()
    store.create("a", TagSettings(), timeout=60)
    return store


def test_a_call_does_not_wait_for_a_slow_command_longer_than_it_may_and_the_output_serves_the_next_call(
    connect: Connect, start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, gate = start_redis(), tmp_path / "gate"
    os.mkfifo(gate)
    acl(server)("slow")
    monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", f"cat {gate}")
    with connect(redis=at(server.url), store=with_tag(), scheduler=None) as ids:
        refused(RedisUnavailable, "'cat' has not ended yet", ids.next, "a", timeout=0.3)
        gate.write_text("slow\n")
        assert ids.next("a") == 1


async def test_the_event_loop_does_not_wait_for_the_function(start_redis: StartRedis) -> None:
    server, asked, goes_on, went_on = start_redis(), threading.Event(), threading.Event(), list[bool]()
    acl(server)("late")

    def slow() -> str:
        asked.set()
        went_on.append(goes_on.wait(20))
        return "late"

    async with issuer.aconnect(redis=at(server.url), store=with_tag(), redis_credentials=slow) as ids:
        drawing = asyncio.create_task(ids.next("a"))
        await eventually(asked.is_set)  # the loop goes on
        goes_on.set()
        assert await drawing == 1
    assert all(went_on)


def test_a_child_that_is_forked_while_the_command_runs_runs_its_own(
    start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, gate, runs = start_redis(), tmp_path / "gate", tmp_path / "runs"
    acl(server)("ours")
    program = f"echo >> {runs}; while ! test -e {gate}; do sleep 0.02; done; echo ours"
    monkeypatch.setenv("ISSUER_REDIS_PASSWORD_COMMAND", f"sh -c '{program}'")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        ids.create("a")
    with issuer.connect(redis=at(server.url), store=url, scheduler=None) as ids, ThreadPoolExecutor(1) as thread:
        call = thread.submit(ids.next, "a")
        until(runs.exists, 60)
        child = in_child(lambda: ids.next("a"))
        until(lambda: len(runs.read_text()) == 2, 60)
        gate.write_text("")
        numbers = {call.result(), child()}
    assert len(numbers) == 2
    assert all(isinstance(each, int) for each in numbers), numbers
