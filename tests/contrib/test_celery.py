"""Celery's worker with its pools, time limits and retries: nothing is issued twice, and the issuer stays usable."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import issuer
from tests.audit import crashes, repeats
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

ENDS = {
    "billiard.einfo.ExceptionWithTraceback",
    "billiard.einfo.RemoteTraceback",
    "billiard.exceptions.TimeLimitExceeded",
    "billiard.exceptions.WorkerLostError",
}
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Shop:
    """A broker, what the tasks draw from, and the numbers that they have noted."""

    broker: str
    redis: str
    store: str
    folder: Path
    app: Celery

    @property
    def drawn(self) -> list[int]:
        return [int(each) for each in (self.folder / "drawn.txt").read_text().split()]

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(f"tests.contrib.celery_app.{task}", arguments, **options)

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker; end it by SIGTERM, as its users do."""
        environment = {
            **os.environ,
            "BROKER": self.broker,
            "DRAWN": str(self.folder / "drawn.txt"),
            "ISSUER_REDIS_URL": self.redis,
            "ISSUER_STORE_URL": self.store,
            "ISSUER_REDIS_TIMEOUT": "600",
        }
        line = ["celery", "-A", "tests.contrib.celery_app", "worker", "--loglevel", "WARNING", *options]
        with (self.folder / "log.txt").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", *line], cwd=ROOT, env=environment, stderr=log, stdout=log)
            try:
                yield process
                process.terminate()
                assert process.wait(120) == 0
            finally:
                process.kill()
                process.wait()
        # Celery logs what it does to a task that takes too long, or whose process is killed.
        assert {*crashes((self.folder / "log.txt").read_text())} <= ENDS


@pytest.fixture
def start(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    app = Celery(broker=redis_url, backend=redis_url)
    store = f"sqlite:///{tmp_path / 'issuer.db'}"

    def start(redis: str = redis_url, **settings: Any) -> Shop:
        with issuer.connect(redis=redis_url, store=store) as ids:
            ids.create("orders", **settings)
        return Shop(redis_url, redis, store, tmp_path, app)

    yield start
    app.close()


LEASED = {"order": "trend", "lease": 100, "step": 10_000}


POOLS = {
    "prefork": ("-P", "prefork", "-c", "3"),
    "short-lived": ("-P", "prefork", "-c", "2", "--max-tasks-per-child", "3"),
    "threads": ("-P", "threads", "-c", "8"),
    "gevent": ("-P", "gevent", "-c", "20"),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="strict", marks=pytest.mark.soak), pytest.param(LEASED, id="leased")]
)
def test_no_pool_repeats_a_number(pool: str, settings: Any, start: Callable[..., Shop]) -> None:
    shop = start(**settings)
    with shop.worker(*POOLS[pool]):
        results = [shop.send("draw", 10) for _ in range(40)]
        pids = {each.get(timeout=60) for each in results}
    assert len(shop.drawn) == 10 + 40 * 20
    assert repeats(shop.drawn) == []
    assert len(pids) >= {"prefork": 2, "short-lived": 10}.get(pool, 1)
    if not settings:
        assert max(shop.drawn) == len(shop.drawn)  # no number is lost


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_warm_shutdown_returns_what_the_worker_held(pool: str, start: Callable[..., Shop]) -> None:
    shop = start(**LEASED)
    with issuer.connect(redis=shop.redis, store=shop.store) as ids:

        def holds_numbers() -> bool:
            """Whether the worker has leased more than it has drawn: about a second after its first draw."""
            shop.send("draw", 3).get(timeout=60)
            found = ids.inspect("orders").redis
            return found is not None and (found.cur or 0) > max(shop.drawn)

        with shop.worker("-P", pool, "-c", "1"):
            shop.send("draw", 3).get(timeout=60)
            until(holds_numbers, 60)
        assert ids.next("orders") == max(shop.drawn) + 1


@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="strict", marks=pytest.mark.soak), pytest.param(LEASED, id="leased")]
)
def test_a_soft_time_limit_ends_a_draw_and_the_worker_draws_on(settings: Any, start: Callable[..., Shop]) -> None:
    shop = start(**settings)
    with shop.worker("-P", "prefork", "-c", "2"):
        results = [shop.send("draw_until_the_limit", soft_time_limit=1) for _ in range(8)]
        ended = [each.get(timeout=60) for each in results]
        shop.send("draw", 10).get(timeout=60)
    assert all(draws for draws, _ in ended)
    assert len({pid for _, pid in ended}) <= 2  # the processes live on
    assert repeats(shop.drawn) == []
    assert len(shop.drawn) >= 10 + sum(draws + 1 for draws, _ in ended) + 20  # a last one may have been cut off


def test_a_soft_time_limit_reaches_the_task_while_redis_does_not_answer(
    redis_proxy: FaultProxy, redis_url: str, start: Callable[..., Shop]
) -> None:
    through = f"redis://127.0.0.1:{redis_proxy.port}/0"
    assert redis_url != through
    shop = start(redis=through)
    with shop.worker("-P", "prefork", "-c", "1"):
        shop.send("draw", 3).get(timeout=60)
        redis_proxy.blackhole()
        result = shop.send("wait_for_redis", soft_time_limit=1)
        assert result.get(timeout=60) == "interrupted"
        redis_proxy.pass_through()
        shop.send("draw", 3).get(timeout=60)
    assert repeats(shop.drawn) == []


def test_a_hard_time_limit_costs_a_gap(start: Callable[..., Shop]) -> None:
    shop = start(**LEASED)
    with shop.worker("-P", "prefork", "-c", "2"):
        results = [shop.send("draw_without_end", time_limit=1) for _ in range(4)]
        for each in results:
            with pytest.raises(Exception, match="TimeLimitExceeded"):
                each.get(timeout=60)
        shop.send("draw", 10).get(timeout=60)
    assert repeats(shop.drawn) == []


def test_a_task_that_is_delivered_again_has_the_same_number_if_its_id_is_the_key(start: Callable[..., Shop]) -> None:
    shop = start()
    with shop.worker("-P", "prefork", "-c", "2"):
        number = shop.send("die_after_the_draw").get(timeout=60)
    assert shop.drawn[10:] == [number, number]


def test_a_task_that_retries_while_redis_is_away_gets_its_number(
    redis_proxy: FaultProxy, start: Callable[..., Shop]
) -> None:
    shop = start(redis=f"redis://127.0.0.1:{redis_proxy.port}/0")
    with shop.worker("-P", "prefork", "-c", "1"):
        shop.send("draw", 1).get(timeout=60)
        redis_proxy.refuse()
        result = shop.send("retry_while_unavailable")
        until(lambda: result.state == "RETRY", 240)
        redis_proxy.pass_through()
        assert result.get(timeout=60) == 13
