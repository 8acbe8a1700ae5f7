"""Fixtures that every test may use: real servers, the fenced fake one, proxies.

Which tests are marked `live`, `slow` and `matrix` is in tests/marks.py. A server that this machine lacks skips the
test on a laptop and fails it where CI is set: there, silence would pass for proof.
"""

import inspect
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import Phase, settings

from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect
from tests.days import VIENNA
from tests.marks import LIVE, mark
from tests.rows import RowsShown, rows_of
from tests.schemes import KEYS, Make, processes
from tests.seeds import chosen
from tests.servers.absent import absent
from tests.servers.binaries import find_servers, primary_server
from tests.servers.cluster import ClusterServers
from tests.servers.fake import FencedFakeServer
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.mongo import MongoServers, given_url, needed_mongod
from tests.servers.pool import Pool
from tests.servers.postgres import PostgresServer, find_postgres
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.servers.tls import Certificates, make_certificates, tls_server
from tests.stores.conftest import mongo_bench_at
from tests.times import Times
from tests.waiting import run

_NONE = "none-found"

# The same examples in each run: what is red is red again. A seed of `make soak` asks for fresh ones. An example takes
# as long as the machine is busy; shrinking a failure of the state machine has taken five minutes, so a seed is
# printed instead.
settings.register_profile(
    "unhurried",
    deadline=None,
    database=None,
    derandomize=not chosen(),
    phases=(Phase.explicit, Phase.generate),
    print_blob=True,
)
settings.load_profile("unhurried")

# Set in many images. Programs that tests start would then print past Python's buffers, where a write to a pipe that is
# stopped half-way loses the rest of what was printed.
os.environ.pop("PYTHONUNBUFFERED", None)

# What a script starts in the background ignores Ctrl-C and SIGQUIT, what nohup starts a hangup, and so does all that it
# starts in turn. Tests send these to processes of their own; what has a handler here has none there.
_HANDLERS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: lambda *_: None,
    signal.SIGQUIT: signal.SIG_DFL,
}
if threading.current_thread() is threading.main_thread():
    for _number, _handler in _HANDLERS.items():
        if signal.getsignal(_number) is signal.SIG_IGN:
            signal.signal(_number, _handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", action="store_true", help="fail if a claimed row of requirements.toml was not shown")
    parser.addoption("--times", action="store_true", help="hold tests/slow.txt against the processor time of each test")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name in the last lines what was skipped, and the package that brings what is missing."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    if reasons:
        terminalreporter.section("skipped tests")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4}  {reason}")


def pytest_configure(config: pytest.Config) -> None:
    for option, plugin in (("--rows", RowsShown), ("--times", Times)):
        if config.getoption(option):
            config.pluginmanager.register(plugin())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests before `-m "not live"` chooses; note the rows for who counts them."""
    mark(items)
    for item in items:
        item.user_properties.extend(("covers", row) for row in rows_of(item))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}),
        300,
    )
    return True


@pytest.fixture(autouse=True)
def _no_server_unmarked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test without the mark `live` that has used a real server: `make check` must start none."""
    yield
    used = sorted(LIVE.intersection(request.fixturenames))
    if used and request.node.get_closest_marker("live") is None:
        pytest.fail(f"{request.node.nodeid} uses {', '.join(used)}: mark it live")


@dataclass(frozen=True)
class Pools:
    """What tests borrow. In the groups a replica becomes a master when it is told to, and never else."""

    sentinels: Pool[SentinelServers]
    clusters: Pool[ClusterServers]
    mongos: Pool[MongoServers]
    mongo_sets: Pool[MongoServers]
    standing: dict[Path, RedisServer] = field(default_factory=dict)

    def redis(self, binary: Path) -> RedisServer:
        if binary not in self.standing:
            self.standing[binary] = RedisServer(binary).__enter__()
        return self.standing[binary]

    def end(self) -> None:
        for pool in (self.sentinels, self.clusters, self.mongos, self.mongo_sets):
            pool.end()
        for server in self.standing.values():
            server.end()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the mark `colours`, of a test or else of its module, choose the colours of `connect`."""
    chosen = metafunc.definition.get_closest_marker("colours")
    itself = any("connect" in each.args[0] for each in metafunc.definition.iter_markers("parametrize"))
    if chosen is not None and "connect" in metafunc.fixturenames and not itself:
        metafunc.definition.add_marker(pytest.mark.parametrize("connect", chosen.args, indirect=True))


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """The servers that the tests of this process borrow one after the other."""
    passwords = {"password": "of-data", "sentinel_password": "of-sentinels"}
    pools = Pools(
        Pool(lambda: SentinelServers(_primary(), ordered=True, **passwords)),
        Pool(lambda: ClusterServers(_primary(), ordered=True, password="of-data")),
        Pool(lambda: MongoServers(needed_mongod())),
        Pool(lambda: MongoServers(needed_mongod(), 3)),
    )
    yield pools
    pools.end()


@pytest.fixture(scope="session")
def redis_server(pools: Pools) -> RedisServer:
    """The session's primary server. Tests that stop or roll back a server use `start_redis` instead."""
    return pools.redis(_primary())


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the primary server, which is a running, empty master."""
    return redis_server.revive().url


@pytest.fixture
def redis_client(redis_server: RedisServer, redis_url: str) -> Iterator[redis.Redis]:
    """A client of the primary server, which has been emptied."""
    assert redis_url
    with redis_server.client() as client:
        yield client


@pytest.fixture
def redis_proxy(redis_server: RedisServer, redis_url: str) -> Iterator[FaultProxy]:
    """A proxy before the primary server, which has been emptied; it passes everything until told otherwise."""
    assert redis_url
    with FaultProxy((redis_server.host, redis_server.port)) as proxy:
        yield proxy


@pytest.fixture(scope="session", params=list(find_servers()) or [_NONE])
def any_redis_server(request: pytest.FixtureRequest, pools: Pools) -> RedisServer:
    return pools.redis(find_servers().get(request.param) or absent("a redis-server", "redis-server"))


@pytest.fixture
def any_redis(any_redis_server: RedisServer) -> RedisServer:
    """Each server of this machine in turn, as a running, empty master."""
    return any_redis_server.revive()


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start servers that belong to this test alone: `start_redis("--maxmemory", "1mb", appendonly=True)`.

    The arguments are RedisServer's, with the primary server as the binary unless `binary=` says otherwise.
    """
    with ExitStack() as ends:

        def start(*args: str, binary: Path | None = None, **options: Any) -> RedisServer:
            return ends.enter_context(RedisServer(binary or _primary(), *args, **options))

        yield start


@contextmanager
def _starting(pool: Pool[Any], kind: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Let a test borrow groups, or start one of its own if there are arguments, which are those of its kind."""
    with ExitStack() as ends:

        def start(*args: str, binary: Path | None = None, **options: Any) -> Any:
            own = args or binary or options
            return ends.enter_context(kind(binary or _primary(), *args, **options) if own else pool.borrowed())

        yield start


@pytest.fixture
def start_sentinels(pools: Pools) -> Iterator[Callable[..., SentinelServers]]:
    with _starting(pools.sentinels, SentinelServers) as start:
        yield start


@pytest.fixture
def start_cluster(pools: Pools) -> Iterator[Callable[..., ClusterServers]]:
    with _starting(pools.clusters, ClusterServers) as start:
        yield start


@pytest.fixture
def sentinels(start_sentinels: Callable[..., SentinelServers]) -> SentinelServers:
    """A master, two replicas and three Sentinels, to do with as one likes; they ask for passwords."""
    return start_sentinels()


@pytest.fixture
def cluster(start_cluster: Callable[..., ClusterServers]) -> ClusterServers:
    """A Cluster of three masters with a replica each, to do with as one likes; it asks for a password."""
    return start_cluster()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer(find_postgres() or absent("postgres and initdb", "postgresql")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    with MariaDBServer(find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server")) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_tls(certificates: Certificates) -> Iterator[Callable[..., RedisServer]]:
    """Start servers that speak TLS only; the arguments are those of RedisServer, likewise."""
    with ExitStack() as ends:

        def start(*args: str, **options: Any) -> RedisServer:
            binary = tls_server() or absent("a redis-server that was built with TLS", "redis-server")
            return ends.enter_context(RedisServer(binary, *args, tls=certificates, **options))

        yield start


def _primary() -> Path:
    return primary_server() or absent("a redis-server", "redis-server")


@pytest.fixture
def fake_server() -> FencedFakeServer:
    """An empty fake server whose reign, role and clock the test may change."""
    return FencedFakeServer()


@pytest.fixture
def fake_redis(fake_server: FencedFakeServer) -> Iterator[fakeredis.FakeRedis]:
    with fake_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def mongo_url(pools: Pools) -> Iterator[str]:
    """The URL, without a database, of the session's server."""
    if url := given_url():
        yield url
        return
    with pools.mongos.borrowed() as server:
        yield server.url


@pytest.fixture
def mongo_server(pools: Pools) -> Iterator[MongoServers]:
    """A MongoDB of one member that nobody else uses meanwhile, to be killed and started again."""
    with pools.mongos.borrowed() as server:
        yield server


@pytest.fixture
def mongo_set(pools: Pools) -> Iterator[MongoServers]:
    """A MongoDB of three members, to do with as one likes."""
    with pools.mongo_sets.borrowed() as servers:
        yield servers


@pytest.fixture(params=list(COLOURS))
def connect(request: pytest.FixtureRequest) -> Connect:
    """What makes an issuer: `issuer.connect`, then `issuer.aconnect` behind a blocking face."""
    return COLOURS[request.param]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine that is busy, or frozen for seconds, make no call late: what is not given a time has plenty."""
    for name, seconds in (("TIMEOUT", "60"), ("STORE_TIMEOUT", "20"), ("REDIS_TIMEOUT", "20"), ("INSIST", "60")):
        monkeypatch.setenv(f"ISSUER_{name}", seconds)
    # How long a close gives back, and a first draw waits for a store that another thread has locked.
    for module, name in (
        ("engine.blocking", "CLOSING"),
        ("engine.aio", "CLOSING"),
        ("core.supply.supply", "HURRY"),
        ("core.supply.mode", "PATIENCE"),
        ("core.supply.mode", "PATIENCE_ALONE"),
    ):
        monkeypatch.setattr(f"issuer.{module}.{name}", 40.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what doesn't say otherwise so much time that a machine that stands still fails none of it.

    A process that ends in the middle of an election is replaced after a second more than a request to the store may
    take: that has to be well below what a call may take.
    """
    for name, seconds in (("TIMEOUT", "40"), ("STORE_TIMEOUT", "10"), ("REDIS_TIMEOUT", "30"), ("INSIST", "60")):
        monkeypatch.setenv(f"ISSUER_{name}", seconds)
    for colour in ("blocking", "aio"):
        monkeypatch.setattr(f"issuer.engine.{colour}.CLOSING", 30.0)


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A Redis of the test's own."""
    return start_redis()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy((server.host, server.port)) as made:
        yield made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(params=["sqlite", "mongodb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind that several processes may share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ids.db'}"
    else:
        for bench in mongo_bench_at(request.getfixturevalue("mongo_url")):
            yield bench.url


@pytest.fixture
def make(connect: Connect, fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers on the fake server, each of which stands for a process of its own."""
    client = fake_server.client if connect is COLOURS["blocking"] else fake_server.async_client
    common = {"store": store, "scheduler": None, "timeout": 20, "keys": KEYS}
    with ExitStack() as ends:
        yield lambda **settings: ends.enter_context(connect(**{"redis": client(), **common, **settings}))


@pytest.fixture
def make_live(connect: Connect, redis_url: str, store: MemoryStore) -> Iterator[Make]:
    """Make issuers on the session's Redis, each of which stands for a process of its own."""
    with processes(connect, redis=redis_url, store=store) as make:
        yield make


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Stop the fake server's clock at a moment in Vienna."""

    def set_to(moment: str) -> None:
        there = datetime.fromisoformat(moment).replace(tzinfo=VIENNA)
        monkeypatch.setattr("tests.servers.fake.time", SimpleNamespace(time=there.timestamp))

    return set_to
