"""`lease` on real servers: it grants what `next` would, and tells the fence and the born that the numbers are of."""

from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, WINDOW, TagHash

#: What lies in the hash, n, the window: every way through a draw.
DRAWS: dict[str, tuple[tuple[int, int, tuple[int, int] | None], dict[str, int], int, int]] = {
    "below the mark": ((0, 100, None), {}, 7, WINDOW),
    "to the mark": ((0, 100, None), {}, 20, WINDOW),
    "to the mark, never to be elected": ((0, 100, None), {}, 20, -1),
    "beyond the mark, elected long ago": ((50, 100, None), {"asked": 17}, 1, WINDOW),
    "beyond the mark, elected in the future": ((50, 100, None), {"asked": 10**15}, 1, WINDOW),
    "beyond the mark, with a buffer 2": ((50, 100, (100, 200)), {}, 10, WINDOW),
    "short at the end": ((90, 100, (300, 400)), {}, 1000, WINDOW),
    "all the rest, by an overflow": ((90, 100, None), {}, HIGHEST, WINDOW),
    "from buffer 2": ((100, 100, (300, 400)), {"asked": 17}, 5, WINDOW),
    "from buffer 2 to its mark": ((100, 100, (300, 400)), {}, 20, WINDOW),
    "used up": ((100, 100, None), {}, 1, WINDOW),
    "around 2^53": ((2**53 - 1, 2**53 + 50, None), {}, 2, WINDOW),
    "the highest numbers": ((HIGHEST - 3, HIGHEST, None), {}, 5, WINDOW),
    "of another reign": ((0, 100, None), {"fence": 0}, 1, WINDOW),
    "a cur above max": ((101, 100, None), {}, 1, WINDOW),
}


def test_it_grants_what_next_would_and_leaves_the_same_hash(tag: TagHash) -> None:
    for draw, ((cur, max, buffer_2), fields, n, window) in DRAWS.items():
        tag.put(cur, max, buffer_2, **fields)
        drawn, after_draw = tag.next(n, window), tag.fields()
        tag.put(cur, max, buffer_2, **fields)
        leased, after_lease = tag.lease(n, window), tag.fields()
        if drawn[0] == "ok":
            assert leased[3:6] == [tag.reign(), BORN, "0"], draw
            del leased[3:6]
        assert (draw, leased) == (draw, drawn)
        # The date of an election is that of the call.
        assert ("asked" in after_lease) == ("asked" in after_draw), draw
        assert (draw, {**after_lease, "asked": ""}) == (draw, {**after_draw, "asked": ""})


def test_without_a_hash_it_is_empty_and_makes_none(tag: TagHash) -> None:
    assert tag.lease() == ["empty"]
    assert tag.client.keys() == []


def test_a_hash_without_born_is_corrupt_as_no_tail_could_come_back(tag: TagHash) -> None:
    tag.put(5, 100)
    tag.client.hdel(KEY, "born")
    before = tag.fields()
    assert tag.lease() == ["corrupt"]
    assert tag.fields() == before


def test_it_is_elected_once_as_draws_are(tag: TagHash) -> None:
    tag.put(0, 100)
    assert tag.lease(20) == ["ok", "0", "20", tag.reign(), BORN, "0", "extend", "100"]
    assert tag.lease(20) == ["ok", "20", "40", tag.reign(), BORN, "0"]
    assert tag.next() == ["ok", "40", "41"]
