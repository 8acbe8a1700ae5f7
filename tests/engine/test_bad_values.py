"""What is passed by mistake may be of any size: the error is typed, says what was wrong, and repeats little of it."""

from collections.abc import Callable
from typing import Any

import pytest

from issuer import Issuer
from issuer.errors import IssuerError, brief
from tests.schemes import Make

# What is refused, and how, is decided above both colours.
pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]

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

NAMES = "step limit start above lease order format restart timezone scramble strategy options shards description"


def settings(value: Any) -> dict[str, dict[str, Any]]:
    """Return what a tag might be made with."""
    snowflake = {"worker_bits": {"worker_bits": value}, "machine": {"machine": value}, "no such option": {value: 1}}
    return {
        **{name: {name: value} for name in NAMES.split()},
        "stride": {"stride": value, "offset": 1},
        "offset": {"stride": 3, "offset": value},
        "app of shards": {"shards": {"app": value}},
        **{name: {"strategy": "snowflake", "options": options} for name, options in snowflake.items()},
    }


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_what_a_call_or_a_tag_was_given_is_refused_in_few_words(make: Make, value: Any) -> None:
    ids = make()
    ids.create("a", order="trend")
    ids.create("formatted", format="A-{seq:08}")
    ids.create("sharded", shards=True)
    before = ids.tags()
    for name, call in CALLS.items():
        with pytest.raises(IssuerError) as refused:
            pytest.fail(f"{name}: {call(ids, value)}")
        assert len(str(refused.value)) < READABLE, name
    for name, given in settings(value).items():
        with pytest.raises(IssuerError) as refused:
            pytest.fail(f"{name}: {ids.create('b', **given).tag}")
        assert len(str(refused.value)) < READABLE, name
    assert ids.tags() == before
    assert ids.next("a") == 1


def test_what_is_long_is_cut_and_an_integer_is_measured() -> None:
    assert len(brief("x" * 10_000)) == 80
    assert brief(10**5_000) == f"an integer of {(10**5_000).bit_length()} bits"
    assert len(brief([["x" * 1_000] * 1_000] * 1_000)) < 1_000
