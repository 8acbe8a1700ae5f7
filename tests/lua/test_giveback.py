"""`giveback` on real servers: when the tail of a lease comes back, and every reason why it is a gap."""

import pytest

from issuer.core.supply.local_buffer import threshold
from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.lua.hashes import BORN, KEY, OTHER_REIGN, Made, TagHash, numbers, unchanged


def refused(tag: TagHash, why: str, used: int, high: int, **of: str | int) -> None:
    with unchanged(tag):
        told = {"reign": tag.reign(), "born": tag.born(), "backs": 0, **of}
        assert (told, tag.call("giveback", used, high, *told.values())) == (told, ["spent", why])


def test_the_tail_is_drawn_next_by_anybody(tag: TagHash) -> None:
    for used in (50, 51, 59):
        tag.put(50, 100, (100, 200))
        before = tag.fields()
        assert tag.lease(10)[:3] == ["ok", "50", "60"]
        assert tag.give_back(used, 60) == ["back"]
        assert tag.fields() == {**before, "cur": str(used), "backs": "1", "backs_before": "0", "backs_low": str(used)}
        assert numbers(tag.next(100)) == range(used + 1, 101)
        assert numbers(tag.next(100)) == range(101, 201)


def test_it_is_exact(tag: TagHash) -> None:
    for high in (9, 10, 2**53, 2**53 + 1, HIGHEST):
        tag.put(high - 3, high, mark=high)
        tag.lease(3)
        assert tag.give_back(high - 1, high) == ["back"]
        assert tag.next(5)[:3] == ["ok", str(high - 1), str(high)]


class TestSpent:
    @pytest.fixture(autouse=True)
    def _a_lease(self, tag: TagHash) -> None:
        tag.put(0, 100, (100, 200), asked=17)
        tag.lease(50)

    def test_without_a_hash_none_is_made(self, tag: TagHash) -> None:
        tag.client.delete(KEY)
        assert tag.give_back(30, 50) == ["spent", "missing"]
        assert tag.fields() == {}

    def test_a_lease_of_another_reign(self, tag: TagHash) -> None:
        for reign in (OTHER_REIGN, "0", "x"):
            refused(tag, "reign", 30, 50, reign=reign)

    def test_a_hash_of_another_reign_even_with_that_reign(self, tag: TagHash) -> None:
        for fence in ("", OTHER_REIGN):
            tag.set(fence=fence)
            refused(tag, "reign", 30, 50)
            refused(tag, "reign", 30, 50, reign=fence)

    def test_another_arming_or_none(self, tag: TagHash) -> None:
        for born in ("", "born-0", BORN + " "):
            refused(tag, "born", 30, 50, born=born)
        tag.client.hdel(KEY, "born")
        refused(tag, "born", 30, 50, born="")

    def test_a_floor_since_then_wherever_it_lies(self, tag: TagHash) -> None:
        for at in (0, 40, 50, 120, 200):
            tag.floor(at)
            refused(tag, "born", 30, 50, born=BORN)

    def test_others_have_drawn_since_then(self, tag: TagHash) -> None:
        for n in (1, 49, 1):
            tag.next(n)
            refused(tag, "cur", 30, 50)

    def test_another_count_than_the_hash_has(self, tag: TagHash) -> None:
        for backs in (1, "", "00", "x", HIGHEST):
            refused(tag, "backs", 30, 50, backs=backs)

    def test_a_later_lease_was_given_back_only_in_part(self, tag: TagHash) -> None:
        tag.lease(10)
        assert tag.give_back(51, 60) == ["back"]
        refused(tag, "cur", 30, 50)

    def test_another_end_than_that_of_the_last_draw(self, tag: TagHash) -> None:
        for high in (49, 51, 100, 5, 500):
            refused(tag, "cur", 3, high)


def test_leases_come_back_one_after_the_other_if_the_later_one_was_not_used_at_all(tag: TagHash) -> None:
    tag.put(0, 100)
    for _ in range(4):
        tag.lease(10)
    assert [tag.give_back(used, used + 10) for used in (30, 20, 10)] == [["back"]] * 3
    assert tag.give_back(4, 10) == ["back"]
    assert [tag.give_back(used, used + 10) for used in (30, 20, 10)] == [["spent", "cur"]] * 3
    assert numbers(tag.next(100)) == range(5, 101)


def test_of_a_row_that_came_back_no_copy_is_taken_wherever_cur_has_come_again(tag: TagHash) -> None:
    tag.put(0, 100)
    for _ in range(3):
        tag.lease(10)
    tails = [(20, 30), (10, 20), (4, 10)]
    assert [tag.give_back(*tail) for tail in tails] == [["back"]] * 3
    issued = [1, 2, 3, 4]
    while len(issued) < 100:
        issued += numbers(tag.next(1))
        assert all(tag.give_back(*tail)[0] == "spent" for tail in tails)
    assert repeats(issued) == []


def test_each_lease_comes_back_before_the_next_one_is_drawn(tag: TagHash) -> None:
    """The count is the lease's own: what came back before it was drawn is no matter."""
    tag.put(0, 100)
    for backs in range(5):
        *_, told = tag.lease(10)
        assert told == str(backs)
        assert tag.give_back(2 * backs + 2, 2 * backs + 10, backs=told) == ["back"]
    assert tag.field("backs") == "5"
    assert numbers(tag.next(100)) == range(11, 101)


def test_a_second_copy_is_refused_however_many_others_have_drawn(tag: TagHash) -> None:
    """Six of them end exactly where the lease did, and the first copy found everything as the second one does."""
    for others in range(1, 9):
        tag.put(0, 100)
        tag.lease(10)
        issued = [1, 2, 3, 4]
        assert tag.give_back(4, 10) == ["back"]
        issued += numbers(tag.next(others))
        assert tag.give_back(4, 10) == ["spent", "backs" if others == 6 else "cur"]
        assert repeats([*issued, *numbers(tag.next(100))]) == []


def test_a_second_copy_is_refused_after_another_row_has_come_back(tag: TagHash) -> None:
    """Others drew up to the lease's end, and beyond it; what lay beyond has come back, so cur stands there again."""
    tag.put(0, 100)
    tag.lease(10)
    assert tag.give_back(4, 10) == ["back"]
    tag.next(6)
    assert tag.give_back(10, 20, backs=tag.lease(10)[5]) == ["back"]
    assert tag.give_back(4, 10) == ["spent", "backs"]


def test_a_copy_of_a_floor_brings_no_tail_back(tag: TagHash) -> None:
    tag.put(0, 100)
    tag.floor(100, born="first")
    tag.load(100, 200)
    reply = tag.lease(100)
    lease, born = list(numbers(reply)), reply[4]
    assert tag.give_back(100, 200, born=born) == ["back"]
    issued = list(numbers(tag.next(100)))
    assert issued == lease  # which nobody has used
    tag.floor(200, born="second")
    tag.floor(100, born="first")
    assert tag.born() == Made("first")
    assert tag.give_back(100, 200, born=born) == ["spent", "born"]
    assert tag.next() == ["exhausted"]


def test_a_repaired_hash_counts_anew(tag: TagHash) -> None:
    tag.put(0, 100, backs="x", backs_before=0, backs_low=4)
    assert tag.lease(10) == ["corrupt"]
    tag.floor(100, manner="repair")
    assert [name for name in tag.fields() if name.startswith("backs")] == []
    tag.load(100, 200)
    assert tag.lease(10)[5] == "0"


class TestWithTheLoadOfASegment:
    def test_a_lease_of_the_end_leaves_the_segment_in_use_again(self, tag: TagHash) -> None:
        tag.put(50, 100)
        tag.lease(50)
        assert tag.next() == ["exhausted"]
        assert tag.give_back(70, 100) == ["back"]
        # Whoever found it exhausted, opens, reserves and loads: into buffer 2, as buffer 1 has numbers again.
        assert tag.load(100, 200) == ["next"]
        assert numbers(tag.next(100)) == range(71, 101)
        assert numbers(tag.next(100)) == range(101, 201)

    def test_the_next_segment_follows_without_a_gap_and_no_number_of_it_is_lost_or_comes_twice(
        self, tag: TagHash
    ) -> None:
        """`cur` is the lease's end, and the low of the next segment, too: the tail then stands before that."""
        tag.put(50, 100)
        tag.lease(50)
        assert tag.load(100, 200) == ["current"]
        assert tag.field("cur") == "100"
        assert tag.give_back(70, 100) == ["back"]
        assert (tag.field("cur"), tag.field("max"), tag.field("mark")) == ("70", "200", "120")
        assert numbers(tag.next(1000)) == range(71, 201)
        assert tag.next() == ["exhausted"]

    def test_the_next_segment_begins_above_a_gap_so_nothing_of_the_gap_is_issued(self, tag: TagHash) -> None:
        tag.put(50, 100)
        tag.lease(50)
        assert tag.load(101, 200) == ["current"]
        assert tag.give_back(70, 100) == ["spent", "cur"]
        assert numbers(tag.next(1000)) == range(102, 201)


class TestElection:
    def test_the_draw_that_reaches_the_mark_again_is_elected_at_once(self, tag: TagHash) -> None:
        """The first elected one opened after the tail had come back, and was told that nothing is due."""
        tag.put(0, 100)
        assert tag.lease(30)[6:] == ["extend", "100"]
        assert tag.give_back(10, 30) == ["back"]
        assert tag.open(role="claim")[4:] == ["10", "0", "0"]
        assert [number for number in range(11, 101) if len(tag.next()) > 3] == [threshold(0, 100)]

    def test_beyond_the_mark_the_election_stands(self, tag: TagHash) -> None:
        tag.put(0, 100)
        assert tag.lease(30)[6:] == ["extend", "100"]
        asked = tag.field("asked")
        assert tag.give_back(20, 30) == ["back"]
        assert tag.field("asked") == asked
        assert len(tag.next()) == 3

    def test_if_both_load_the_second_load_is_refused_and_no_number_comes_twice(self, tag: TagHash) -> None:
        for loads, refused, high in (
            ([(100, 200), (200, 300)], ["full"], 200),
            ([(200, 300), (100, 200)], ["stale", "below"], 300),
        ):
            tag.put(0, 100)
            assert tag.lease(30)[6:] == ["extend", "100"]
            assert tag.give_back(10, 30) == ["back"]
            assert tag.next(20)[3:] == ["extend", "100"]
            assert [tag.load(*load) for load in loads] == [["next"], refused]
            drawn = [*numbers(tag.next(1000)), *numbers(tag.next(1000))]
            assert drawn == [*range(31, 101), *range(high - 99, high + 1)]
            assert tag.next() == ["exhausted"]

    def test_with_buffer_2_there_nobody_is_elected_at_the_mark(self, tag: TagHash) -> None:
        tag.put(0, 100, (100, 200))
        tag.lease(30)
        assert tag.give_back(10, 30) == ["back"]
        assert tag.next(20) == ["ok", "10", "30"]
