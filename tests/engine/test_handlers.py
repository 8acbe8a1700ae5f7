"""Exceptions of a signal's handler, as a soft time limit is one: they come out of a call, wherever they strike."""

import itertools
import logging
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import issuer
from issuer.engine.scheduler import Scheduler
from issuer.interrupts import raise_interrupt
from issuer.plugins import Plugin
from issuer_persistence.memory import MemoryStore
from tests.seeds import chosen as seed
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live


class SoftLimit(Exception):
    """As Celery's SoftTimeLimitExceeded."""


#: How often each call is struck; `make soak` does it ten times as often.
STRIKES = 100 if seed() else 10

Handler = Callable[..., object]


def a_function(_number: int, _frame: object) -> None:
    raise SoftLimit


def any_arguments(*_: object) -> None:
    raise SoftLimit


class AnObject:
    """One that puts the former handler back before it raises."""

    def __call__(self, _number: int, _frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise SoftLimit


def a_timeout(_number: int, _frame: object) -> None:
    """What the manuals show: redis-py, and we, take errors of this kind for the connection's."""
    raise TimeoutError("the program's own")


@contextmanager
def struck(handler: Handler, seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


WAYS: dict[str, Callable[[issuer.Issuer], object]] = {
    "next": lambda ids: ids.next("strict"),
    "trend": lambda ids: ids.next("trend"),
    "key": lambda ids: ids.next("strict", key=f"key {time.monotonic()}"),
    "issue": lambda ids: ids.issue("strict"),
    "take": lambda ids: ids.take("strict", 5),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_an_exception_of_a_signal_handler_comes_out_of_a_call_that_waits_for_redis(
    server: RedisServer, way: str
) -> None:
    """Redis stands still: the call waits for a reply, connects, sleeps between attempts, and tells observers of it."""
    chance = random.Random(4)
    handlers: Iterator[Handler] = itertools.cycle([a_function, any_arguments, AnObject(), a_timeout])
    store, highest = MemoryStore(), 0
    # A trend tag goes on without Redis once that has not answered: there the signal has to come before.
    patience = 30.0 if way == "trend" else 0.1
    for _, handler in zip(range(STRIKES), handlers, strict=False):
        kind = TimeoutError if handler is a_timeout else SoftLimit
        settings: dict[str, Any] = {"redis": server.url, "store": store, "scheduler": None}
        with issuer.connect(**settings, timeout=30, redis_timeout=patience) as ids:
            ids.create("strict", exist_ok=True)
            ids.create("trend", order="trend", exist_ok=True)
            highest = max(highest, ids.next("strict"))
            ids.next("trend")
            server.pause()
            try:
                began = time.monotonic()
                with pytest.raises(kind), struck(handler, chance.uniform(0.01, 0.4)):
                    WAYS[way](ids)
                assert time.monotonic() - began < 25, "it waited on, up to its deadline"
            finally:
                server.resume()
            # Nothing is left locked, and no reply is taken for another call's.
            for number in (ids.next("strict"), *ids.take("strict", 3), ids.issue("strict", key=f"{highest}").value):
                assert number > highest
                highest = number


def strike(*_: object) -> None:
    if signal.getsignal(signal.SIGALRM) is a_function:
        signal.raise_signal(signal.SIGALRM)


class Struck(Plugin):
    before = strike  # type: ignore[assignment]


class StruckAfter(Plugin):
    after = strike  # type: ignore[assignment]


@pytest.mark.parametrize("where", ["observer", "log", "plugin", "after a number", "round"])
def test_an_exception_of_a_signal_handler_is_not_taken_for_one_of_the_code_that_it_strikes(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an observer is logged, and the call goes on: the program would never learn that its time is over."""
    plugins: dict[str, Plugin] = {"plugin": Struck(), "after a number": StruckAfter()}
    call: Callable[[issuer.Issuer], object] = {
        "log": lambda ids: ids.next("unknown"),
        "round": lambda ids: ids.tick(),
    }.get(where, lambda ids: ids.next("a"))
    chosen = [plugins[where]] if where in plugins else []
    with issuer.connect(redis="none", store="memory://", scheduler=None, plugins=chosen) as ids:
        ids.create("a", order="trend")
        if where == "observer":
            ids.observe(strike)
        elif where == "log":
            monkeypatch.setattr(logging.getLogger("issuer.rejected"), "filters", [strike])
        elif where == "round":
            ids.engine.config.events.add_periodic(strike)
        with pytest.raises(SoftLimit), struck(a_function, 60):
            call(ids)


@pytest.mark.parametrize("call", ["background", "start"])
def test_an_exception_of_a_signal_handler_is_not_taken_for_a_scheduler_that_takes_no_job(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leased tag has its next lease fetched every hundred numbers or so: there the signal often strikes."""
    real = getattr(Scheduler, call)

    def struck_within(self: Scheduler, *arguments: object) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "_running", strike)
            return real(self, *arguments)

    monkeypatch.setattr(Scheduler, call, struck_within)
    with issuer.connect(redis="none", store="memory://") as ids:
        ids.create("a", order="trend", step=10)
        scheduler = ids.engine.scheduler
        used = {"background": lambda: [ids.next("a") for _ in range(20)], "start": scheduler.start}[call]
        with pytest.raises(SoftLimit), struck(a_function, 60):
            used()
        monkeypatch.undo()
        assert len({ids.next("a") for _ in range(50)}) == 50


class Own(Exception):
    pass


def test_what_an_error_came_in_place_of_counts_and_what_the_caller_handles_does_not() -> None:
    def replaced() -> None:
        try:
            strike()
        except SoftLimit:
            raise Own from None

    def call() -> Own:
        try:
            raise Own  # noqa: TRY301 - as Redis does
        except Own as error:
            raise_interrupt(error)
            return error

    def handled() -> Own | None:
        try:
            strike()
        except SoftLimit:
            return call()
        return None

    with struck(a_function, 60):
        try:
            replaced()
        except Own as error:
            with pytest.raises(SoftLimit):
                raise_interrupt(error)
        assert isinstance(handled(), Own)
