"""`floor` on real servers: in every position relative to both buffers."""

import pytest

from issuer.persistence.records import HIGHEST
from tests.lua.hashes import BORN, OTHER_STORE, STORE, Made, TagHash, numbers

OTHER_REIGN = "0123456789" * 4


#: A floor, where it leaves cur and the top, and the first number drawn after it.
FLOORS = [
    (0, 150, 400, 151),  # below everything: nothing is skipped
    (149, 150, 400, 151),
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


@pytest.mark.parametrize("at", [400, 401, 1000, HIGHEST])
def test_above_both_buffers_no_number_is_left(tag: TagHash, at: int) -> None:
    tag.put(150, 200, (300, 400), asked=17)
    assert tag.floor(at) == ["floored", str(at), str(at), "150", "400"]
    assert tag.fields() == {
        "cur": str(at),
        "max": str(at),
        "mark": str(at),
        "fence": tag.reign(),
        "born": Made("born-2"),
        "store": STORE,
    }
    assert tag.next() == ["exhausted"]


@pytest.mark.parametrize(("at", "cur", "top"), [(0, 150, 200), (180, 180, 200), (200, 200, 200), (201, 201, 201)])
def test_a_single_buffer_is_cut_the_same_way(tag: TagHash, at: int, cur: int, top: int) -> None:
    tag.put(150, 200)
    assert tag.floor(at) == ["floored", str(cur), str(top), "150", "200"]


def test_buffer_2_moves_up_with_its_mark(tag: TagHash) -> None:
    tag.put(150, 200, (300, 400), asked=17)
    tag.floor(310)
    assert tag.fields() == {
        "cur": "310",
        "max": "400",
        "mark": "320",
        "fence": tag.reign(),
        "born": Made("born-2"),
        "store": STORE,
    }


def test_a_floor_beyond_the_mark_has_the_next_draw_elected(tag: TagHash) -> None:
    tag.put(0, 100, asked=tag.now())
    tag.floor(50)
    assert tag.next()[3:] == ["extend", "100"]


@pytest.mark.parametrize("at", [2**53, 2**53 + 1, HIGHEST - 2])
def test_it_is_exact(tag: TagHash, at: int) -> None:
    tag.put(at - 1, at + 1)
    assert tag.floor(at) == ["floored", str(at), str(at + 1), str(at - 1), str(at + 1)]
    assert numbers(tag.next(5)) == range(at + 1, at + 2)


def test_a_missing_hash_becomes_the_floor(tag: TagHash) -> None:
    assert tag.floor(77) == ["floored", "77", "77", "", ""]
    assert tag.next() == ["exhausted"]
    assert tag.open(role="look")[2:6] == [Made("born-2"), "77", "77", "1"]


@pytest.mark.parametrize(("at", "stands"), [(50, 200), (150, 200), (200, 200), (201, 201)])
def test_a_hash_of_another_reign_keeps_its_top_at_least_and_loses_its_numbers(
    tag: TagHash, at: int, stands: int
) -> None:
    tag.put(50, 100, (100, 200), fence=OTHER_REIGN)
    assert tag.floor(at) == ["floored", str(stands), str(stands), "50", "200"]
    assert tag.field("fence") == tag.reign()
    assert tag.next() == ["exhausted"]


def test_a_load_on_its_way_is_refused_whatever_the_floor(tag: TagHash) -> None:
    for at in (0, 150, 250, 350, 400, 500):
        tag.put(150, 200, (300, 400))
        tag.floor(at)
        before = tag.fields()
        assert (at, tag.load(1000, 1100, born=BORN)) == (at, ["stale", "born"])
        assert tag.fields() == before


def test_a_floor_twice_is_a_floor_once(tag: TagHash) -> None:
    tag.put(150, 200, (300, 400))
    tag.floor(180)
    once = tag.fields()
    assert tag.floor(180) == ["floored", "180", "400", "180", "400"]
    assert tag.fields() == {**once, "born": Made("born-2")}


@pytest.mark.parametrize("manner", ["keep", "repair"])
@pytest.mark.parametrize("fence", ["", OTHER_REIGN])
def test_the_hash_of_another_store_is_refused_and_stays_as_it_is(tag: TagHash, manner: str, fence: str) -> None:
    tag.put(5, 100, **({"fence": fence} if fence else {}))
    before = tag.fields()
    assert tag.floor(50, store=OTHER_STORE, manner=manner) == ["otherstore", STORE]
    assert tag.fields() == before


@pytest.mark.parametrize("field", ["cur", "max", "mark", "next_cur", "next_max", "next_mark"])
def test_a_corrupt_hash_is_kept_or_repaired_as_asked(tag: TagHash, field: str) -> None:
    tag.put(5, 100, (100, 200), **{field: "ten"})
    before = tag.fields()
    assert tag.floor(500, manner="keep") == ["corrupt"]
    assert tag.fields() == before
    assert tag.floor(500, manner="repair") == ["floored", "500", "500", "", ""]
    assert tag.fields() == {
        "cur": "500",
        "max": "500",
        "mark": "500",
        "fence": tag.reign(),
        "born": Made("born-2"),
        "store": STORE,
    }
