"""RQ's workers, which fork a process for each job: nothing is issued twice."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, Retry
from rq.job import Job, JobStatus

import issuer
from tests.audit import repeats

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Jobs:
    """A queue, and the numbers that its jobs have noted."""

    url: str
    store: str
    folder: Path
    queue: Queue

    @property
    def drawn(self) -> list[int]:
        return [int(each) for each in (self.folder / "drawn.txt").read_text().split()]

    def put(self, job: str, *arguments: Any, **options: Any) -> Job:
        return self.queue.enqueue(f"tests.contrib.rq_jobs.{job}", *arguments, **options)

    def work(self, *options: str) -> None:
        """Run a worker until the queue is empty."""
        environment = {
            **os.environ,
            "DRAWN": str(self.folder / "drawn.txt"),
            "ISSUER_REDIS_URL": self.url,
            "ISSUER_STORE_URL": self.store,
        }
        line = ["worker", "--url", self.url, "--burst", "--path", str(ROOT), *options, "default"]
        done = subprocess.run(
            [sys.executable, "-m", "rq.cli", *line],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def jobs(redis_url: str, tmp_path: Path) -> Iterator[Jobs]:
    store = f"sqlite:///{tmp_path / 'issuer.db'}"
    with redis.Redis.from_url(redis_url) as client:
        yield Jobs(redis_url, store, tmp_path, Queue(connection=client))


def created(jobs: Jobs, **settings: Any) -> None:
    with issuer.connect(redis=jobs.url, store=jobs.store) as ids:
        ids.create("orders", **settings)


@pytest.mark.parametrize("kind", ["rq.Worker", "rq.worker.SpawnWorker", "rq.SimpleWorker"])
def test_no_job_repeats_a_number(kind: str, jobs: Jobs) -> None:
    created(jobs)
    put = [jobs.put("draw", 10) for _ in range(10)]
    jobs.work("--worker-class", kind)
    assert len(jobs.drawn) == 200
    assert repeats(jobs.drawn) == []
    assert max(jobs.drawn) == 200  # no number is lost
    pids = {each.return_value(refresh=True) for each in put}
    assert len(pids) == (1 if "Simple" in kind else 10)


def test_a_job_timeout_ends_a_draw_and_the_job_draws_on(jobs: Jobs) -> None:
    created(jobs, order="trend", lease=100, step=10_000)
    put = [jobs.put("draw_until_the_timeout", job_timeout=1) for _ in range(4)]
    jobs.work("--worker-class", "rq.SimpleWorker")
    assert [each.get_status(refresh=True) for each in put] == [JobStatus.FAILED] * 4
    assert repeats(jobs.drawn) == []


@pytest.mark.parametrize("job", ["fail_once", "die_once"])
def test_a_job_that_is_tried_again_has_the_same_number_if_its_id_is_the_key(job: str, jobs: Jobs) -> None:
    created(jobs)
    put = jobs.put(job, retry=Retry(max=3))
    jobs.work()
    (number,) = {*jobs.drawn}
    assert jobs.drawn == [number, number]
    assert put.return_value(refresh=True) == number
