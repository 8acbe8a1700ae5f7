"""Rows of other issuers: the first number here is the first one that their programs have not given."""

from __future__ import annotations

from contextlib import closing
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import issuer
from issuer.care.importing.layouts import LAYOUTS, Choice, ImportedTag
from issuer_persistence.records import HIGHEST

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.covers("U.13")

#: Numbers near zero, and anywhere.
NUMBERS = st.one_of(st.integers(0, 50), st.integers(0, 2**62))
SAME = settings(derandomize=True, max_examples=60, deadline=None)


def imported(layout: str, *row: Any, block: int = 0) -> ImportedTag:
    (found,) = LAYOUTS[layout].tags([("t", *row)], Choice(block=block))
    assert found.refusal == ""
    return found


def here(found: ImportedTag, limit: int = HIGHEST) -> Iterator[int]:
    """Draw the numbers of the imported tag up to its limit."""
    with closing(issuer.connect(redis="none", store="memory://", scheduler=None)) as ids:
        ids.create_many({"t": found.options(limit)})
        while True:
            try:
                yield ids.next("t")
            except issuer.errors.LimitReached:
                return


def by_tinyid(max_id: int, step: int, delta: int, remainder: int) -> Iterator[int]:
    """Give numbers as tinyid's client does: those of (currentId, maxId] that fit."""
    for low in count(max_id, step):
        yield from (each for each in range(low + 1, low + step + 1) if each % delta == remainder)


@SAME
@given(st.data(), NUMBERS, st.integers(1, 9), st.integers(1, 40))
def test_tinyid(data: st.DataObject, max_id: int, delta: int, step: int) -> None:
    remainder = data.draw(st.integers(0, delta - 1))
    found = imported("tinyid", max_id, step, delta, remainder)
    assert [*islice(here(found), 12)] == [*islice(by_tinyid(max_id, step, delta, remainder), 12)]
    assert found.step == max(step // delta, 1)


@SAME
@given(NUMBERS, st.integers(1, 1000))
@example(0, 5)
def test_one_update_with_an_increment(current_value: int, increment: int) -> None:
    found = imported("sequence", current_value, increment)
    assert [*islice(here(found), 4)] == [current_value + increment * at for at in range(1, 5)]


@SAME
@given(NUMBERS)
def test_leaf_whose_max_id_is_the_next_number(max_id: int) -> None:
    assert next(here(imported("leaf", max_id, 10, None))) == max(max_id, 1)  # a number is 1 or more here


@SAME
@given(NUMBERS, st.integers(1, 1000))
def test_a_block_that_may_have_been_given_before_it_was_stored(value: int, block: int) -> None:
    assert next(here(imported("sequence-value", value, block=block))) == value + block + 1


@SAME
@given(st.data(), st.integers(0, 500), st.integers(1, 9), st.integers(1, 40), st.integers(1, 30))
def test_a_split_gives_each_number_to_one_of_both(
    data: st.DataObject, max_id: int, delta: int, step: int, by: int
) -> None:
    remainder = data.draw(st.integers(0, delta - 1))
    found = imported("tinyid", max_id, step, delta, remainder)
    border = found.last + found.span(by)
    drawn = [*here(found, border)]
    rest = islice(by_tinyid(border, step, delta, remainder), 5)
    assert [*drawn, *rest] == [*islice(by_tinyid(max_id, step, delta, remainder), len(drawn) + 5)]
    assert by <= found.span(by) < by + delta
    assert drawn


@SAME
@given(st.integers(0, 255), st.integers(0, 63), st.integers(1, 2**49 - 2))
def test_packed_numbers_of_shards(app: int, shard: int, max_id: int) -> None:
    found = imported("id-alloc", app, shard, max_id, 1000, 0, None)
    assert found.highest >= max_id << 14 | shard << 8 | app
    assert found.shown(found.following(found.last)) > found.highest
    assert (found.highest & 255, found.highest >> 8 & 63) == (app, 63)


def test_descriptions_are_cut_and_cleaned() -> None:
    assert imported("leaf", 1, 1, "a\nb\x00c").description == "a b c"
    assert len(imported("leaf", 1, 1, "京" * 400).description.encode()) == 999


def test_a_name_that_is_not_text_stays_one_that_no_tag_can_have() -> None:
    (found,) = LAYOUTS["sequence-value"].tags([(b"\xff", 1)], Choice(block=1))
    assert found.tag == "\udcff"
