"""The server of a client that has neither Redis nor a store: it draws the numbers that the client cannot draw itself.

The client's calls to the store go through `issuer_persistence.remote`. This module sends the rest to the server, over
the same connections: draws of strict tags, of keys and of texts, and the commands for Redis of operators' methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from issuer.clock import Deadline, pause
from issuer.core.issued import Issued
from issuer.core.scheme_record import SEGMENT, SNOWFLAKE, strategy
from issuer.core.steps import Ask, Elsewhere, Pipeline, Send, Sighting, Step, Steps, ask, sleep
from issuer.errors import ConfigurationError, InvalidArgument, IssuerError, RedisUnavailable, brief, restored
from issuer.gateway.commands import RedisCall
from issuer.gateway.keys import check_key, has_blanks
from issuer.gateway.relayed import reply_of, sent
from issuer_persistence.errors import StoreError, Unconfirmed
from issuer_persistence.records import Tag
from issuer_persistence.remote.channel import HTTPChannel, Lost

T = TypeVar("T")

#: Most numbers of a request. A request for more takes so long that other requests of the client wait.
TAKE_MOST = 10_000

#: Members of an error's reply that are no attributes of the error.
_BESIDE = frozenset({"type", "title", "status", "code", "detail", "error", "message"})

#: Statuses of requests with a wrong argument.
_WRONG = (400, 422)


@dataclass(frozen=True, slots=True)
class Relay:
    """Sends requests to the server. `prefix`: that of the client's keys, which are sent without it."""

    channel: HTTPChannel
    prefix: str

    @staticmethod
    def served_here(record: Tag) -> bool:
        """Whether a client makes the tag's numbers itself: from segments in its memory, or from a machine number."""
        kind = strategy(record.scheme)
        return kind == SNOWFLAKE or (kind == SEGMENT and record.order == "trend" and not record.scheme)

    def ask(self, step: Step) -> Ask:
        """Return the request that does in the Redis of the server what this step does in one's own.

        Raises ConfigurationError for a step that is done at the server only.
        """
        match step:
            case Send(call):
                kind, calls = "pipeline", [call]
            case Pipeline(calls=several):
                kind, calls = "pipeline", [*several]
            case Elsewhere(several):
                kind, calls = "elsewhere", [*several]
            case _:
                raise ConfigurationError(f"this issuer draws from {self.channel.url}: make this call at the server")
        content = {"kind": kind, "commands": [sent(each, self.prefix) for each in calls]}

        def decode(found: Any) -> object:
            return _answer(step, calls, found["replies"])

        def question(_: object, seconds: float) -> object:
            try:
                return self.post("/v1/redis", {"step": content}, seconds, decode)
            except Unconfirmed as error:
                raise RedisUnavailable(str(error)) from error

        return Ask(question)

    def post(
        self,
        path: str,
        content: dict[str, Any] | None,
        seconds: float,
        decode: Callable[[Any], T],
        **headers: str,
    ) -> T:
        """Return the reply, read by `decode`, to a GET without `content`.

        Raises the error of the server, or Unconfirmed if there is none, or if the reply has another form.
        """
        try:
            sent = None if content is None else {**content, "timeout": seconds}
            found = self.channel.post(path, sent, seconds, headers)
        except StoreError as error:
            if isinstance(error, Lost) or "code" not in error.reply:
                raise
            raise _error(error.reply) from error
        try:
            return decode(found)
        except IssuerError:  # some are also errors of Python
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            problem = f"{self.channel.url}: the reply to {path} is not one of this version of the issuer"
            raise Unconfirmed(problem) from error

    def draw(self, make: Callable[[float], T], deadline: Deadline) -> Steps[T]:
        """Call `make` with the seconds that are left. While it raises Unconfirmed, try again until the deadline.

        A request without a reply may have drawn numbers: these are a gap.
        """
        attempt, last = 0, None
        while True:
            try:
                return (yield from ask(lambda _, seconds: make(seconds)))
            except Unconfirmed as error:
                if deadline.left() <= 0:
                    raise (last or error) from None  # the error of a call that was cut short tells nothing
                last = error
            yield from sleep(min(pause(attempt), deadline.left()))
            if deadline.left() <= 0:
                raise last
            attempt += 1

    def issue(self, tag: str, how: Any, deadline: Deadline) -> Steps[Issued]:
        """Issue one number at the server. With a key, a request that was lost returns the same number again."""
        content, headers = _keys(tag, how), dict[str, str]()
        if how.key is not None:
            content["ttl"], headers["idempotency-key"] = how.ttl, _in_header(tag, check_key(how.key))
        path = path_of(tag, "next")
        return (yield from self.draw(lambda left: self.post(path, content, left, _issued, **headers), deadline))

    def findings(self) -> Steps[list[dict[str, Any]]]:
        """Return what `doctor` finds at the server. A remedy has no fields: each brace in it is doubled."""

        def decode(found: Any) -> list[dict[str, Any]]:
            for each in found["findings"]:
                each["advice"], each["error"] = each.pop("remedy").replace("{", "{{").replace("}", "}}"), None
            return list(found["findings"])

        return (yield from ask(lambda _, seconds: self.post("/v1/doctor", None, seconds, decode)))

    def peek(self, tag: str, how: Any) -> Steps[Issued]:
        """Return the number that the server will issue next."""
        path = path_of(tag, "peek", **_keys(tag, how))
        return (yield from ask(lambda _, seconds: self.post(path, None, seconds, _issued)))


def _answer(step: Step, calls: Sequence[RedisCall[Any]], found: Any) -> object:
    """Return the result of the step, from the replies of the server."""
    if isinstance(step, Elsewhere):
        return [
            [Sighting(each["node"], _reply(call, each), each["error"]) for each in sightings]
            for call, sightings in zip(calls, found, strict=True)
        ]
    answers = [_reply(call, each) for call, each in zip(calls, found, strict=True)]
    if isinstance(step, Pipeline):
        return answers
    if isinstance(answers[0], IssuerError):
        raise answers[0]
    return answers[0]


def _reply(call: RedisCall[Any], found: Mapping[str, Any]) -> Any:
    """Return the decoded reply of a command, or its error. None for an error that is a text."""
    error = found.get("error")
    if error:
        return _error(error) if isinstance(error, Mapping) else None
    return call.decode(reply_of(found["reply"]))


def _error(problem: Mapping[str, Any]) -> IssuerError:
    values = {name: each for name, each in problem.items() if name not in _BESIDE}
    error = restored(str(problem.get("code")), str(problem.get("detail", problem.get("message"))), values)
    if type(error) is IssuerError and problem.get("status") in _WRONG:  # such as a member that the server lacks
        return InvalidArgument(str(error), tag=error.tag)
    return error


def path_of(tag: str, act: str, **query: str) -> str:
    """Return the path of a route of a tag, with this query."""
    if tag in (".", ".."):  # proxies resolve such names
        tag, query = "-", {**query, "tag": tag}
    return f"/v1/tags/{quote(tag, safe='')}/{act}{'?' if query else ''}{urlencode(query)}"


def _keys(tag: str, how: Any) -> dict[str, Any]:
    """Return the keys that select a part of the tag. JSON has only keys in UTF-8."""
    given = {name: getattr(how, name) for name in ("shard_key", "restart_key") if getattr(how, name) is not None}
    for name, key in given.items():
        try:
            given[name] = (key if isinstance(key, bytes) else key.encode()).decode()
        except (AttributeError, UnicodeError) as error:
            problem = f"must be a text, or bytes in UTF-8, not {brief(key)}"
            raise InvalidArgument(problem, tag=tag, value=key, argument=name) from error
    return given


def _in_header(tag: str, key: str) -> str:
    """Return the key as `http.client` needs it, which sends Latin-1. Servers strip blanks around a header's value."""
    if has_blanks(key):
        raise InvalidArgument(f"must not begin or end with blanks, as {brief(key)} does", tag=tag, argument="key")
    return key.encode().decode("latin-1")


def _issued(found: Mapping[str, Any]) -> Issued:
    number = found["number"]
    text, period, shard = str(found.get("text", number)), found.get("period"), found.get("shard")
    return Issued(found["tag"], number, text, period=period, shard=shard)


def _numbers(found: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a reply. A JSON number that is not whole would be rounded: `index` raises TypeError."""
    return [index(each) for each in found["numbers"]]


class RelaySource:
    """Draws the numbers of one tag at the server. Callers that call at the same time share a request."""

    #: Callers share a draw; see `Supply.alone`.
    shared = True

    def __init__(self, relay: Relay, tag: str) -> None:
        self._relay, self._tag = relay, tag
        self._most = TAKE_MOST
        self.left = True

    @property
    def ready(self) -> Iterator[int] | None:
        """None: no number is in memory."""
        return None

    @property
    def equipped(self) -> bool | None:
        """None: a machine number is not needed."""
        return None

    def take(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        """Return up to n numbers, at least one. If an error comes after some of them, return these."""
        relay, n = self._relay, min(n, self._most)
        # Not the route `next`: if the tag has a format, a number of which no text can be made is refused there.
        path = path_of(self._tag, "take")
        try:
            return (yield from relay.draw(lambda left: relay.post(path, {"n": n}, left, _numbers), deadline))
        except IssuerError as error:
            if error.drawn:
                return list(error.drawn)
            if n <= 1 or not isinstance(error, InvalidArgument) or error.argument != "n":
                raise
            # The rate of the token allows fewer numbers at once. Callers that share a request want one number each.
            self._most = n // 2
            return (yield from self.take(n, deadline))

    def warm(self, deadline: Deadline) -> Steps[None]:
        """Let the server load numbers."""
        relay, path = self._relay, path_of(self._tag, "warm")
        yield from relay.draw(lambda left: relay.post(path, {}, left, dict), deadline)

    def found(self, _: Deadline) -> Steps[None]:
        """Do nothing: the server has its own source."""
        return
        yield

    def sweep(self, _: Deadline) -> Steps[None]:
        """Do nothing: there are no resources."""
        return
        yield

    def end(self) -> None:
        """Do nothing: there are no resources."""

    def close(self, _: Deadline) -> Steps[None]:
        """Do nothing: there are no resources."""
        return
        yield
