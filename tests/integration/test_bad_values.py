"""What is passed by mistake may be of any size: the error is typed, says what was wrong, and repeats little of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from issuer import Issuer
from issuer.errors import IssuerError, brief
from tests.integration.days import Make

#: As long as a message may be: it goes to a log, or to somebody's terminal.
READABLE = 500

#: Python doesn't write out an integer of more than 4300 digits: an f-string with it raises ValueError.
HUGE = {"a text": "x" * 10_000, "digits": "9" * 5_000, "an integer": 10**5_000, "below zero": -(10**5_000)}

CALLS: dict[str, Callable[[Issuer, Any], object]] = {
    "next's timeout": lambda ids, value: ids.next("a", timeout=value),
    "take": lambda ids, value: ids.take("a", value),
    "reserve": lambda ids, value: ids.reserve("a", value),
    "decode": lambda ids, value: ids.decode("a", value),
    "decode of a format": lambda ids, value: ids.decode("formatted", value),
    "decode of shards": lambda ids, value: ids.decode("sharded", value),
    "configure": lambda ids, value: ids.configure("a", step=value),
    "recover": lambda ids, value: ids.recover("a", at_least=value),
    "key": lambda ids, value: ids.next("formatted", key=value),
}


def snowflake(name: object, value: object) -> dict[str, Any]:
    return {"strategy": "snowflake", "options": {name: value}}


NAMES = "step limit start above lease order format restart timezone scramble strategy options shards app description"
SETTINGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **{name: partial(lambda name, value: {name: value}, name) for name in NAMES.split()},
    "stride": lambda value: {"stride": value, "offset": 1},
    "offset": lambda value: {"stride": 3, "offset": value},
    "app of shards": lambda value: {"shards": {"app": value}},
    "option": lambda value: snowflake("worker_bits", value),
    "machine": lambda value: snowflake("machine", value),
    "no such option": lambda value: snowflake(value, 1),
}


@pytest.fixture
def ids(make: Make) -> Issuer:
    ids = make()
    ids.create("a", order="trend")
    ids.create("formatted", format="A-{seq:08}")
    ids.create("sharded", shards=True)
    return ids


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_a_call_was_given_is_refused_in_few_words(
    ids: Issuer, call: Callable[[Issuer, Any], object], value: object
) -> None:
    with pytest.raises(IssuerError) as refused:
        call(ids, value)
    assert len(str(refused.value)) < READABLE
    assert ids.next("a") == 1


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_a_tag_was_to_be_made_with_is_refused_in_few_words(
    ids: Issuer, settings: Callable[[Any], dict[str, Any]], value: object
) -> None:
    with pytest.raises(IssuerError) as refused:
        ids.create("b", **settings(value))
    assert len(str(refused.value)) < READABLE
    assert "b" not in [tag.tag for tag in ids.tags()]


def test_what_is_short_is_shown_as_it_is() -> None:
    for value in (0, -7, 2**63, "a text", b"bytes", 1.5, None, True, [1, 2], {"a": 1}, ("x",)):
        assert brief(value) == repr(value)


def test_what_is_long_is_cut_and_an_integer_is_measured() -> None:
    assert len(brief("x" * 10_000)) == 80
    assert brief(10**5_000) == f"an integer of {(10**5_000).bit_length()} bits"
    assert len(brief([["x" * 1_000] * 1_000] * 1_000)) < 1_000
