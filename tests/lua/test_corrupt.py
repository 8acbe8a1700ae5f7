"""What no caller may send, and a field that no script wrote, is refused by each script, and nothing is changed."""

import re
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import redis

from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, GARBAGE, KEY, OTHER_STORE, STORE, WINDOW, TagHash, unchanged

BUFFER_1 = ("cur", "max", "mark")


BUFFER_2 = ("next_cur", "next_max", "next_mark")


CALLS: dict[str, Callable[[TagHash], list[str]]] = {
    "next": lambda tag: tag.next(),
    "lease": lambda tag: tag.lease(),
    "giveback": lambda tag: tag.give_back(20, 50),
    "open": lambda tag: tag.open(),
    "load": lambda tag: tag.load(200, 300),
    "floor": lambda tag: tag.floor(500),
}


#: Garbage that is there.
PRESENT = [value for value in GARBAGE.values() if value is not None]


#: The fields in order, with every byte above 127 spelled out: some garbage is no UTF-8, and the connection decodes.
DUMP = """
local all, pairs = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local value = string.gsub(all[i + 1], '[\\128-\\255]', function(byte) return '<' .. string.byte(byte) .. '>' end)
  pairs[#pairs + 1] = all[i] .. '=' .. value
end
table.sort(pairs)
return pairs
"""


def refuses(tag: TagHash, script: str, field: str, value: str | bytes | None, status: str = "corrupt") -> None:
    """See the script refuse that value in the field, and leave the hash to each byte as it is."""
    if value is None:
        tag.client.hdel(KEY, field)
    else:
        tag.client.hset(KEY, field, value)
    before = tag.client.eval(DUMP, 1, KEY)
    assert (field, value, CALLS[script](tag)) == (field, value, [status])
    assert (field, value, tag.client.eval(DUMP, 1, KEY)) == (field, value, before)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("script", CALLS)
def test_each_kind_of_garbage_in_each_field_is_corrupt(tag: TagHash, script: str) -> None:
    # A draw has no use for buffer 2 yet.
    fields = BUFFER_1 if script in ("next", "lease") else BUFFER_1 + BUFFER_2
    for value, field in product(GARBAGE.values(), fields):
        tag.put(50, 100, (100, 200))
        refuses(tag, script, field, value)


@pytest.mark.covers("3.9")
def test_so_is_garbage_in_the_count_of_what_came_back(tag: TagHash) -> None:
    # `lease` reads the count alone. Where there is none, nothing has come back yet.
    reads = [
        *product(("giveback", "open", "load", "floor"), ("backs", "backs_before", "backs_low")),
        ("lease", "backs"),
    ]
    for value, (script, field) in product(PRESENT, reads):
        tag.put(50, 100, (100, 200), backs=1, backs_before=0, backs_low=50)
        refuses(tag, script, field, value)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("script", ["next", "lease"])
def test_a_draw_refuses_garbage_in_buffer_2_when_it_gets_there(tag: TagHash, script: str) -> None:
    for value, field in product(GARBAGE.values(), BUFFER_2):
        tag.put(100, 100, (100, 200))
        # Without next_max there is no buffer 2; the `open` that follows finds the rest of it, and calls it corrupt.
        refuses(tag, script, field, value, "exhausted" if (field, value) == ("next_max", None) else "corrupt")
        assert (field, value, tag.open()) == (field, value, ["corrupt"])


#: What is no store's id.
NO_IDS = (*PRESENT, STORE[1:], STORE + "0", STORE.upper())


@pytest.mark.covers("3.9")
def test_so_is_a_store_that_is_no_stores_id_for_those_who_know_theirs_until_a_repair(tag: TagHash) -> None:
    for value in NO_IDS:
        tag.put(50, 100, (100, 200), backs=1)
        for script in ("open", "floor"):
            refuses(tag, script, "store", value)
        assert (value, tag.floor(500, manner="repair")) == (value, ["floored", "500", "500", "", ""])
        assert tag.fields() == tag.floored(500)


def test_a_hash_that_is_garbage_and_another_stores_is_refused_to_a_repair(tag: TagHash) -> None:
    tag.put(50, 100, cur="ten", store=OTHER_STORE)
    with unchanged(tag):
        assert tag.floor(500, manner="repair") == ["otherstore", OTHER_STORE]


def test_an_id_of_whatever_form_is_the_callers_own(tag: TagHash) -> None:
    tag.put(50, 100, store="mine")
    assert tag.open(store="mine")[0] == "open"
    assert tag.floor(60, store="mine")[0] == "floored"


CONTRADICTIONS = {
    "cur above max": {"cur": 101},
    "a longer cur above max": {"cur": 1000},
    "mark above max": {"mark": 101},
    "buffer 2 begins below the end of buffer 1": {"next_cur": 99},
    "buffer 2 is empty": {"next_cur": 200},
    "buffer 2 ends before it begins": {"next_max": 100},
    "mark of buffer 2 above its end": {"next_mark": 201},
}


@pytest.mark.parametrize("script", CALLS)
def test_fields_that_contradict_each_other_are_corrupt(tag: TagHash, script: str) -> None:
    for contradiction, fields in CONTRADICTIONS.items():
        if script in ("next", "lease") and contradiction == "mark above max":
            continue  # where buffer 1 is used up, a draw goes on with buffer 2
        tag.put(100, 100, (100, 200), **fields)
        with unchanged(tag):
            assert (contradiction, CALLS[script](tag)) == (contradiction, ["corrupt"])


def test_garbage_of_another_reign_is_fenced_for_a_draw_and_corrupt_for_open(tag: TagHash) -> None:
    tag.put(50, 100, cur="ten", fence="0" * 40)
    with unchanged(tag):
        assert [tag.next(), tag.open(), tag.load(100, 200)] == [["fenced"], ["corrupt"], ["stale", "reign"]]


def test_other_peoples_fields_hinder_nobody(tag: TagHash) -> None:
    tag.put(50, 100, step="ten", cur2="x")
    assert tag.next()[0] == "ok"


# ---------------------------------------------------------------------------------------------- arguments


#: What is no whole number up to 2^63-1.
NO_NUMBERS: list[str | int] = ["-1", "1.0", "", "x", "01", " 1", "1e3", str(HIGHEST + 1), "1" * 20]


NO_WINDOWS: list[str | int] = ["", "soon"]


NO_ENDS: list[str | int] = ["", "x", "-1"]


DRAW = "BADARG n must be 1..2^63-1, the window milliseconds"


TAIL = "BADARG a tail needs 0 <= used < high <= 2^63-1"


#: The script, its arguments, and how the error begins.
MISTAKES: list[tuple[str, Sequence[tuple[str | int, ...]], str]] = [
    *((name, [(n, WINDOW) for n in ("0", *NO_NUMBERS)], DRAW) for name in ("next", "lease")),
    *((name, [(1, window) for window in NO_WINDOWS], DRAW) for name in ("next", "lease")),
    ("giveback", [(used, 50, "r", BORN, 0) for used in (50, 51, 100, *NO_NUMBERS)], TAIL),
    ("giveback", [(30, high, "r", BORN, 0) for high in NO_NUMBERS], TAIL),
    ("load", [(low, 100, 20, "r", BORN) for low in (100, 200, *NO_NUMBERS)], "BADARG"),
    ("load", [(0, high, 20, "r", BORN) for high in NO_NUMBERS], "BADARG"),
    ("load", [(0, 100, mark, "r", BORN) for mark in (0, 101, *NO_NUMBERS)] + [(9, 10, 9, "r", BORN)], "BADARG"),
    *(("floor", [(at, "b", STORE, manner) for at in NO_NUMBERS], "BADARG") for manner in ("keep", "repair")),
    ("floor", [(7, "b", STORE, "keep", "s1", until) for until in NO_ENDS], "BADARG"),
    ("once", [(window, "", 1, 0) for window in NO_WINDOWS], "BADARG"),
    ("once", [(WINDOW, "", ttl, 0) for ttl in ("0", *NO_ENDS)], "BADARG"),
    ("once", [(WINDOW, "", 1, seen) for seen in NO_ENDS], "BADARG"),
    ("open", [(BORN, STORE, window, "claim", "", HIGHEST) for window in NO_WINDOWS], "BADARG"),
    ("open", [(BORN, STORE, WINDOW, "claim", "s1", until) for until in NO_ENDS], "BADARG"),
]


def test_a_bad_argument_is_an_error_without_a_line_number_and_changes_nothing(tag: TagHash) -> None:
    for name, mistakes, error in MISTAKES:
        for args in mistakes:
            tag.put(50, 100)
            before = tag.fields()
            with pytest.raises(redis.ResponseError, match=f"^{re.escape(error)}"):
                pytest.fail(f"{name} {args}: {tag.call(name, *args)}")
            assert (name, args, tag.fields()) == (name, args, before)
            tag.client.delete(KEY)
            with pytest.raises(redis.ResponseError, match=r"^BADARG"):
                pytest.fail(f"{name} {args} without a hash: {tag.call(name, *args)}")
            assert tag.client.keys() == []


def test_a_key_of_another_type_is_an_error_and_stays_as_it_is(tag: TagHash) -> None:
    tag.client.set(KEY, "text")
    calls: list[Callable[[], object]] = [tag.next, tag.lease, tag.open, lambda: tag.floor(5, manner="repair")]
    for call in calls:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
    for name, args in (("load", (0, 100, 20)), ("giveback", (30, 50))):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            tag.call(name, *args, tag.reign(), BORN, 0)
    assert tag.client.get(KEY) == "text"
