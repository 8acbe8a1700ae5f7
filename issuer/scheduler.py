"""The scheduler: an APScheduler that sweeps over the tags in use, and runs extensions as soon as they are asked for.

One tick is `Issuer.tick()`, which needs no scheduler at all; this module only says when.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_RUNNING, BaseScheduler

log = logging.getLogger("issuer.scheduler")

#: Seconds between two sweeps. They catch what no draw has asked for; a draw that reaches the mark wakes us at once.
SWEEP_EVERY = 1.0

#: Extensions under way at once; each tag has one at most.
WORKERS = 16

#: APScheduler tells of every job at level INFO, of a late sweep at WARNING, and, when the interpreter ends, of each job
#: that its pool takes no more with a traceback at ERROR. None of it concerns a user: late sweeps catch up, and lost
#: jobs are taken over. So our scheduler has a logger of its own, and an executor whose name gives it another.
JOBS = "issuer.scheduler.jobs"
EXECUTOR = "issuer"


class _Background(BackgroundScheduler):  # type: ignore[misc]  # APScheduler has no types
    @property
    def alive(self) -> bool:
        """Whether its thread runs: after a fork, or if it died, `state` still says so."""
        thread: threading.Thread | None = self._thread
        return self.state == STATE_RUNNING and thread is not None and thread.is_alive()

    def _process_jobs(self) -> float | None:
        if self.state != STATE_RUNNING:
            return None
        try:
            seconds: float | None = super()._process_jobs()
        except JobLookupError:
            # `shutdown` changes the state first and empties the job store under the feet of a round that is under way.
            return None
        return seconds


class Scheduler:
    """Runs `sweep` every second and jobs at once. Started at the first job; made anew when its thread is found dead."""

    def __init__(self, sweep: Callable[[], object], theirs: BaseScheduler | None = None) -> None:
        """`theirs`: the caller's own scheduler, which we neither start nor stop; else we make one."""
        self._sweep = sweep
        self._theirs = theirs
        self._ours: _Background | None = None
        self._sweeping: Any = None
        self._executor = EXECUTOR if theirs is None else "default"
        self._lock = threading.Lock()
        self._stopped = False

    def background(self, job: Callable[[], object]) -> bool:
        """Hand the job to another thread, to be run at once; False if that can't be tried.

        True is no promise: the pool may be full, or the interpreter about to end. Whoever waits for the job takes it
        over if it doesn't begin.
        """
        if self._stopped:
            return False
        try:
            scheduler = self._running()
            if scheduler is None:
                return False
            # A one-shot job without an id. `modify_job` on the sweep would be dropped while the sweep runs.
            scheduler.add_job(job, misfire_grace_time=None, coalesce=True, executor=self._executor)
        except Exception:
            # The interpreter ends, the scheduler was stopped in between, or the caller's own wants jobs that it can
            # write to a database.
            log.debug("the scheduler took no job", exc_info=True)
            return False
        return True

    def start(self) -> None:
        """Begin to sweep, without waiting for a first job."""
        if not self._stopped:
            self._running()

    def _running(self) -> BaseScheduler | None:
        if self._theirs is not None:
            if self._theirs.state != STATE_RUNNING:
                return None
            if self._sweeping is None:
                with self._lock:
                    if self._sweeping is None:
                        self._sweeping = self._every(self._theirs)
            return self._theirs
        ours = self._ours
        if ours is not None and ours.alive:
            return ours
        with self._lock:
            if self._stopped:
                return None
            if self._ours is None or not self._ours.alive:
                if self._ours is not None:
                    log.error("the scheduler's thread died; starting another one")
                self._ours = self._begun()
            return self._ours

    def _begun(self) -> _Background:
        logging.getLogger(JOBS).setLevel(logging.CRITICAL)
        logging.getLogger(f"apscheduler.executors.{EXECUTOR}").setLevel(logging.ERROR)
        scheduler = _Background(
            timezone=UTC,
            daemon=True,
            logger=logging.getLogger(JOBS),
            executors={EXECUTOR: ThreadPoolExecutor(WORKERS)},
        )
        self._every(scheduler)
        scheduler.start()
        return scheduler

    def _every(self, scheduler: BaseScheduler) -> Any:
        return scheduler.add_job(
            self._sweep,
            "interval",
            seconds=SWEEP_EVERY,
            misfire_grace_time=None,
            coalesce=True,
            executor=self._executor,
        )

    def stop(self) -> None:
        """Take no more jobs and sweep no more; a job under way goes on. The caller's own scheduler stays as it is."""
        with self._lock:
            self._stopped = True
            ours, self._ours = self._ours, None
            sweeping, self._sweeping = self._sweeping, None
        if ours is not None and ours.alive:
            ours.shutdown(wait=False)
        elif sweeping is not None:
            with suppress(JobLookupError):  # the caller has stopped or emptied it
                sweeping.remove()
