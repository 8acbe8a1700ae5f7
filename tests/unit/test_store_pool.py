"""A store is asked in threads: also where none can begin any more, as in the exit handlers of Python 3.12 and later."""

import asyncio
import threading
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import ask
from issuer.drivers.asyncio.runner import Runner
from issuer.drivers.store_pool import GRACE
from issuer.persistence.memory import MemoryStore


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
        return await Runner(MemoryStore(), None, timeout).run(steps, Deadline(60))

    assert asyncio.run(main()) == "there"
