"""The names that `issuer` offers."""

import inspect
from collections.abc import Iterator

import pytest

import issuer
from issuer import Issuer, wiring
from tests.unit.refusals import refused

#: What the module offers of the default issuer's methods.
FUNCTIONS = ("next", "take", "issue", "peek", "decode", "reserve", "stream")


def test_next_is_not_exported_by_a_star_import() -> None:
    assert "next" not in issuer.__all__
    assert all(hasattr(issuer, name) for name in issuer.__all__)
    assert {*FUNCTIONS} - {"next"} <= {*issuer.__all__}


def test_a_function_of_the_module_takes_what_the_method_takes() -> None:
    for name in FUNCTIONS:
        function, method = getattr(issuer, name), getattr(Issuer, name)
        ours = inspect.signature(function).parameters.values()
        theirs = list(inspect.signature(method).parameters.values())[1:]
        if name == "next":
            assert theirs.pop(1).annotation == "None"  # n, which is refused
        assert [(one.name, one.default, one.annotation) for one in ours] == [
            (one.name, one.default, one.annotation) for one in theirs
        ], name
        assert {one.kind for one in ours if one.default is not one.empty} <= {inspect.Parameter.KEYWORD_ONLY}, name
        assert inspect.signature(function).return_annotation == inspect.signature(method).return_annotation, name
        assert f"see Issuer.{name}." in (inspect.getdoc(function) or "")


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        monkeypatch.setattr(wiring, "_default", ids)
        yield ids


def test_the_functions_of_the_module_are_the_default_issuer_s(default: Issuer) -> None:
    default.create("a", format="A{seq:04d}")
    assert issuer.peek("a").text == "A0001"
    assert issuer.next("a", timeout=60) == 1
    assert str(issuer.issue("a")) == "A0002"
    assert issuer.take("a", 2) == [3, 4]
    assert issuer.decode("a", "A0002").counter == issuer.decode("a", 2, holder=True).counter == 2
    assert next(issuer.stream("a", timeout=60)) == 5
    default.create("b")
    assert issuer.reserve("b", 3) == range(1, 4)


def test_the_functions_of_the_module_pass_on_what_is_asked_for(default: Issuer) -> None:
    default.create("s", shards=True)
    default.create("k", keyed=True, format="{key}/{seq}")
    default.create("a")
    shard = issuer.decode("s", issuer.next("s", shard_key="alice@example.com")).shard
    assert issuer.issue("s", shard_key="alice@example.com").shard == shard == 41
    assert issuer.peek("s", shard_key="alice@example.com").counter == 3
    assert str(issuer.issue("k", restart_key="acme")) == "acme/1"
    assert str(issuer.peek("k", restart_key="acme")) == "acme/2"
    for call in (issuer.next, issuer.issue):
        refused(issuer.ConfigurationError, "Redis", call, "a", key="order-778")
        refused(issuer.InvalidArgument, "ttl must be", call, "a", key="order-778", ttl=0)
