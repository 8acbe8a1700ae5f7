"""The pool of permits for connections: none is lost, and those that wait are served in their order."""

import gc
from collections.abc import Callable

import pytest

from issuer import clock
from issuer.clock import Deadline
from issuer.drivers.blocking.link import Waker
from issuer.drivers.servers import Pool


@pytest.fixture
def pool() -> Pool[Waker]:
    return Pool(2, Waker)


def test_there_are_so_many_permits_and_one_that_is_lost_comes_back(pool: Pool[Waker]) -> None:
    held = [pool.permit(), pool.permit()]
    assert None not in held
    assert pool.permit() is None
    for _ in range(3):  # each time, and not only once
        held.pop()
        held.append(pool.permit())
        assert None not in held
        assert pool.permit() is None


def test_a_pool_that_nothing_refers_to_ends_with_its_permits(pool: Pool[Waker]) -> None:
    def alive() -> int:
        return sum(type(each) is Pool for each in gc.get_objects())

    before = alive()
    other = Pool(2, Waker)
    permit = other.permit()
    assert alive() == before + 1
    del other
    assert alive() == before
    del permit
    assert pool.permit() is not None


def test_calls_wait_in_their_order_and_one_that_comes_waits_behind_them(pool: Pool[Waker]) -> None:
    assert pool.is_next(None)
    first, second = (pool.queue(Deadline(60.0)) for _ in range(2))
    assert [pool.is_next(each) for each in (None, second, first)] == [False, False, True]
    pool.leave(first)
    assert [pool.is_next(each) for each in (None, second)] == [False, True]
    pool.leave(second)
    assert pool.is_next(None)


def test_a_call_that_was_interrupted_stands_in_nobodys_way(pool: Pool[Waker], monkeypatch: pytest.MonkeyPatch) -> None:
    pool.queue(Deadline(60.0))
    waits = pool.queue(Deadline(600.0))
    assert not pool.is_next(waits)
    now: Callable[[], float] = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: now() + 100.0)
    assert not pool.is_next(None)
    assert pool.is_next(waits)


def test_a_permit_that_comes_back_wakes_the_first_that_waits_and_that_one_the_next(pool: Pool[Waker]) -> None:
    held = [pool.permit(), pool.permit()]
    turns = [pool.queue(Deadline(60.0)) for _ in range(2)]
    del held[0]
    turns[0].waker.wait(60.0)
    pool.leave(turns[0])
    turns[1].waker.wait(60.0)
    assert pool.is_next(turns[1])
