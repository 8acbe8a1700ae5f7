"""Services that fork after the first number: gunicorn --preload, multiprocessing, uWSGI; and how SIGTERM ends them."""

import ctypes
import json
import multiprocessing
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import issuer
from tests.audit import Draw, crashes, drawn, order_violations, repeats
from tests.programs import PIPE, REPOSITORY, Program
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

#: gunicorn's, which import gevent each for itself.
PRELOADED = {"sync": 8, "gevent": 4}


#: What is behind the service: a lease in hand, a segment of its own in hand, nothing in hand.
BEHIND = {"leased": ("redis", 500, "trend"), "direct": ("none", 0, "trend"), "strict": ("redis", 0, "strict")}


@dataclass
class Behind:
    """What a service draws from. `ids`: another process's."""

    redis: str
    store: str
    lease: int
    ids: issuer.Issuer


@pytest.fixture
def behind(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> Iterator[Behind]:
    """Let all connections to Redis be closed again afterwards."""
    redis, lease, order = BEHIND[request.param]
    redis, store = redis_url if redis == "redis" else redis, f"sqlite:///{tmp_path / 'a.db'}"
    with redis_server.client() as client:
        connections = client.info("clients")["connected_clients"]
        with issuer.connect(redis=redis, store=store, scheduler=None) as ids:
            ids.create("a", step=5000, order=order)  # type: ignore[arg-type]
            yield Behind(redis, store, lease, ids)
        until(lambda: client.info("clients")["connected_clients"] <= connections, 60)


# ---------------------------------------------------------------------------------------------- gunicorn


@contextmanager
def gunicorn(behind: Behind, kind: str, complaints: Path) -> Iterator[tuple[str, int]]:
    """Serve `prefork_app` with workers of that kind; end it by SIGTERM. What it says goes to `complaints`."""
    url = f"127.0.0.1:{free_port()}"
    options = f"--preload --worker-class {kind} --workers {PRELOADED[kind]} --bind {url} --log-level warning"
    settings = {"PREFORK_REDIS": behind.redis, "PREFORK_STORE": behind.store, "PREFORK_LEASE": str(behind.lease)}
    with complaints.open("wb") as stderr:
        service = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options.split(), "tests.engine.prefork_app:app"],
            cwd=REPOSITORY,
            env={**os.environ, **settings},
            stderr=stderr,
        )
    try:
        until(lambda: asked(f"http://{url}/"), 240, ignoring=(OSError,))
        yield f"http://{url}/", service.pid
        service.terminate()
        service.wait(120)
    finally:
        service.kill()


def asked(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own, on loopback
        content: dict[str, Any] = json.load(answer)
    return content


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.mark.live
@pytest.mark.covers("U.14")
@pytest.mark.parametrize(
    ("kind", "behind"),
    [
        ("sync", "leased"),
        ("gevent", "strict"),
        pytest.param("sync", "direct", marks=pytest.mark.soak),
        pytest.param("gevent", "leased", marks=pytest.mark.soak),
    ],
    indirect=["behind"],
)
def test_preloaded_workers_repeat_nothing_and_leave_nothing_behind(kind: str, behind: Behind, tmp_path: Path) -> None:
    """gunicorn has gevent patch its workers after the fork only, when the issuer is there already."""
    complaints = tmp_path / "complaints.txt"
    answers: list[dict[str, Any]] = []
    with gunicorn(behind, kind, complaints) as (url, service), ThreadPoolExecutor(16) as pool:

        def all_workers_answered() -> bool:
            answers.extend(pool.map(asked, [url] * 32))
            return len({answer["pid"] for answer in answers}) == PRELOADED[kind]

        until(all_workers_answered, 240)
        workers = children_of(service)
        assert len(workers) == PRELOADED[kind]
    numbers = [*answers[0]["before"], *(number for answer in answers for number in answer["numbers"])]
    numbers += behind.ids.take("a", 100)
    assert crashes(complaints.read_text()) == []
    assert repeats(numbers) == []
    assert max(numbers) <= behind.ids.inspect("a").store.max
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


# ---------------------------------------------------------------------------------------------- multiprocessing

#: The issuer that processes of a pool have from their parent, and what lets them all begin at once.
INHERITED: list[Any] = []


def drawn_by_worker(n: int) -> tuple[int, list[int]]:
    ids, together = INHERITED
    together.wait(120)
    return os.getpid(), [ids.next("a") for _ in range(n)] + ids.take("a", n)


@pytest.mark.live
@pytest.mark.covers("U.14")
@pytest.mark.parametrize("behind", ["direct", pytest.param("leased", marks=pytest.mark.soak)], indirect=True)
def test_a_pool_of_eight_processes_repeats_nothing(behind: Behind) -> None:
    context = multiprocessing.get_context("fork")
    with issuer.connect(redis=behind.redis, store=behind.store, lease=behind.lease) as ids:
        numbers = [*ids.take("a", 10), ids.next("a")]
        INHERITED[:] = ids, context.Barrier(8)
        with context.Pool(8) as pool:
            running = pool.map_async(drawn_by_worker, [400] * 8, chunksize=1)
            numbers += [ids.next("a") for _ in range(200)]
            answers = running.get(240)
        numbers += [number for _, drawn in answers for number in drawn] + ids.take("a", 100)
        assert len({pid for pid, _ in answers}) == 8
        assert len(numbers) == 8 * 800 + 311
        assert repeats(numbers) == []


# ---------------------------------------------------------------------------------------------- SIGTERM

SERVICE = """
import signal, sys, issuer
from issuer.engine import blocking
blocking.CLOSING = 60  # a machine that stands still keeps it from handing back
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as README says
ids = issuer.connect(redis={redis!r}, store={store!r}, lease={lease})
print(ids.take("a", 10)[-1], ids.next("a"), flush=True)
signal.pause()
"""


@pytest.mark.live
@pytest.mark.covers("U.4", "N.4")
@pytest.mark.parametrize("behind", ["leased", "direct"], indirect=True)
def test_a_service_that_ends_in_order_on_sigterm_hands_back_what_it_held(behind: Behind, tmp_path: Path) -> None:
    program = tmp_path / "service.py"
    program.write_text(SERVICE.format(redis=behind.redis, store=behind.store, lease=behind.lease))
    with Program(str(program), stdout=PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline().split() == ["10", "11"]
        service.terminate()
        assert service.wait(60) == 0
    assert behind.ids.next("a") == 12


# ---------------------------------------------------------------------------------------------- uWSGI


PROGRAM = Path(sys.executable).with_name("uwsgi")


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
    line = [str(PROGRAM), *options, "--http-socket", f"{LOOPBACK}:{port}", "--master", "--processes", str(WORKERS)]
    line += ["--module", "tests.engine.uwsgi_app", "--need-app", "--die-on-term", "--no-orphans", "--listen", "64"]
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
            until(lambda: serves(port, process), timeout=240, message="uWSGI answers", ignoring=(OSError,))
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


def serves(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    return answer(port, "direct", 0) is not None


def answer(port: int, kind: str, n: int) -> tuple[int, list[int], dict[str, list[int]]]:
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
            pid, got, at_import = answer(port, kind, n)
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
            before = {*seen.processes, *(answer(port, "direct", 0)[0] for _ in range(20))}
            process.send_signal(signal.SIGHUP)
            until(lambda: answer(port, "direct", 0)[0] not in before, timeout=240, ignoring=(OSError, ValueError))
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
