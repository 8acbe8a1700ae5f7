"""`issuer serve` under a service manager: its sockets, its reports, and a restart that refuses nobody.

The test plays systemd: it opens the sockets, hands the server copies of them, and reads what the server reports.
"""

import fcntl
import http.client
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import redis

from issuer.doors.server import systemd
from issuer.doors.server.options import ServerOptions
from issuer.errors import ConfigurationError
from issuer.settings import load
from tests import programs
from tests.cli.conftest import Cli
from tests.doors.http.doors import tokens
from tests.doors.server.conftest import PATIENT, WITH_CONSTANTS
from tests.doors.server.test_stopping import NEVER, NOTICES
from tests.refusals import refused
from tests.servers.absent import absent
from tests.servers.ports import free_port
from tests.waiting import until

#: Copies of sockets that a server is handed have higher numbers than this before it starts.
_HIGH = 100

#: Moves the sockets to where a service manager passes them, and says that they are for this process.
_PASSED = """
import os
for at, fd in enumerate({fds!r}, 3):
    os.dup2(fd, at)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len({fds!r})), LISTEN_FDNAMES={names!r})
"""


class Manager:
    """A service manager with one service, which has these sockets."""

    def __init__(self, folder: Path, sockets: Mapping[str, socket.socket], env: Mapping[str, str]) -> None:
        self._folder, self._sockets = folder, sockets
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._reports.bind(str(folder / "notify"))
        self._reports.settimeout(0)
        self._env = {**os.environ, "TMPDIR": str(folder), "NOTIFY_SOCKET": str(folder / "notify"), **env}
        self.states: list[str] = []
        self._running: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        for each in self._running:
            each.kill()
            each.wait()
        self._reports.close()

    def start(self, *arguments: str, constants: tuple[str, ...] = PATIENT) -> subprocess.Popen[bytes]:
        """Start the server. Its log goes on where that of the one before it ended."""
        fds = [fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, _HIGH) for each in self._sockets.values()]
        code = _PASSED.format(fds=fds, names=":".join(self._sockets)) + WITH_CONSTANTS.format(
            constants=constants, files=0
        )
        command = [sys.executable, "-c", code, "serve", *arguments]
        with (self._folder / "log").open("ab") as log:
            started = subprocess.Popen(command, stderr=log, env=self._env, pass_fds=fds)
        for fd in fds:
            os.close(fd)
        self._running.append(started)
        return started

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def reported(self, state: str, times: int = 1) -> None:
        """Wait until the server has reported this so often."""

        def found() -> bool:
            with suppress(BlockingIOError):
                self.states += self._reports.recv(4096).decode().splitlines()
            return self.states.count(state) >= times

        until(found, message=state)


Manage = Callable[..., Manager]


@pytest.fixture
def manage(home: Path) -> Iterator[Manage]:
    with ExitStack() as ends:

        def begin(sockets: Mapping[str, socket.socket], **env: str) -> Manager:
            return ends.enter_context(closing(Manager(home, sockets, env)))

        yield begin


@pytest.fixture
def listening() -> Iterator[dict[str, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        yield {"http": one, "resp": two}


@pytest.fixture
def servers(redis_url: str, store: str, cli: Cli) -> dict[str, str]:
    """A Redis and a store with a tag `orders`."""
    servers = {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}
    cli("create", "orders", env=servers)
    return servers


def over_http(at: socket.socket) -> Iterator[int]:
    with closing(http.client.HTTPConnection("127.0.0.1", at.getsockname()[1], timeout=120)) as client:
        while True:
            client.request("POST", "/v1/tags/orders/next", headers={"Accept": "text/plain"})
            yield int(client.getresponse().read())


def over_resp(at: socket.socket) -> Iterator[int]:
    with redis.Redis(port=at.getsockname()[1], socket_timeout=120, retry=NEVER) as client:
        while True:
            yield int(client.incr("orders"))


class Crowd:
    """Clients that draw without a pause until they are told to stop, and try nothing twice."""

    def __init__(self, drawing: Callable[[], Iterator[int]], clients: int) -> None:
        self.numbers: Counter[int] = Counter()
        self.lost: list[Exception] = []
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._draw, args=(drawing,)) for _ in range(clients)]
        for each in self._threads:
            each.start()

    def _draw(self, drawing: Callable[[], Iterator[int]]) -> None:
        numbers = drawing()
        try:
            while not self._enough.is_set():
                self.numbers[next(numbers)] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is lost
            self.lost.append(error)

    def more(self, count: int) -> None:
        """Wait until so many more numbers are drawn."""
        wanted = self.numbers.total() + count
        until(lambda: self.numbers.total() >= wanted or self.lost, message="they draw")

    def end(self) -> None:
        self._enough.set()
        for each in self._threads:
            each.join(120)
        assert not any(each.is_alive() for each in self._threads)


@pytest.mark.live
@pytest.mark.covers("U.24")
@pytest.mark.parametrize(("name", "drawing"), [("http", over_http), pytest.param("resp", over_resp, marks=NOTICES)])
def test_a_restart_under_64_clients_refuses_repeats_and_loses_nothing(
    manage: Manage,
    listening: dict[str, socket.socket],
    servers: dict[str, str],
    name: str,
    drawing: Callable[[socket.socket], Iterator[int]],
) -> None:
    manager = manage(listening, **servers, ISSUER_DRAIN_DELAY="1")
    # On a machine that stands still, a client may need long from its connection to its request.
    patient = (*PATIENT, "issuer.doors.server.worker.ARRIVING=2")
    server = manager.start("--workers", "2", constants=patient)
    crowd = Crowd(lambda: drawing(listening[name]), 64)
    try:
        for restart in range(1, 3):
            crowd.more(3000)
            manager.reported("READY=1", restart)
            server.terminate()
            assert server.wait(120) == 0
            server = manager.start("--workers", "2", constants=patient)
        crowd.more(3000)
    finally:
        crowd.end()
    assert [*map(str, crowd.lost)] == []
    assert set(crowd.numbers.values()) == {1}
    server.terminate()
    assert server.wait(120) == 0


REQUEST = b"POST /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n"


@pytest.mark.live
def test_connections_that_sent_nothing_yet_are_served_by_the_old_server_or_by_the_next_one(
    manage: Manage, listening: dict[str, socket.socket]
) -> None:
    web = listening["http"]
    copy, waiting = f"socket:[{os.fstat(web.fileno()).st_ino}]", select.poll()
    waiting.register(web, select.POLLIN)
    manager = manage(listening, ISSUER_DRAIN_DELAY="0")
    old = manager.start(constants=(*PATIENT, "issuer.doors.server.worker.ARRIVING=600"))
    manager.reported("READY=1")

    def is_held() -> bool:
        """Whether a worker of the old server still accepts connections."""
        return any(
            each.is_symlink() and str(each.readlink()) == copy
            for pid in programs.children(old.pid)
            for each in Path(f"/proc/{pid}/fd").iterdir()
        )

    with socket.create_connection(web.getsockname(), 120) as early:
        until(lambda: not waiting.poll(0), message="a worker has accepted it")
        assert is_held()
        old.terminate()
        until(lambda: not is_held(), ignoring=(FileNotFoundError,), message="no worker accepts any more")
        with socket.create_connection(web.getsockname(), 120) as late:
            early.sendall(REQUEST)
            assert early.recv(4096).startswith(b"HTTP/1.1 200 ")
            old.terminate()
            assert old.wait(120) == 128 + signal.SIGTERM
            new = manager.start()
            late.sendall(REQUEST)
            assert late.recv(4096).startswith(b"HTTP/1.1 200 ")
    new.terminate()
    assert new.wait(120) == 0


@pytest.mark.live
def test_its_states_are_reported_in_this_order(manage: Manage, listening: dict[str, socket.socket], home: Path) -> None:
    tokens(home, one=(["issue"], ["*"]))
    manager = manage(listening, ISSUER_TOKENS=str(home / "tokens.toml"))
    server = manager.start()
    manager.reported("READY=1")
    assert manager.states[0] in {"READY=1", "WATCHDOG=1"}
    manager.reported("WATCHDOG=1", 2)
    server.send_signal(signal.SIGHUP)
    manager.reported("READY=1", 2)
    server.terminate()
    manager.reported("STOPPING=1")
    assert server.wait(120) == 0
    words = [each for each in manager.states if not each.startswith("WATCHDOG")]
    assert words[0] == "READY=1"
    assert words[1] == "RELOADING=1"
    assert re.fullmatch(r"MONOTONIC_USEC=\d+", words[2])
    assert words[3:5] == ["READY=1", "STOPPING=1"]


@pytest.mark.live
def test_a_real_program_that_passes_sockets_starts_it(home: Path) -> None:
    activate = shutil.which("systemd-socket-activate") or absent("systemd-socket-activate", "systemd")
    at = ("127.0.0.1", free_port())
    sources = os.pathsep.join(map(str, (programs.REPOSITORY, programs.REPOSITORY / "persistence")))
    kept = [f"--setenv={each}" for each in (f"PYTHONPATH={sources}", f"HOME={home}", f"TMPDIR={home}")]
    serve = [sys.executable, "-m", "issuer", "serve", "--http", "none"]
    command = [activate, f"--listen={at[0]}:{at[1]}", "--fdname=http", *kept, *serve]
    with (home / "log").open("wb") as log:
        started = subprocess.Popen(command, stderr=log, cwd=home)
    try:
        until(lambda: socket.create_connection(at, 5), ignoring=(ConnectionRefusedError,)).close()
        with closing(http.client.HTTPConnection(*at, timeout=120)) as client:
            client.request("POST", "/v1/tags/orders/next", headers={"Accept": "text/plain"})
            assert client.getresponse().read() == b"1"
        started.terminate()
        assert started.wait(120) == 0
    finally:
        started.kill()
        started.wait()


@pytest.mark.parametrize(
    ("names", "named"),
    [("https", "'https'"), ("", "''"), ("http:http", "'http'"), ("issuer.socket", "'issuer.socket'")],
)
def test_a_socket_without_the_name_of_a_protocol_is_refused(
    passing: Callable[[socket.socket, str], None], listening: dict[str, socket.socket], names: str, named: str
) -> None:
    passing(listening["http"], names)
    refused(ConfigurationError, f"name {named}: set FileDescriptorName=http", systemd.passed_sockets)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_that_does_not_listen_is_refused(
    passing: Callable[[socket.socket, str], None], kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_INET, kind) as connected:
        passing(connected, "resp")
        refused(ConfigurationError, "'resp' .* Accept=no", systemd.passed_sockets)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[socket.socket, str], None]]:
    """Pass copies of a socket to this process, one for each name."""
    with ExitStack() as ends:

        def begin(passed: socket.socket, names: str) -> None:
            copies = [ends.enter_context(passed.dup()) for _ in names.split(":")]
            monkeypatch.setattr(socket, "socket", lambda fileno: copies[fileno - 3])
            monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
            monkeypatch.setenv("LISTEN_FDS", str(len(copies)))
            monkeypatch.setenv("LISTEN_FDNAMES", names)

        yield begin
        monkeypatch.undo()


def test_sockets_for_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert systemd.passed_sockets() == {}


def test_a_passed_socket_that_others_reach_needs_tokens_too(home: Path) -> None:  # noqa: ARG001 - for its environment
    everywhere = ("0.0.0.0", 0)  # noqa: S104 - nobody accepts
    with socket.create_server(everywhere) as wide, socket.create_server(("127.0.0.1", 0)) as near:
        settings, passed = load({"http": "none"}), {"resp": wide}
        said = r"0\.0\.0\.0 \(a socket of the service manager\).*--tokens"
        refused(ConfigurationError, said, ServerOptions.of, settings, {}, verbose=False, passed=passed)
        made = ServerOptions.of(load({"http": "0.0.0.0:1"}), {}, verbose=False, passed={"http": near})
        assert [each.address for each in made.endpoints] == [near.getsockname()]


def test_reports_go_to_a_socket_without_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind("\0issuer-test-" + str(os.getpid()))
        monkeypatch.setenv("NOTIFY_SOCKET", "@issuer-test-" + str(os.getpid()))
        systemd.notify("READY=1", "STATUS=serving")
        assert reports.recv(100) == b"READY=1\nSTATUS=serving"
