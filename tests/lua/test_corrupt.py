"""A field that no script wrote is refused by each script that reads it, and nothing is changed."""

from collections.abc import Callable
from itertools import product

import pytest

from issuer import gateway
from issuer.clock import Deadline
from issuer.core.outcomes import refused
from issuer.drivers.blocking.connections import Connections
from issuer.errors import CorruptState
from tests.lua.hashes import GARBAGE, KEY, OTHER_STORE, STORE, Made, TagHash
from tests.servers.redis import RedisServer

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


def spoil(tag: TagHash, field: str, value: str | bytes | None) -> dict[str, str]:
    """Put the value into the field, and return the whole hash as a dump, which shows each byte."""
    if value is None:
        tag.client.hdel(KEY, field)
    else:
        tag.client.hset(KEY, field, value)
    return dump(tag)


#: HGETALL with every byte above 127 spelled out: some garbage is no UTF-8, and the connection decodes.
DUMP = """
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all do
  all[i] = string.gsub(all[i], '[\\128-\\255]', function(byte) return '<' .. string.byte(byte) .. '>' end)
end
return all
"""


def dump(tag: TagHash) -> dict[str, str]:
    reply = tag.client.eval(DUMP, 1, KEY)
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def refuses(tag: TagHash, script: str, field: str, kind: str, status: str = "corrupt") -> None:
    before = spoil(tag, field, GARBAGE[kind])
    assert (kind, field, CALLS[script](tag)) == (kind, field, [status])
    assert (kind, field, dump(tag)) == (kind, field, before)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("script", CALLS)
def test_each_kind_of_garbage_in_each_field_is_corrupt(tag: TagHash, script: str) -> None:
    # A draw has no use for buffer 2 yet.
    fields = BUFFER_1 if script in ("next", "lease") else BUFFER_1 + BUFFER_2
    for kind, field in product(GARBAGE, fields):
        tag.put(50, 100, (100, 200))
        refuses(tag, script, field, kind)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("field", ["backs", "backs_before", "backs_low"])
def test_so_is_garbage_in_the_count_of_what_came_back(tag: TagHash, field: str) -> None:
    # `lease` reads the count alone. Where there is none, nothing has come back yet.
    scripts = ["giveback", "open", "load", "floor", *(["lease"] if field == "backs" else [])]
    for kind, script in product(GARBAGE, scripts):
        if kind != "missing":
            tag.put(50, 100, (100, 200), backs=1, backs_before=0, backs_low=50)
            refuses(tag, script, field, kind)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("script", ["next", "lease"])
def test_a_draw_refuses_garbage_in_buffer_2_when_it_gets_there(tag: TagHash, script: str) -> None:
    for kind, field in product(GARBAGE, BUFFER_2):
        tag.put(100, 100, (100, 200))
        # Without next_max there is no buffer 2; the `open` that follows finds the rest of it, and calls it corrupt.
        refuses(tag, script, field, kind, "exhausted" if (field, kind) == ("next_max", "missing") else "corrupt")
        assert (kind, tag.open()) == (kind, ["corrupt"])


#: What is in the place of a store's id, and none.
NO_IDS = (*(value for value in GARBAGE.values() if value is not None), STORE[1:], STORE + "0", STORE.upper())


@pytest.mark.covers("3.9")
def test_so_is_a_store_that_is_no_stores_id_for_those_who_know_theirs(tag: TagHash) -> None:
    for value in NO_IDS:
        tag.put(50, 100, (100, 200))
        before = spoil(tag, "store", value)
        for script in ("open", "floor"):
            assert (value, CALLS[script](tag)) == (value, ["corrupt"])
            assert (value, dump(tag)) == (value, before)


@pytest.mark.covers("3.9")
def test_a_repair_makes_the_hash_this_stores_and_leaves_none_of_its_numbers(tag: TagHash) -> None:
    for value in NO_IDS:
        tag.put(50, 100, (100, 200), backs=1)
        spoil(tag, "store", value)
        assert (value, tag.floor(500, manner="repair")) == (value, ["floored", "500", "500", "", ""])
        assert tag.fields() == {
            **dict.fromkeys(("cur", "max", "mark"), "500"),
            "fence": tag.reign(),
            "born": Made("born-2"),
            "store": STORE,
        }


def test_a_hash_that_is_garbage_and_another_stores_is_refused_to_a_repair(tag: TagHash) -> None:
    tag.put(50, 100, cur="ten", store=OTHER_STORE)
    before = tag.fields()
    assert tag.floor(500, manner="repair") == ["otherstore", OTHER_STORE]
    assert tag.fields() == before


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
        before = tag.fields()
        assert (contradiction, CALLS[script](tag)) == (contradiction, ["corrupt"])
        assert (contradiction, tag.fields()) == (contradiction, before)


def test_a_used_up_hash_whose_mark_was_never_reached_does_not_wait_for_ever(tag: TagHash) -> None:
    """It once did: nothing was left to draw, and `open` said that nothing was due."""
    tag.put(100, 100, mark=200)
    assert tag.next() == ["exhausted"]
    assert tag.open() == ["corrupt"]


def test_a_cur_beyond_max_is_not_mistaken_for_a_used_up_segment(tag: TagHash) -> None:
    """It once was: `next` went on with buffer 2, below a number that somebody had written by hand."""
    tag.put(150, 100, (100, 200), mark=100)
    assert tag.next() == ["corrupt"]


def test_garbage_of_another_reign_is_fenced_for_a_draw_and_corrupt_for_open(tag: TagHash) -> None:
    tag.put(50, 100, cur="ten", fence="0" * 40)
    before = tag.fields()
    assert tag.next() == ["fenced"]
    assert tag.open() == ["corrupt"]
    assert tag.load(100, 200) == ["stale", "reign"]
    assert tag.fields() == before


def test_other_peoples_fields_hinder_nobody(tag: TagHash) -> None:
    tag.put(50, 100, step="ten", cur2="x")
    assert tag.next()[0] == "ok"


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("garbage", ['"50"', "50.0", " 50"])
def test_the_user_gets_a_typed_error(tag: TagHash, any_redis: RedisServer, garbage: str) -> None:
    tag.put(50, 100, cur=garbage)
    connections = Connections.from_url(any_redis.url, 60.0, "main")
    drawn = connections.call(gateway.draw(KEY, 1, 4), Deadline(60))
    connections.close()
    assert isinstance(refused(drawn, "orders", KEY), CorruptState)
