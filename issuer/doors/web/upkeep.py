"""Handlers of the routes for operators (verify, doctor, halt, recover), and of the server's own routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from issuer.advice import http
from issuer.care.care import Verdict
from issuer.doors.web.calls import Request
from issuer.doors.web.page import POLICY
from issuer.doors.web.replies import LINES, Problem, Reply, answer, as_strings, dumped, shown
from issuer.doors.web.service import Service
from issuer.threads import in_thread
from issuer.views import advised, view

#: Maximum number of halted tags whose names a reply of /readyz can contain.
HALTED_MOST: Final = 1000


async def verify(service: Service, call: Request) -> Reply:
    """Check the ledger.

    If the client wants lines, send one line for each tag as soon as the tag is checked. Otherwise reply when all tags
    are checked.
    """
    if not call.prefers(LINES, b"application/*"):
        found = await service.ids.verify(call.tag or None, timeout=call.timeout)
        return shown({"discrepancies": [advised(each, http) for each in found]}, as_string=call.as_string)
    outcomes = await service.ids.engine.care.verified(call.tag or None, call.timeout)
    first = await anext(outcomes, None)  # if the whole request fails, this line raises before the status is sent
    if first is not None and first.error is not None and call.tag:
        raise first.error
    return Reply(media=LINES, rest=_lines(first, outcomes, as_string=call.as_string))


async def _lines(outcome: Verdict | None, others: AsyncIterator[Verdict], *, as_string: bool) -> AsyncIterator[bytes]:
    done = 0
    while outcome is not None:
        done += 1
        content: dict[str, Any] = {"tag": outcome.tag, "done": done, "of": outcome.of}
        content["discrepancies"] = [advised(each, http) for each in outcome.result or ()]
        line = dumped(as_strings(content) if as_string else content)
        error = b"null" if outcome.error is None else answer(outcome.error, "", as_string=as_string).body
        yield line[:-1] + b',"error":' + error + b"}\n"
        outcome = await anext(others, None)


async def doctor(service: Service, call: Request) -> Reply:
    """Check the installation, and list risks and remedies."""
    found = await service.ids.doctor(timeout=call.timeout)
    return shown({"findings": [advised(each, http) for each in found]}, as_string=call.as_string)


async def halt(service: Service, call: Request) -> Reply:
    """Stop all reservations of a tag."""
    await service.ids.halt(call.tag, timeout=call.timeout)
    return Reply(status=204)


async def recover(service: Service, call: Request) -> Reply:
    """Recover a tag. With `dry_run`, only show what `recover` would change."""
    dry_run, at_least = call.body.get("dry_run", True), call.body.get("at_least", 0)
    done = await service.ids.recover(call.tag, at_least=at_least, dry_run=dry_run, timeout=call.timeout)
    return shown({"dry_run": dry_run, "recoveries": list(map(view, done))}, as_string=call.as_string)


async def alive(_: Service, call: Request) -> Reply:
    """Reply that the event loop runs."""
    return shown({"status": "ok"}, as_string=call.as_string)


async def readyz(service: Service, call: Request) -> Reply:
    """Reply whether this process accepts requests. Also show whether Redis and the store answer, and the halted tags.

    A process is ready until it begins to stop. While Redis or the store is down, it still serves buffered numbers.
    While a tag is halted, it still serves other tags. All servers share Redis and the store: if an outage made the
    servers not ready, a load balancer would remove all of them at once.
    """
    if service.stopping:
        detail = "this server is stopping: send new requests to another one"
        raise Problem(503, "stopping", detail, headers=[(b"retry-after", b"1")], ready=False)
    content = await service.probe.readiness(service.ids)
    halted = content["halted"]
    # This route needs no token. Names of tags are shown only to callers that may read these tags.
    shown_tags = [tag for tag in halted[:HALTED_MOST] if call.caller.may("read", tag)]
    content = content | {"halted": len(halted), "halted_tags": shown_tags}
    return shown(content, as_string=call.as_string)


async def metrics(service: Service, _: Request) -> Reply:
    """Show the metrics of the server."""
    if service.metrics is None:
        raise Problem(404, "not_found", "this server has no metrics")
    media, body = await in_thread(service.metrics)  # `metrics` may read the files of other workers
    return Reply(body, media.encode())


async def document(service: Service, _: Request) -> Reply:
    """Show the OpenAPI document."""
    return Reply(service.document)


async def page(service: Service, _: Request) -> Reply:
    """Show the OpenAPI document as a page for people."""
    policy = ((b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer"))
    return Reply(service.page, b"text/html; charset=utf-8", headers=policy)
