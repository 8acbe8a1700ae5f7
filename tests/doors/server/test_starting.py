"""How `issuer serve` starts: what it notices before it serves anybody."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import programs
from tests.doors.server.conftest import Serve, lives
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
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


def test_without_a_temporary_folder_it_names_the_variable(home: Path) -> None:
    code = "import tempfile; from issuer.cli import main\ntempfile._candidate_tempdir_list = lambda: ['/proc']\nmain()"
    done = programs.run("-c", code, "serve", "--http", "127.0.0.1:0", "--workers", "2", cwd=home)
    assert done.returncode == 2
    assert "set TMPDIR to a folder that this user can write" in done.stderr
    assert "Traceback" not in done.stderr
