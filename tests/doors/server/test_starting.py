"""How `issuer serve` starts: its options and sockets, and what it notices before it serves anybody."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import listen
from issuer.errors import ConfigurationError
from issuer.settings import load
from tests import programs
from tests.doors.server.conftest import Serve, lives
from tests.refusals import refused
from tests.servers.redis import RedisServer
from tests.waiting import until


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


@pytest.mark.live
def test_as_the_first_process_of_a_container_it_heeds_a_signal_before_everything_is_imported(home: Path) -> None:
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this machine makes no namespaces of processes for this user")
    command = [*unshare, sys.executable, "-m", "issuer", "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True) as program:
        try:
            inner = until(lambda: programs.children(program.pid), message="the first process")[0]
            until(lambda: _catches(inner, signal.SIGTERM), message="a handler")
            os.kill(inner, signal.SIGTERM)
            _, told = program.communicate(timeout=120)
        finally:
            program.kill()
    assert program.returncode == 128 + signal.SIGTERM
    assert "serving" not in told
    assert "Traceback" not in told


#: Python ignores what a callback of a weak reference raises, as in importlib.
SWALLOWS = """
import os, signal, weakref
own, os.getpid = os.getpid(), lambda: 1
import issuer.cli
thing = type("Thing", (), {})()
kept = weakref.ref(thing, lambda _: os.kill(own, signal.SIGTERM))
del thing
"""


def test_a_signal_in_a_callback_of_an_import_ends_the_first_process_of_a_container() -> None:
    ended = subprocess.run([sys.executable, "-c", SWALLOWS], check=False)  # a fresh one, which has imported nothing yet
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_while_it_starts_leaves_nothing_behind(home: Path, number: signal.Signals) -> None:
    code = (
        "import os; from issuer.doors.server import run; prepare = run._prepare\n"
        f"run._prepare = lambda options: (prepare(options), os.kill(os.getpid(), {number.value}))\n"
        "from issuer.cli import main; main()"
    )
    environment = {**os.environ, "TMPDIR": str(home)}
    done = programs.run("-c", code, "serve", "--http", "127.0.0.1:0", "--workers", "2", cwd=home, env=environment)
    assert done.returncode == 0, done.stderr
    assert "serving" not in done.stderr
    assert not list(home.glob("issuer-metrics-*"))


@pytest.mark.live
def test_the_folder_of_metrics_of_a_killed_server_is_removed_by_the_next_one(serve: Serve, home: Path) -> None:
    def folders() -> set[Path]:
        return set(home.glob("issuer-*-*"))

    running = serve("--workers", "2")
    running.told("serving")
    kept = folders()
    killed = serve("--workers", "2")
    killed.told("serving")
    (abandoned,) = folders() - kept
    processes = killed.children()
    killed.process.kill()
    until(lambda: not any(map(lives, processes)), message="its processes end with it")
    assert abandoned.exists()
    following = serve("--workers", "2")
    following.told("serving")
    assert not abandoned.exists()
    assert kept < folders()
    assert "issuer_" in running.http.get("/metrics").raise_for_status().text
    assert (following.stop(), running.stop()) == (0, 0)
    assert not folders()


@pytest.mark.live
def test_a_refused_login_at_redis_is_told_at_the_start_though_the_store_has_no_tag(
    serve: Serve, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    servers = {
        "ISSUER_REDIS_URL": start_redis(password="right").url.replace("right", "wrong"),
        "ISSUER_STORE_URL": store,
    }
    server = serve(env=servers)
    assert server.process.wait(120) == 2, server.log
    assert "refuses the login" in server.log
    assert "wrong" not in server.log
    assert "keeping" not in server.log


@pytest.mark.live
def test_a_redis_that_is_away_is_told_though_the_store_has_no_tag(
    serve: Serve, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    beneath = start_redis()
    beneath.stop()
    server = serve(env={"ISSUER_REDIS_URL": beneath.url, "ISSUER_STORE_URL": store})
    server.told("trying again every 2 s")
    beneath.start()
    server.told("all is well, keeping all tags")
    assert server.stop() == 0


@pytest.mark.live
def test_without_a_temporary_folder_it_names_the_variable(home: Path) -> None:
    code = "import tempfile; from issuer.cli import main\ntempfile._candidate_tempdir_list = lambda: ['/proc']\nmain()"
    done = programs.run("-c", code, "serve", "--http", "127.0.0.1:0", "--workers", "2", cwd=home)
    assert done.returncode == 2
    assert "set TMPDIR to a folder that this user can write" in done.stderr
    assert "Traceback" not in done.stderr


def options(**given: Any) -> ServerOptions:
    return ServerOptions.of(load(given, environ={}), {}, verbose=False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
@pytest.mark.parametrize("name", ["http", "resp"])
def test_this_machine_is_served_without_tokens(name: str, host: str) -> None:
    (*_, last) = options(**{"http": "none", name: f"{host}:8000"}).endpoints
    assert (last.name, last.is_loopback) == (name, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "[2001:db8::1]", "[::ffff:10.0.0.1]"])  # noqa: S104 - to be refused
@pytest.mark.parametrize("name", ["http", "resp"])
def test_others_are_served_with_tokens_or_if_it_is_said_so(name: str, host: str) -> None:
    given = {name: f"{host}:8000"}
    error = refused(ConfigurationError, "without tokens any program there could draw", options, **given)
    assert "issuer token" in str(error)
    assert "--open" in str(error)
    assert options(**given, open=True).endpoints[-1].name == name
    assert options(**given, tokens="tokens.toml").endpoints[-1].name == name


def test_a_console_that_other_machines_can_read_needs_tokens() -> None:
    refused(ConfigurationError, "anybody there could read it", options, http="0.0.0.0:0", console=True, open=True)
    options(http="0.0.0.0:0", console=True, tokens="tokens.toml")
    options(http="127.0.0.1:0", console=True, open=True)
    options(http="127.0.0.1:0", resp="0.0.0.0:0", console=True, open=True)


def test_what_contradicts_itself_is_refused() -> None:
    refused(ConfigurationError, "contradict each other", options, open=True, tokens="tokens.toml")
    refused(ConfigurationError, "http and resp are both off", options, http="none")
    refused(ConfigurationError, "there is no host 'no.such.host.invalid'", options, http="no.such.host.invalid:80")
    refused(ConfigurationError, "there is no host", options, http=f"{'a' * 64}.example:80")


def test_each_name_of_compatible_calls_counts_once() -> None:
    assert options(compat="leaf, tinyid,leaf", compat_prefix="/ids/").settings.compat == ["leaf", "tinyid"]
    assert options(compat=["leaf:exact", "leaf-go"], compat_prefix="/a/b").settings.compat_prefix == "/a/b"


def test_only_redis_is_kept() -> None:
    assert not options().has_redis
    assert options(redis_url="redis://r", store_url="memory://").has_redis


def test_sockets_are_listened_on_before_any_worker_is_there() -> None:
    both = options(http="127.0.0.1:0", resp="[::1]:0").endpoints
    with ExitStack() as ends:
        sockets = listen(both, ends)
        for each in both:
            bound = sockets[each.name]
            host, port = bound.getsockname()[:2]
            with socket.create_connection((host, port)):
                pass
            assert (
                each.shown((host, port), tls=False)
                == {"http": f"http://127.0.0.1:{port}", "resp": f"redis://[::1]:{port}"}[each.name]
            )
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_refused_and_nothing_else_is_left_listening() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        at = options(http=f"127.0.0.1:{port}", resp=f"127.0.0.1:{taken.getsockname()[1]}").endpoints
        with ExitStack() as ends:
            refused(ConfigurationError, "can't listen on redis://.*: another program listens there", listen, at, ends)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_an_address_that_this_machine_does_not_have_is_told() -> None:
    at = options(http="192.0.2.1:8000", open=True).endpoints
    refused(ConfigurationError, "this machine has no such address", listen, at, ExitStack())
