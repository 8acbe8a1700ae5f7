"""The scheme and the period in the hash: who doesn't know them draws nothing."""

import pytest

from issuer.core.periods import PERIOD_BITS
from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, WINDOW, Made, TagHash, at_moment, unchanged

NEVER = str(HIGHEST)


def scheme_draw(tag: TagHash, name: str, scheme: str) -> list[str]:
    return tag.call(name, 1, WINDOW, scheme)


@pytest.mark.parametrize("draw", ["next", "lease"])
class TestDraws:
    def test_whoever_knows_another_scheme_draws_nothing(self, tag: TagHash, draw: str) -> None:
        tag.put(5, 100, scheme="s1", until=NEVER)
        with unchanged(tag):
            for known in ("", "s0", "s11", "s"):
                assert (known, scheme_draw(tag, draw, known)) == (known, ["scheme", "s1"])
            assert tag.call(draw, 1, WINDOW) == ["scheme", "s1"]
        assert scheme_draw(tag, draw, "s1")[:3] == ["ok", "5", "6"]
        tag.put(5, 100)
        assert scheme_draw(tag, draw, "s1") == ["scheme", ""]

    def test_an_end_that_is_no_number_is_corrupt(self, tag: TagHash, draw: str) -> None:
        for until in ("", "x", "-1", "1e9", "01"):
            tag.put(5, 100, scheme="s1", until=until)
            with unchanged(tag):
                assert (until, scheme_draw(tag, draw, "s1")) == (until, ["corrupt"])
                assert (until, tag.open(scheme="s1")) == (until, ["corrupt"])

    def test_the_fence_comes_first(self, tag: TagHash, draw: str) -> None:
        tag.put(5, 100, scheme="s1", until=0, fence="a" * 40)
        assert scheme_draw(tag, draw, "s0") == ["fenced"]


@pytest.mark.parametrize(("past", "over"), [(-1, False), (0, True), (1, True)])
def test_the_period_is_over_from_the_millisecond_of_its_end_on(tag: TagHash, past: int, over: bool) -> None:
    end = 1_700_000_000_123
    tag.texts = at_moment(end + past)
    for name in ("next", "lease", "once"):
        tag.put(5, 100, scheme="s1", until=end)
        before = tag.fields()
        reply = tag.once(scheme="s1") if name == "once" else scheme_draw(tag, name, "s1")
        assert (name, reply[:2]) == (name, ["over", str(end + past)] if over else ["ok", "5"])
        assert (tag.fields() == before) == over
    for armed in (True, False):
        tag.put(5, 100, (100, 200), scheme="s1", until=end, **({} if armed else {"fence": "a" * 40}))
        due = "1" if over or not armed else "0"  # whoever arms has no numbers
        assert tag.open(scheme="s1", until=end)[5:] == [due, due, *([str(end + past)] if over else [])]


class TestOpen:
    def test_a_missing_hash_is_armed_for_the_callers_scheme(self, tag: TagHash) -> None:
        assert tag.open(scheme="s1") == ["open", tag.reign(), Made(BORN), "0", "0", "1", "1"]
        assert (tag.field("scheme"), tag.field("until")) == ("s1", NEVER)

    def test_one_for_another_scheme_is_refused_in_whatever_reign_and_changes_nothing(self, tag: TagHash) -> None:
        for fence in (tag.reign(), "a" * 40):
            tag.put(5, 100, scheme="s1", until=NEVER, fence=fence)
            with unchanged(tag):
                assert [tag.open(scheme="s2"), tag.open()] == [["otherscheme", "s1"]] * 2
        assert tag.open(scheme="s1")[:3] == ["open", tag.reign(), Made(BORN)]

    def test_who_arms_without_knowing_the_period_has_to_find_it_out(self, tag: TagHash) -> None:
        assert len(tag.open(scheme="s1", until=0)) == 8
        assert scheme_draw(tag, "next", "s1")[0] == "over"


class TestFloor:
    def test_a_later_scheme_with_the_same_values_keeps_what_was_loaded(self, tag: TagHash) -> None:
        tag.put(5, 100, (100, 200), scheme="1-abc", until=77)
        assert tag.floor(0, scheme="2-abc-1f") == ["floored", "5", "200", "5", "200"]
        assert scheme_draw(tag, "next", "1-abc") == ["scheme", "2-abc-1f"]
        assert tag.load(200, 300, born="a born from before") == ["stale", "born"]
        assert scheme_draw(tag, "next", "2-abc-1f") == ["ok", "5", "6"]
        assert tag.floor(0, scheme="10-abc-2f", until=0)[:3] == ["floored", "6", "200"]
        assert (tag.field("scheme"), tag.field("until")) == ("10-abc-2f", "0")

    def test_one_with_other_values_or_an_earlier_one_drops_what_was_loaded(self, tag: TagHash) -> None:
        for found, given in (
            ("", "s1"),
            ("1-abc", "2-abd"),
            ("1-abc-1f", "2-abcd-1f"),
            ("2-abc-1f", "1-abc"),
            ("2-abc-1f", "2-abc-2f"),
            ("10-abc", "9-abc-1f"),
            ("abc", "1-abc"),
            ("s1", "s2"),
        ):
            tag.put(5, 100, (100, 200), **({"scheme": found, "until": NEVER} if found else {}))
            assert (found, tag.floor(7, scheme=given)) == (found, ["floored", "200", "200", "5", "200"])
            assert scheme_draw(tag, "next", given) == ["exhausted"]
            assert scheme_draw(tag, "next", found) == ["scheme", given]

    def test_the_same_scheme_keeps_what_lies_above_and_takes_the_new_end(self, tag: TagHash) -> None:
        tag.put(5, 100, (100, 200), scheme="s1", until=0)
        assert tag.floor(7, scheme="s1", until=9999999999999)[:3] == ["floored", "7", "200"]
        assert scheme_draw(tag, "next", "s1")[:3] == ["ok", "7", "8"]

    def test_one_that_names_no_scheme_leaves_it(self, tag: TagHash) -> None:
        tag.put(5, 100, scheme="s1", until=77)
        for at in (7, 500):
            tag.floor(at)
            assert (tag.field("scheme"), tag.field("until")) == ("s1", "77")

    def test_one_that_says_that_there_is_none_takes_it_away(self, tag: TagHash) -> None:
        tag.put(5, 100, scheme="s1", until=77)
        assert tag.floor(7, scheme="-")[:3] == ["floored", "100", "100"]
        assert (tag.field("scheme"), tag.field("until")) == (None, None)
        assert tag.floor(8, scheme="-")[0] == "floored"
        assert tag.next() == ["exhausted"]

    def test_a_repair_of_a_broken_end_has_it_found_out_again(self, tag: TagHash) -> None:
        tag.put(5, 100, scheme="s1", until="x")
        assert tag.floor(7) == ["corrupt"]
        assert tag.floor(7, manner="repair")[0] == "floored"
        assert (tag.field("scheme"), tag.field("until")) == ("s1", "0")

    def test_a_new_period_begins_at_its_floor(self, tag: TagHash) -> None:
        begun = 20_000 << PERIOD_BITS
        tag.put(5, 100, scheme="s1", until=0)
        tag.floor(begun, scheme="s1")
        assert tag.load(begun, begun + 10) == ["current"]
        assert scheme_draw(tag, "next", "s1") == ["ok", str(begun), str(begun + 1)]


class TestOnce:
    def test_the_same_key_has_the_same_number(self, tag: TagHash) -> None:
        tag.put(5, 100)
        assert tag.once("a", ttl=60_000) == ["ok", "5", "6"]
        assert 0 < tag.client.pttl(f"{tag.key}:once:a") <= 60_000
        assert tag.once("b") == ["ok", "6", "7"]
        assert tag.once("a") == ["again", "6", ""]
        assert tag.next() == ["ok", "7", "8"]

    def test_it_outlives_the_reign_and_the_segment(self, tag: TagHash) -> None:
        tag.put(99, 100)
        assert tag.once("a")[:3] == ["ok", "99", "100"]
        assert tag.once("b") == ["exhausted"]
        tag.set(fence="a" * 40)
        assert tag.once("a") == ["again", "100", ""]
        assert tag.once("b") == ["fenced"]

    def test_the_draw_that_reaches_the_mark_is_elected(self, tag: TagHash) -> None:
        tag.put(19, 100, mark=20)
        assert tag.once("a") == ["ok", "19", "20", "extend", "100"]
        assert tag.once("a") == ["again", "20", ""]

    def test_scheme_and_period_hold_for_it_too_and_it_tells_under_which_scheme_it_was_drawn(self, tag: TagHash) -> None:
        tag.put(5, 100, scheme="s1", until=0)
        assert tag.once("a") == ["scheme", "s1"]
        assert tag.once("a", scheme="s1")[0] == "over"
        tag.set(until=HIGHEST)
        assert tag.once("a", scheme="s1") == ["ok", "5", "6"]
        assert tag.once("a") == ["again", "6", "s1"]

    def test_a_number_that_the_caller_has_seen_is_neither_drawn_nor_kept(self, tag: TagHash) -> None:
        tag.put(9, 10, (10, 100))
        for low in (9, 10):
            before = tag.fields()
            for seen in (low + 1, HIGHEST):
                assert tag.once(str(low), seen=seen) == ["older", str(low)]
            assert tag.fields() == before
            assert tag.once(str(low), seen=low)[:3] == ["ok", str(low), str(low + 1)]
            assert tag.once(str(low), seen=HIGHEST)[0] == "again"

    def test_a_kept_number_that_is_none_is_corrupt(self, tag: TagHash) -> None:
        for kept in ("", "x", "6", "1.0:", "007:"):
            tag.put(5, 100)
            tag.client.set(f"{tag.key}:once:a", kept)
            assert (kept, tag.once("a")) == (kept, ["corrupt"])
            assert tag.field("cur") == "5"
