"""Numbers as people want them, on a real Redis: strides, scrambling, shards, series, keys, texts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import issuer
from issuer.gateway.commands import script
from issuer.numbers import codec
from issuer.strategies import Instance
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag
from tests.audit import repeats
from tests.colours import BOTH
from tests.drawers import Drawers
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")


@pytest.mark.covers("1.13")
def test_a_stride_changed_while_others_draw_never_repeats(make_live: Make) -> None:
    first, second = make_live(), make_live()
    first.create("a", step=50, stride=2, offset=1)
    with Drawers([first, second], "a") as drawing:
        for stride in (3, 5, 2, 7):
            drawing.more(100)
            make_live().configure("a", stride=stride, offset=2)
        drawing.more(200)
    assert drawing.errors == []
    assert repeats(drawing.numbers) == []
    assert all(number % 7 == 2 for number in sorted(drawing.numbers)[-100:])


@pytest.mark.covers("U.8", "3.3", "4.2", "0.14")
def test_scrambled_numbers_keep_their_digits_and_never_repeat(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("a", start=100_000, order="trend", scramble="k1")
    numbers = [ids.next("a"), *ids.take("a", 1000), *other.take("a", 1000), other.next("a")]
    assert repeats(numbers) == []
    assert all(len(str(number)) == 6 for number in numbers)
    assert numbers != sorted(numbers)
    assert ids.decode("a", numbers[0]).counter == 100_000
    assert [ids.decode("a", number).counter for number in numbers[1:6]] == [*range(100_001, 100_006)]


@pytest.mark.covers("4.4", "4.5", "4.7", "4.8", "4.9")
def test_shards_have_a_sequence_each_and_their_numbers_tell_the_shard(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("users", shards={"app": 17})
    assert len(ids.tags()) == 65
    keys = [f"user{number}@example.com" for number in range(200)]
    numbers = {key: ids.next("users", shard_key=key) for key in keys}
    assert len(set(numbers.values())) == 200
    for key, number in numbers.items():
        found = ids.decode("users", number)
        again = other.decode("users", other.next("users", shard_key=key))
        assert (found.shard, found.app) == (again.shard, 17)
        assert (found.counter or 0) < (again.counter or 0)
        assert 0 <= (found.shard or 0) < 64
    refused(issuer.InvalidArgument, "shard_key", ids.next, "users")
    ids.create("plain")
    refused(issuer.InvalidArgument, "shard_key", ids.next, "plain", shard_key="x")
    ids.delete("users")
    assert [tag.tag for tag in ids.tags()] == ["plain"]
    refused(issuer.UnknownTag, "", other.next, "users", shard_key="x")


@BOTH
@pytest.mark.covers("U.6")
def test_each_restart_key_has_a_series_of_its_own(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("invoices", keyed=True, format="{key}-{seq:04d}")
    with ThreadPoolExecutor(8) as pool:
        both = [ids, other] * 20
        texts = list(pool.map(lambda each: str(each.issue("invoices", restart_key="acme")), both))
    assert sorted(texts) == [f"acme-{number:04d}" for number in range(1, 41)]
    assert str(other.issue("invoices", restart_key="zeta")) == "zeta-0001"
    assert str(ids.peek("invoices", restart_key="new")) == "new-0001"
    assert str(ids.peek("invoices", restart_key="acme")) == "acme-0041"
    refused(issuer.InvalidArgument, "restart_key", ids.next, "invoices")


@BOTH
@pytest.mark.covers("N.3")
def test_the_same_key_has_the_same_number_from_any_process(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("orders")
    with ThreadPoolExecutor(8) as pool:
        numbers = set(pool.map(lambda each: each.next("orders", key="order-778"), [ids, other] * 20))
    assert numbers == {1}
    assert other.next("orders", key="order-779") == 2
    assert ids.next("orders") == 3
    assert ids.next("orders", key="order-778", ttl=0.001) == 1
    refused(issuer.InvalidArgument, "", ids.next, "orders", key="")
    refused(issuer.InvalidArgument, "", ids.next, "orders", key="x", ttl=0)


def test_a_scheme_is_built_once_and_not_after_each_reservation(
    make_live: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that keeps one for each version of a record grows with each segment."""
    built: list[str] = []
    made = codec.Scheme

    def scheme(tag: Tag, *arguments: Any, **options: Any) -> codec.Scheme:
        built.append(tag.tag)
        return made(tag, *arguments, **options)

    monkeypatch.setattr("issuer.numbers.codec.Scheme", scheme)
    ids = make_live()
    ids.create("a", step=2, format="A{seq}")
    assert [ids.issue("a", key=f"k{number}").text for number in range(20)] == [f"A{n}" for n in range(1, 21)]
    assert built == ["a"]
    ids.configure("a", format="B{seq}")
    until(lambda: str(ids.issue("a")).startswith("B"), message="the next reservation shows the change")
    counts = []
    for _ in range(2):
        for _ in range(20):
            ids.issue("a")
        counts.append(len(built))
    # The first of the 20 may be of a segment that was reserved before the change: one more for it, and one after it.
    assert counts[0] <= 4
    assert counts[1] == counts[0]


def test_a_key_needs_redis(make_live: Make) -> None:
    ids = make_live(redis="none", store=MemoryStore())
    ids.create("a")
    refused(issuer.ConfigurationError, "Redis", ids.next, "a", key="x")


@BOTH
def test_a_keys_number_is_the_same_for_a_leased_and_a_scrambled_tag(make_live: Make) -> None:
    ids, other = make_live(lease=100), make_live()
    ids.create("a", order="trend", start=1000, scramble="k1")
    others = ids.take("a", 10)
    number = ids.next("a", key="k")
    assert number == other.next("a", key="k") == ids.issue("a", key="k").value
    assert number not in others
    assert repeats([*others, number, *ids.take("a", 500), *other.take("a", 100)]) == []


def test_a_text_that_no_longer_fits_is_an_error(make_live: Make) -> None:
    ids, other = make_live(), make_live()
    ids.create("a", start=99, format="N{seq:02d}")
    assert str(ids.issue("a")) == "N99"
    for _ in range(2):
        refused(issuer.FormatOverflow, "", ids.issue, "a")
    assert ids.next("a") == 102, "each try takes a number"
    other.configure("a", format="N{seq:03d}")
    assert str(ids.issue("a")) == "N103", "a wider format is seen before the number is lost"


@BOTH
def test_numbers_without_a_text_are_given_though_none_fits_the_format(make_live: Make) -> None:
    ids = make_live()
    ids.create("a", start=100, format="N{seq:02d}")
    assert (ids.next("a"), ids.next("a", key="order-778"), ids.next("a", key="order-778")) == (100, 101, 101)
    assert ids.next("a") == 102, "none was lost"
    ids.create("s", shards=True, format="{shard:04d}-{seq:01d}")
    first = ids.next("s", shard_key="x")
    numbers = [ids.next("s", shard_key="x") for _ in range(12)]
    assert [ids.decode("s", number).counter for number in (first, *numbers)] == list(range(1, 14))


def test_what_is_empty_and_of_another_kind_changes_nothing(make_live: Make) -> None:
    ids = make_live()
    ids.create("a", format="N{seq}")
    for name, value in (("format", 0), ("format", False), ("format", []), ("shards", ""), ("options", False)):
        changed: dict[str, Any] = {name: value}
        assert refused(issuer.SchemeError, "must be ", ids.configure, "a", **changed).setting == name
    assert str(ids.issue("a")) == "N1"
    ids.configure("a", step=5, format=None)  # type: ignore[arg-type]  # as everywhere else: as it is
    assert ids.inspect("a").scheme["format"] == "N{seq}"
    assert "format" not in ids.configure("a", format="").scheme


@BOTH
@pytest.mark.parametrize(
    "settings", [{}, {"order": "trend", "lease": 10}, {"strategy": "snowflake", "options": {"machine": "fixed"}}]
)
def test_a_timeout_that_is_none_is_refused_also_where_a_number_is_ready(
    make_live: Make, settings: dict[str, Any]
) -> None:
    ids = make_live(instance=Instance(machine=3))
    ids.create("a", **settings)
    ids.take("a", 3)
    ids.next("a")
    wrong: Any
    for wrong in (True, -1, "5"):
        for call in (ids.next, lambda tag, **late: ids.take(tag, 1, **late)):
            refused(issuer.InvalidArgument, "timeout must be", call, "a", timeout=wrong)


def test_what_is_neither_a_number_nor_a_text_does_not_decode(make_live: Make) -> None:
    ids = make_live()
    values: list[Any] = [1.5, None, b"12", True, -1, [1]]
    for tag, texts in (("plain", {}), ("text", {"format": "B{seq:06d}"}), ("sharded", {"shards": True})):
        ids.create(tag, **texts)
        for shown in values:
            error = refused(issuer.NotDecodable, "", ids.decode, tag, shown)
            assert (error.tag, error.value) == (tag, shown)


@BOTH
@pytest.mark.covers("N.3")
def test_after_a_lost_reply_the_same_key_has_the_number_that_was_lost(make_live: Make, redis_proxy: FaultProxy) -> None:
    ids, other = make_live(redis=redis_proxy.url), make_live()
    ids.create("orders")
    assert ids.next("orders") == 1
    redis_proxy.drop_replies(match=script("once").sha.encode(), times=1)
    numbers = []
    for each in (ids, ids, other):
        with suppress(issuer.RedisUnavailable):
            numbers.append(each.next("orders", key="order-778"))
    assert set(numbers) == {2}
    assert other.next("orders") == 3


def test_a_tag_of_ones_own_with_the_name_of_a_part_is_neither_drawn_from_nor_deleted(make_live: Make) -> None:
    ids = make_live()
    ids.create("c#mine")
    ids.create("s#3")
    assert ids.next("c#mine") == 1
    ids.create("c", keyed=True, format="{key}-{seq}")
    assert ids.issue("c", restart_key="yours").value == 1
    refused(issuer.ConfigurationError, "not a part of 'c'", ids.issue, "c", restart_key="mine")
    ids.delete("c")
    assert ids.next("c#mine") == 2
    refused(issuer.ConfigurationError, "not a part of 's'", ids.create, "s", shards=True)
    assert [tag.tag for tag in ids.tags() if tag.tag.startswith("s")] == ["s#3"]
    refused(issuer.UnknownTag, "", ids.next, "c#yours")
