"""Services that fork after the first number: gunicorn --preload, multiprocessing. And how they end: by SIGTERM."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import issuer
from tests.audit import crashes, repeats
from tests.faults.conftest import covering
from tests.programs import PIPE, Program
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = [
    pytest.mark.usefixtures("patient"),
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

WORKERS = 8

#: gunicorn's, which import gevent each for itself.
PRELOADED = {"sync": 8, "gevent": 4}
ROOT = Path(__file__).resolve().parents[2]

#: What is behind the service: a lease in hand, a segment of its own in hand, nothing in hand.
BEHIND = {"leased": ("redis", 500, "trend"), "direct": ("", 0, "trend"), "strict": ("redis", 0, "strict")}


# ---------------------------------------------------------------------------------------------- gunicorn


@contextmanager
def gunicorn(
    redis: str, store: str, lease: int, kind: str, complaints: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve `prefork_app` with eight workers of that kind; end it by SIGTERM. What it says goes to `complaints`."""
    port = free_port()
    with complaints.open("wb") as stderr:
        options = (
            f"--preload --worker-class {kind} --workers {PRELOADED[kind]} --bind 127.0.0.1:{port} --log-level warning"
        )
        service = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options.split(), "tests.faults.prefork_app:app"],
            cwd=ROOT,
            env={**os.environ, "PREFORK_REDIS": redis, "PREFORK_STORE": store, "PREFORK_LEASE": str(lease)},
            stderr=stderr,
        )
    try:
        url = f"http://127.0.0.1:{port}/"
        until(lambda: asked(url), 60, ignoring=(OSError,))
        yield url, service
    finally:
        service.send_signal(signal.SIGTERM)
        try:
            service.wait(60)
        except subprocess.TimeoutExpired:
            service.kill()
            raise


def asked(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own, on loopback
        content: dict[str, Any] = json.load(answer)
    return content


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.mark.covers("U.14")
@covering("kind, behind", [("sync", "leased"), ("gevent", "strict")], ["sync", "gevent"], BEHIND)
def test_preloaded_workers_repeat_nothing_and_leave_nothing_behind(
    behind: str, kind: str, redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    """gunicorn has gevent patch its workers after the fork only, when the issuer is there already."""
    complaints = tmp_path / "complaints.txt"
    redis, lease, order = BEHIND[behind]
    redis, store = redis and redis_url, f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis=redis or "none", store=store, scheduler=None) as ids:
        ids.create("a", step=5000, order=order)  # type: ignore[arg-type]
        with redis_server.client() as client:
            connections = client.info("clients")["connected_clients"]
        answers: list[dict[str, Any]] = []
        with gunicorn(redis, store, lease, kind, complaints) as (url, service), ThreadPoolExecutor(16) as pool:

            def all_workers_answered() -> bool:
                answers.extend(pool.map(asked, [url] * 32))
                return len({answer["pid"] for answer in answers}) == PRELOADED[kind]

            until(all_workers_answered, 60)
            workers = children_of(service.pid)
            assert len(workers) == PRELOADED[kind]
        numbers = [*answers[0]["before"], *(number for answer in answers for number in answer["numbers"])]
        numbers += ids.take("a", 100)
        assert crashes(complaints.read_text()) == []
        assert repeats(numbers) == []
        assert max(numbers) <= ids.inspect("a").store.max
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        with redis_server.client() as client:
            until(lambda: client.info("clients")["connected_clients"] <= connections + 1, timeout=30)


# ---------------------------------------------------------------------------------------------- multiprocessing

_ids: issuer.Issuer | None = None
_together: Any = None


def connected(redis: str, store: str, lease: int, together: Any = None) -> None:
    global _ids, _together  # noqa: PLW0603 - as a program's module would have it
    _together = together
    if _ids is None:
        _ids = issuer.connect(redis=redis or "none", store=store, lease=lease, timeout=60, redis_timeout=40)


def drawn_by_worker(n: int) -> tuple[int, list[int]]:
    assert _ids is not None
    _together.wait(120)
    return os.getpid(), [_ids.next("a") for _ in range(n)] + _ids.take("a", n)


@pytest.mark.covers("U.14")
@covering(
    "method, behind",
    [("fork", "direct"), ("forkserver", "strict")],
    ["fork", "spawn", "forkserver"],
    BEHIND,
)
def test_a_pool_of_eight_processes_repeats_nothing(method: str, behind: str, redis_url: str, tmp_path: Path) -> None:
    global _ids  # noqa: PLW0603 - as above
    redis, lease, order = BEHIND[behind]
    settings = (redis and redis_url, f"sqlite:///{tmp_path / 'a.db'}", lease)
    connected(*settings)
    assert _ids is not None
    try:
        _ids.create("a", step=5000, order=order)  # type: ignore[arg-type]
        numbers = [*_ids.take("a", 10), _ids.next("a")]
        context = multiprocessing.get_context(method)
        with context.Pool(WORKERS, connected, (*settings, context.Barrier(WORKERS))) as pool:
            running = pool.map_async(drawn_by_worker, [400] * WORKERS, chunksize=1)
            numbers += [_ids.next("a") for _ in range(200)]
            answers = running.get(120)
        numbers += [number for _, drawn in answers for number in drawn] + _ids.take("a", 100)
        assert len({pid for pid, _ in answers}) == WORKERS
        assert len(numbers) == WORKERS * 800 + 311
        assert repeats(numbers) == []
    finally:
        _ids.close()
        _ids = None


# ---------------------------------------------------------------------------------------------- SIGTERM

SERVICE = """
import signal, sys, issuer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as README says
ids = issuer.connect(redis={redis!r}, store={store!r}, lease={lease})
print(ids.take("a", 10)[-1], ids.next("a"), flush=True)
signal.pause()
"""


@pytest.mark.covers("U.4", "N.4")
@covering("behind", [("leased",), ("direct",)], BEHIND)
def test_a_service_that_ends_in_order_on_sigterm_hands_back_what_it_held(
    behind: str, redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    redis, lease, order = BEHIND[behind]
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis=(redis and redis_url) or "none", store=store, scheduler=None) as ids:
        ids.create("a", step=5000, order=order)  # type: ignore[arg-type]
        with redis_server.client() as client:
            connections = client.info("clients")["connected_clients"]
        program = tmp_path / "service.py"
        program.write_text(SERVICE.format(redis=(redis and redis_url) or "none", store=store, lease=lease))
        with Program(str(program), stdout=PIPE) as service:
            assert service.stdout is not None
            assert service.stdout.readline().split() == ["10", "11"]
            service.terminate()
            assert service.wait(60) == 0
        assert ids.next("a") == 12
        with redis_server.client() as client:
            until(lambda: client.info("clients")["connected_clients"] <= connections + 1, timeout=30)
