"""What a client does with the replies of its server: errors, replies of another form, and none."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Ask
from issuer.drivers.relay import TAKE_MOST, Relay, RelaySource
from issuer.operations.numbers import DrawOptions
from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.memory import MemoryStore
from issuer_persistence.remote.channel import Lost

T = TypeVar("T")


class Replies:
    """Stands for a channel: it has these replies, and raises those that are errors."""

    url = "issuer+http://server"

    def __init__(self, *replies: Any) -> None:
        self._replies = [*replies]
        self.sent: list[Any] = []

    def post(self, path: str, content: Any, timeout: float, headers: Mapping[str, str]) -> Any:
        assert timeout > 0
        self.sent.append((path, content, headers))
        reply = self._replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply


def played(steps: Generator[Any, Any, T]) -> T:
    """Run the steps. They do not sleep."""
    answer: Any = None
    try:
        step = next(steps)
        while True:
            try:
                answer = step.question(MemoryStore(), 60.0) if isinstance(step, Ask) else None
            except Exception as error:  # noqa: BLE001 - the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        found: T = end.value
        return found


def source(channel: Replies) -> RelaySource:
    return RelaySource(Relay(channel, "issuer"), "a")  # type: ignore[arg-type]  # stands for one


def refusal(kind: type[Unconfirmed | Misconfigured], **reply: Any) -> Exception:
    """An error of the channel, with the error's reply."""
    error = kind("said")
    error.reply = reply
    return error


@pytest.mark.parametrize("passing", [Lost("cut"), Unconfirmed("status 500"), {"numbers": [1.5]}, {}, [], "x", None])
def test_what_has_no_numbers_and_may_pass_is_asked_for_again(passing: Any) -> None:
    channel = Replies(passing, passing, {"numbers": [5, 6]})
    assert played(source(channel).take(2, Deadline(60))) == [5, 6]
    assert len(channel.sent) == 3


def test_the_last_error_before_the_deadline_is_raised_and_not_that_of_a_call_cut_short() -> None:
    deadline = Deadline(60)

    class Late(Replies):
        def post(self, *given: Any) -> Any:
            if len(self.sent) == 1:
                deadline.at = 0.0
            return super().post(*given)

    with pytest.raises(Unconfirmed, match="status 500"):
        played(source(Late(Unconfirmed("status 500"), Unconfirmed("timed out"))).take(2, deadline))
    with pytest.raises(Unconfirmed, match="timed out"):
        played(source(Replies(Unconfirmed("timed out"))).take(2, deadline))


def test_a_request_is_for_10_000_numbers_at_most() -> None:
    channel = Replies({"numbers": [1]})
    played(source(channel).take(10**6, Deadline(60)))
    assert channel.sent[0][1]["n"] == TAKE_MOST == 10_000


@pytest.mark.parametrize("status", [400, 422])
def test_an_unknown_error_about_a_request_is_a_wrong_argument(status: int) -> None:
    error = refusal(Misconfigured, code="unknown_member", status=status, detail="unknown member n", member="n")
    with pytest.raises(issuer.InvalidArgument, match=r"^unknown member n$"):
        played(source(Replies(error)).take(2, Deadline(60)))


@pytest.mark.parametrize(
    "code", ["invalid_argument", "scheme", "limit_reached", "unknown_tag", "tag_differs", "new", 5]
)
@pytest.mark.parametrize(
    "members",
    [{}, {"drawn": 5, "retry_after": "x", "argument": 5}, {"told": 1, "values": 2, "args": 3, "_said": 4, "": 5}],
    ids=["missing", "of other types", "of other names"],
)
def test_an_error_of_another_version_has_its_text(code: Any, members: dict[str, Any]) -> None:
    with pytest.raises(issuer.IssuerError) as raised:
        played(source(Replies(refusal(Misconfigured, code=code, detail="the text", **members))).take(2, Deadline(60)))
    assert str(raised.value) == "the text"
    assert raised.value.drawn == ()
    assert raised.value.values


def test_an_error_that_may_pass_tells_when() -> None:
    for given, retry_after in ((7, 7), ("x", 1.0), (None, 1.0)):
        error = refusal(Unconfirmed, code="store_unavailable", detail="away", retry_after=given)
        with pytest.raises(issuer.StoreUnavailable) as away:
            played(source(Replies(error)).take(2, Deadline(60)))
        assert away.value.retry_after == retry_after


def test_the_text_of_an_error_is_that_of_the_server() -> None:
    error = refusal(Misconfigured, code="invalid_argument", detail="n must be 1..9", argument="n", value=10)
    with pytest.raises(issuer.InvalidArgument, match=r"^n must be 1..9$") as wrong:
        played(source(Replies(error)).take(1, Deadline(60)))
    assert (wrong.value.argument, wrong.value.value) == ("n", 10)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (DrawOptions(shard_key=5), "shard_key must be a text"),  # type: ignore[arg-type]  # a mistake
        (DrawOptions(shard_key=b"\xff"), "shard_key must be a text, or bytes in UTF-8"),
        (DrawOptions(restart_key="\ud800"), "restart_key must be a text"),
        (DrawOptions(restart_key=["x"]), "restart_key must be a text"),  # type: ignore[arg-type]  # a mistake
        (DrawOptions(key=5), "a key must be a string"),  # type: ignore[arg-type]  # a mistake
        (DrawOptions(key="a\nb: c"), "control characters"),
        (DrawOptions(key="a "), "must not begin or end with blanks"),
    ],
)
def test_a_key_that_cannot_be_sent_is_refused(how: DrawOptions, said: str) -> None:
    relay: Any = Relay(Replies(), "issuer")  # type: ignore[arg-type]  # stands for one
    with pytest.raises(issuer.InvalidArgument, match=said):
        played(relay.issue("a", how, Deadline(60)))
