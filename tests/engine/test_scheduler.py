"""The timer of the sweeps."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer.engine import scheduler
from issuer.engine.scheduler import Scheduler, Tasks, Threads
from tests.waiting import eventually, run, until


def test_a_sweep_that_is_cancelled_before_it_begins_is_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def main() -> None:
        tasks = Tasks()
        asyncio.get_running_loop().set_task_factory(make)  # type: ignore[arg-type]  # of any coroutine here
        tasks.begin(sweep)
        await eventually(lambda: len(swept) > 1)
        asyncio.get_running_loop().set_task_factory(None)
        tasks.close()
        await tasks.cancel()
        assert made[0].cancelled()
        assert made[0] not in swept

    run(main(), 120)


def test_the_end_of_a_loop_does_not_wait_for_a_job_that_ignores_its_cancellation() -> None:
    async def main() -> None:
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

    run(main(), 120)


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
