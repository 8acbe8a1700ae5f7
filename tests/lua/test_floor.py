"""`floor` on real servers: in every position relative to both buffers."""

from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.lua.hashes import BORN, OTHER_REIGN, OTHER_STORE, STORE, Made, TagHash, numbers, unchanged

#: A floor, where it leaves cur and the top, and the first number drawn after it.
FLOORS = [
    (0, 150, 400, 151),  # below everything: nothing is skipped
    (150, 150, 400, 151),
    (151, 151, 400, 152),  # within buffer 1
    (199, 199, 400, 200),
    (200, 300, 400, 301),  # buffer 1 is gone, buffer 2 whole
    (250, 300, 400, 301),  # in the gap between the two
    (300, 300, 400, 301),
    (301, 301, 400, 302),  # within buffer 2
    (399, 399, 400, 400),
]


def test_what_lies_above_stays(tag: TagHash) -> None:
    for at, cur, top, first in FLOORS:
        tag.put(150, 200, (300, 400))
        assert tag.floor(at) == ["floored", str(cur), str(top), "150", "400"]
        assert (at, numbers(tag.next())[0]) == (at, first)


def test_above_both_buffers_no_number_is_left(tag: TagHash) -> None:
    for at in (400, 401, 1000, HIGHEST):
        tag.put(150, 200, (300, 400), asked=17)
        assert tag.floor(at) == ["floored", str(at), str(at), "150", "400"]
        assert tag.fields() == tag.floored(at)
        assert tag.next() == ["exhausted"]


def test_a_single_buffer_is_cut_the_same_way(tag: TagHash) -> None:
    for at, cur, top in ((0, 150, 200), (180, 180, 200), (200, 200, 200), (201, 201, 201)):
        tag.put(150, 200)
        assert tag.floor(at) == ["floored", str(cur), str(top), "150", "200"]


def test_buffer_2_moves_up_with_its_mark(tag: TagHash) -> None:
    tag.put(150, 200, (300, 400), asked=17)
    tag.floor(310)
    assert tag.fields() == {**tag.floored(400), "cur": "310", "mark": "320"}


def test_a_floor_beyond_the_mark_has_the_next_draw_elected(tag: TagHash) -> None:
    tag.put(0, 100, asked=tag.now())
    tag.floor(50)
    assert tag.next()[3:] == ["extend", "100"]


def test_it_is_exact(tag: TagHash) -> None:
    for at in (2**53, 2**53 + 1, HIGHEST - 2):
        tag.put(at - 1, at + 1)
        assert tag.floor(at) == ["floored", str(at), str(at + 1), str(at - 1), str(at + 1)]
        assert numbers(tag.next(5)) == range(at + 1, at + 2)


def test_a_missing_hash_becomes_the_floor(tag: TagHash) -> None:
    assert tag.floor(77) == ["floored", "77", "77", "", ""]
    assert tag.next() == ["exhausted"]
    assert tag.open(role="look")[2:6] == [Made("born-2"), "77", "77", "1"]


def test_a_hash_of_another_reign_keeps_its_top_at_least_and_loses_its_numbers(tag: TagHash) -> None:
    for at, stands in ((50, 200), (150, 200), (200, 200), (201, 201)):
        tag.put(50, 100, (100, 200), fence=OTHER_REIGN)
        assert tag.floor(at) == ["floored", str(stands), str(stands), "50", "200"]
        assert tag.fields() == tag.floored(stands)


def test_a_load_on_its_way_is_refused_whatever_the_floor(tag: TagHash) -> None:
    for at in (0, 150, 250, 350, 400, 500):
        tag.put(150, 200, (300, 400))
        tag.floor(at)
        with unchanged(tag):
            assert (at, tag.load(1000, 1100, born=BORN)) == (at, ["stale", "born"])


def test_a_floor_twice_is_a_floor_once(tag: TagHash) -> None:
    tag.put(150, 200, (300, 400))
    tag.floor(180)
    once = tag.fields()
    assert tag.floor(180) == ["floored", "180", "400", "180", "400"]
    assert tag.fields() == {**once, "born": Made("born-2")}


def test_the_hash_of_another_store_is_refused_and_stays_as_it_is(tag: TagHash) -> None:
    for fence in (tag.reign(), OTHER_REIGN):
        tag.put(5, 100, fence=fence)
        with unchanged(tag):
            for manner in ("keep", "repair"):
                assert tag.floor(50, store=OTHER_STORE, manner=manner) == ["otherstore", STORE]


def test_a_corrupt_hash_is_kept_or_repaired_as_asked(tag: TagHash) -> None:
    for field in ("cur", "max", "mark", "next_cur", "next_max", "next_mark"):
        tag.put(5, 100, (100, 200), **{field: "ten"})
        with unchanged(tag):
            assert (field, tag.floor(500, manner="keep")) == (field, ["corrupt"])
        assert tag.floor(500, manner="repair") == ["floored", "500", "500", "", ""]
        assert (field, tag.fields()) == (field, tag.floored(500))


def test_state_put_back_inside_one_reign_is_out_of_reach_until_it_is_floored(tag: TagHash) -> None:
    """What lua/README.md says: nothing shows that it happened."""
    tag.put(0, 1000)
    old = tag.client.dump(tag.key)
    assert isinstance(old, bytes)
    drawn = list(numbers(tag.next(100)))
    tag.client.restore(tag.key, 0, old, replace=True)
    assert repeats([*drawn, *numbers(tag.next(100))])
    tag.floor(1000)
    assert tag.next() == ["exhausted"]
