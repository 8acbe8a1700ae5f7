"""Threads that share draws while signals hit one of them. What else may go wrong for one is in tests/virtual."""

import threading
from collections.abc import Callable

import pytest

import issuer
from tests.audit import repeats
from tests.faults.test_interrupts import storm

pytestmark = pytest.mark.live

__all__ = ["storm"]  # a fixture


# An interrupt may hit code of others between opening a socket and keeping it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_main_thread_in_a_storm_of_signals_costs_the_others_no_number(
    redis_url: str, storm: Callable[[Callable[[], object]], int]
) -> None:
    """Nor a call: each of them would raise, at its deadline, if it were left waiting for the interrupted one."""
    with issuer.connect(redis=redis_url, store="memory://", timeout=60) as ids:
        ids.create("a", step=500)
        numbers = [ids.next("a")]
        stop = threading.Event()
        ended: list[bool] = []

        def draw() -> None:
            mine: list[int] = []
            while not stop.is_set():
                mine.append(ids.next("a"))
            numbers.extend(mine)
            ended.append(True)

        threads = [threading.Thread(target=draw) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            assert storm(lambda: numbers.append(ids.next("a"))) > 10
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)
        assert len(ended) == 6
        assert repeats(numbers) == []
        assert ids.next("a") > max(numbers)
