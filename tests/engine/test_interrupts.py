"""Exceptions that come from outside, between any two bytecodes: no number comes twice, and no lock stays held."""

import itertools
import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import hiredis
import prometheus_client
import pytest

import issuer
import issuer.forks
import issuer.metrics
import issuer.metrics.book
import issuer_persistence.forks
from issuer.core.supply.local_buffer import FastPath, LocalBuffer
from issuer.threads import finished
from issuer_persistence.holding import acquired
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST, Tag
from issuer_persistence.sqlite.store import SQLiteStore
from tests.audit import repeats
from tests.seeds import chosen
from tests.servers.redis import RedisServer
from tests.waiting import until


class Interrupt(BaseException):
    """What a soft time limit, or Ctrl-C, is to the code it hits."""


#: So many calls that an interrupt has hit show what it does to them; `make soak` goes on to twenty times as many.
HITS = 200 if chosen() else 11


Storm = Callable[[Callable[[], object]], None]


@pytest.fixture
def storm() -> Iterator[Storm]:
    """Call a function again and again until signals have interrupted it often enough."""

    def run(call: Callable[[], object]) -> None:
        hits, armed, end = 0, False, time.monotonic() + 240

        def interrupt(*_: object) -> None:
            nonlocal armed
            if armed:
                armed = False
                raise Interrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        while hits < HITS:
            assert time.monotonic() < end, f"only {hits} interrupts"
            try:
                armed = True
                call()
                armed = False
            except Interrupt:
                hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.getsignal(signal.SIGALRM)
    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_timer_that_ticks_does_not_prolong_a_call_past_its_deadline(server: RedisServer) -> None:
    def tick(*_: object) -> None:
        if time.monotonic() - began > 30:
            raise Interrupt

    with issuer.connect(redis=server.url, store="memory://", scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        before = signal.signal(signal.SIGALRM, tick)
        server.pause()
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        try:
            with pytest.raises(issuer.RedisUnavailable):
                ids.next("a", timeout=0.3)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            server.resume()


TAG = Tag(tag="a", max=0, step=2, limit=HIGHEST, created=0, timestamp=0, version="")


class TwoSteps(LocalBuffer[Reservation]):
    """The state changed in two assignments: what an interrupt in between leaves is neither the old one nor the new."""

    def _take(self, n: int) -> tuple[int, int] | None:
        held, cur, at, shown, _ = self._state
        if held and cur >= held[0].high:
            self._state = (held[1:], cur, at, shown, cur)
            for _ in range(20):  # the gap between the two, wide enough to be hit soon
                str(held)
            if held[1:]:
                self._state = (held[1:], held[1].low, at, shown, cur)
        held, cur, at, shown, _ = self._state
        if not held:
            return None
        self._state = (held, min(cur + n, held[0].high), at, shown, cur)
        return cur, self._state[1]


def drawn_of_others(hand: LocalBuffer[Reservation], storm: Storm) -> list[int]:
    """Let it hold every other pair of numbers, (0, 2], (4, 6] ..., and return what it issues of the pairs between."""
    base = 0
    foreign: list[int] = []

    def once() -> None:
        nonlocal base
        if len(hand.held) < 2:  # so that `take` itself moves on to the next one
            base += 4
            hand.add(Reservation(TAG, base, base + 2, "", ""))
        taken = hand.take(1)
        if taken is not None and (taken[1] - 1) % 4 > 1:
            foreign.append(taken[1])

    storm(once)
    return foreign


# What earlier tests have left may be collected just now: an interrupt that hits a callback of a weak set is told, too.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.live
@pytest.mark.parametrize("fast_path", [None, FastPath()], ids=["closed", "open"])
def test_an_interrupt_never_makes_a_process_issue_somebody_elses_number(
    storm: Storm, fast_path: FastPath | None
) -> None:
    assert drawn_of_others(LocalBuffer("a", fast_path), storm) == []


@pytest.mark.live
def test_with_the_state_changed_in_two_steps_it_does(storm: Storm) -> None:
    until(lambda: drawn_of_others(TwoSteps("a", None), storm), timeout=240, message="the mutant was not caught")


# An interrupt may hit code of others between opening a file or a socket and keeping it; one that it hit while it was
# made is left to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("lease", "way"), [(None, "next"), (0, "next"), (0, "stream"), (7, "take"), (300, "next")])
def test_interrupted_callers_repeat_nothing_and_leave_the_issuer_usable(
    redis_url: str, storm: Storm, lease: int | None, way: str
) -> None:
    """Without a lease there is no Redis either."""
    settings: dict[str, Any] = {"redis": "none" if lease is None else redis_url, "store": MemoryStore(), "timeout": 40}
    with issuer.connect(**settings) as other, issuer.connect(**settings, lease=lease or 0) as ids:
        ids.create("a", step=3 if lease is None else 1000, order="trend")
        numbers = [ids.next("a")]
        foreign: list[int] = []

        def once() -> None:
            if way == "next":
                numbers.append(ids.next("a"))
            elif way == "take":
                numbers.extend(ids.take("a", 5))
            else:
                for number in itertools.islice(ids.stream("a"), 40):
                    numbers.append(number)  # noqa: PERF402 - one by one, as an interrupt may come in between
            if len(numbers) % 50 == 0:
                foreign.append(other.next("a"))

        storm(once)
        for calm in (ids.next("a"), *ids.take("a", 10), next(ids.stream("a"))):
            assert calm > max(numbers)
            numbers.append(calm)
        assert numbers == sorted(numbers)
        assert repeats(numbers + foreign + [other.next("a")]) == []
        assert max(numbers) <= ids.inspect("a").store.max


@pytest.mark.live
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_main_thread_in_a_storm_of_signals_costs_those_who_share_its_draws_no_number(
    redis_url: str, storm: Storm
) -> None:
    """Nor a call: each of them would raise, at its deadline, if it were left waiting for the interrupted one."""
    with issuer.connect(redis=redis_url, store="memory://", timeout=60) as ids, ThreadPoolExecutor(6) as pool:
        ids.create("a", step=500)
        numbers = [ids.next("a")]
        stop = threading.Event()
        calls = [pool.submit(lambda: [ids.next("a") for _ in iter(stop.is_set, True)]) for _ in range(6)]
        try:
            storm(lambda: numbers.append(ids.next("a")))
        finally:
            stop.set()
        numbers += [number for call in calls for number in call.result(120)]
        assert repeats(numbers) == []
        assert ids.next("a") > max(numbers)


# ---------------------------------------------------------------------------------------------- locks


#: Lines that release locks.
RELEASES = ("for each in locks:", "each.release()")


class Place(NamedTuple):
    """`take`: what takes the lock. `release`: what releases it later, if it is held."""

    take: Any
    release: Callable[[], object]
    lock: Any


def buffer(ids: issuer.Issuer, _folder: Path) -> Place:
    ids.create("a", order="trend", step=10)
    ids.next("a")
    held = ids.engine.registry.combiner("a").supply.state.buffer
    assert held is not None
    return Place(held.unpublish, lambda: None, held._lock.thread)


def fork(_ids: issuer.Issuer, _folder: Path) -> Place:
    forks = issuer_persistence.forks
    return Place(forks._take_turn, forks._go_on, forks._turn)


def imports(_ids: issuer.Issuer, _folder: Path) -> Place:
    return Place(issuer.forks._wait_for_imports, issuer.forks._go_on, issuer.forks.no_fork())


def store(_ids: issuer.Issuer, folder: Path) -> Place:
    opened = SQLiteStore(str(folder / "ids.db"))
    return Place(opened.before_fork, opened.after_fork_in_parent, opened._lock)


def metrics(ids: issuer.Issuer, _folder: Path) -> Place:
    book = issuer.metrics.install(ids, registry=prometheus_client.CollectorRegistry())._book
    return Place(issuer.metrics.book._before, issuer.metrics.book._in_parent, book.lock)


def interrupted(call: Any, at: int) -> bool:
    """Call it, and raise an exception before its line number `at`, counted as they run. False: it has fewer lines.

    Some lines do not count, as no signal handler can run before them: a line that runs again, which is the end of a
    `with`, and the lines that release the locks.
    """
    codes: set[CodeType] = {call.__code__, acquired.__code__}
    lines: set[tuple[CodeType, int]] = set()

    def local(frame: FrameType, event: str, _argument: object) -> Any:
        line = frame.f_code, frame.f_lineno
        releases = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() in RELEASES
        if event == "line" and line not in lines and not releases:
            lines.add(line)
            if len(lines) > at:
                raise Interrupt
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _argument: local if frame.f_code in codes else None)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def free(lock: Any) -> bool:
    """Whether another thread gets the lock."""
    found: list[bool] = []

    def look() -> None:
        found.append(lock.acquire(timeout=0))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    return found == [True]


@pytest.mark.parametrize("of", [buffer, fork, imports, store, metrics])
def test_an_interrupt_at_any_line_leaves_no_lock_held(
    of: Callable[[issuer.Issuer, Path], Place], tmp_path: Path
) -> None:
    with issuer.connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        place = of(ids, tmp_path)
        for line in itertools.count():
            hit = interrupted(place.take, line)
            place.release()
            assert free(place.lock), f"after an interrupt at line {line}"
            if not hit:
                break
        assert line > 1


@pytest.mark.live
def test_hiredis_packs_no_command(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes the interpreter if a signal handler raises an exception meanwhile."""

    def crash(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(hiredis, "pack_command", crash)
    with issuer.connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("a")
        finished(lambda: ids.engine.upkeep.keep(timeout=60))  # subscribes to reports
        assert ids.next("a") == 1
