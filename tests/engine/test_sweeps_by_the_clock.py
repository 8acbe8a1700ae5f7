"""The timer of the sweeps, while the system's clock is set or stands still."""

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from issuer.engine import scheduler
from issuer.engine.scheduler import Scheduler, Tasks, Threads
from tests.waiting import run, until

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
