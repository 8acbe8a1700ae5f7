"""Services that fork after the first number: gunicorn --preload, multiprocessing. And how they end: by SIGTERM."""

import json
import multiprocessing
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import issuer
from tests.audit import crashes, repeats
from tests.programs import PIPE, Program
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = [
    pytest.mark.usefixtures("patient"),
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

#: gunicorn's, which import gevent each for itself.
PRELOADED = {"sync": 8, "gevent": 4}
ROOT = Path(__file__).resolve().parents[2]

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
            cwd=ROOT,
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
