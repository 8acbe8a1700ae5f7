"""What a call refuses: it has a typed error, which repeats little of what was given, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.errors import IssuerError, brief
from issuer.strategies import Instance
from tests.colours import BOTH, Connect
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer

pytestmark = pytest.mark.colours("blocking")

CALLS: list[Callable[[Issuer], object]] = [
    lambda ids: ids.next("nope"),
    lambda ids: ids.take("nope", 3),
    lambda ids: ids.issue("nope"),
    lambda ids: ids.peek("nope"),
    lambda ids: ids.decode("nope", 3),
    lambda ids: ids.reserve("nope", 3),
    lambda ids: next(ids.stream("nope")),
    lambda ids: ids.warm("nope"),
    lambda ids: ids.inspect("nope"),
    lambda ids: ids.configure("nope", step=3),
    lambda ids: ids.delete("nope"),
    lambda ids: ids.recover("nope"),
    lambda ids: ids.verify("nope"),
    lambda ids: ids.who("nope", 1),
    lambda ids: ids.halt("nope"),
]


@BOTH
@pytest.mark.covers("1.8", "2.5", "4.12")
def test_an_unknown_tag_is_told_and_leaves_nothing_behind(
    ids: Issuer, direct: Issuer, fake_server: FencedFakeServer
) -> None:
    for number, call in enumerate(CALLS):
        for one in (ids, direct):
            with pytest.raises(issuer.UnknownTag) as error:
                call(one)
            assert isinstance(error.value, LookupError), number
            assert error.value.tag == "nope", number
            assert one.tags() == [], number
            assert one.engine.registry.combiners == {}, number
    with fake_server.client() as client:
        assert client.keys() == []


@BOTH
def test_a_closed_issuer_says_so_and_may_be_closed_twice(ids: Issuer, direct: Issuer) -> None:
    calls: list[Callable[[Issuer], object]] = [lambda ids: ids.tags(), lambda ids: ids.create("b"), *CALLS]
    for one in (ids, direct):
        one.create("nope")
        one.next("nope")
        one.close()
        one.close()
        assert one.closed
        for number, call in enumerate(calls):
            with pytest.raises(issuer.IssuerError, match="closed"):
                pytest.fail(f"call {number}: {call(one)}")


@BOTH
@pytest.mark.covers("4.12")
def test_another_application_another_shard_and_an_empty_tag_have_a_typed_error_each(ids: Issuer) -> None:
    ids.create("users", shards={"app": 17})
    ids.create("others", shards={"app": 18})
    ids.create("used up", limit=1)
    number = ids.next("others", shard_key="x")
    assert ids.next("used up") == 1
    before = ids.tags()
    with pytest.raises(issuer.NotDecodable, match="application 18, but tag 'users' to application 17"):
        ids.decode("users", number)
    with pytest.raises(issuer.SchemeError, match="app 256 doesn't fit into 8 bits"):
        ids.create("more", shards={"app": 256})
    with pytest.raises(issuer.UnknownTag, match="users#64"):
        ids.next("users#64")
    with pytest.raises(issuer.InvalidArgument, match="shard_key is required"):
        ids.next("users")
    with pytest.raises(issuer.LimitReached, match="1 of 1 are reserved"):
        ids.next("used up")
    assert ids.tags() == before


#: By what is called, the arguments that it refuses.
WRONG: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "next": [((tag,), {}) for tag in ("", "x" * 201, "é" * 101, "a\nb", "a\x00", 7, ["a"])]
    + [(("a",), {"timeout": timeout}) for timeout in (-1, float("nan"), "1", True)],
    "take": [(("a", n), {}) for n in (0, -1, 1_000_001, True, 2.0, "2")],
    "reserve": [(("t", 0), {}), (("t", 2**63), {}), (("a", 5), {})],  # a strict one
    "stream": [(("",), {}), (("a",), {"timeout": -1})],
    "create": [(("b",), {"step": step}) for step in (0, -5, 1.5, True, "many")]
    + [(("b",), {"description": text}) for text in (7, "\udcff", "x" * 1001)]
    + [(("b",), {"limit": limit}) for limit in (0, 2**63)]
    + [
        (("b",), said)
        for said in ({"start": 0}, {"above": -1}, {"start": 1, "above": 0}, {"order": "weak"}, {"ahead": 0})
    ]
    + [(("b",), {"limit": 10, **said}) for said in ({"start": 11}, {"above": 10})],
    "configure": [(("a",), {}), (("a",), {"description": "a\x1b[2J"})]
    + [(("a",), said) for said in ({"step": 0}, {"limit": 2}, {"start": 1, "above": 1}, {"ahead": 1001})],
    "recover": [((), {"at_least": 5}), (("a",), {"at_least": -1})],
}


def called(ids: Issuer, name: str, *arguments: Any, **options: Any) -> object:
    answer = getattr(ids, name)(*arguments, **options)
    return next(answer) if name == "stream" else answer


@BOTH
def test_bad_input_is_refused_and_changes_nothing(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    ids.create("t", step=10, order="trend")
    ids.next("a")
    with fake_server.client() as client:
        before = ids.tags(), client.hgetall("issuer:{a}"), client.keys()
        for name, (arguments, options) in ((name, call) for name, calls in WRONG.items() for call in calls):
            with pytest.raises(issuer.InvalidArgument) as error:
                pytest.fail(f"{name}{arguments} {options}: {called(ids, name, *arguments, **options)}")
            assert isinstance(error.value, ValueError)
            assert (ids.tags(), client.hgetall("issuer:{a}"), client.keys()) == before, (name, arguments, options)
    assert ids.next("a") == 2


@BOTH
def test_settings_that_make_no_sense_are_refused_at_once(connect: Connect) -> None:
    for settings, why in (
        ({"redis": "redis://127.0.0.1:1/0"}, "no store"),
        ({"redis": "redis://127.0.0.1:1/0?protocol=3&foo=1"}, "parameter 2 of the URL"),
        ({"redis": 7}, "redis"),
        ({"redis": "redis+cluster://127.0.0.1:1/3"}, "database"),
        ({"store": 7}, "store"),
        ({"scheduler": "foreground"}, "scheduler"),
        ({"instance": 5}, "^instance must be "),
        ({"instance": Instance}, "^instance must be "),
        ({"keys": {"k1": b"short"}}, "^keys: key 'k1' is too short: 5 bytes of at least 16"),
    ):
        common: dict[str, Any] = {"redis": "none"} if why == "no store" else {"redis": "none", "store": "memory://"}
        with pytest.raises(issuer.ConfigurationError, match=why):
            pytest.fail(f"{settings}: {connect(**{**common, **settings})}")


def test_a_server_that_cannot_be_relied_on_is_refused(make: Make, fake_server: FencedFakeServer) -> None:
    make().create("a")
    denying, old = FencedFakeServer(), FencedFakeServer(version=(6, 0))
    denying.info_denied, fake_server.role = True, "slave"
    for server, why in ((denying, r"\+info"), (old, r"6\.2"), (fake_server, "master")):
        with pytest.raises(issuer.FenceError, match=why):
            make(redis=server.client()).next("a")


# ---------------------------------------------------------------------------------------------- values of any size


#: As long as a message may be: it goes to a log, or to somebody's terminal.
READABLE = 500


#: Python doesn't write out an integer of more than 4300 digits: an f-string with it raises ValueError.
HUGE = {"a text": "x" * 10_000, "digits": "9" * 5_000, "an integer": 10**5_000, "below zero": -(10**5_000)}


GIVEN: dict[str, Callable[[Issuer, Any], object]] = {
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
    for name, call in GIVEN.items():
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
