"""What no caller of the scripts may send is an error with our own words, and changes nothing."""

import re
from collections.abc import Callable, Sequence

import pytest
import redis

from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, STORE, WINDOW, TagHash

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


def test_it_is_an_error_without_a_line_number_and_changes_nothing(tag: TagHash) -> None:
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
