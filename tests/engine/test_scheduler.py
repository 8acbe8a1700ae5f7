"""The timer of the sweeps, also while the system's clock is set or stands still."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
import redis
import time_machine
from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer.engine import scheduler
from issuer.engine.scheduler import Scheduler, Tasks, Threads
from tests.care.test_keeper import Drawer
from tests.colours import Connect
from tests.programs import REPOSITORY
from tests.servers.clocked import Clock
from tests.waiting import eventually, run, until


def test_an_interrupt_in_the_timer_of_a_loop_that_goes_on_stops_no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C in a notebook, whose loop runs again. The issuer may be closed while it does not run."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.01)
    swept: list[asyncio.Task[Any] | None] = []

    async def sweep() -> None:
        swept.append(asyncio.current_task())

    async def begun() -> Tasks:
        tasks = Tasks()
        tasks.begin(sweep)
        return tasks

    loop = asyncio.new_event_loop()
    try:
        tasks = loop.run_until_complete(begun())
        timer = tasks._timer
        assert timer is not None
        with monkeypatch.context() as interrupted:

            def fails() -> float:
                raise KeyboardInterrupt

            interrupted.setattr(timer, "_process", fails)
            with pytest.raises(KeyboardInterrupt):
                loop.run_forever()
        before = len(swept)
        loop.run_until_complete(eventually(lambda: len(swept) > before))
        tasks.close()
        assert not timer.running
        loop.run_until_complete(tasks.cancel())
    finally:
        loop.close()
    tasks.close()


async def test_a_sweep_that_is_cancelled_before_it_begins_is_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a program that cancels all tasks of its loop, and goes on."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.01)
    made: list[asyncio.Task[Any]] = []
    swept: list[asyncio.Task[Any] | None] = []

    def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        made.append(task)
        if len(made) == 1:
            task.cancel()
        return task

    async def sweep() -> None:
        swept.append(asyncio.current_task())

    tasks = Tasks()
    asyncio.get_running_loop().set_task_factory(make)  # type: ignore[arg-type]  # of any coroutine here
    tasks.begin(sweep)
    await eventually(lambda: len(swept) > 1)
    asyncio.get_running_loop().set_task_factory(None)
    tasks.close()
    await tasks.cancel()
    assert made[0].cancelled()
    assert made[0] not in swept


async def test_the_end_of_a_loop_does_not_wait_for_a_job_that_ignores_its_cancellation() -> None:
    tasks, ended = Tasks(), asyncio.Event()

    async def stubborn() -> None:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    tasks.run(stubborn)
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            await tasks.cancel()
    finally:
        ended.set()


def test_a_sweep_that_fails_is_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.01)
    threads, swept = Threads(), list[int]()

    def failing() -> None:
        swept.append(1)
        raise LookupError

    threads.begin(failing)
    until(lambda: len(swept) > 1)
    threads.close()


def test_a_sweep_that_finds_no_thread_is_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.01)
    threads, swept = Threads(), list[int]()
    put, refused = threads._crew.put, list[object]()

    def refuse_once(job: Callable[[], None]) -> bool:
        if refused:
            return put(job)
        refused.append(job)
        return False

    monkeypatch.setattr(threads._crew, "put", refuse_once)
    threads.begin(lambda: swept.append(1))
    until(lambda: len(swept) > 1)
    threads.close()


def test_a_job_that_comes_while_the_issuer_closes_starts_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Threads]()

    def crew() -> Threads:
        made.append(Threads())
        return made[0]

    def closing() -> bool:
        jobs.stop()
        return False

    jobs = Scheduler(lambda: None, crew, "background")
    monkeypatch.setattr(scheduler, "in_uwsgi_master", closing)  # is asked just before the timer starts
    assert not jobs.background(lambda: None)
    assert made == []


@pytest.mark.parametrize("act", ["background", "stop"])
def test_what_a_new_thread_calls_waits_for_no_timer_that_waits_for_the_thread(
    monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Garbage is collected in a thread of the timer before its start has returned: a finalizer draws, or closes."""
    called: list[object] = []

    class Timers(threading.Thread):
        def start(self) -> None:
            if self.name == "APScheduler":
                amid = threading.Thread(target=lambda: called.append(acts[act]()), daemon=True)
                amid.start()
                amid.join(20)
            super().start()

    monkeypatch.setattr(threading, "Thread", Timers)
    jobs = Scheduler(lambda: None, Threads, "background")
    acts: dict[str, Callable[[], object]] = {"background": lambda: jobs.background(print), "stop": jobs.stop}
    crews = {each.name for each in threading.enumerate()}
    jobs.background(lambda: None)
    assert called == [False if act == "background" else None]
    if act == "background":
        jobs.stop()
    until(lambda: {each.name for each in threading.enumerate()} == crews, 20)


def test_a_scheduler_of_the_caller_gets_no_job_while_it_does_not_run() -> None:
    theirs = BackgroundScheduler()
    with issuer.connect(redis="none", store="memory://", scheduler=theirs) as ids:
        ids.create("a", step=1)
        assert ids.take("a", 3) == [1, 2, 3]
        assert theirs.get_jobs() == []


def test_close_bears_that_the_caller_has_removed_the_job_store_of_the_sweeps() -> None:
    theirs = BackgroundScheduler()
    theirs.start()
    try:
        with issuer.connect(redis="none", store="memory://", scheduler=theirs) as ids:
            ids.create("a", step=1)
            assert ids.take("a", 3) == [1, 2, 3]
            stores = {each._jobstore_alias for each in theirs.get_jobs()} - {"default"}
            assert len(stores) == 1
            theirs.remove_jobstore(stores.pop())
    finally:
        theirs.shutdown()


# ---------------------------------------------------------------------------------------------- by the clock


HOUR, MONTH = 3600, 30 * 86_400


def in_threads(between: Callable[[Callable[[], int]], None], theirs: BackgroundScheduler | None = None) -> None:
    """Call `between` with a function that returns the number of sweeps, while the timer runs."""
    swept: list[None] = []
    sweeps = Scheduler(lambda: swept.append(None), Threads, theirs or "background")
    sweeps.start()
    try:
        between(lambda: len(swept))
    finally:
        sweeps.stop()


def in_their_threads(between: Callable[[Callable[[], int]], None]) -> None:
    theirs = BackgroundScheduler(timezone="Europe/Berlin")
    theirs.start()
    try:
        in_threads(between, theirs)
        assert theirs.get_jobs() == []
    finally:
        theirs.shutdown()


def in_tasks(between: Callable[[Callable[[], int]], None], *, own: bool = True) -> None:
    swept: list[None] = []

    async def sweep() -> None:
        swept.append(None)

    async def main() -> None:
        theirs = None if own else AsyncIOScheduler(timezone="Europe/Berlin")
        if theirs is not None:
            theirs.start()
        sweeps = Scheduler(sweep, Tasks, theirs or "background")
        sweeps.start()
        try:
            await asyncio.to_thread(between, lambda: len(swept))
        finally:
            sweeps.stop()
            if theirs is not None:
                assert theirs.get_jobs() == []
                theirs.shutdown()

    run(main(), 120)


def in_their_tasks(between: Callable[[Callable[[], int]], None]) -> None:
    in_tasks(between, own=False)


EVERYWHERE = pytest.mark.parametrize("within", [in_threads, in_their_threads, in_tasks, in_their_tasks])


Within = Callable[[Callable[[Callable[[], int]], None]], None]


@contextlib.contextmanager
def set_by(seconds: float) -> Iterator[None]:
    """The system's clock is set by so many seconds; the monotonic one goes on."""
    with time_machine.travel(time.time() + seconds):
        yield


@EVERYWHERE
@pytest.mark.parametrize("seconds", [-HOUR, MONTH])
def test_sweeps_go_on_when_the_clock_is_set(within: Within, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.1)

    def between(swept: Callable[[], int]) -> None:
        until(swept)
        with set_by(seconds):
            before = swept()
            until(lambda: swept() > before + 2)
        before = swept()
        until(lambda: swept() > before + 2)  # the clock is set again

    within(between)


@EVERYWHERE
def test_sweeps_go_on_while_the_clock_stands_still(within: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.1)

    def between(swept: Callable[[], int]) -> None:
        until(swept)
        with time_machine.travel(time.time(), tick=False):
            before = swept()
            until(lambda: swept() > before + 2)

    within(between)


def test_a_clock_that_is_set_back_while_a_sweep_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler has looked at the clock, and looks at it again before it waits."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.1)
    theirs = BackgroundScheduler(timezone="UTC", executors={"default": DebugExecutor()})
    theirs.start()
    swept: list[None] = []
    with contextlib.ExitStack() as ends:
        ends.callback(theirs.shutdown)

        def sweep() -> None:
            swept.append(None)
            if len(swept) == 2:
                ends.enter_context(set_by(-HOUR))

        sweeps = Scheduler(sweep, Threads, theirs)
        ends.callback(sweeps.stop)
        sweeps.start()
        until(lambda: len(swept) > 4)


@pytest.mark.parametrize("tasks", [False, True])
def test_a_clock_that_is_set_back_between_two_looks_of_one_wait(tasks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """APScheduler computes when to go on, calls its listeners, and looks at the clock again."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.1)
    swept: list[None] = []
    with contextlib.ExitStack() as ends:

        def sets(_: object) -> None:
            if len(swept) == 2:
                ends.enter_context(set_by(-HOUR))

        async def sweep() -> None:
            swept.append(None)

        async def main() -> None:
            executor = Tasks() if tasks else Threads()
            executor.begin(sweep if tasks else lambda: swept.append(None))
            cast("Any", executor._timer).add_listener(sets, EVENT_JOB_SUBMITTED)
            ends.callback(executor.close)
            await eventually(lambda: len(swept) > 4)

        run(main())


def test_what_was_missed_runs_once_and_takes_no_memory() -> None:
    """As after a process was stopped for so long, which no jump of a clock tells."""
    now, missed = datetime.now(UTC), timedelta(days=1)
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start(paused=True)
    try:
        scheduler.every(theirs, list, "default")
        [job] = theirs.get_jobs()
        job.modify(next_run_time=now - missed)
        tracemalloc.start()
        due = job._get_run_times(now)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        assert due == [now - missed]
    finally:
        tracemalloc.stop()
        theirs.shutdown()


def test_the_next_sweep_comes_a_second_later_where_summer_time_ends() -> None:
    last = datetime(2026, 10, 25, 2, 59, 59, 500_000, ZoneInfo("Europe/Berlin"))
    theirs = BackgroundScheduler(timezone="Europe/Berlin")
    theirs.start(paused=True)
    try:
        scheduler.every(theirs, list, "default")
        [job] = theirs.get_jobs()
        assert job.trigger.get_next_fire_time(last, last) - last.astimezone(UTC) == timedelta(seconds=1)
    finally:
        theirs.shutdown()


def peak(pid: int) -> int:
    """Return the most memory that the process has had, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.live
def test_a_keeper_goes_on_loading(redis_url: str, redis_client: redis.Redis, tmp_path: Path) -> None:
    clock, url, told = Clock(tmp_path / "clock"), f"sqlite:///{tmp_path}/issuer.db", tmp_path / "told"
    command = [sys.executable, "-m", "issuer", "--redis", redis_url, "--store", url, "keeper"]
    with issuer.connect(redis=redis_url, store=url, scheduler=None) as ids, told.open("w") as talk:
        ids.create("a", step=10)
        ids.next("a")
        keeper = subprocess.Popen(command, env={**os.environ, **clock.environment}, cwd=REPOSITORY, stderr=talk)
        try:
            until(lambda: "keeping all tags" in told.read_text())
            before, drawer = peak(keeper.pid), Drawer(redis_client, "a")
            for seconds in (-HOUR, MONTH):
                clock.set(seconds)
                drawer.draw(100)
            assert drawer.numbers == sorted(set(drawer.numbers))
            assert peak(keeper.pid) < before + 50_000
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait(60) == 0
        finally:
            keeper.kill()
            keeper.wait()


@pytest.mark.live
def test_a_process_whose_clock_is_100_days_ahead_leaves_the_ledger_alone(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/issuer.db"
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        ids.create("a", step=10, order="trend")
        ids.take("a", 640)
        before = {each.id for each in ids.engine.config.store.ledger("a", newest=1000, timeout=60)}
        with time_machine.travel(time.time() + 100 * 86_400), connect(redis="none", store=url) as late:
            late.take("a", 100)
            until(lambda: "100 days ahead of sqlite://" in caplog.text)
        assert before <= {each.id for each in ids.engine.config.store.ledger("a", newest=1000, timeout=60)}
        assert caplog.text.count("deletes no old ledger entries") == 1
