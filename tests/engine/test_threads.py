"""Coroutines that a thread runs to their end: no interrupt and no event loop of the thread disturbs them."""

import asyncio
import gc
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from tests.refusals import refused

CALLS: dict[str, Callable[[Issuer, int], object]] = {
    "create": lambda ids, turn: ids.create(f"t{turn}", step=10),
    "issue": lambda ids, turn: ids.issue("a", key=str(turn)),
    "peek": lambda ids, _: ids.peek("a"),
    "tags": lambda ids, _: ids.tags(),
    "tick": lambda ids, _: ids.tick(),
    "verify": lambda ids, _: ids.verify("a"),
}


class Interrupt(BaseException):
    """What a signal handler raises."""


class Strike:
    """A profiler that raises at a function's beginning or end, as a signal handler does that Python runs there."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.struck = False

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "c_return") or self.struck:
            return
        self._left -= 1
        if self._left < 0:
            self.struck = True
            sys.setprofile(None)
            raise Interrupt


@pytest.fixture
def ids(redis_url: str) -> Iterator[Issuer]:
    with issuer.connect(redis=redis_url, store=MemoryStore(), scheduler=None, timeout=60) as made:
        made.create("a", step=1000)
        made.next("a")
        yield made


# Python also tells of an interrupt that hits a finalizer.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_function_leaves_no_coroutine_that_was_never_awaited(ids: Issuer, name: str) -> None:
    """Python prints these. Once a call has gone on for as many functions as there are, each was struck."""
    call = CALLS[name]
    call(ids, -1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for turn in itertools.count():
            strike = Strike(turn)
            sys.setprofile(strike)
            try:
                call(ids, turn)
            except Interrupt:
                pass
            finally:
                sys.setprofile(None)
            if not strike.struck:
                break
        gc.collect()
    assert turn > 20
    assert [str(each.message) for each in seen if "never awaited" in str(each.message)] == []
    assert ids.next("a") > 0


def test_a_coroutine_that_waits_for_an_event_loop_is_an_error() -> None:
    refused(RuntimeError, "waits for an event loop", finished, lambda: asyncio.sleep(0))


def test_the_event_loop_of_the_thread_gets_no_part_of_a_blocking_call(ids: Issuer) -> None:
    """Neither a task nor an async generator, which the loop would close, even if the caller goes away half-way."""
    generators: list[Any] = []

    async def main() -> None:
        sys.set_asyncgen_hooks(firstiter=generators.append)
        ids.verify("a")
        ids.tags()
        for _ in ids.engine.care.tag_pages(None):
            break
        for _ in finished(lambda: ids.engine.care.verified(None, None)):
            break
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert generators == []
