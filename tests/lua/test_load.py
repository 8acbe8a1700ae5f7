"""`load` on real servers: to which buffer a segment goes, and every reason to refuse it."""

import pytest

from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, OTHER_REIGN, TagHash, unchanged


def test_a_used_up_buffer_1_takes_the_segment_and_one_in_use_leaves_it_to_buffer_2(tag: TagHash) -> None:
    for cur, low, taken, loaded in (
        (100, 300, "current", {"cur": "300", "max": "400", "mark": "320"}),
        (50, 100, "next", {"next_cur": "100", "next_max": "200", "next_mark": "120"}),
    ):
        tag.put(cur, 100, asked=17)
        before = tag.fields()
        assert tag.load(low, low + 100) == [taken]
        del before["asked"]
        assert tag.fields() == {**before, **loaded}
    assert tag.next() == ["ok", "50", "51"]


def test_a_full_buffer_2_refuses_it(tag: TagHash) -> None:
    for cur in (0, 50, 99, 100):
        tag.put(cur, 100, (100, 200), asked=17)
        with unchanged(tag):
            assert tag.load(200, 300) == ["full"]


def test_without_a_hash_it_is_stale_and_makes_none(tag: TagHash) -> None:
    assert tag.load(0, 100) == ["stale", "missing"]
    assert tag.client.keys() == []


class TestStale:
    @pytest.fixture(autouse=True)
    def _a_hash_in_use(self, tag: TagHash) -> None:
        tag.put(50, 100)

    def test_a_segment_opened_under_another_master_or_none_is_refused(self, tag: TagHash) -> None:
        with unchanged(tag):
            for reign in (OTHER_REIGN, "0", "x", ""):
                assert tag.call("load", 100, 200, 120, reign, BORN) == ["stale", "reign"]

    def test_a_hash_of_another_reign_refuses_it_even_with_that_reign(self, tag: TagHash) -> None:
        for fence in ("", OTHER_REIGN):
            tag.set(fence=fence)
            with unchanged(tag):
                for reign in (tag.reign(), fence):
                    assert tag.call("load", 100, 200, 120, reign, BORN) == ["stale", "reign"]

    def test_a_hash_that_was_armed_anew_or_has_no_born_refuses_it(self, tag: TagHash) -> None:
        with unchanged(tag):
            assert tag.load(100, 200, born="born-0") == ["stale", "born"]
        tag.client.hdel(KEY, "born")
        with unchanged(tag):
            assert tag.load(100, 200, born="") == ["stale", "born"]

    def test_a_segment_that_begins_below_the_end_of_the_last_buffer_is_refused(self, tag: TagHash) -> None:
        with unchanged(tag):
            assert [tag.load(low, 200) for low in (0, 49, 50, 99)] == [["stale", "below"]] * 4
        tag.put(50, 100, (100, 200))
        with unchanged(tag):
            assert [tag.load(low, 300) for low in (0, 100, 150, 199)] == [["stale", "below"]] * 4

    def test_the_same_load_sent_twice_is_refused_the_second_time_also_when_it_is_used_up(self, tag: TagHash) -> None:
        assert tag.load(100, 200) == ["next"]
        with unchanged(tag):
            assert tag.load(100, 200) == ["stale", "below"]
        tag.next(50)
        tag.next(100)
        with unchanged(tag):
            assert tag.load(100, 200) == ["stale", "below"]
            assert tag.field("cur") == "200"

    def test_and_also_after_a_flush_and_a_new_arming_by_whatever_word(self, tag: TagHash) -> None:
        """A copy of the `open` may have armed it: the moment tells the two apart."""
        tag.client.delete(KEY)
        _, reign, born, *_ = tag.open("first")
        for word in ("first", "second"):
            tag.client.flushall()
            assert tag.load(0, 100, reign=reign, born=born) == ["stale", "missing"]
            tag.open(word)
            with unchanged(tag):
                assert (word, tag.load(0, 100, reign=reign, born=born)) == (word, ["stale", "born"])


def test_the_comparison_with_the_top_is_exact(tag: TagHash) -> None:
    for top in (9, 2**53, 2**53 + 1, HIGHEST - 3):
        tag.put(top - 1, top)
        assert (top, tag.load(top - 1, top + 2)) == (top, ["stale", "below"])
        assert (top, tag.load(top, top + 2)) == (top, ["next"])


def test_the_last_segment_there_is_can_be_loaded_and_drawn(tag: TagHash) -> None:
    tag.put(0, 0)
    assert tag.load(HIGHEST - 2, HIGHEST) == ["current"]
    assert tag.next(5) == ["ok", str(HIGHEST - 2), str(HIGHEST), "extend", str(HIGHEST)]
    assert tag.load(HIGHEST - 2, HIGHEST) == ["stale", "below"]
