"""What users say of a tag's numbers: each refusal names its setting; ids; tags that are made again."""

from typing import Any

import pytest

from issuer.core.scheme_record import turn
from issuer.errors import SchemeError
from issuer.numbers.codec import Scheme
from issuer.numbers.given import changed, made
from issuer_persistence.records import HIGHEST, Tag
from issuer_persistence.scheme_json import continued
from tests.numbers.test_scheme import KEYS, Issued, make, record
from tests.refusals import refused

DAILY: dict[str, Any] = {"restart": "daily", "format": "{date:%Y%m%d}-{seq}"}
STRICT: dict[str, Any] = {**DAILY, "order": "strict"}


def change(
    scheme: dict[str, Any], max: int, limit: int | None = None, above: int | None = None, **said: Any
) -> dict[str, Any]:
    old = record(scheme, max=max, order="strict" if "restart" in scheme else "trend")
    return changed(old, said, limit=limit, above=above, keys=KEYS)[0]


SCRAMBLED: dict[str, Any] = {"scramble": "k1"}
STRIDED: dict[str, Any] = {"stride": 2, "offset": 1}
SHARDED: dict[str, Any] = {"shards": True}
KEYED: dict[str, Any] = {"keyed": True}
SNOWFLAKE: dict[str, Any] = {"strategy": "snowflake"}

#: What makes no sense for a new tag: the setting that the error names, and what is said.
SENSELESS: list[tuple[str, list[dict[str, Any]]]] = [
    ("format", [{"format": wrong} for wrong in (5, "x", "{shard}-{seq}", "{key}-{seq}")]),
    ("format", [{**KEYED, "format": "{seq}"}]),
    ("keyed", [{"keyed": "yes"}]),
    ("timezone", [{"timezone": "Europe/Wien"}, {"timezone": 5}]),
    ("restart", [{**DAILY, "restart": "hourly"}, DAILY]),  # the second one isn't strict
    ("restart", [{**STRICT, "format": None}]),
    ("restart", [{**STRICT, "stride": 2, "offset": 1}]),
    ("shards", [{**STRICT, "shards": True}]),
    ("format", [{**STRICT, "format": "{seq}"}, {**STRICT, "format": "{date:%Y}-{seq}"}]),
    ("format", [{**STRICT, "restart": "weekly", "format": "{date:%Y%V}-{seq}"}]),
    ("timezone", [{**STRICT, "timezone": "Mars/Olympus"}]),
    ("stride", [{"stride": 0, "offset": 1}, {"stride": True, "offset": 1}, {**STRIDED, **SCRAMBLED}]),
    ("offset", [{"stride": 2}, {"offset": 2}, {"stride": 2, "offset": 3}, {"stride": 2, "offset": 0}]),
    ("scramble", [{"scramble": wrong} for wrong in ("k9", "", 5, [5], [], ["k1"])]),
    ("scramble", [{"scramble": [(start, "k1")]} for start in ("1", 0, True)]),
    ("scramble", [{"scramble": [(5, "k1"), (5, "k2")]}]),
    ("scramble_strict", [{"scramble_strict": True}, {**SCRAMBLED, "scramble_strict": 1}]),
    ("shards", [{**STRIDED, **SHARDED}, {"shards": {"app": -1}}, {"shards": {"app": 256}}, {**SHARDED, **KEYED}]),
    ("shards", [{"shards": wrong} for wrong in (6, {"shards": 6}, {"shard_bits": 17})]),
    ("shards", [{"shards": {"shard_bits": 16, "app_bits": 47}}]),
    ("strategy", [{"strategy": ""}, *({**other, **SNOWFLAKE} for other in (SHARDED, SCRAMBLED))]),
    ("options", [{"options": {"epoch": 1}}, {**SNOWFLAKE, "options": 5}, {**SNOWFLAKE, "options": {"epoch": [1]}}]),
]

#: What would change numbers that were given: the setting that the error names, how tags were made, and the changes.
HARMFUL: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [
    ("restart", [{}], [DAILY]),
    ("restart", [DAILY], [{"restart": "never"}, {"restart": "yearly"}, {"format": ""}]),
    ("format", [DAILY], [{"format": "{seq}"}]),
    ("timezone", [DAILY], [{"timezone": "Asia/Tokyo"}]),
    ("stride", [DAILY, SHARDED, KEYED, SNOWFLAKE, SCRAMBLED], [STRIDED]),
    ("scramble", [SHARDED, KEYED, SNOWFLAKE, STRIDED], [SCRAMBLED]),
    ("scramble", [DAILY], [{**SCRAMBLED, "scramble_strict": True}]),
    ("scramble", [SCRAMBLED], [{"scramble": [(1, "k1"), (51, "k2")]}]),  # its digits are not all used up
    ("limit", [SHARDED, KEYED], [{"limit": 888}]),
    ("limit", [SCRAMBLED], [{"limit": 500}]),
    ("shards", [{}], [SHARDED]),
    ("shards", [SHARDED], [{"shards": False}]),
    ("shards", [SHARDED], [{"shards": {"app": 9}}]),
    ("keyed", [KEYED], [{"keyed": False}]),
    ("strategy", [{}], [SNOWFLAKE]),
    ("strategy", [SNOWFLAKE], [{"strategy": "segment"}]),
    ("options", [SNOWFLAKE], [{"options": {"epoch": 1}}]),
    ("offset", [STRIDED], [{"stride": 3}]),
    ("above", [STRIDED], [{"stride": 3, "offset": 1, "above": 5}]),
    ("scramble_strict", [{}, SCRAMBLED], [{"scramble_strict": True}]),
    ("scramble_strict", [SCRAMBLED], [{"scramble_strict": True, "limit": 9999}]),
]


class TestRefusals:
    @pytest.mark.covers("1.4")
    def test_strict_order_and_scrambling_are_refused_with_the_reason(self) -> None:
        error = refused(SchemeError, "so users cannot see their order", make, order="strict", scramble="k1")
        assert error.setting == "scramble"
        strict = record({}, max=5, order="strict")
        refused(SchemeError, "so users cannot see their order", changed, strict, SCRAMBLED, limit=None, keys=KEYS)
        scheme, _ = changed(strict, {"scramble": "k1", "scramble_strict": True}, limit=None, keys=KEYS)
        rotated, _ = changed(record(scheme, max=50, order="strict"), {"scramble": "k2"}, limit=None, keys=KEYS)
        assert [piece["key"] for piece in rotated["scramble"]] == ["k1", "k2"]

    def test_what_makes_no_sense_is_refused_by_the_name_of_the_setting(self) -> None:
        for setting, senseless in SENSELESS:
            for said in senseless:
                assert refused(SchemeError, f"^{setting}: ", make, limit=999_999, **said).setting == setting
        for options in ({"above": 0, "lease": 10}, {"above": 5, "lease": None}):
            error = refused(SchemeError, "", made, DAILY, tag="a", order="strict", limit=99, keys=KEYS, **options)
            assert error.setting == "restart", options

    def test_what_would_change_numbers_that_were_given_is_refused(self) -> None:
        for setting, firsts, changes in HARMFUL:
            for first in firsts:
                scheme = make(limit=999, order="strict" if "restart" in first else "trend", **first)
                for then in changes:
                    assert refused(SchemeError, "", change, scheme, 50, **then).setting == setting, first

    def test_another_key_by_the_same_name_is_refused(self) -> None:
        scheme = record(make(scramble="k1"), max=5)
        refused(SchemeError, "key 'k1' differs", changed, scheme, SCRAMBLED, limit=None, keys={"k1": KEYS["k2"]})
        refused(SchemeError, "key 'k1' differs", Scheme, scheme, {"k1": KEYS["k2"]})


class TestId:
    def test_it_is_fresh_exactly_when_values_are_made_in_another_way(self) -> None:
        scheme = make(stride=2, offset=1, format="A{seq}")
        assert scheme["id"]
        assert make(stride=2, offset=1)["id"] != scheme["id"]
        for same in ({}, {"format": "B{seq}"}, STRIDED, {"offset": 1}):
            assert change(scheme, 10, **same)["id"] == scheme["id"], same
        for other in ({"stride": 3, "offset": 1}, {"offset": 2}):
            assert change(scheme, 10, **other)["id"] != scheme["id"], other
        assert "id" not in change({}, 10, format="B{seq}")

        scrambled = make(777, scramble="k1")
        assert change(scrambled, 500, 777, **SCRAMBLED) == scrambled
        assert change(scrambled, 500, 778)["id"] != scrambled["id"]

    def test_another_limit_alone_keeps_the_part_that_names_the_values(self) -> None:
        for said in (DAILY, STRIDED):
            scheme = make(limit=999, order="strict", **said)
            raised = change(scheme, 0, limit=5000)
            ids = [each["id"] for each in (scheme, raised, change(raised, 0, limit=700))]
            assert [turn(each) for each in ids] == [1, 2, 3]
            assert len({each.split("-")[1] for each in ids}) == 1


class TestMadeAgain:
    """A deleted tag goes on above its numbers, with the settings that it had."""

    def again(self, old: Tag, limit: int = HIGHEST, above: int = 0, **said: Any) -> Any:
        scheme, _ = made(
            said, tag="a", order=old.order, limit=limit, above=above, lease=None, keys=KEYS, before=old.scheme
        )
        return continued(old.scheme, scheme)

    def test_with_the_same_settings(self) -> None:
        sharded, twice = {"shards": {"app": 9}}, {"scramble": [(1, "k1"), (1000, "k2")]}
        options = {**SNOWFLAKE, "options": {"epoch": "2021-01-01"}}
        for said in (SCRAMBLED, twice, STRIDED, {"format": "A{seq}"}, sharded, options):
            for above in (0, 99):
                old = record(make(5000, above, **said), max=200)
                assert self.again(old, 5000, above, **said) == old.scheme, (above, said)

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
