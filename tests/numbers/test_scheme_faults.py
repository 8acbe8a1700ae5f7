"""Schemes when things go wrong: changes that overtake each other, stores that went back, keys, parts."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core import floor
from issuer.numbers.codec import Scheme
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST, Tag, TagChanges, TagSettings
from tests.audit import repeats
from tests.colours import Connect, run
from tests.refusals import refused
from tests.schemes import KEYS, Make, processes
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.colours("blocking")


class Late(MemoryStore):
    """A store whose record of a tag comes late: what it says was true when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.arrive = threading.Event(), threading.Event()
        self.holds = False

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        found = super().get(tag, timeout=timeout)
        if self.holds:
            self.holds = False
            self.seen.set()
            assert self.arrive.wait(60)
        return found


@pytest.mark.parametrize("lease", [0, 20])
def test_a_record_that_was_read_before_a_change_and_comes_after_it_changes_no_value(
    make_live: Make, lease: int
) -> None:
    late = Late()
    ids, other = make_live(store=late, scheduler=None), make_live(store=late, scheduler=None)
    ids.create("a", step=200, order="trend" if lease else "strict", lease=lease or None)
    numbers = ids.take("a", 3)
    with ThreadPoolExecutor(1) as pool:
        late.holds = True
        origin = ids.engine.registry.combiner("a").supply.origin
        reading = pool.submit(lambda: run(ids, "a", origin.read(), Deadline(60)))
        assert late.seen.wait(60)
        other.configure("a", stride=2, offset=1)
        # What is left of a lease has the values of its own scheme.
        numbers += ids.take("a", 30)
        late.arrive.set()
        reading.result()
    for _ in range(100):
        numbers += [ids.next("a"), other.next("a"), *ids.take("a", 2), ids.issue("a").value]
    assert repeats(numbers) == []
    assert all(number % 2 for number in numbers[-400:])


class Overtaken(MemoryStore):
    """A store in which a segment is reserved between the reading of a record and its change."""

    busy = True

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        if self.busy:
            self.busy = False
            self.got = self.reserve(tag, 10, purpose=Purpose("other"), timeout=5)
        return super().configure(tag, changes, timeout=timeout)


def test_a_change_holds_from_above_what_is_reserved_meanwhile(connect: Connect) -> None:
    store = Overtaken()
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=10, stride=2, offset=1)
        ids.configure("a", stride=1, offset=1)
        before = [2 * counter - 1 for counter in range(store.got.low + 1, store.got.high + 1)]
        assert repeats([*before, *ids.take("a", 50)]) == []
    scheme = Scheme(store.snapshot().tags["a"], {})
    assert [scheme.value(counter) for counter in range(1, len(before) + 1)] == before


def test_a_range_is_no_range_of_values_for_a_process_that_missed_a_change(make_live: Make, store: MemoryStore) -> None:
    ids, other = make_live(redis="none", scheduler=None), make_live(redis="none", scheduler=None)
    ids.create("a", order="trend", step=10)
    ids.next("a")
    other.configure("a", stride=2, offset=1)
    refused(issuer.InvalidArgument, "", ids.reserve, "a", 100)
    assert store.snapshot().tags["a"].max < 100, "what was reserved in vain went back"


def test_a_stride_keeps_the_limit_of_the_values_when_it_changes(store: MemoryStore) -> None:
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=1, stride=1000, offset=1)
        ids.configure("a", stride=2**32, offset=1, above=HIGHEST - 2**34)
        numbers = ids.take("a", 4)
        caught = refused(issuer.LimitReached, "", ids.take, "a", 5)
    numbers += caught.drawn or []
    assert repeats(numbers) == []
    assert max(numbers) > HIGHEST - 2**32
    assert all(number <= HIGHEST for number in numbers)


def test_a_key_has_the_same_number_for_a_process_that_missed_a_change_and_whatever_changes(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("a", step=10)
    before = ids.next("a", key="k")
    numbers = [before, ids.next("a"), other.next("a")]
    other.configure("a", stride=10, offset=3)
    given = [other.next("a", key=f"k{which}") for which in range(5)]
    assert [ids.next("a", key=f"k{which}") for which in range(5)] == given
    assert [each.next("a", key="k") for each in (ids, other, make_live())] == [before] * 3
    assert repeats([*numbers, *given, *ids.take("a", 20), *other.take("a", 20)]) == []


@pytest.mark.parametrize("change", [{"scramble": "k2"}, {"stride": 1, "offset": 1}])
def test_no_text_of_a_keyed_tag_comes_again_after_a_change(make_live: Make, change: dict[str, Any]) -> None:
    ids = make_live(scheduler=None)
    first: dict[str, Any] = (
        {"scramble": "k1", "scramble_strict": True} if "scramble" in change else {"stride": 10, "offset": 1}
    )
    ids.create("a", keyed=True, format="{key}-{seq}", step=5, **first)
    issued = [ids.issue("a", restart_key="x") for _ in range(5)]
    refused(issuer.SchemeError, "each of its series", ids.configure, "a", **change)
    ids.configure("a", format="{key}-{seq}", description="x")
    other = make_live(scheduler=None)
    issued += [each.issue("a", restart_key="x") for each in (ids, other) * 50]
    assert repeats([each.value for each in issued]) == []
    assert len({each.text for each in issued}) == len(issued)
    assert [each.text for each in issued] == [f"x-{each.value}" for each in issued]


def test_a_process_without_the_key_reserves_nothing_that_it_cannot_use(connect: Connect, store: MemoryStore) -> None:
    own = {"redis": "none", "store": store, "scheduler": None}
    with connect(**own, keys={"k1": KEYS["k1"]}) as ids, connect(**own, keys=KEYS) as other:
        ids.create("a", order="trend", scramble="k1", step=10)
        numbers = ids.take("a", 10)
        other.configure("a", scramble="k2")
        before = other.tags()[0].max
        for _ in range(4):
            with pytest.raises(issuer.ConfigurationError, match="k2"):
                numbers.append(ids.next("a"))
        assert other.tags()[0].max - before <= 10
        assert repeats([*numbers, *other.take("a", 200)]) == []


def test_a_part_that_is_deleted_again_and_again_repeats_nothing(make_live: Make) -> None:
    """No issuer deletes a part any more; older ones did, and may be at work still."""
    ids, other, older = make_live(), make_live(), make_live()
    ids.create("a", keyed=True, format="{key}-{seq}", step=10)
    numbers: list[int] = []
    for _ in range(10):
        numbers += [each.issue("a", restart_key="x").value for each in (ids, other) * 8]
        run(older, "a", floor.delete("a#x", older.engine.config.hash_key("a#x")), Deadline(20))
    assert repeats(numbers) == []


def test_shards_whose_making_was_cut_off_are_made_by_the_next_try(make_live: Make, store: MemoryStore) -> None:
    ids = make_live(scheduler=None)
    real = store.create_many

    def cut(settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        """As in MongoDB, where a process that is killed leaves some of the tags."""
        real(dict(list(settings.items())[:10]), timeout=timeout)
        raise Unconfirmed("cut off")

    store.create_many = cut  # type: ignore[method-assign]
    refused(issuer.IssuerError, "", ids.create, "a", shards=True)
    store.create_many = real  # type: ignore[method-assign]
    refused(issuer.UnknownTag, "", ids.next, "a", shard_key="x")
    ids.create("a", shards=True)
    numbers = [ids.next("a", shard_key=f"x{which % 50}") for which in range(200)]
    assert repeats(numbers) == []


STRIDED = {"stride": 2, "offset": 1}


@pytest.fixture
def make_own(connect: Connect, server: RedisServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers, each of which stands for a process of its own, on a Redis that may be restored."""
    with processes(connect, redis=server.url, store=store, scheduler=None) as make:
        yield make


def _restored(
    make_own: Make, store: MemoryStore, first: dict[str, Any], *, recover: bool = True
) -> tuple[Issuer, Issuer, list[int]]:
    """Change a tag, draw, and restore the store from before; return an issuer that saw that, a new one, the numbers."""
    ids = make_own()
    ids.create("a", step=50, **first)
    numbers = ids.take("a", 50)
    backup = store.snapshot()
    ids.configure("a", stride=10, offset=3)
    numbers += ids.take("a", 30)
    store.restore(backup)
    fresh = make_own()
    if recover:
        fresh.recover("a")
    return ids, fresh, numbers


@pytest.mark.parametrize("first", [{}, STRIDED])
def test_a_store_restored_from_before_a_change_is_not_believed(
    make_own: Make, store: MemoryStore, first: dict[str, Any]
) -> None:
    # A strict tag: its hash is the witness of what was issued, and it says that there was a later scheme.
    ids, fresh, numbers = _restored(make_own, store, first)
    for each in (fresh, ids):
        with pytest.raises(issuer.StoreBehind, match="scheme"):
            numbers += each.take("a", 200)
        fresh.recover("a")
    with pytest.raises(issuer.StoreBehind):  # from where on?
        fresh.configure("a", stride=10, offset=3)
    fresh.configure("a", stride=10, offset=3, above=100_000)
    numbers += [*fresh.take("a", 200), *ids.take("a", 100)]
    assert repeats(numbers) == []


@pytest.mark.parametrize("early", [False, True])
def test_a_new_reign_hides_no_store_from_before_a_change(
    make_own: Make, store: MemoryStore, server: RedisServer, *, early: bool
) -> None:
    """Redis restarts between a restore of the store and a draw; `early`: somebody asks before `recover` has run."""
    _, fresh, numbers = _restored(make_own, store, STRIDED, recover=not early)
    server.restore(server.snapshot())
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    fresh.recover("a")
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    assert repeats(numbers) == []
