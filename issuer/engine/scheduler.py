"""The scheduler: an APScheduler that checks the tags in use every second, and workers that load segments at once.

The check is called a sweep. The work itself is in `issuer.care`; this module only runs it every second. A program
without a scheduler calls `Issuer.tick()` instead, which does the same work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from apscheduler.executors.debug import DebugExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.base import STATE_RUNNING, BaseScheduler
from apscheduler.triggers.base import BaseTrigger

from issuer.clock import monotonic
from issuer.forks import in_uwsgi_master, leave_signals
from issuer.interrupts import raise_interrupt
from issuer.reentry import CallLock
from issuer.threads import Crew

if TYPE_CHECKING:
    from apscheduler.job import Job as Scheduled

log = logging.getLogger("issuer.engine.scheduler")

#: Seconds between two sweeps. If a draw reaches the threshold, the next segment is loaded at once, before a sweep.
SWEEP_EVERY = 1.0

#: Maximum number of loads that run at the same time. Each tag has at most one load.
WORKERS = 16

#: Names of our own logger and our own executor. APScheduler logs each sweep at level INFO, and a late sweep at WARNING.
#: Users do not need these lines, because a late sweep does all work that is due.
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
        """Whether the timer runs. APScheduler's `state` is wrong after a fork, or if the timer's thread has died."""

    @abstractmethod
    def begin(self, sweep: Job) -> None:
        """Start a timer that runs `sweep` every second. It replaces an earlier timer."""

    @abstractmethod
    def run(self, job: Job, ended: Callable[[], object] = bool) -> bool:
        """Run the job at once, without APScheduler, which would take 0.3 ms longer. False if the job cannot run.

        `ended`: function that is called after the job, even if the job failed or was cancelled before it began.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop the timer, and accept no more jobs. Running jobs continue."""

    def start(self, timer: BaseScheduler, sweep: Job) -> None:
        """Start the timer. If a sweep takes longer than a second, the next one starts after the end of this sweep."""

        def sweep_aside() -> None:
            if not self._sweeping:
                self._sweeping = True
                if not self.run(sweep, self._swept):
                    self._swept()

        every(timer, sweep_aside, EXECUTOR)
        timer.start()

    def _swept(self) -> None:
        self._sweeping = False


def every(scheduler: BaseScheduler, sweep: Job, executor: str) -> str:
    """Add a job that runs `sweep` every second. Return the alias of its job store. `executor`: name of the executor."""
    jobs = _Jobs()
    alias = f"issuer-{id(jobs)}"
    scheduler.add_jobstore(jobs, alias)
    # The trigger is an object. If it were given by its name, APScheduler would import its class during this call. If
    # another thread forked at that moment, the child would wait for the import's lock for ever (seen).
    scheduler.add_job(sweep, _Sweeps(), misfire_grace_time=None, jobstore=alias, executor=executor)
    return alias


class _Sweeps(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Starts a sweep one second after the last one.

    APScheduler's IntervalTrigger lists each second that was missed: after 30 days, 131 MB.
    """

    def get_next_fire_time(self, _: datetime | None, now: datetime) -> datetime:
        # In UTC, because at the end of summer time, a second later on a local clock can be an hour later.
        return now.astimezone(UTC) + timedelta(seconds=SWEEP_EVERY)


class _Jobs(MemoryJobStore):  # type: ignore[misc]  # APScheduler has no types
    """Has the sweeps of one issuer. If the system's clock is set, or stops, the next sweep runs after a second at most.

    APScheduler compares dates, so after the clock was set back by an hour, no job would be due for an hour. But it
    measures its waits by the monotonic clock, and asks each job store before it waits again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead = self._measured(datetime.now(UTC))

    def _measured(self, now: datetime) -> float:
        return now.timestamp() - monotonic()

    def get_due_jobs(self, now: datetime) -> list[Scheduled]:
        """Return the jobs that are due. If the system's clock was set, these are all jobs."""
        before, self._ahead = self._ahead, self._measured(now)
        if abs(self._ahead - before) > SWEEP_EVERY / 2:
            for job in self.get_all_jobs():
                job.modify(next_run_time=now)
        due: list[Scheduled] = super().get_due_jobs(now)
        return due

    def get_next_run_time(self) -> datetime | None:
        """Return when to ask again: after a second at most, also if the clock was set since the job was scheduled."""
        found: datetime | None = super().get_next_run_time()
        return found and min(found, _Sweeps().get_next_fire_time(None, datetime.now(UTC)))


def _options() -> dict[str, Any]:
    # The executor runs in the timer's thread or loop, and only starts the sweep. The executor "default" is also set:
    # otherwise APScheduler would import a class for it during the first call.
    executors = {EXECUTOR: DebugExecutor(), "default": DebugExecutor()}
    return {"timezone": UTC, "logger": logging.getLogger(JOBS), "executors": executors}


class _Timer(BaseScheduler):  # type: ignore[misc]  # APScheduler has no types
    """An APScheduler of our own. It overrides only methods that APScheduler's guide lets subclasses override."""

    def _process(self) -> float:
        """Run what is due. Return when to call this method again, in seconds.

        The result is at most a second. APScheduler reads the clock twice for it: if the clock was set back by an hour
        between the two, its own result is an hour.
        """
        seconds: float | None = None
        # `shutdown` in another thread may empty the job store during `_process_jobs`.
        with suppress(JobLookupError):
            seconds = self._process_jobs()
        return SWEEP_EVERY if seconds is None else min(seconds, SWEEP_EVERY)


class _ThreadTimer(_Timer):
    """Runs in a thread.

    gevent may replace the classes of `threading` after APScheduler was imported. APScheduler would still use the old
    classes. Their threads cannot be joined then: a worker of `gunicorn --preload -k gevent` ended with an error, or
    never. So this timer takes the classes from `threading` when it starts.
    """

    def start(self, *args: Any, **options: Any) -> None:
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
        self.woken.set()

    def _loop(self) -> None:
        leave_signals()
        seconds = SWEEP_EVERY
        while self.running:
            self.woken.wait(seconds)
            self.woken.clear()
            seconds = self._process()


class _LoopTimer(_Timer):
    """Runs in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(**options)
        self._loop = loop
        self._next: asyncio.TimerHandle | None = None

    def shutdown(self, *args: Any, **options: Any) -> None:
        super().shutdown(*args, **options)
        self.wakeup()

    def wakeup(self) -> None:
        self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self.running:
            # Before the work: if a signal handler raises an exception in it, and the loop goes on, so do the sweeps.
            before = self._next = self._loop.call_later(SWEEP_EVERY, self._turn)
            self._next = self._loop.call_later(self._process(), self._turn)
            before.cancel()


class Threads(Executor):
    """Runs jobs in the issuer's own threads."""

    def __init__(self) -> None:
        super().__init__()
        self._crew = Crew("issuer-jobs", WORKERS)
        self._timer: _ThreadTimer | None = None

    @property
    def alive(self) -> bool:
        """Whether the timer's thread runs."""
        timer = self._timer
        return timer is not None and timer.running and timer.thread.is_alive()

    def begin(self, sweep: Job) -> None:
        """Start a timer with a thread of its own."""
        timer = _ThreadTimer(**_options())
        self.start(timer, sweep)
        self._timer = timer

    def run(self, job: Job, ended: Callable[[], object] = bool) -> bool:
        """Run the job in a thread."""
        return self._crew.put(partial(_done, job, ended))

    def close(self) -> None:
        """Stop the timer. Each thread ends after its current job."""
        if self._timer is not None and self.alive:
            self._timer.shutdown(wait=False)
        self._crew.close()


class Tasks(Executor):
    """Runs jobs in the running event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: _LoopTimer | None = None

    @property
    def alive(self) -> bool:
        """Whether the timer's loop runs."""
        return self._timer is not None and self._timer.running and self._loop.is_running()

    def begin(self, sweep: Job) -> None:
        """Start a timer in this loop."""
        timer = _LoopTimer(self._loop, **_options())
        self.start(timer, sweep)
        self._timer = timer

    def run(self, job: Callable[[], Any], ended: Callable[[], object] = bool) -> bool:
        """Run the job as a task."""
        task = self._loop.create_task(job())
        self._tasks.add(task)  # a loop has only weak references to its tasks, so Python could delete the task
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_tell)
        # `ended` is a callback of the task. It could not be called at the end of the coroutine: if a task is cancelled
        # before its first step, the coroutine never runs.
        task.add_done_callback(lambda _: ended())
        return True

    def close(self) -> None:
        """Stop the timer, also of a loop that does not run now. Running tasks continue."""
        if self._timer is not None and self._timer.running and not self._loop.is_closed():
            self._timer.shutdown(wait=False)

    async def cancel(self) -> None:
        """Cancel the running tasks, because a loop that is closed with pending tasks logs errors."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)


def _done(job: Job, ended: Callable[[], object]) -> None:
    try:
        job()
    except BaseException:  # log the error here: this is our own thread, so nobody else would
        log.exception("a job failed")
    finally:
        ended()


def _tell(job: asyncio.Task[Any]) -> None:
    if not job.cancelled() and job.exception() is not None:
        log.error("a job failed", exc_info=job.exception())


class Scheduler:
    """Runs `sweep` every second, and jobs at once. Its timer starts with the first job, and again if it has died."""

    def __init__(self, sweep: Job, crew: Callable[[], Executor], chosen: Chosen) -> None:
        """`crew`: creates the executor. `chosen`: see Chosen. A scheduler of the caller is not started or stopped."""
        self._sweep = sweep
        self._make_crew = crew
        self._theirs = chosen if isinstance(chosen, BaseScheduler) else None
        self._crew: Executor | None = None
        self._sweeping: str | None = None
        self._locks: dict[str, CallLock] = {}
        self._stopped = chosen is None
        self._beginning = False

    def background(self, work: Callable[..., object], *args: object) -> bool:
        """Run `work` with its arguments at once in the background. False if the scheduler does not accept the job.

        True does not mean that the job will run: all threads may be busy, or the process may be exiting. If the job
        does not start, a caller that waits for the job does the work itself.
        """
        if self._stopped:
            return False
        job = partial(work, *args)
        try:
            if not self._running():
                return False
            if self._theirs is not None:
                # Add a job of its own, for one run. It is not enough to make the next sweep run now: while a sweep is
                # in progress, this would have no effect.
                self._theirs.add_job(job, misfire_grace_time=None, coalesce=True)
            elif self._crew is not None:
                return self._crew.run(job)
        except Exception as error:
            raise_interrupt(error)
            # No thread can start, or the scheduler was just stopped. Or the caller's scheduler stores its jobs in a
            # database, where this job cannot be stored.
            log.debug("the scheduler did not accept the job", exc_info=True)
            return False
        return True

    def start(self) -> None:
        """Start the sweeps without waiting for a first job."""
        if not self._stopped:
            try:
                self._running()
            except Exception as error:
                raise_interrupt(error)
                log.debug("the scheduler was not started", exc_info=True)  # the reasons are those in `background`

    @property
    def _lock(self) -> CallLock:
        """The lock that is held while threads start.

        It is a CallLock: Python's own lock blocked all greenlets of gevent for ever. It is created at its first use and
        not at a fork, because gevent may patch `threading` in the child after the fork.
        """
        return self._locks.setdefault("", CallLock())

    def _running(self) -> bool:
        if self._theirs is not None:
            return self._joined(self._theirs)
        if self._crew is not None and self._crew.alive:
            return True
        if in_uwsgi_master():
            return False  # no thread may start in the master, so callers load segments; each worker has a scheduler
        # `start` of a thread returns when the new thread runs. The new thread may first collect garbage, and call a
        # finalizer that draws. It must not wait for the lock, which is held until the thread runs (seen).
        if self._beginning:
            return self._crew is not None
        with self._lock.thread, self._lock.call():
            if self._stopped:
                return False
            if self._crew is None or not self._crew.alive:
                self._begin()
        return True

    def _joined(self, theirs: BaseScheduler) -> bool:
        """Return whether the caller's scheduler runs. Its first use adds the sweeps."""
        if theirs.state != STATE_RUNNING:
            return False
        if self._sweeping is None:
            with self._lock.thread, self._lock.call():
                if self._sweeping is None:
                    self._sweeping = every(theirs, self._sweep, "default")
        return True

    def _begin(self) -> None:
        logging.getLogger(JOBS).setLevel(logging.CRITICAL)
        logging.getLogger(f"apscheduler.executors.{EXECUTOR}").setLevel(logging.ERROR)
        if self._crew is not None:
            log.error("the scheduler ended unexpectedly: starting another one")
        crew = self._crew or self._make_crew()
        try:
            self._beginning = True
            crew.begin(self._sweep)
        finally:
            self._beginning = False
        self._crew = crew
        if self._stopped:
            crew.close()

    def stop(self) -> None:
        """Accept no more jobs, and stop the sweeps. Running jobs continue. A scheduler of the caller is not stopped."""
        self._stopped = True
        if self._beginning:
            return  # `_begin` stops what it has begun
        with self._lock.thread, self._lock.call():
            sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None and self._theirs is not None:
            with suppress(KeyError):  # the caller has removed the job store from its own scheduler
                self._theirs.remove_jobstore(sweeping)
        if self._crew is not None:
            self._crew.close()

    async def cancel(self) -> None:
        """Cancel the tasks that were still running at `stop`."""
        if isinstance(self._crew, Tasks):
            await self._crew.cancel()
