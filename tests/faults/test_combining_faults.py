"""Callers that share a draw, and what goes wrong for one of them: none of the others is lost, late or served twice."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import issuer
from issuer import Issuer
from issuer.drivers.blocking.line import Batch, Line
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.audit import repeats
from tests.faults.test_interrupts import Interrupt, storm
from tests.servers.redis import RedisServer
from tests.waiting import run, until

pytestmark = pytest.mark.live

__all__ = ["storm"]  # a fixture


class Outcome(NamedTuple):
    """What a call came to, and how long it took."""

    answer: object
    seconds: float
    timeout: float


class Callers:
    """Threads that call once each."""

    def __init__(self, ids: Issuer, timeouts: list[float]) -> None:
        self.outcomes: list[Outcome] = []
        self._threads = [threading.Thread(target=self._call, args=(ids, timeout)) for timeout in timeouts]
        for thread in self._threads:
            thread.start()

    def _call(self, ids: Issuer, timeout: float) -> None:
        began = time.monotonic()
        answer: object
        try:
            answer = ids.next("a", timeout=timeout)
        except (issuer.IssuerError, Interrupt) as error:
            answer = error
        self.outcomes.append(Outcome(answer, time.monotonic() - began, timeout))

    def ended(self) -> list[Outcome]:
        """Return what all of them came to."""
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads), "somebody still waits"
        assert len(self.outcomes) == len(self._threads)
        return self.outcomes


# ---------------------------------------------------------------------------------------------- a leader that dies


class Once:
    """Interrupts the first thread that comes by."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        if self._lock.acquire(blocking=False):
            raise Interrupt


class Turn:
    """A turn in whose taking a leader is interrupted: just before, or when it has it and nobody knows yet."""

    def __init__(self, turn: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._turn, self._before, self._after = turn, before, after

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout != -1:
            self._before()
        mine: bool = self._turn.acquire(blocking, timeout)
        if timeout != -1:
            self._after()
        return mine

    def release(self) -> None:
        self._turn.release()


def nothing() -> None:
    pass


def wrapped(call: Callable[..., Any], before: Callable[[], None], after: Callable[[], None]) -> Callable[..., Any]:
    def wrapper(*args: Any, **options: Any) -> Any:
        before()
        result = call(*args, **options)
        after()
        return result

    return wrapper


def lay_bomb(spot: str, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """See to it that the next leader is interrupted there."""
    when, _, where = spot.partition(" ")
    before, after = (Once(), nothing) if when == "before" else (nothing, Once())
    if where == "the turn":
        line._turn = Turn(line._turn, before, after)  # type: ignore[assignment]  # a lock in all that is used of it
    elif where in ("claim", "land"):
        monkeypatch.setattr(Batch, where, wrapped(getattr(Batch, where), before, after))
    else:
        monkeypatch.setattr(line, where, wrapped(getattr(line, where), before, after))


SPOTS = [
    f"{when} {where}" for where in ("claim", "the turn", "_close", "_draw", "land") for when in ("before", "after")
]


@pytest.mark.parametrize("spot", SPOTS)
def test_a_leader_that_is_interrupted_leaves_nobody_waiting(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, spot: str
) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1000)
        numbers = [ids.next("a")]
        line = ids._roster.line("a")
        turn = line._turn
        turn.acquire()
        lay_bomb(spot, line, monkeypatch)
        callers = Callers(ids, [8.0] * 12)
        until(lambda: line._batch.claimed or line._batch.landed or callers.outcomes)
        turn.release()
        outcomes = callers.ended()
        dead = [one for one in outcomes if isinstance(one.answer, Interrupt)]
        assert len(dead) == 1
        numbers += [one.answer for one in outcomes if isinstance(one.answer, int)]
        assert len(numbers) == 12
        assert max(one.seconds for one in outcomes) < 2.0
        began = time.monotonic()
        numbers += [ids.next("a") for _ in range(5)]
        assert time.monotonic() - began < 1.5
        assert repeats(numbers) == []


def after_one_who_never_comes(ids: Issuer) -> list[Outcome]:
    """Draw in eight threads after a batch of which somebody never came for the number."""
    ids.create("a", step=1000)
    ids.next("a")
    line = ids._roster.line("a")
    with line._turn:
        line._passing = Batch().passed
        line._queued = True
    return Callers(ids, [1.5] * 8).ended()


def test_who_never_comes_for_a_number_holds_the_next_batch_up_for_milliseconds(redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        outcomes = after_one_who_never_comes(ids)
        assert sorted(one.answer for one in outcomes) == list(range(2, 10))  # type: ignore[type-var]
        assert max(one.seconds for one in outcomes) < 0.5


def test_who_never_comes_for_a_number_would_hold_the_next_batch_up(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out: the next batch waits for everybody."""
    monkeypatch.setattr("issuer.drivers.blocking.line.PASSING", 60.0)
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        assert max(one.seconds for one in after_one_who_never_comes(ids)) > 1.3


def test_a_batch_that_nobody_lands_would_keep_them_waiting(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: an interrupted leader doesn't tell."""
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        line = ids._roster.line("a")
        turn = line._turn
        turn.acquire()
        lay_bomb("before _draw", line, monkeypatch)
        monkeypatch.setattr(Batch, "ours", property(lambda _: False))
        callers = Callers(ids, [1.5] * 6)
        until(lambda: line._batch.claimed)
        turn.release()
        assert max(one.seconds for one in callers.ended()) > 1.3


# An interrupt may hit code of others between opening a socket and keeping it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_main_thread_in_a_storm_of_signals_costs_the_others_no_number_and_little_time(
    redis_url: str,
    storm: Callable[[Callable[[], object]], int],
) -> None:
    with issuer.connect(redis=redis_url, store="memory://", timeout=8) as ids:
        ids.create("a", step=500)
        numbers = [ids.next("a")]
        stop = threading.Event()
        longest: list[float] = []

        def draw() -> None:
            mine: list[int] = []
            slowest = 0.0
            while not stop.is_set():
                began = time.monotonic()
                mine.append(ids.next("a"))
                slowest = max(slowest, time.monotonic() - began)
            numbers.extend(mine)
            longest.append(slowest)

        threads = [threading.Thread(target=draw) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            assert storm(lambda: numbers.append(ids.next("a"))) > 10
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        assert len(longest) == 6
        assert repeats(numbers) == []
        assert max(longest) < 3.0
        assert ids.next("a") > max(numbers)


# ---------------------------------------------------------------------------------------------- their own deadlines


class Moody(MemoryStore):
    """A store that is away when it is told to be."""

    down = False

    def reserve(self, *args: Any, **options: Any) -> Reservation:
        if self.down:
            raise Unavailable("down")
        return super().reserve(*args, **options)


def used_up(ids: Issuer) -> None:
    """Draw what is left, and what was fetched ahead."""
    with contextlib.suppress(issuer.StoreUnavailable):
        while True:
            ids.next("a", timeout=0)


def assert_each_in_time(outcomes: list[Outcome]) -> None:
    """The patient ones got numbers, all different; the others an error at their own deadline."""
    for answer, seconds, timeout in outcomes:
        if timeout > 2:
            assert isinstance(answer, int), answer
        else:
            assert isinstance(answer, issuer.StoreUnavailable | issuer.RedisUnavailable), answer
            assert seconds < timeout + 0.6
    assert repeats(answer for answer, _, _ in outcomes if isinstance(answer, int)) == []


TIMEOUTS = [0.0, 0.1, 0.4, 15.0] * 6


@pytest.mark.covers("U.3", "1.21")
@pytest.mark.parametrize("scheduler", ["background", None])
def test_threads_wait_for_a_redis_that_hangs_until_their_own_deadline(
    start_redis: Callable[..., RedisServer], scheduler: Any
) -> None:
    server = start_redis()
    with issuer.connect(redis=server.url, store="memory://", scheduler=scheduler) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        server.pause()
        callers = Callers(ids, TIMEOUTS)
        try:
            until(lambda: sum(one.timeout < 2 for one in callers.outcomes) == 18)
        finally:
            server.resume()
        assert_each_in_time(callers.ended())


@pytest.mark.covers("U.3", "1.21")
@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("cold", [True, False])
def test_threads_wait_for_a_store_that_is_away_until_their_own_deadline(
    redis_url: str, scheduler: Any, cold: bool
) -> None:
    store = Moody()
    with issuer.connect(redis=redis_url, store=store, scheduler=scheduler) as ids:
        ids.create("a", step=2)
        if not cold:
            ids.next("a")
        store.down = True
        if not cold:
            used_up(ids)
        callers = Callers(ids, TIMEOUTS)
        until(lambda: sum(one.timeout < 2 for one in callers.outcomes) == 18)
        store.down = False
        assert_each_in_time(callers.ended())


def test_timeout_0_gets_the_answer_of_a_round_trip_while_threads_share_draws(redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1_000_000)
        numbers = [ids.next("a")]
        stop = threading.Event()

        def draw() -> None:
            while not stop.is_set():
                ids.next("a")

        threads = [threading.Thread(target=draw) for _ in range(16)]
        for thread in threads:
            thread.start()
        try:
            numbers += [ids.next("a", timeout=0) for _ in range(200)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert numbers == sorted(set(numbers))


# ---------------------------------------------------------------------------------------------- definite errors


def make_unknown(_: RedisServer, __: MemoryStore) -> type[Exception]:
    return issuer.UnknownTag


def make_limited(_: RedisServer, store: MemoryStore) -> type[Exception]:
    store.create("a", above=0, step=10, limit=30, order="strict", description="", timeout=1)
    return issuer.LimitReached


def make_replica(server: RedisServer, store: MemoryStore) -> type[Exception]:
    store.create("a", above=0, step=10, limit=10_000, order="strict", description="", timeout=1)
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        client.config_set("replica-read-only", "no")
    return issuer.FenceError


CASES = [make_unknown, make_limited, make_replica]


def assert_told(answers: list[object], error: type[Exception], numbers: int) -> None:
    """Everybody got a number or the error, and nobody an exception that another one has."""
    assert sorted(answer for answer in answers if isinstance(answer, int)) == list(range(1, numbers + 1))
    errors = [answer for answer in answers if not isinstance(answer, int)]
    assert {type(one) for one in errors} == {error}
    assert len({id(one) for one in errors}) == len(errors) == len(answers) - numbers


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_definite_error_reaches_every_thread_as_an_exception_of_its_own(
    start_redis: Callable[..., RedisServer], case: Callable[..., type[Exception]], scheduler: Any
) -> None:
    server, store = start_redis(), MemoryStore()
    error = case(server, store)
    with issuer.connect(redis=server.url, store=store, scheduler=scheduler) as ids:
        outcomes = Callers(ids, [8.0] * 50).ended()
    assert_told([one.answer for one in outcomes], error, 30 if case is make_limited else 0)
    assert max(one.seconds for one in outcomes) < 3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_definite_error_reaches_every_task_as_an_exception_of_its_own(
    start_redis: Callable[..., RedisServer], case: Callable[..., type[Exception]], scheduler: Any
) -> None:
    server, store = start_redis(), MemoryStore()
    error = case(server, store)

    async def main() -> list[object]:
        async with issuer.aconnect(redis=server.url, store=store, scheduler=scheduler) as ids:
            began = time.monotonic()
            answers = await asyncio.gather(*(ids.next("a", timeout=8) for _ in range(200)), return_exceptions=True)
            assert time.monotonic() - began < 3
            return list(answers)

    assert_told(run(main()), error, 30 if case is make_limited else 0)
