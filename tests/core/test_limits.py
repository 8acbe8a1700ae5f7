"""Limits and starts in the numbers that users see: strides and scrambling count otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.views import view
from issuer_persistence.records import HIGHEST
from tests.colours import BOTH
from tests.refusals import refused
from tests.schemes import Make
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")


@pytest.mark.parametrize(
    ("settings", "last", "reserved"),
    [
        ({"limit": 100, "step": 10}, 100, "100 of 100"),
        ({"stride": 3, "offset": 1, "limit": 100, "step": 5}, 100, "100 of 100"),
        ({"stride": 3, "offset": 1, "limit": 102, "step": 5}, 100, "100 of 102"),
        ({"scramble": "k1", "order": "trend", "limit": 100, "step": 10}, 100, "100 of 100"),
    ],
)
def test_the_end_of_a_tag_is_warned_of_and_told_in_its_numbers(
    make: Make, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], last: int, reserved: str
) -> None:
    ids = make()
    ids.create("a", **settings)
    numbers = ids.take("a", 15)
    assert "limit" not in caplog.text
    numbers += ids.take("a", (34 if "stride" in settings else 100) - 15)
    assert max(numbers) == last
    assert caplog.text.count(f"are left up to its limit {settings['limit']}: raise it in time") == 1
    for call in (ids.next, ids.peek, ids.issue, make().peek):
        ended = refused(issuer.LimitReached, f"limit: {reserved} are reserved; raise the limit with", call, "a")
        assert (ended.value, ended.limit) == (last, settings["limit"])


@pytest.mark.parametrize("redis", [{}, {"redis": "none"}], ids=["redis", "direct"])
def test_a_limit_of_less_than_two_segments_is_warned_of_when_its_numbers_are_used(
    make: Make, caplog: pytest.LogCaptureFixture, redis: dict[str, str]
) -> None:
    ids = make(**redis)
    ids.create("a", limit=1500, step=1000, order="trend" if redis else "strict")
    ids.take("a", 1199)
    ids.tick()
    assert "limit" not in caplog.text, "all of them are reserved"
    ids.next("a")
    ids.tick()
    assert caplog.text.count("80 % of its numbers are used, at most 300 are left up to its limit 1500: raise it") == 1
    ids.take("a", 300)
    assert caplog.text.count("its limit") == 1


def test_a_limit_below_what_is_reserved_is_told_in_the_tags_numbers(make: Make) -> None:
    ids = make()
    ids.create("a", stride=3, offset=1, limit=1000, step=5)
    ids.take("a", 30)
    before = ids.inspect("a")
    said = r"^limit 50 is below \d+, the highest number reserved$"
    caught = refused(issuer.InvalidArgument, said, ids.configure, "a", limit=50)
    assert (caught.value, caught.tag) == (50, "a")
    assert int(str(caught).split()[4].rstrip(",")) in range(88, 150, 3)
    assert ids.inspect("a").scheme == before.scheme
    assert ids.next("a") == 91


def test_a_limit_below_the_first_number_is_named(make: Make) -> None:
    ids = make()
    ids.create("a", stride=30, offset=20)
    changes: list[Callable[[], object]] = [
        lambda: ids.create("b", stride=30, offset=20, limit=10),
        lambda: ids.create("b", stride=3, offset=3, start=100, limit=100),
        lambda: ids.create("b", stride=3, offset=1, above=40, limit=42),
        lambda: ids.configure("a", limit=10),
    ]
    for change in changes:
        caught = refused(issuer.SchemeError, r"^limit: \d+ is below the first number, (20|102|43)$", change)
        assert caught.setting == "limit"
    assert [tag.tag for tag in ids.tags()] == ["a"]
    assert ids.next("a") == 20


def test_a_start_of_a_strided_tag_is_a_number_that_users_see(make: Make) -> None:
    ids = make()  # without a scheduler: it loads nothing in between, that would be a gap
    ids.create("a", stride=3, offset=3, limit=1000, step=10)
    assert ids.take("a", 2) == [3, 6]
    ids.configure("a", start=300)
    assert ids.next("a") == 300
    ids.configure("a", above=400)
    assert ids.next("a") == 402
    ids.configure("a", start=5)
    assert ids.next("a") == 405, "it only raises"
    ids.configure("a", start=2000, limit=3000)
    assert ids.next("a") == 2001
    ids.configure("a", start=2500, stride=10, offset=7)
    assert ids.next("a") == 2507
    for said in ({"start": 3002}, {"above": 3001}):
        [(name, value)] = said.items()
        caught = refused(issuer.InvalidArgument, f"^{name} {value} is above the limit 3000", ids.configure, "a", **said)
        assert caught.value == value
    refused(issuer.InvalidArgument, r"^start must be 1\.\.5000, not 5001$", ids.configure, "a", start=5001, limit=5000)
    assert ids.next("a") == 2517


def test_where_numbers_begin_anew_none_are_skipped(make: Make) -> None:
    ids = make()
    kinds: dict[str, dict[str, Any]] = {
        "daily": {"restart": "daily", "format": "{date:%Y%m%d}-{seq}"},
        "yearly": {"restart": "yearly", "limit": 10, "format": "{date:%Y}-{seq}"},
    }
    for tag, settings in kinds.items():
        ids.create(tag, **settings)
        first = ids.next(tag)
        for name, value in (("start", 7), ("above", 1 << 60), ("start", 1)):
            caught = refused(issuer.SchemeError, "cannot be raised", ids.configure, tag, **{name: value})
            assert caught.setting == name
        assert ids.next(tag) == first + 1


def test_a_site_that_has_given_nothing_yet_goes_over_to_another_stride_as_the_others_do(make: Make) -> None:
    ids = make()
    ids.create("a", stride=2, offset=2)
    ids.configure("a", limit=100_000)
    ids.configure("a", stride=3, offset=2, above=100_000)
    for call in (ids.peek, ids.next):
        refused(issuer.LimitReached, "", call, "a")
    ids.configure("a", limit="int64")
    numbers = ids.take("a", 3)
    assert numbers[0] > 100_000
    assert [number % 3 for number in numbers] == [2, 2, 2]


@pytest.mark.parametrize("settings", [{}, {"stride": 3, "offset": 2}, {"scramble": "k1", "order": "trend"}])
def test_a_limit_that_cannot_be_raised_says_what_else_to_do(
    make: Make, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    ids = make()
    ids.create("a", start=HIGHEST - 4, **settings)
    refused(issuer.LimitReached, r"64-bit numbers end there, so create another tag$", ids.take, "a", 10)
    assert "raise it" not in caplog.text


@pytest.mark.parametrize(("settings", "last"), [({}, 1000), ({"stride": 3, "offset": 1}, 2998)])
def test_a_tag_made_again_below_its_numbers_says_so_in_them(make: Make, settings: dict[str, Any], last: int) -> None:
    ids = make()
    ids.create("a", **settings)
    ids.next("a")
    ids.delete("a")
    said = f": {last} of 50 are reserved; it was deleted before and .* higher limit"
    refused(issuer.LimitReached, said, ids.create, "a", limit=50, **settings)


@pytest.mark.parametrize("settings", [{"stride": 3, "offset": 1}, {"scramble": "k1", "order": "trend"}])
def test_a_number_below_the_start_is_none_of_the_tags(make: Make, settings: dict[str, Any]) -> None:
    ids = make()
    ids.create("a", start=1000, **settings)
    numbers = ids.take("a", 20)
    for value in (1, 5, 999):
        caught = refused(issuer.NotDecodable, f"^{value} is below 1000, the start of tag 'a'$", ids.decode, "a", value)
        assert (caught.value, caught.tag) == (value, "a")
    ids.delete("a")
    ids.create("a", start=5000, **settings)
    assert [ids.decode("a", number).counter for number in numbers] == [*range(1000, 1020)]
    refused(issuer.NotDecodable, "is below 1000", ids.decode, "a", 4)


@pytest.mark.colours("blocking", "asyncio")
@pytest.mark.parametrize("redis", [{}, {"redis": "none"}], ids=["redis", "direct"])
def test_take_of_more_than_is_left_draws_nothing(make: Make, redis: dict[str, str]) -> None:
    ids, other = make(**redis), make(**redis)
    ids.create("a", limit=1000, step=100, order="trend" if redis else "strict")
    assert ids.take("a", 500) == [*range(1, 501)]
    for n in (501, 1000, 1_000_000):
        ended = refused(issuer.LimitReached, "has too few numbers left up to its limit: ", ids.take, "a", n)
        assert (ended.drawn, ended.limit) == ([], 1000)
    assert ids.next("a") == 501
    other.configure("a", limit=2000)
    assert ids.take("a", 1000)[-1] == 1501, "the raised limit is read"


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({"limit": 30, "restart": "yearly", "format": "{date:%Y}-{seq:04d}"}, 31),
        ({"limit": 30, "stride": 3, "offset": 1}, 11),
    ],
)
def test_take_of_more_than_a_period_or_a_stride_has_draws_nothing(make: Make, settings: dict[str, Any], n: int) -> None:
    ids = make()
    ids.create("a", step=100, **settings)
    assert len(ids.take("a", 2)) == 2
    ended = refused(issuer.LimitReached, "", ids.take, "a", n - 2 * ("stride" in settings))
    assert ended.drawn == []
    assert len(ids.take("a", 8)) == 8


def test_numbers_below_those_of_reserve_are_left_for_take(make: Make) -> None:
    ids = make()
    ids.create("a", limit=1000, step=100, order="trend")
    assert ids.take("a", 10) == [*range(1, 11)]
    assert ids.reserve("a", 500) == range(101, 601)
    assert ids.take("a", 450) == [*range(11, 101), *range(601, 961)]


@pytest.mark.colours("asyncio")
def test_a_crowded_take_of_a_tag_without_a_counter_gets_its_numbers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().create("a", strategy="snowflake")
    monkeypatch.setattr("issuer.drivers.aio.combiner.AsyncCombiner.crowded", True)
    assert len(set(make().take("a", 5))) == 5


#: Layouts of snowflake numbers of 53 and 54 bits.
NARROW: dict[str, Any] = {"strategy": "snowflake", "options": {"machine_bits": 5, "sequence_bits": 7}}
WIDER: dict[str, Any] = {"strategy": "snowflake", "options": {"machine_bits": 5, "sequence_bits": 8}}
JS = 2**53 - 1


@pytest.mark.covers("U.9")
@BOTH
def test_snowflake_numbers_stay_within_a_limit_by_their_layout(make: Make) -> None:
    ids = make()
    for wide, bits in (({"strategy": "snowflake"}, 63), (WIDER, 54)):
        says = f"{JS} has room for 53 bits, but the layout has {bits} .* time_bits=41, machine_bits=5, sequence_bits=7"
        error = refused(issuer.SchemeError, says, ids.create, "a", limit="js", **wide)
        assert (error.setting, error.value, error.tag) == ("limit", JS, "a")
        assert ids.tags() == []
    refused(issuer.SchemeError, "room for 52 bits, but the layout has 53", ids.create, "a", limit=JS - 1, **NARROW)
    for _ in range(2):
        assert ids.create("a", exist_ok=True, limit="js", **NARROW).limit == JS
    assert 0 < ids.next("a") <= JS
    assert (ids.inspect("a").limit, view(ids.inspect("a"))["limit"]) == (JS, JS)
    assert (ids.configure("a", limit="int64").limit, ids.configure("a", limit="js").limit) == (HIGHEST, JS)
    assert "limit" not in view(ids.inspect(ids.create("b", strategy="snowflake").tag))
    refused(issuer.SchemeError, "the layout has 63", ids.configure, "b", limit="js")
    differs = refused(issuer.TagDiffers, "", ids.create, "b", exist_ok=True, limit="js", strategy="snowflake")
    assert differs.differences == {"limit": (JS, HIGHEST)}
    assert ids.inspect("b").limit == HIGHEST


@pytest.mark.parametrize("how", ["configure", "recover"])
def test_numbers_that_a_process_holds_come_until_it_looks_or_has_used_them_up(make_live: Make, how: str) -> None:
    """From when on a raised tag gives nothing lower."""
    far = 1_000_000
    ids, alone, operator = make_live(), make_live(redis="none"), make_live(scheduler=None)
    ids.create("strict")
    ids.create("leased", step=far // 2, order="trend", lease=far // 4)
    ids.create("direct", step=50, order="trend")
    for each, tag in ((ids, "strict"), (ids, "leased"), (alone, "direct")):
        each.next(tag)
    for tag in ("strict", "leased", "direct"):
        if how == "configure":
            operator.configure(tag, above=far)
        else:
            operator.recover(tag, at_least=far)
    assert ids.next("strict") > far
    until(lambda: ids.next("leased") > far, 60)
    lower = 0
    while alone.next("direct") <= far:
        lower += 1
    assert lower < 2 * 50
