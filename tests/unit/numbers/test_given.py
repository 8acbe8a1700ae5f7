"""What users say of a tag's numbers: each refusal names its setting; ids; tags that are made again."""

from typing import Any

import pytest

from issuer.core.scheme import turn
from issuer.errors import SchemeError
from issuer.numbers.given import changed, made
from issuer.numbers.scheme import Scheme
from persistence.records import HIGHEST, Tag
from persistence.schemes import continued
from tests.unit.numbers.test_scheme import KEYS, Issued, make, record

DAILY: dict[str, Any] = {"restart": "daily", "format": "{date:%Y%m%d}-{seq}"}


def change(scheme: dict[str, Any], max: int, limit: int | None = None, **said: Any) -> dict[str, Any]:
    order = "strict" if "restart" in scheme else "trend"
    return changed(record(scheme, max=max, order=order), said, limit=limit, keys=KEYS)[0]  # type: ignore[arg-type]  # an Order


class TestRefusals:
    @pytest.mark.covers("1.4")
    def test_strict_order_and_scrambling_are_refused_with_the_reason(self) -> None:
        with pytest.raises(SchemeError, match="nobody could see it") as caught:
            make(order="strict", scramble="k1")
        assert caught.value.setting == "scramble"
        strict = record({}, max=5, order="strict")
        with pytest.raises(SchemeError, match="nobody could see it"):
            changed(strict, {"scramble": "k1"}, limit=None, keys=KEYS)
        scheme, _ = changed(strict, {"scramble": "k1", "scramble_strict": True}, limit=None, keys=KEYS)
        rotated, _ = changed(record(scheme, max=50, order="strict"), {"scramble": "k2"}, limit=None, keys=KEYS)
        assert [piece["key"] for piece in rotated["scramble"]] == ["k1", "k2"]

    @pytest.mark.parametrize(
        ("said", "setting"),
        [
            ({"format": 5}, "format"),
            ({"format": "x"}, "format"),
            ({"format": "{shard}-{seq}"}, "format"),
            ({"format": "{key}-{seq}"}, "format"),
            ({"keyed": True, "format": "{seq}"}, "format"),
            ({"keyed": "yes"}, "keyed"),
            ({"timezone": "Europe/Wien"}, "timezone"),
            ({"timezone": 5}, "timezone"),
            ({**DAILY, "restart": "hourly"}, "restart"),
            (DAILY, "restart"),  # not strict
            ({"stride": 2}, "offset"),
            ({"offset": 2}, "offset"),
            ({"stride_above": 2}, "stride_above"),
            ({"stride": 2, "offset": 1, "stride_above": "x"}, "stride_above"),
            ({"stride": 2, "offset": 1, "stride_above": 1.5}, "stride_above"),
            ({"stride": 2, "offset": 1, "stride_above": True}, "stride_above"),
            ({"stride": 2, "offset": 1, "stride_above": -1}, "stride_above"),
            ({"stride": 0, "offset": 1}, "stride"),
            ({"stride": True, "offset": 1}, "stride"),
            ({"stride": 2, "offset": 3}, "offset"),
            ({"stride": 2, "offset": 0}, "offset"),
            ({"stride": 2, "offset": 1, "scramble": "k1"}, "stride"),
            ({"stride": 2, "offset": 1, "shards": True}, "shards"),
            ({"scramble": "k9"}, "scramble"),
            ({"scramble": ""}, "scramble"),
            ({"scramble": 5}, "scramble"),
            ({"scramble": [5]}, "scramble"),
            ({"scramble": []}, "scramble"),
            ({"scramble": ["k1"]}, "scramble"),
            ({"scramble": [("1", "k1")]}, "scramble"),
            ({"scramble": [(0, "k1")]}, "scramble"),
            ({"scramble": [(True, "k1")]}, "scramble"),
            ({"scramble": [(5, "k1"), (5, "k2")]}, "scramble"),
            ({"scramble_strict": True}, "scramble_strict"),
            ({"scramble": "k1", "scramble_strict": 1}, "scramble_strict"),
            ({"stride_above": 0}, "stride_above"),
            ({"stride_above": 9, "stride": None}, "stride_above"),
            ({"app": 5}, "app"),
            ({"app": 0}, "app"),
            ({"shards": True, "app": 256}, "app"),
            ({"shards": {"app": 1}, "app": 2}, "app"),
            ({"shards": {"app": 1}, "app": 0}, "app"),
            ({"shards": False, "app": 2}, "app"),
            ({"shards": {}, "app": 2}, "app"),
            ({"shards": True, "app": -1}, "shards"),
            ({"shards": 6}, "shards"),
            ({"shards": {"shard_bits": 17}}, "shards"),
            ({"shards": {"shard_bits": 16, "app_bits": 47}}, "shards"),
            ({"shards": {"shards": 6}}, "shards"),
            ({"shards": True, "keyed": True}, "shards"),
            ({"shards": True, "strategy": "snowflake"}, "strategy"),
            ({"scramble": "k1", "strategy": "snowflake"}, "strategy"),
            ({"cycle": True, "strategy": "snowflake"}, "strategy"),
            ({"strategy": ""}, "strategy"),
            ({"options": {"epoch": 1}}, "options"),
            ({"strategy": "snowflake", "options": {"epoch": [1]}}, "options"),
            ({"strategy": "snowflake", "options": 5}, "options"),
            ({"cycle": "yes"}, "cycle"),
            ({"cycle": True, "format": "{seq}"}, "format"),
            ({"cycle": True, "stride": 2, "offset": 1}, "cycle"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_the_name_of_the_setting(
        self, said: dict[str, Any], setting: str
    ) -> None:
        with pytest.raises(SchemeError) as caught:
            make(limit=999_999, **said)
        assert caught.value.setting == setting
        assert str(caught.value).startswith(f"{setting}: ")

    def test_the_application_may_be_said_twice_if_it_is_the_same(self) -> None:
        twice = make(limit=HIGHEST, shards={"app": 1, "app_bits": 4}, app=1)
        assert twice == make(limit=HIGHEST, shards={"app_bits": 4}, app=1)
        assert twice["shards"]["app"] == 1

    def test_a_cycle_needs_a_limit(self) -> None:
        with pytest.raises(SchemeError) as caught:
            make(cycle=True)
        assert caught.value.setting == "cycle"

    def test_a_setting_of_another_name_is_a_mistake_of_the_program(self) -> None:
        with pytest.raises(TypeError, match="formt"):
            make(formt="x")

    @pytest.mark.parametrize("also", [{"cycle": True}, {"shards": True}, {"stride": 2, "offset": 1}])
    def test_restart_excludes(self, also: dict[str, Any]) -> None:
        with pytest.raises(SchemeError, match="restart"):
            make(limit=999, order="strict", **DAILY, **also)

    @pytest.mark.parametrize(
        ("said", "setting"),
        [
            ({"format": None}, "restart"),
            ({"format": "{seq}"}, "format"),
            ({"format": "{date:%Y}-{seq}"}, "format"),
            ({"restart": "weekly", "format": "{date:%Y%V}-{seq}"}, "format"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
        ],
    )
    def test_a_format_that_does_not_show_the_period_is_refused(self, said: dict[str, Any], setting: str) -> None:
        with pytest.raises(SchemeError) as caught:
            make(order="strict", **{**DAILY, **said})
        assert caught.value.setting == setting

    @pytest.mark.parametrize("said", [{"lease": 10}, {"above": 5}])
    def test_restart_is_for_strict_tags_that_begin_at_one(self, said: dict[str, int]) -> None:
        with pytest.raises(SchemeError) as caught:
            made(
                DAILY, tag="a", order="strict", limit=99, above=said.get("above", 0), lease=said.get("lease"), keys=KEYS
            )
        assert caught.value.setting == "restart"

    def test_a_secret_is_shown_by_no_error(self) -> None:
        with pytest.raises(SchemeError) as caught:
            made({"scramble": "k1"}, tag="a", order="trend", limit=9, above=0, lease=None, keys={"k1": b"my secret"})
        assert "my secret" not in f"{caught.value}{caught.value.value!r}"

    @pytest.mark.parametrize(
        ("first", "then", "setting"),
        [
            ({}, DAILY, "restart"),
            (DAILY, {"restart": "never"}, "restart"),
            (DAILY, {"restart": "yearly"}, "restart"),
            (DAILY, {"format": "{seq}"}, "format"),
            (DAILY, {"format": ""}, "restart"),
            (DAILY, {"timezone": "Asia/Tokyo"}, "timezone"),
            (DAILY, {"stride": 2, "offset": 1}, "stride"),
            (DAILY, {"scramble": "k1", "scramble_strict": True}, "scramble"),
            ({}, {"shards": True}, "shards"),
            ({"shards": True}, {"shards": False}, "shards"),
            ({"shards": True}, {"app": 9}, "app"),
            ({"shards": True}, {"stride": 2, "offset": 1}, "stride"),
            ({"shards": True}, {"scramble": "k1"}, "scramble"),
            ({"shards": True}, {"limit": 888}, "limit"),
            ({"keyed": True}, {"scramble": "k1"}, "scramble"),
            ({"keyed": True}, {"stride": 2, "offset": 1}, "stride"),
            ({"keyed": True}, {"limit": 888}, "limit"),
            ({"keyed": True}, {"keyed": False}, "keyed"),
            ({}, {"cycle": True}, "cycle"),
            ({"cycle": True}, {"cycle": False}, "cycle"),
            ({"cycle": True}, {"limit": 888}, "limit"),
            ({"cycle": True}, {"stride": 2, "offset": 1}, "stride"),
            ({"cycle": True, "scramble": "k1"}, {"scramble": "k2"}, "scramble"),
            ({}, {"strategy": "snowflake"}, "strategy"),
            ({"strategy": "snowflake"}, {"strategy": "segment"}, "strategy"),
            ({"strategy": "snowflake"}, {"options": {"epoch": 1}}, "options"),
            ({"strategy": "snowflake"}, {"stride": 2, "offset": 1}, "stride"),
            ({"strategy": "snowflake"}, {"scramble": "k1"}, "scramble"),
            ({}, {"stride_above": 60}, "stride_above"),
            ({}, {"stride_above": 0}, "stride_above"),
            ({"stride": 2, "offset": 1}, {"stride_above": 60}, "stride_above"),
            ({"stride": 2, "offset": 1}, {"stride_above": 60, "format": "A{seq}"}, "stride_above"),
            ({"scramble": "k1"}, {"stride_above": 60}, "stride_above"),
            ({}, {"scramble_strict": True}, "scramble_strict"),
            ({"scramble": "k1"}, {"scramble_strict": True}, "scramble_strict"),
            ({"scramble": "k1"}, {"scramble_strict": True, "limit": 9999}, "scramble_strict"),
            ({"stride": 2, "offset": 1}, {"stride": 3}, "offset"),
            ({"stride": 2, "offset": 1}, {"stride": 3, "offset": 1, "stride_above": 5}, "stride_above"),
            ({"stride": 2, "offset": 1}, {"stride": 3, "offset": 1, "stride_above": "x"}, "stride_above"),
            ({"stride": 2, "offset": 1}, {"scramble": "k1"}, "scramble"),
            ({"scramble": "k1"}, {"stride": 2, "offset": 1}, "stride"),
            ({"scramble": "k1"}, {"limit": 500}, "limit"),
        ],
    )
    def test_what_would_change_numbers_that_were_given_is_refused(
        self, first: dict[str, Any], then: dict[str, Any], setting: str
    ) -> None:
        scheme = make(limit=999, order="strict" if "restart" in first else "trend", **first)
        with pytest.raises(SchemeError) as caught:
            change(scheme, 50, **then)
        assert caught.value.setting == setting

    def test_another_key_by_the_same_name_is_refused(self) -> None:
        scheme = record(make(scramble="k1"), max=5)
        with pytest.raises(SchemeError, match="another one"):
            changed(scheme, {"scramble": "k1"}, limit=None, keys={"k1": KEYS["k2"]})
        with pytest.raises(SchemeError, match="another one"):
            Scheme.of(scheme, {"k1": KEYS["k2"]})


class TestId:
    def test_it_is_fresh_exactly_when_values_are_made_in_another_way(self) -> None:
        scheme = make(stride=2, offset=1, format="A{seq}")
        assert scheme["id"]
        assert make(stride=2, offset=1)["id"] != scheme["id"]
        for same in ({}, {"format": "B{seq}"}, {"stride": 2, "offset": 1}, {"offset": 1}, {"stride": 2, "offset": 1}):
            assert change(scheme, 10, **same)["id"] == scheme["id"]
        assert change(scheme, 10, stride=3, offset=1)["id"] != scheme["id"]
        assert change(scheme, 10, offset=2)["id"] != scheme["id"]
        assert "id" not in change({}, 10, format="B{seq}")

    def test_a_setting_that_is_said_again_adds_no_piece(self) -> None:
        scheme = make(stride=2, offset=1)
        assert change(scheme, 10, stride=2, offset=1) == scheme
        scrambled = make(scramble="k1")
        assert change(scrambled, 10, scramble="k1") == scrambled

    @pytest.mark.parametrize("said", [{**DAILY}, {"stride": 2, "offset": 1}])
    def test_another_limit_alone_keeps_the_part_that_names_the_values(self, said: dict[str, Any]) -> None:
        before = make(limit=999, order="strict", **said)
        ids = [before["id"]]
        for limit in (5000, 700):
            before = change(before, 0, limit=limit)
            ids.append(before["id"])
        assert len(set(ids)) == 3
        assert [turn(each) for each in ids] == [1, 2, 3]
        assert {each.split("-")[1] for each in ids} == {ids[0].split("-")[1]}

    def test_raising_the_limit_of_a_scrambled_tag_gives_a_fresh_one(self) -> None:
        scheme = make(777, scramble="k1")
        assert change(scheme, 500, 777)["id"] == scheme["id"]
        assert change(scheme, 500, 778)["id"] != scheme["id"]


class TestMadeAgain:
    """A deleted tag goes on above its numbers, with the settings that it had."""

    def again(self, old: Tag, limit: int = HIGHEST, above: int = 0, **said: Any) -> Any:
        scheme, _ = made(
            said, tag="a", order=old.order, limit=limit, above=above, lease=None, keys=KEYS, before=old.scheme
        )
        return continued(old.scheme, scheme)

    @pytest.mark.parametrize(
        "said",
        [
            {"scramble": "k1"},
            {"scramble": [(1, "k1"), (1000, "k2")]},
            {"stride": 3, "offset": 2},
            {"cycle": True},
            {"format": "A{seq}"},
            {"shards": True, "app": 9},
            {"strategy": "snowflake", "options": {"epoch": "2021-01-01"}},
        ],
    )
    @pytest.mark.parametrize("above", [0, 99])
    def test_with_the_same_settings(self, said: dict[str, Any], above: int) -> None:
        old = record(make(5000, above, **said), max=200)
        assert self.again(old, 5000, above, **said) == old.scheme

    def test_with_the_settings_that_it_had_at_the_end(self) -> None:
        tag = Issued(0, 5000, scramble="k1")
        tag.issue(50)
        tag.change(scramble="k2")
        tag.issue(500)
        old = tag.record
        assert self.again(old, 5000, scramble="k2") == old.scheme
        strided = Issued(0, stride=2, offset=1)
        strided.issue(50)
        strided.change(stride=3, offset=2)
        assert self.again(strided.record, stride=3, offset=2) == strided.record.scheme

    def test_others_might_repeat_numbers(self) -> None:
        old = record(make(5000, scramble="k1"), max=200)
        assert self.again(old, 5000, scramble="k2") is None
        assert self.again(old, 6000, scramble="k1") is None
        assert self.again(record(make(stride=2, offset=1)), stride=2, offset=2) is None
        assert self.again(old, 5000) is None
        cycle = record(make(500, cycle=True))
        assert self.again(cycle, 500, 99, cycle=True) is None
        assert self.again(cycle, 600, cycle=True) is None

    def test_a_cycle_that_is_made_again_with_another_limit_repeats_within_a_round(self) -> None:
        """The mutation: what `continued` refuses, done."""
        first, second = Scheme.of(record(make(10, cycle=True)), KEYS), Scheme.of(record(make(7, cycle=True)), KEYS)
        shown = [first.value(counter) for counter in range(1, 6)]
        assert second.value(8) in shown
