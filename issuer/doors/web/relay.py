"""The handler of /v1/redis: a client without Redis reads the state of tags in the Redis of this server, and repairs it.

It also leases the machine numbers of snowflake tags. No command that it relays can issue a number.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, ValidationError, convert

from issuer.core.steps import Elsewhere, Pipeline, Steps
from issuer.doors.outside import outside
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import Forbidden, InvalidArgument, IssuerError
from issuer.gateway.commands import RedisCall
from issuer.gateway.relayed import call_of, reply_sent, required
from issuer.views import view


class _Command(Struct):
    words: list[str]
    script: str
    key: str
    repeatable: bool


class _Asked(Struct):
    kind: Literal["pipeline", "elsewhere"]
    commands: list[_Command]


async def redis(service: Service, request: Request) -> Reply:
    """Send the commands, and return their replies."""
    try:
        asked = convert(request.body["step"], _Asked)
    except ValidationError as error:
        raise Problem(422, "wrong_type", f"step: {error}", member="step") from None
    if not asked.commands:
        raise InvalidArgument("must be one or more", value=[], argument="commands")
    caller, engine = request.caller, service.ids.engine
    caller.count()
    for each in asked.commands:
        needed = required(each.script, each.words, each.key)
        if needed is None:
            raise Forbidden(caller.name, scope="(none: the server relays no such command)", scopes=())
        # The replies of all nodes have their addresses.
        caller.check("admin" if asked.kind == "elsewhere" else needed[0], needed[1])
        request.administers |= needed[0] == "admin"
    prefix = engine.config.settings.prefix
    calls = [
        call_of(each.script, each.words, each.key, repeatable=each.repeatable, prefix=prefix) for each in asked.commands
    ]
    found = await engine.run(_steps(asked.kind, calls), engine.deadline(request.timeout), None)
    return Reply(dumped({"replies": found}))


def _steps(kind: str, calls: list[RedisCall[Any]]) -> Steps[Any]:
    if kind == "elsewhere":
        seen = yield Elsewhere(calls)
        return [
            [{"node": each.node, "reply": reply_sent(each.reply), "error": each.error} for each in sightings]
            for sightings in seen
        ]
    replies = yield Pipeline(calls)
    return [
        {"error": view(outside(each))} if isinstance(each, IssuerError) else {"reply": reply_sent(each)}
        for each in replies
    ]
