"""Under a real uWSGI, which forks in C without a word to Python, no number comes twice and strict order holds."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import issuer
from tests.audit import Draw, crashes, drawn, order_violations, repeats
from tests.servers.ports import LOOPBACK, free_port
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")

PROGRAM = Path(sys.executable).with_name("uwsgi")
REPOSITORY = Path(__file__).resolve().parents[2]
KINDS = ("strict", "leased", "direct", "snowflake")
MODES = {
    "default": [],
    "lazy-apps": ["--lazy-apps"],
    "osafterfork": ["--py-call-osafterfork"],
    "threads": ["--enable-threads", "--threads", "2"],
    "threads, osafterfork": ["--enable-threads", "--threads", "2", "--py-call-osafterfork"],
}
if sys.version_info >= (3, 13):  # this option unlocks there what uWSGI has not locked: each worker ends, of any program
    MODES = {name: options for name, options in MODES.items() if "--py-call-osafterfork" not in options}
WORKERS = 3


def _ends_with_us() -> None:
    """Let the kernel kill this process when the test's own has ended, however."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextmanager
def served(options: list[str], redis: str, folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    environment = {
        **os.environ,
        "APP_REDIS": redis,
        "APP_STORE": f"sqlite:///{folder / 'ids.db'}",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]),
    }
    line = [str(PROGRAM), "--http-socket", f"{LOOPBACK}:{port}", "--master", "--processes", str(WORKERS)]
    line += [
        "--module",
        "tests.engine.uwsgi_app",
        "--need-app",
        "--die-on-term",
        "--no-orphans",
        "--listen",
        "64",
        *options,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            line,
            env=environment,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            start_new_session=True,
            preexec_fn=_ends_with_us,  # noqa: PLW1509 - it calls the kernel only
        )
        try:
            until(lambda: answers(port, process), timeout=240, message="uWSGI answers", ignoring=(OSError,))
            yield port, process
            process.send_signal(signal.SIGTERM)
            process.wait(240)
        finally:
            # Of a test that failed, too: workers outlive a master that is killed.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ready(folder: Path, mode: str, loads: int) -> None:
    """Wait until nobody imports the program any more: a signal then ends the import with a KeyboardInterrupt."""
    imports = loads * (WORKERS if mode == "lazy-apps" else 1)
    text = "the workers have imported the program"
    until(lambda: (folder / "log").read_bytes().count(b"WSGI app 0") >= imports, timeout=240, message=text)


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    return asked(port, "direct", 0) is not None


def asked(port: int, kind: str, n: int) -> tuple[int, list[int], dict[str, list[int]]]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{kind}?{n}", timeout=240) as reply:
        pid, numbers, at_import, _ = json.load(reply)
    return pid, numbers, at_import


def hearing(port: int) -> list[str]:
    """The threads of ours, in the worker that answers, that a signal may hit."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/strict?100", timeout=240) as reply:
        threads: list[str] = json.load(reply)[3]
    return threads


class Seen:
    """What was drawn, by kind, and by which processes."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.strict: list[Draw] = []
        self.processes: set[int] = set()

    def take(self, port: int, kind: str, n: int) -> None:
        numbers: list[int] = []

        def draw() -> int:
            pid, got, at_import = asked(port, kind, n)
            self.processes.add(pid)
            for each, some in at_import.items():
                self.numbers[each] += some
            numbers.extend(got)
            return got[-1]

        try:
            one = drawn(draw)
        except ConnectionError:  # cut by the reload: what it drew, if anything, is a gap
            return
        assert numbers == sorted(numbers)
        self.numbers[kind] += numbers
        if kind == "strict":
            self.strict += [Draw(number, one.began, one.ended) for number in (numbers[0], numbers[-1])]

    def drive(self, port: int) -> None:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda turn: self.take(port, KINDS[turn % 4], 40), range(120)))


@pytest.mark.covers("U.14")
@pytest.mark.parametrize("mode", MODES)
def test_no_number_comes_twice_under_uwsgi(mode: str, redis_url: str, tmp_path: Path) -> None:
    assert PROGRAM.exists(), shutil.which("uwsgi")
    seen = Seen()
    with issuer.connect(redis=redis_url, store=f"sqlite:///{tmp_path / 'ids.db'}", scheduler=None) as ids:
        ids.create("strict", step=500)
        ids.create("leased", step=1000, order="trend")
        ids.create("direct", step=700, order="trend")
        ids.create("snowflake", strategy="snowflake")
        with served(MODES[mode], redis_url, tmp_path) as (port, process):
            ready(tmp_path, mode, 1)
            seen.drive(port)
            # Each worker by and by; a thread that has just begun may hear one for a moment.
            until(lambda: [hearing(port) for _ in range(10)] == [[]] * 10, 60, "signals are left to the main thread")
            before = {*seen.processes, *(asked(port, "direct", 0)[0] for _ in range(20))}
            process.send_signal(signal.SIGHUP)
            until(lambda: asked(port, "direct", 0)[0] not in before, timeout=240, ignoring=(OSError, ValueError))
            seen.drive(port)
            ready(tmp_path, mode, 2)
        # With the workers gone, another process goes on.
        for kind in ("strict", "leased", "direct"):
            seen.numbers[kind] += ids.take(kind, 500)
    log = (tmp_path / "log").read_text(errors="replace")
    assert seen.processes - before, log
    for kind in KINDS:
        assert repeats(seen.numbers[kind]) == [], (kind, log)
    assert order_violations(seen.strict) == [], log
    assert "CorruptState" not in log
    assert crashes(log) == [], log
