"""Steps ahead: a segment that outlasts an outage of the store, in Redis and in a process of its own."""

import pytest

from issuer import InvalidArgument, StoreUnavailable
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.colours import Connect
from tests.waiting import until


class Switched(MemoryStore):
    """A store whose reservations can be switched off."""

    down = False

    def reserve(self, tag: str, n: int | None, **rest: object) -> Reservation:
        if self.down:
            raise Unavailable("switched off")
        return super().reserve(tag, n, **rest)  # type: ignore[arg-type]  # passed on as it came


@pytest.mark.covers("3.26", "3.28", "0.12")
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "redis"])
def test_an_outage_of_known_length_costs_nothing(connect: Connect, redis_url: str, direct: bool) -> None:
    store = Switched()
    with connect(redis=None if direct else redis_url, store=store, timeout=0.3) as ids:
        ids.create("a", step=10, ahead=5)
        numbers = ids.take("a", 11)  # past the mark of 50: the next 50 come
        until(lambda: ids.inspect("a").store.max == 100)
        store.down = True
        numbers += [ids.next("a") for _ in range(89)]
        assert numbers == list(range(1, 101))
        with pytest.raises(StoreUnavailable):
            ids.next("a")
        store.down = False
        assert ids.next("a", timeout=5) == 101


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


@pytest.mark.parametrize("ahead", [0, -1, 1001, 2**63, 1.5, "2", True])
def test_ahead_out_of_range_is_refused_and_changes_nothing(connect: Connect, ahead: int) -> None:
    with connect(redis=None, store=MemoryStore()) as ids:
        ids.create("a", step=10, ahead=2)
        for call in (ids.create, ids.configure):
            with pytest.raises(InvalidArgument, match="ahead") as error:
                call("b" if call == ids.create else "a", ahead=ahead)
            assert error.value.value == ahead
        assert [(each.tag, each.ahead) for each in ids.tags()] == [("a", 2)]
