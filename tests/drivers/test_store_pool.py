"""A store is asked in threads: also where none can begin any more, as in the exit handlers of Python 3.12 and later."""

import asyncio
import contextvars
import gc
import os
import queue
import threading
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Ask, ask
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.store_pool import GRACE, MOST, StorePool
from issuer.errors import StoreUnavailable
from issuer.threads import begun
from issuer_persistence.memory import MemoryStore
from tests.waiting import until


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_where_no_thread_can_begin_the_caller_asks_in_person(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("b", step=1)
        monkeypatch.setattr(threading.Thread, "start", refused)
        assert ids.take("b", 50) == list(range(1, 51))  # threads that there are go on
        ids.create("a", step=10)
        assert ids.take("a", 3) == [1, 2, 3]
        with pytest.raises(issuer.UnknownTag):
            ids.next("c")
    record = store.get("a", timeout=10)
    assert record is not None
    assert record.max == 3, "what was left is given back"


def test_one_thread_is_enough_for_one_caller() -> None:
    """A program with a call of the store at a time had 16 threads for it."""
    with issuer.connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        for tag in range(50):
            ids.create(f"t{tag}")
        assert [len(crew.threads) for crew in ids.engine.runner.pool._crews.values()] == [1]


@pytest.mark.parametrize("callers", [1, MOST - 1, MOST + 3])
def test_a_caller_waits_for_no_other_ones_call_as_long_as_there_may_be_threads(callers: int) -> None:
    pool, released = StorePool(MemoryStore(), 60.0), threading.Event()
    began, ended = threading.Semaphore(0), threading.Semaphore(0)

    def mute(_store: object, _timeout: float) -> None:
        began.release()
        assert released.wait(60)

    try:
        assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
        for _ in range(callers):
            pool.submit(Ask(mute), Deadline(60), None, lambda _: ended.release())
        for _ in range(min(callers, MOST)):
            assert began.acquire(timeout=60)
        if callers < MOST:
            assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
        released.set()
        for _ in range(callers):
            assert ended.acquire(timeout=60)
        assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
    finally:
        released.set()
        pool.close()


def test_a_question_whose_time_is_over_is_not_asked() -> None:
    """Nobody waits for its answer any more: a segment that it reserved would be lost."""
    pool, released = StorePool(MemoryStore(), 60.0), threading.Event()
    began, asked = threading.Semaphore(0), []

    def mute(_store: object, _timeout: float) -> None:
        began.release()
        assert released.wait(60)

    try:
        for _ in range(MOST):
            pool.submit(Ask(mute), Deadline(60), None, lambda _: None)
        for _ in range(MOST):
            assert began.acquire(timeout=60)
        deadline = Deadline(0.01)
        with pytest.raises(issuer.StoreUnavailable, match="gave no answer"):
            pool.ask(Ask(lambda _store, _timeout: asked.append("late")), deadline, None)
        assert deadline.left() <= 0
        released.set()
        (crew,) = pool._crews.values()
        pool.close()
        for thread in crew.threads:
            thread.join(60)
        assert asked == []
    finally:
        released.set()


def test_a_question_is_asked_in_its_callers_context() -> None:
    """As a tracer of the store's driver needs it, which looks up the caller's span there."""
    span = contextvars.ContextVar("span", default="none")
    span.set("the caller's")
    pool = StorePool(MemoryStore(), 60.0)
    try:
        assert pool.ask(Ask(lambda _store, _timeout: span.get()), Deadline(60), None) == "the caller's"
    finally:
        pool.close()


def test_a_call_beside_close_is_answered() -> None:
    pool = StorePool(MemoryStore(), 10.0)
    put = threading.Event()
    assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
    (crew,) = pool._crews.values()

    class Beside:
        """Where the caller has found a thread, and not yet put its job there, another thread closes."""

        def pop(self) -> None:
            pool.close()
            for thread in list(crew.threads):
                thread.join(60)
            put.set()

    crew.idle = Beside()  # type: ignore[assignment]  # only what is called
    assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
    assert put.is_set()
    assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there", "also later, to give back"
    assert not any(thread.is_alive() for thread in crew.threads)


def test_a_thread_that_could_not_begin_keeps_no_later_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a service may have so many threads, and no more."""
    pool, begun, go_on = StorePool(MemoryStore(), 60.0), threading.Event(), threading.Event()
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def mute(_store: object, _timeout: float) -> None:
        begun.set()
        assert go_on.wait(60)

    try:
        pool.submit(Ask(mute), Deadline(60), None, answers.put)
        assert begun.wait(60)
        with monkeypatch.context() as none_begins:
            none_begins.setattr(threading.Thread, "start", refused)
            pool.submit(
                Ask(lambda _store, _timeout: "queued"), Deadline(60), None, answers.put
            )  # behind the one that there is
        go_on.set()
        assert [answers.get(timeout=60), answers.get(timeout=60)] == [(None, None), ("queued", None)]
        begun.clear()
        go_on.clear()
        until(lambda: len(next(iter(pool._crews.values())).idle) == 1)
        pool.submit(Ask(mute), Deadline(60), None, answers.put)
        assert begun.wait(60)
        pool.submit(Ask(lambda _store, _timeout: "beside it"), Deadline(60), None, answers.put)
        assert answers.get(timeout=60) == ("beside it", None)
    finally:
        go_on.set()
        pool.close()


def test_a_forked_child_has_threads_of_its_own() -> None:
    """Its parent's, which counted as idle, aren't there."""
    pool = StorePool(MemoryStore(), 10.0)
    try:
        assert pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if pool.ask(Ask(lambda _store, _timeout: "there"), Deadline(60), None) == "there" else 1
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        pool.close()


def test_what_a_store_says_after_a_job_has_given_it_up_is_no_error_of_the_loop() -> None:
    """It was logged as `Future exception was never retrieved`."""
    began, released = threading.Event(), threading.Event()
    told: list[object] = []

    def mute(_store: object, _timeout: float) -> None:
        began.set()
        assert released.wait(60)
        raise StoreUnavailable("too late")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        runner, seconds = AsyncRunner(MemoryStore(), None, 60), 0.05
        while not began.is_set():  # a thread that begins after the deadline does not ask the store
            with pytest.raises(StoreUnavailable, match="gave no answer"):
                await runner.work(seconds, lambda _: ask(mute))
            seconds *= 2
        released.set()
        runner.pool.close()
        for thread in runner.pool._crews[os.getpid()].threads:
            thread.join()
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    assert told == []


def test_an_answer_that_a_loop_finds_together_with_its_alarm_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the process was stopped for a while. A bare TimeoutError came out of `doctor`."""
    released, told = threading.Event(), threading.Event()
    timeout = 60.0

    async def main() -> object:
        loop = asyncio.get_running_loop()
        now, soon = loop.time, loop.call_soon_threadsafe

        def tell(*call: Any, **options: Any) -> asyncio.Handle:
            handle = soon(*call, **options)
            told.set()
            return handle

        def held_up() -> None:
            monkeypatch.setattr(loop, "call_soon_threadsafe", tell)
            released.set()
            assert told.wait(60)
            monkeypatch.setattr(loop, "time", lambda: now() + timeout + GRACE)  # by now the alarm is due

        loop.call_soon(held_up)
        steps = ask(lambda _store, _timeout: released.wait(60) and "there")
        return await AsyncRunner(MemoryStore(), None, timeout).run(steps, Deadline(60))

    assert asyncio.run(main()) == "there"


def test_the_exception_of_a_signal_handler_in_the_start_of_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        error = KeyError(thread)
        error.__context__ = InterruptedError()
        raise error

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(InterruptedError):
        begun(lambda: None, "t")
