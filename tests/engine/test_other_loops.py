"""Loops that aren't Python's own: gevent, as gunicorn and Celery may run it, and uvloop, as uvicorn does."""

import asyncio
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

import issuer
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import covering
from tests.engine.late_gevent_app import TAGS
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")

ROOT = Path(__file__).resolve().parents[2]
TASKS, EACH = 50, 100


def told(app: str, *words: str) -> Any:
    """Run a program of this folder, and return what it says, which is JSON."""
    ended = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{app}", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_greenlets_draw_and_a_server_that_stands_still_holds_up_only_who_asks_it(server: RedisServer) -> None:
    found = told("gevent_app", server.url, str(server.pid))
    assert sorted(found["strict"]) == list(range(1, TASKS * EACH + 1))
    assert len(found["trend"]) == len(set(found["trend"])) == TASKS * EACH
    assert found["refused"] == ["RedisUnavailable"] * 2
    assert found["waiting"]
    later = found["later"]
    assert len(set(later)) == len(later) == TASKS * EACH + 1
    assert min(later) > max(found["strict"])


@covering("store, lease", [("SQLite", 20), ("MongoDB", 0)], ["SQLite", "MongoDB"], [0, 20])
def test_a_fork_that_gevent_patches_afterwards_stops_no_greenlet(
    store: str, lease: int, server: RedisServer, mongo_url: str, tmp_path: Path
) -> None:
    urls = {"SQLite": f"sqlite:///{tmp_path / 'a.db'}", "MongoDB": f"{mongo_url}/late_{secrets.token_hex(4)}"}
    with issuer.connect(redis=server.url, store=urls[store]) as ids:
        for tag in TAGS:
            ids.create(tag, order="trend" if lease else "strict", step=300)
    for numbers in told("late_gevent_app", server.url, urls[store], str(lease)).values():
        assert len(numbers) == len(set(numbers)) == 510


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_uvloop_serves_tasks_and_a_server_that_stands_still_costs_no_more_than_the_deadline(
    server: RedisServer,
) -> None:
    async def drawn(ids: issuer.AsyncIssuer, tag: str) -> list[int]:
        async def caller() -> list[int]:
            return [await ids.next(tag) for _ in range(EACH)]

        return [number for numbers in await asyncio.gather(*(caller() for _ in range(TASKS))) for number in numbers]

    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=MemoryStore(), lease=20) as ids:
            await ids.create("strict", step=1000)
            await ids.create("trend", step=1000, order="trend")
            assert sorted(await drawn(ids, "strict")) == list(range(1, TASKS * EACH + 1))
            assert not repeats(await drawn(ids, "trend"))
            server.pause()
            patient = asyncio.ensure_future(ids.next("strict"))
            for deadline in (0, 0.3):
                with pytest.raises(issuer.RedisUnavailable):
                    await ids.next("strict", timeout=deadline)
            assert not patient.done()
            server.resume()
            later = [await patient, *await drawn(ids, "strict")]
            assert not repeats(later)
            assert min(later) > TASKS * EACH

    uvloop.run(main())
