"""The scheduler: an APScheduler that sweeps over the tags in use, and hands that run an extension as soon as it is due.

One tick is `Issuer.tick()`, which needs no scheduler at all; this module only says when.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Protocol

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.job import Job as SchedulersJob
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_RUNNING, BaseScheduler
from apscheduler.triggers.interval import IntervalTrigger

from issuer.forks import in_uwsgi_master, leave_signals
from issuer.reentry import CallLock
from issuer.threads import Crew

log = logging.getLogger("issuer.api.scheduler")

#: Seconds between two sweeps. They catch what no draw has asked for; a draw that reaches the mark is served at once.
SWEEP_EVERY = 1.0

#: Extensions under way at once; each tag has one at most.
WORKERS = 16

#: APScheduler logs every job at level INFO, of a late sweep at WARNING, and of a job for which no thread can begin, as
#: when the interpreter ends, a traceback at ERROR. None of it concerns a user: late sweeps catch up, and lost jobs are
#: taken over. So our scheduler has a logger of its own, and an executor whose name gives it another.
JOBS = "issuer.api.scheduler.jobs"
EXECUTOR = "issuer"

#: A job: a function for threads, a coroutine function for tasks.
Job = Callable[[], object]


class Executor(Protocol):
    """The hands of a scheduler: threads or tasks."""

    def run(self, job: Job) -> bool:
        """Run the job at once, beside the caller; False if nothing does. Added to APScheduler it takes 0.3 ms more."""

    def scheduler(self) -> BaseScheduler:
        """Make an APScheduler, not yet started, whose jobs these hands run."""

    def alive(self, scheduler: BaseScheduler) -> bool:
        """Whether it runs: after a fork, or if its thread died, its `state` still says so."""

    def dismiss(self) -> None:
        """Take no more jobs; those under way go on."""


class _Background(BackgroundScheduler):  # type: ignore[misc]  # APScheduler has no types
    def start(self, *args: Any, **options: Any) -> None:
        """Do as APScheduler does, but with the names that `threading` has now.

        gevent may have put its own there since APScheduler was imported, and what is Python's own can't be joined then:
        a worker of `gunicorn --preload -k gevent` ended with an error, or not at all.
        """
        self._event = threading.Event()
        BaseScheduler.start(self, *args, **options)
        self._thread = threading.Thread(target=self._main_loop, name="APScheduler", daemon=self._daemon)
        self._thread.start()

    def _main_loop(self) -> None:
        leave_signals()
        super()._main_loop()

    def _process_jobs(self) -> float | None:
        if self.state != STATE_RUNNING:
            return None
        try:
            seconds: float | None = super()._process_jobs()
        except JobLookupError:
            # `shutdown` changes the state first and empties the job store under the feet of a round that is under way.
            return None
        return seconds


class _Crew(BaseExecutor):  # type: ignore[misc]  # the same
    """APScheduler's executor on threads of ours."""

    def __init__(self, crew: Crew) -> None:
        super().__init__()
        self._crew = crew

    def _do_submit_job(self, job: SchedulersJob, run_times: list[datetime]) -> None:
        if not self._crew.put(partial(self._run, job, run_times)):
            raise RuntimeError("no thread can be started")  # else the job would count as running for ever

    def _run(self, job: SchedulersJob, run_times: list[datetime]) -> None:
        # As APScheduler's own executors do; a subclass gets the alias of a job's store nowhere else.
        try:
            events = run_job(job, job._jobstore_alias, run_times, self._logger.name)  # noqa: SLF001
        except BaseException:  # noqa: BLE001 - APScheduler's to tell
            self._run_job_error(job.id, *sys.exc_info()[1:])
        else:
            self._run_job_success(job.id, events)


class Threads:
    """Threads of our own."""

    def __init__(self) -> None:
        self._crew = Crew("issuer-jobs", WORKERS)

    def run(self, job: Job) -> bool:
        """Run the job in one of them."""
        return self._crew.put(partial(_done, job))

    def scheduler(self) -> BaseScheduler:
        """Make a scheduler with a thread of its own."""
        return _Background(
            timezone=UTC, daemon=True, logger=logging.getLogger(JOBS), executors={EXECUTOR: _Crew(self._crew)}
        )

    def alive(self, scheduler: BaseScheduler) -> bool:
        """Whether its thread runs."""
        thread: threading.Thread | None = scheduler._thread  # noqa: SLF001 - shown nowhere else
        return scheduler.state == STATE_RUNNING and thread is not None and thread.is_alive()

    def dismiss(self) -> None:
        """Take no more jobs."""
        self._crew.close()


class _Loop(AsyncIOExecutor):  # type: ignore[misc]  # the same
    """APScheduler's executor of coroutines; those under way are left to `Tasks.cancel`, which waits for their end."""

    def shutdown(self, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - APScheduler's signature
        pass


class Tasks:
    """The tasks of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._executor = _Loop()

    def scheduler(self) -> BaseScheduler:
        """Make a scheduler whose timer is the loop's."""
        return AsyncIOScheduler(
            event_loop=self._loop, timezone=UTC, logger=logging.getLogger(JOBS), executors={EXECUTOR: self._executor}
        )

    def alive(self, scheduler: BaseScheduler) -> bool:
        """Whether its loop runs."""
        return scheduler.state == STATE_RUNNING and self._loop.is_running()

    def run(self, job: Callable[[], Any]) -> bool:
        """Run the job as a task."""
        task = self._loop.create_task(job())
        self._tasks.add(task)  # a loop holds its tasks by weak references only
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_tell)
        return True

    def dismiss(self) -> None:
        """Tasks under way go on; there is nothing to close."""

    async def cancel(self) -> None:
        """End the tasks under way: a loop that is closed while one is pending complains."""
        tasks = [*self._tasks, *self._executor._pending_futures]  # noqa: SLF001 - shown nowhere else
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)


def _done(job: Job) -> None:
    try:
        job()
    except BaseException:  # in a thread of ours nobody else would hear of it
        log.exception("a job failed")


def _tell(job: asyncio.Task[Any]) -> None:
    if not job.cancelled() and job.exception() is not None:
        log.error("a job failed", exc_info=job.exception())


class Scheduler:
    """Runs `sweep` every second and jobs at once. Started at the first job; made again when it is found dead."""

    def __init__(
        self, sweep: Job, crew: Callable[[], Executor], chosen: Literal["background"] | BaseScheduler | None
    ) -> None:
        """`crew` makes the hands. `chosen`: the caller's own scheduler, which we neither start nor stop; None: none."""
        self._sweep = sweep
        self._make_crew = crew
        self._theirs = chosen if isinstance(chosen, BaseScheduler) else None
        self._ours: BaseScheduler | None = None
        self._crew: Executor | None = None
        self._sweeping: Any = None
        self._locks: dict[str, CallLock] = {}
        self._stopped = chosen is None

    def background(self, work: Callable[..., object], *args: object) -> bool:
        """Hand over a job, `work` on its arguments, to be run at once; False if that can't be tried.

        True is no promise: all threads may be in jobs, or the process about to end. If the job doesn't begin, a caller
        that waits for it takes it over.
        """
        if self._stopped:
            return False
        job = partial(work, *args)
        try:
            if not self._running():
                return False
            if self._theirs is not None:
                # A one-shot job without an id. `modify_job` on the sweep would be dropped while the sweep runs.
                self._theirs.add_job(job, misfire_grace_time=None, coalesce=True)
            elif self._crew is not None:
                return self._crew.run(job)
        except Exception:
            # No thread can begin, the scheduler was stopped in between, or the caller's own wants jobs that it can
            # write to a database.
            log.debug("the scheduler did not accept the job", exc_info=True)
            return False
        return True

    def start(self) -> None:
        """Begin to sweep, without waiting for a first job."""
        if not self._stopped:
            try:
                self._running()
            except Exception:
                log.debug("the scheduler was not started", exc_info=True)  # as in `background`

    @property
    def _lock(self) -> CallLock:
        """Made at its first use, not in the fork: gevent may patch the child in between.

        It is held while threads start. With Python's own lock that stopped all greenlets for ever.
        """
        return self._locks.setdefault("", CallLock())

    def _running(self) -> bool:
        if self._theirs is not None:
            if self._theirs.state != STATE_RUNNING:
                return False
            if self._sweeping is None:
                with self._lock.thread, self._lock.call():
                    if self._sweeping is None:
                        self._sweeping = self._every(self._theirs, "default")
            return True
        crew, ours = self._crew, self._ours
        if ours is not None and crew is not None and crew.alive(ours):
            return True
        if in_uwsgi_master():
            return False  # callers extend by themselves there, and in each worker a scheduler begins
        with self._lock.thread, self._lock.call():
            if self._stopped:
                return False
            if self._ours is None or self._crew is None or not self._crew.alive(self._ours):
                if self._ours is not None:
                    log.error("the scheduler ended unexpectedly: starting another one")
                self._begin()
            return True

    def _begin(self) -> None:
        logging.getLogger(JOBS).setLevel(logging.CRITICAL)
        logging.getLogger(f"apscheduler.executors.{EXECUTOR}").setLevel(logging.ERROR)
        crew = self._crew or self._make_crew()
        scheduler = crew.scheduler()
        self._every(scheduler, EXECUTOR)
        scheduler.start()
        self._crew, self._ours = crew, scheduler

    def _every(self, scheduler: BaseScheduler, executor: str) -> Any:
        # Made here: by its name APScheduler would import it at this moment, and a child that is forked just then by
        # another thread waits for the import's lock for ever (seen).
        trigger = IntervalTrigger(seconds=SWEEP_EVERY, timezone=UTC)
        return scheduler.add_job(self._sweep, trigger, misfire_grace_time=None, coalesce=True, executor=executor)

    def stop(self) -> None:
        """Take no more jobs and sweep no more; a job under way goes on. The caller's own scheduler stays as it is."""
        with self._lock.thread, self._lock.call():
            self._stopped = True
            ours, self._ours = self._ours, None
            crew = self._crew
            sweeping, self._sweeping = self._sweeping, None
        if ours is not None and crew is not None and crew.alive(ours):
            ours.shutdown(wait=False)
        elif sweeping is not None:
            with suppress(JobLookupError):  # the caller has stopped or emptied it
                sweeping.remove()
        if crew is not None:
            crew.dismiss()

    async def cancel(self) -> None:
        """End what was left under way by `stop`, if tasks do it."""
        if isinstance(self._crew, Tasks):
            await self._crew.cancel()
