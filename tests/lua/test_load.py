"""`load` on real servers: to which buffer a segment goes, and every reason to refuse it."""

import pytest

from issuer.persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, TagHash

OTHER_REIGN = "0123456789" * 4


def test_a_used_up_buffer_1_takes_the_segment(tag: TagHash) -> None:
    tag.put(100, 100, asked=17)
    before = tag.fields()
    assert tag.load(300, 400) == ["current"]
    del before["asked"]
    assert tag.fields() == {**before, "cur": "300", "max": "400", "mark": "320"}
    assert tag.next() == ["ok", "300", "301"]


def test_a_buffer_1_in_use_leaves_it_to_buffer_2(tag: TagHash) -> None:
    tag.put(50, 100, asked=17)
    before = tag.fields()
    assert tag.load(100, 200) == ["next"]
    del before["asked"]
    assert tag.fields() == {**before, "next_cur": "100", "next_max": "200", "next_mark": "120"}


@pytest.mark.parametrize("cur", [0, 50, 99, 100])
def test_a_full_buffer_2_refuses_it(tag: TagHash, cur: int) -> None:
    tag.put(cur, 100, (100, 200), asked=17)
    before = tag.fields()
    assert tag.load(200, 300) == ["full"]
    assert tag.fields() == before


def test_without_a_hash_it_is_stale_and_makes_none(tag: TagHash) -> None:
    assert tag.load(0, 100) == ["stale", "missing"]
    assert tag.client.keys() == []


class TestStale:
    @pytest.fixture(autouse=True)
    def _a_hash_in_use(self, tag: TagHash) -> None:
        tag.put(50, 100)

    def check(self, tag: TagHash, why: str, reply: list[str], before: dict[str, str]) -> None:
        assert reply == ["stale", why]
        assert tag.fields() == before

    def test_a_segment_opened_under_another_master_or_none_is_refused(self, tag: TagHash) -> None:
        before = tag.fields()
        for reign in (OTHER_REIGN, "0", "x", ""):
            self.check(tag, "reign", tag.call("load", 100, 200, 120, reign, BORN), before)

    @pytest.mark.parametrize("fence", ["", OTHER_REIGN])
    def test_a_hash_of_another_reign_refuses_it(self, tag: TagHash, fence: str) -> None:
        tag.set(fence=fence)
        before = tag.fields()
        self.check(tag, "reign", tag.load(100, 200), before)
        # Not even with the reign that the hash is of.
        self.check(tag, "reign", tag.call("load", 100, 200, 120, fence, "born-1"), before)

    def test_a_hash_that_was_armed_anew_or_has_no_born_refuses_it(self, tag: TagHash) -> None:
        self.check(tag, "born", tag.load(100, 200, born="born-0"), tag.fields())
        tag.client.hdel(KEY, "born")
        self.check(tag, "born", tag.load(100, 200, born=""), tag.fields())

    def test_a_segment_that_begins_below_the_end_of_the_last_buffer_is_refused(self, tag: TagHash) -> None:
        before = tag.fields()
        for low in (0, 49, 50, 99):
            self.check(tag, "below", tag.load(low, 200), before)
        tag.put(50, 100, (100, 200))
        before = tag.fields()
        for low in (0, 100, 150, 199):
            self.check(tag, "below", tag.load(low, 300), before)

    def test_the_same_load_sent_twice_is_refused_the_second_time_also_when_it_is_used_up(self, tag: TagHash) -> None:
        assert tag.load(100, 200) == ["next"]
        self.check(tag, "below", tag.load(100, 200), tag.fields())
        tag.next(50)
        tag.next(100)
        before = tag.fields()
        assert before["cur"] == "200"
        self.check(tag, "below", tag.load(100, 200), before)

    def test_and_also_after_a_flush_and_a_new_arming(self, tag: TagHash) -> None:
        reign = tag.reign()
        tag.client.flushall()
        self.check(tag, "missing", tag.load(100, 200, reign=reign), {})
        tag.open("born-2")
        before = tag.fields()
        self.check(tag, "born", tag.load(100, 200, reign=reign, born=BORN), before)


def test_a_segment_may_leave_a_gap_above_the_top(tag: TagHash) -> None:
    tag.put(100, 100)
    assert tag.load(4000, 4100) == ["current"]


@pytest.mark.parametrize("top", [9, 2**53, 2**53 + 1, HIGHEST - 3])
def test_the_comparison_with_the_top_is_exact(tag: TagHash, top: int) -> None:
    tag.put(top - 1, top)
    assert tag.load(top - 1, top + 2) == ["stale", "below"]
    assert tag.load(top, top + 2) == ["next"]


def test_the_last_segment_there_is_can_be_loaded_and_drawn(tag: TagHash) -> None:
    tag.put(0, 0)
    assert tag.load(HIGHEST - 2, HIGHEST) == ["current"]
    assert tag.next(5) == ["ok", str(HIGHEST - 2), str(HIGHEST), "extend", str(HIGHEST)]
    assert tag.load(HIGHEST - 2, HIGHEST) == ["stale", "below"]
