"""The handler of /v1/redis: a client without Redis reads the state of tags in the Redis of this server, and repairs it.

It also leases the machine numbers of snowflake tags. No command that it relays can issue a number.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from issuer.core.steps import Elsewhere, Masters, Pipeline, Silence, Steps, Visit
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import Forbidden, InvalidArgument, IssuerError
from issuer.gateway.commands import RedisCall
from issuer.gateway.relayed import SCOPES, call_of, reply_sent, tag_in
from issuer.views import view


class _Command(Struct):
    words: list[str]
    script: str = ""
    key: str = ""
    repeatable: bool = False


class _Asked(Struct):
    kind: str
    commands: list[_Command] = []
    server: tuple[str, int] | None = None


#: The kinds of requests without a command of the client.
_KINDS: Final = frozenset({"masters", "silence"})


async def redis(service: Service, request: Request) -> Reply:
    """Send the commands, and return their replies."""
    try:
        asked = convert(request.body["step"], _Asked)
    except ValidationError as error:
        raise Problem(422, "wrong_type", f"step: {error}", member="step") from None
    caller, prefix = request.caller, service.ids.engine.config.settings.prefix
    caller.count()
    for each in asked.commands:
        scope, tag = SCOPES.get(each.script or (each.words or [""])[0].upper()), tag_in(each.key) if each.key else None
        if scope is None or (each.key and tag is None):
            raise Forbidden(caller.name, scope="(none: the server relays no such command)", scopes=())
        caller.check(scope, tag)
        request.administers |= scope == "admin" and asked.kind != "elsewhere"
    if not asked.commands and asked.kind not in _KINDS:
        raise InvalidArgument("must be one or more", value=[], argument="commands")
    if asked.kind in ("masters", "silence", "visit"):
        caller.check("admin")
    calls = [
        call_of(each.script, each.words, each.key, repeatable=each.repeatable, prefix=prefix) for each in asked.commands
    ]
    deadline = service.ids.engine.deadline(request.timeout)
    found = await service.ids.engine.run(_steps(asked, calls), deadline, request.tag or None)
    return Reply(dumped({"replies": found}))


def _steps(asked: _Asked, calls: list[RedisCall[Any]]) -> Steps[Any]:
    match asked.kind:
        case "masters":
            return [list(each) for each in (yield Masters())]
        case "silence":
            return (yield Silence())
        case "visit" if asked.server is not None and len(calls) == 1:
            return [{"reply": reply_sent((yield Visit(asked.server, calls[0])))}]
        case "elsewhere":
            seen = yield Elsewhere(calls)
            return [
                [{"node": each.node, "reply": reply_sent(each.reply), "error": each.error} for each in sightings]
                for sightings in seen
            ]
    replies = yield Pipeline(calls)
    return [{"error": view(each)} if isinstance(each, IssuerError) else {"reply": reply_sent(each)} for each in replies]
