"""The scheduler: an APScheduler that checks the tags in use every second, and workers that load segments at once.

The check is called a sweep. It does the work of `Issuer.tick()`, which needs no scheduler: this module only repeats
this work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import Any, Literal, TypeAlias

from apscheduler.executors.debug import DebugExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import STATE_RUNNING, BaseScheduler
from apscheduler.triggers.interval import IntervalTrigger

from issuer.forks import in_uwsgi_master, leave_signals
from issuer.reentry import CallLock
from issuer.threads import Crew

log = logging.getLogger("issuer.engine.scheduler")

#: Seconds between two sweeps. A draw that reaches the threshold does not wait for a sweep.
SWEEP_EVERY = 1.0

#: Maximum number of concurrent loads. Each tag has at most one load.
WORKERS = 16

#: Names of a logger and an executor of our own. APScheduler logs each sweep at level INFO and a late one at WARNING.
#: Users do not need these lines: a late sweep does all work that is due.
JOBS = "issuer.engine.scheduler.jobs"
EXECUTOR = "issuer"

#: The argument `scheduler` of `connect`: None means no scheduler.
Chosen: TypeAlias = Literal["background"] | BaseScheduler | None

#: A job: a function for threads, a coroutine function for tasks.
Job = Callable[[], object]


class Executor(ABC):
    """Runs jobs, in threads or in tasks, and has a timer that starts a sweep every second."""

    def __init__(self) -> None:
        self._sweeping = False

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the timer runs. After a fork, or if its thread has died, APScheduler's `state` is wrong."""

    @abstractmethod
    def begin(self, sweep: Job) -> None:
        """Start a timer, or replace it."""

    @abstractmethod
    def run(self, job: Job, ended: Callable[[], object] = bool) -> bool:
        """Run the job at once. False if that is impossible. APScheduler would take 0.3 ms longer.

        `ended`: called after the job, also if the job failed or was cancelled before it began.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop the timer, and accept no more jobs. Running jobs continue."""

    def start(self, timer: BaseScheduler, sweep: Job) -> None:
        """Start the timer. The next sweep does not start before the last one has ended."""

        def sweep_aside() -> None:
            if not self._sweeping:
                self._sweeping = True
                if not self.run(sweep, self._swept):
                    self._swept()

        every(timer, sweep_aside, EXECUTOR)
        timer.start()

    def _swept(self) -> None:
        self._sweeping = False


def every(scheduler: BaseScheduler, sweep: Job, executor: str) -> Any:
    """Add a job that runs every second. Return it."""
    # The trigger is created here. If it were given by name, APScheduler would import it now. If another thread forked
    # at that moment, the child would wait for the import's lock for ever (seen).
    trigger = IntervalTrigger(seconds=SWEEP_EVERY, timezone=UTC)
    return scheduler.add_job(sweep, trigger, misfire_grace_time=None, coalesce=True, executor=executor)


def _options() -> dict[str, Any]:
    # The executor runs in the timer's thread or loop, and only starts the sweep. The name "default" is set too:
    # otherwise APScheduler would import another executor for it during the first call.
    executors = {EXECUTOR: DebugExecutor(), "default": DebugExecutor()}
    return {"timezone": UTC, "logger": logging.getLogger(JOBS), "executors": executors}


class _Timer(BaseScheduler):  # type: ignore[misc]  # APScheduler has no types
    """An APScheduler with our own thread. It overrides what APScheduler's guide allows for subclasses.

    gevent may replace the classes of `threading` after APScheduler was imported. A thread of the replaced class cannot
    be joined then: a worker of `gunicorn --preload -k gevent` ended with an error, or never. So the timer reads the
    classes from `threading` when it starts.
    """

    def start(self, *args: Any, **options: Any) -> None:
        """Start the thread."""
        self.woken = threading.Event()
        super().start(*args, **options)
        self.thread = threading.Thread(target=self._loop, name="APScheduler", daemon=True)
        self.thread.start()

    def shutdown(self, *args: Any, **options: Any) -> None:
        """Stop the thread, and wait for its end."""
        super().shutdown(*args, **options)
        self.woken.set()
        self.thread.join()

    def wakeup(self) -> None:
        """Let the thread look for the next job."""
        self.woken.set()

    def _loop(self) -> None:
        leave_signals()
        seconds: float | None = None
        while self.running:
            self.woken.wait(seconds)
            self.woken.clear()
            # `shutdown` may empty the job store during this call.
            with suppress(JobLookupError):
                seconds = self._process_jobs()


class Threads(Executor):
    """Runs jobs in the issuer's own threads."""

    def __init__(self) -> None:
        super().__init__()
        self._crew = Crew("issuer-jobs", WORKERS)
        self._timer: _Timer | None = None

    @property
    def alive(self) -> bool:
        """Whether the timer's thread runs."""
        timer = self._timer
        return timer is not None and timer.running and timer.thread.is_alive()

    def begin(self, sweep: Job) -> None:
        """Start a timer with a thread of its own."""
        timer = _Timer(**_options())
        self.start(timer, sweep)
        self._timer = timer

    def run(self, job: Job, ended: Callable[[], object] = bool) -> bool:
        """Run the job in a thread."""
        return self._crew.put(partial(_done, job, ended))

    def close(self) -> None:
        """Stop the timer. Threads end after their jobs."""
        if self._timer is not None and self.alive:
            self._timer.shutdown(wait=False)
        self._crew.close()


class Tasks(Executor):
    """Runs jobs in the running event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: BaseScheduler | None = None

    @property
    def alive(self) -> bool:
        """Whether the timer's loop runs."""
        return self._timer is not None and bool(self._timer.running) and self._loop.is_running()

    def begin(self, sweep: Job) -> None:
        """Start a timer in this loop."""
        timer = AsyncIOScheduler(event_loop=self._loop, **_options())
        self.start(timer, sweep)
        self._timer = timer

    def run(self, job: Callable[[], Any], ended: Callable[[], object] = bool) -> bool:
        """Run the job as a task."""
        task = self._loop.create_task(job())
        self._tasks.add(task)  # a loop holds its tasks by weak references only
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_tell)
        # The coroutine itself does not call `ended`: if a task is cancelled before its first step, its coroutine never
        # runs.
        task.add_done_callback(lambda _: ended())
        return True

    def close(self) -> None:
        """Stop the timer. Running tasks continue."""
        if self._timer is not None and self.alive:
            self._timer.shutdown(wait=False)

    async def cancel(self) -> None:
        """Cancel the running tasks: a loop that is closed with pending tasks logs errors."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)


def _done(job: Job, ended: Callable[[], object]) -> None:
    try:
        job()
    except BaseException:  # this is our own thread, so nobody else would log it
        log.exception("a job failed")
    finally:
        ended()


def _tell(job: asyncio.Task[Any]) -> None:
    if not job.cancelled() and job.exception() is not None:
        log.error("a job failed", exc_info=job.exception())


class Scheduler:
    """Runs `sweep` every second, and jobs at once. Its thread starts with the first job, and again if it has died."""

    def __init__(self, sweep: Job, crew: Callable[[], Executor], chosen: Chosen) -> None:
        """`crew`: creates the executor. `chosen`: see Chosen. A scheduler in `chosen` is not started or stopped."""
        self._sweep = sweep
        self._make_crew = crew
        self._theirs = chosen if isinstance(chosen, BaseScheduler) else None
        self._crew: Executor | None = None
        self._sweeping: Any = None
        self._locks: dict[str, CallLock] = {}
        self._stopped = chosen is None

    def background(self, work: Callable[..., object], *args: object) -> bool:
        """Run `work` with its arguments at once in the background. False if that is impossible.

        True does not mean that the job will run: all threads may be busy, or the process may be exiting. If the job
        does not start, a caller that waits for it does the work.
        """
        if self._stopped:
            return False
        job = partial(work, *args)
        try:
            if not self._running():
                return False
            if self._theirs is not None:
                # Add a new job for one run. A change of the sweeps' job would have no effect during a sweep.
                self._theirs.add_job(job, misfire_grace_time=None, coalesce=True)
            elif self._crew is not None:
                return self._crew.run(job)
        except Exception:
            # No thread can start, the scheduler was just stopped, or the caller's scheduler stores jobs in a database.
            log.debug("the scheduler did not accept the job", exc_info=True)
            return False
        return True

    def start(self) -> None:
        """Start the sweeps without waiting for a first job."""
        if not self._stopped:
            try:
                self._running()
            except Exception:
                log.debug("the scheduler was not started", exc_info=True)  # for the reasons in `background`

    @property
    def _lock(self) -> CallLock:
        """The lock. It is created at its first use, not at the fork: between the two, gevent may patch the child.

        The lock is held while threads start. Python's own lock blocked all greenlets for ever.
        """
        return self._locks.setdefault("", CallLock())

    def _running(self) -> bool:
        if self._theirs is not None:
            if self._theirs.state != STATE_RUNNING:
                return False
            if self._sweeping is None:
                with self._lock.thread, self._lock.call():
                    if self._sweeping is None:
                        self._sweeping = every(self._theirs, self._sweep, "default")
            return True
        if self._crew is not None and self._crew.alive:
            return True
        if in_uwsgi_master():
            return False  # here callers load segments; each worker will start a scheduler
        with self._lock.thread, self._lock.call():
            if self._stopped:
                return False
            if self._crew is None or not self._crew.alive:
                self._begin()
            return True

    def _begin(self) -> None:
        logging.getLogger(JOBS).setLevel(logging.CRITICAL)
        logging.getLogger(f"apscheduler.executors.{EXECUTOR}").setLevel(logging.ERROR)
        if self._crew is not None:
            log.error("the scheduler ended unexpectedly: starting another one")
        crew = self._crew or self._make_crew()
        crew.begin(self._sweep)
        self._crew = crew

    def stop(self) -> None:
        """Accept no more jobs, and stop the sweeps. Running jobs continue. A scheduler of the caller is not stopped."""
        with self._lock.thread, self._lock.call():
            self._stopped = True
            sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            with suppress(JobLookupError):  # the caller has emptied the scheduler
                sweeping.remove()
        if self._crew is not None:
            self._crew.close()

    async def cancel(self) -> None:
        """Cancel the tasks that were still running at `stop`."""
        if isinstance(self._crew, Tasks):
            await self._crew.cancel()
