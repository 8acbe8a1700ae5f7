"""`open` on real servers: where the hash stands, arming, and who is elected."""

import pytest

from issuer.persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, OTHER_STORE, STORE, WINDOW, Made, TagHash, at_moment

OTHER_REIGN = "0123456789" * 4


def test_a_missing_hash_is_armed_at_zero_without_numbers(tag: TagHash) -> None:
    reign = tag.reign()
    assert tag.open("fresh", role="look") == ["open", reign, Made("fresh"), "0", "0", "1", "0"]
    assert tag.fields() == {"cur": "0", "max": "0", "mark": "0", "fence": reign, "born": Made("fresh"), "store": STORE}
    assert tag.next() == ["exhausted"]


def test_an_armed_hash_has_no_expiry(tag: TagHash) -> None:
    tag.open()
    assert tag.client.ttl(KEY) == -1


@pytest.mark.parametrize("fence", ["", OTHER_REIGN, "x" * 40])
@pytest.mark.parametrize("next", [None, (100, 200)])
def test_a_hash_of_another_reign_keeps_its_top_and_loses_its_numbers(
    tag: TagHash, fence: str, next: tuple[int, int] | None
) -> None:
    tag.put(5, 100, next, fence=fence, asked=tag.now())
    top = "200" if next else "100"
    assert tag.open("fresh", role="look") == ["open", tag.reign(), Made("fresh"), top, top, "1", "0"]
    assert tag.fields() == {
        "cur": top,
        "max": top,
        "mark": top,
        "fence": tag.reign(),
        "born": Made("fresh"),
        "store": STORE,
    }
    assert tag.next() == ["exhausted"]


@pytest.mark.parametrize("top", [2**53 + 1, HIGHEST - 1, HIGHEST])
def test_the_top_is_exact(tag: TagHash, top: int) -> None:
    tag.put(0, top, fence=OTHER_REIGN)
    assert tag.open("fresh")[3:5] == [str(top), str(top)]


@pytest.mark.parametrize("lacking", ["fence", "born", "store"])
def test_a_hash_that_lacks_what_arming_writes_is_armed_anew(tag: TagHash, lacking: str) -> None:
    tag.put(5, 100)
    tag.client.hdel(KEY, lacking)
    assert tag.open("fresh")[1:6] == [tag.reign(), Made("fresh"), "100", "100", "1"]
    assert tag.next() == ["exhausted"]


def test_a_hash_of_this_reign_is_told_and_left_alone(tag: TagHash) -> None:
    tag.put(5, 100, (100, 200))
    before = tag.fields()
    for role in ("claim", "mine", "look"):
        assert tag.open("fresh", role=role) == ["open", tag.reign(), BORN, "200", "5", "0", "0"]
    assert tag.fields() == before


@pytest.mark.parametrize("fence", ["", OTHER_REIGN])
def test_another_store_is_refused_with_its_id_and_nothing_is_changed(tag: TagHash, fence: str) -> None:
    tag.put(5, 100, **({"fence": fence} if fence else {}))
    before = tag.fields()
    for role in ("claim", "mine", "look"):
        assert tag.open("fresh", store=OTHER_STORE, role=role) == ["otherstore", STORE]
    assert tag.fields() == before


class TestDue:
    @pytest.mark.parametrize(("cur", "due"), [(0, "0"), (19, "0"), (20, "1"), (99, "1"), (100, "1")])
    def test_a_segment_is_due_from_the_mark_on(self, tag: TagHash, cur: int, due: str) -> None:
        tag.put(cur, 100, mark=20)
        assert tag.open(role="look")[4:] == [str(cur), due, "0"]

    @pytest.mark.parametrize("cur", [0, 50, 100])
    def test_none_is_due_while_buffer_2_is_full(self, tag: TagHash, cur: int) -> None:
        tag.put(cur, 100, (100, 200), mark=20)
        assert tag.open()[5:] == ["0", "0"]


class TestElection:
    def test_the_first_claim_wins_and_the_second_loses(self, tag: TagHash) -> None:
        assert tag.open("first")[5:] == ["1", "1"]
        assert tag.open("second")[1:] == [tag.reign(), Made("first"), "0", "0", "1", "0"]

    def test_a_look_neither_wins_nor_hinders(self, tag: TagHash) -> None:
        assert tag.open(role="look")[5:] == ["1", "0"]
        assert tag.field("asked") is None
        assert tag.open(role="claim")[5:] == ["1", "1"]

    def test_who_was_elected_by_a_draw_asks_again_and_keeps_it(self, tag: TagHash) -> None:
        tag.put(19, 100, mark=20)
        assert tag.next()[3:] == ["extend", "100"]
        assert tag.open(role="claim")[5:] == ["1", "0"]
        assert tag.open(role="mine")[5:] == ["1", "1"]

    def test_who_resigns_leaves_it_to_the_next_claim(self, tag: TagHash) -> None:
        assert tag.open(role="claim")[5:] == ["1", "1"]
        before = tag.fields()
        assert tag.open(role="resign")[5:] == ["1", "0"]
        del before["asked"]
        assert tag.fields() == before
        assert tag.open(role="claim")[5:] == ["1", "1"]

    def test_when_nothing_is_due_nobody_is_elected(self, tag: TagHash) -> None:
        tag.put(0, 100)
        assert tag.open(role="mine")[5:] == ["0", "0"]
        assert tag.open(role="claim")[5:] == ["0", "0"]
        assert tag.field("asked") is None

    @pytest.mark.parametrize(("ago", "elected"), [(-1, True), (0, False), (WINDOW, False), (WINDOW + 1, True)])
    def test_another_one_is_elected_once_the_window_has_passed_or_the_clock_went_back(
        self, tag: TagHash, ago: int, elected: bool
    ) -> None:
        now = 1_700_000_000_123
        tag.texts = at_moment(now)
        tag.put(50, 100, mark=20, asked=now - ago)
        assert tag.open()[5:] == (["1", "1"] if elected else ["1", "0"])
        assert tag.field("asked") == str(now if elected else now - ago)
        assert tag.open()[5:] == ["1", "0"]

    def test_arming_frees_the_election_of_the_reign_before(self, tag: TagHash) -> None:
        tag.put(50, 100, fence=OTHER_REIGN, asked=tag.now())
        assert tag.open("fresh")[5:] == ["1", "1"]
        assert tag.field("asked") is not None
