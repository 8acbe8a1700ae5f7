"""The limit of a period: what it lets be taken, raised and lowered while numbers are drawn, and what is told of it."""

from typing import Any

import pytest

from issuer import Issuer
from issuer.core.periods import SEQ_MOST
from issuer.errors import LimitReached, SchemeError
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import BOTH
from tests.drawers import Drawers
from tests.integration.days import DAILY, DAY, EVE, Make, Set, shown

pytestmark = pytest.mark.colours("blocking")


def at_its_limit(ids: Issuer, limit: int) -> None:
    with pytest.raises(LimitReached) as ended:
        ids.next("a")
    assert (ended.value.limit, ended.value.value) == (limit, limit)


@BOTH
def test_a_limit_that_is_set_raised_or_lowered_goes_on_with_the_next_number_for_all(make: Make, at: Set) -> None:
    ids, other = make(), make()
    at("2026-11-20 12:00:00")
    ids.create("a", **DAILY)
    assert [each.next("a") for each in (ids, other, ids)] == [1, 2, 3]
    ids.configure("a", limit=50)
    assert [each.next("a") for each in (ids, other)] == [4, 5]
    other.configure("a", limit=500)
    assert ids.take("a", 45) == list(range(6, 51))
    assert [each.next("a") for each in (other, ids)] == [51, 52]
    other.configure("a", limit=54)
    assert [each.next("a") for each in (ids, other)] == [53, 54]
    for each in (other, ids):
        at_its_limit(each, 54)
    at("2026-11-21 12:00:00")
    assert [shown(each.issue("a")) for each in (other, ids)] == [(DAY, 1), (DAY, 2)]


def test_a_tag_at_its_limit_takes_no_number_for_calls_that_fail(make: Make, at: Set, store: MemoryStore) -> None:
    ids, other = make(), make()
    at("2026-11-20 12:00:00")
    ids.create("a", limit=2, **DAILY)
    assert [each.next("a") for each in (ids, other)] == [1, 2]
    for each in (ids, other, ids, other, ids):
        at_its_limit(each, 2)
    record = store.get("a", timeout=1)
    assert record is not None
    assert record.max & SEQ_MOST == 2
    ids.configure("a", limit=4)
    assert [each.next("a") for each in (other, ids)] == [3, 4]
    at_its_limit(other, 4)
    at("2026-11-21 00:00:00")
    assert [shown(each.issue("a")) for each in (other, ids)] == [(DAY, 1), (DAY, 2)]


def test_a_reservation_that_comes_in_between_brings_none_beyond_the_limit(
    make: Make, at: Set, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make()
    at("2026-11-20 12:00:00")
    ids.create("a", limit=10, step=4, **DAILY)
    reserve = store.reserve

    def after_another(tag: str, *said: Any, **more: Any) -> Any:
        reserve(tag, 3, at_least=0, reason="another", timeout=1)
        return reserve(tag, *said, **more)

    monkeypatch.setattr(store, "reserve", after_another)
    assert ids.take("a", 4) == [4, 5, 6, 7]
    at_its_limit(ids, 10)


def test_a_period_near_its_limit_is_warned_of(make: Make, at: Set, caplog: pytest.LogCaptureFixture) -> None:
    ids = make()
    at("2026-11-20 12:00:00")
    ids.create("a", limit=100, step=10, **DAILY)
    warned = "tag 'a': 80 % of the period's numbers are reserved, 20 are left up to its limit 100: raise it in time"
    for times, day in enumerate((EVE, DAY)):
        at(f"2026-11-{day[-2:]} 12:00:00")
        ids.take("a", 60)
        assert caplog.text.count("its limit") == times
        ids.take("a", 30)
        ids.take("a", 5)
        assert caplog.text.count(warned) == caplog.text.count("its limit") == times + 1
    at("2026-11-22 12:00:00")
    other = make()
    other.next("a")
    assert caplog.text.count("its limit") == 2, "the day before is over"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ({}, "raise it with `issuer set --limit`"),
        (
            {"keyed": True, "format": "{key}/{date:%Y%m%d}-{seq}"},
            "the parts of tag 'a' keep it, so go on with another tag until the next period begins",
        ),
        (
            {"scramble": "k1", "scramble_strict": True},
            "a tag with restart and scramble keeps it, so go on with another tag until the next period begins",
        ),
    ],
)
def test_the_error_at_the_limit_advises_what_is_possible(
    make: Make, at: Set, said: dict[str, Any], advice: str
) -> None:
    ids = make(keys={"k1": b"0123456789abcdef"})
    at("2026-11-20 12:00:00")
    ids.create("a", limit=2, **{**DAILY, **said})
    key: Any = {"restart_key": "acme"} if "keyed" in said else {}
    for _ in range(2):
        ids.issue("a", **key)
    with pytest.raises(LimitReached) as ended:
        ids.issue("a", **key)
    assert str(ended.value).endswith(f"2 of 2 are reserved; {advice}")
    if said:
        with pytest.raises(SchemeError, match="limit"):
            ids.configure("a", limit=3)
        at("2026-11-21 12:00:00")
        assert ids.issue("a", **key).period == "2026-11-21"


def test_without_periods_the_series_of_a_key_end_for_good(make: Make) -> None:
    ids = make()
    ids.create("a", keyed=True, limit=1)
    ids.issue("a", restart_key="acme")
    with pytest.raises(LimitReached, match=r"1 of 1 .*the parts of tag 'a' keep it, so go on with another tag$"):
        ids.issue("a", restart_key="acme")


def test_while_the_limit_changes_under_threads_no_text_comes_twice(make: Make, at: Set) -> None:
    both = make(), make()
    at("2026-11-20 12:00:00")
    both[0].create("a", step=7, limit=10_000, **DAILY)
    with Drawers(both, "a") as drawing:
        for limit in (20_000, 15_000, 30_000, 12_000):
            drawing.more(40)
            both[0].configure("a", limit=limit)
    found = drawing.numbers
    assert drawing.errors == []
    assert repeats(found) == []
    # Each change may cost a segment of 7 that was on its way.
    assert max(found) <= len(found) + 4 * 7 * 2
    both[1].configure("a", limit=max(found))
    for each_issuer in both:
        at_its_limit(each_issuer, max(found))
