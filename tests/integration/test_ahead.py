"""Steps ahead: a segment that outlasts an outage of the store, in Redis and in a process of its own."""

from contextlib import ExitStack
from typing import Any

import pytest

from issuer import InvalidArgument, StoreUnavailable
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.colours import BOTH, Connect
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]


class Switched(MemoryStore):
    """A store whose reservations can be switched off."""

    down = False

    def reserve(self, tag: str, n: int | None, **rest: object) -> Reservation:
        if self.down:
            raise Unavailable("switched off")
        return super().reserve(tag, n, **rest)  # type: ignore[arg-type]  # passed on as it came


@BOTH
@pytest.mark.covers("3.26", "0.12")
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "redis"])
def test_an_outage_of_known_length_costs_nothing(connect: Connect, redis_url: str, direct: bool) -> None:
    store = Switched()
    with connect(redis=None if direct else redis_url, store=store) as ids:
        ids.create("a", step=10, ahead=5)
        numbers = ids.take("a", 11)  # past the mark of 50: the next 50 come
        until(lambda: ids.inspect("a").store.max == 100, 30)
        store.down = True
        numbers += [ids.next("a") for _ in range(89)]
        assert numbers == list(range(1, 101))
        with pytest.raises(StoreUnavailable):
            ids.next("a", timeout=0.3)
        store.down = False
        assert ids.next("a") == 101


@pytest.mark.covers("3.28")
def test_two_processes_that_reserve_ahead_never_overlap_and_both_live_through_an_outage(connect: Connect) -> None:
    store = Switched()
    with ExitStack() as ends:
        two = [ends.enter_context(connect(redis=None, store=store, scheduler=None)) for _ in range(2)]
        two[0].create("a", step=10, ahead=5)
        numbers = [number for _ in range(12) for ids in two for number in ids.take("a", 1)]
        assert [ids.tick() for ids in two] == [1, 1]
        store.down = True
        numbers += [number for _ in range(88) for ids in two for number in ids.take("a", 1)]
        assert sorted(numbers) == list(range(1, 201))
        for ids in two:
            with pytest.raises(StoreUnavailable):
                ids.next("a", timeout=0.1)
    ranges = sorted((entry.low, entry.high) for entry in store.ledger("a", newest=9, timeout=1))
    assert ranges == [(low, low + 50) for low in range(0, 200, 50)]


def test_what_is_ahead_changes_at_the_next_reservation(connect: Connect, redis_url: str) -> None:
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.next("a")
        assert ids.inspect("a").store.ahead == 1
        assert ids.configure("a", ahead=3).ahead == 3
        ids.take("a", 4)
        assert ids.tick() == 1
        seen = ids.inspect("a").redis
        assert seen is not None
        assert (seen.max, seen.next_cur, seen.next_max) == (10, 10, 40)


def test_ahead_out_of_range_is_refused_and_changes_nothing(connect: Connect) -> None:
    with connect(redis=None, store=MemoryStore()) as ids:
        ids.create("a", step=10, ahead=2)
        wrong: list[Any] = [0, -1, 1001, 2**63, 1.5, "2", True]
        for ahead in wrong:
            for tag, call in (("b", ids.create), ("a", ids.configure)):
                with pytest.raises(InvalidArgument, match="ahead") as error:
                    call(tag, ahead=ahead)
                assert error.value.value == ahead
        assert [(each.tag, each.ahead) for each in ids.tags()] == [("a", 2)]
