"""Exceptions that come from outside, between any two bytecodes: signals, and threads that outlive the main one."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.core.supply.local_buffer import FastPath, LocalBuffer
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST, Tag
from tests.audit import repeats
from tests.seeds import chosen
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


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


AFTER_MAIN = """
import threading, issuer
ids = issuer.connect(redis="none", store="memory://", timeout=40)
ids.create("a", step=10)
ids.next("a")
def work():
    threading.main_thread().join()
    print(ids.take("a", 60)[-1])
threading.Thread(target=work).start()
"""


@pytest.mark.live
def test_a_thread_that_outlives_the_main_one_still_gets_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_MAIN], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "61\n", done.stderr


TO_THE_END = """
import logging, issuer
from issuer.engine import blocking
blocking.CLOSING = 60  # a machine that stands still keeps it from handing back
for _ in range({count}):
    n = issuer.next("a")
print(n)
"""


@pytest.mark.live
@pytest.mark.parametrize("count", [200, 1200])  # the mark of its first segment is at 200
def test_a_program_that_just_ends_hands_back_quietly(tmp_path: Path, count: int) -> None:
    patience = {name: os.environ[name] for name in ("ISSUER_TIMEOUT", "ISSUER_STORE_TIMEOUT")}
    home = {name: str(tmp_path) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    for last in (count, count + 1):  # the first number of the second says what the first one handed back
        done = subprocess.run(
            [sys.executable, "-c", TO_THE_END.format(count=count if last == count else 1)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], **home, **patience},
            cwd=tmp_path,
        )
        assert done.stdout == f"{last}\n"
        assert re.fullmatch("no Redis and no store are configured, .*\n", done.stderr)
