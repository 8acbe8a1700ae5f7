"""Handlers for operators: verify, doctor, halt, recover; and the server's own routes."""

from __future__ import annotations

import asyncio

from issuer.advice import http
from issuer.http.calls import Call
from issuer.http.problems import Problem
from issuer.http.replies import PROBLEM, Reply, dumped, shown
from issuer.http.service import Service
from issuer.views import view


async def verify(service: Service, call: Call) -> Reply:
    """Compare ledger, store and Redis."""
    found = await service.ids.verify(call.tag or None, timeout=call.timeout)
    return shown({"discrepancies": list(map(view, found))}, as_string=call.as_string)


async def doctor(service: Service, call: Call) -> Reply:
    """Examine everything."""
    found = await service.ids.doctor(most=call.query.get("most"), timeout=call.timeout)
    findings = [view(each) | {"remedy": each.told(http)} for each in found]
    return shown({"findings": findings}, as_string=call.as_string)


async def halt(service: Service, call: Call) -> Reply:
    """Stop a tag's reservations."""
    await service.ids.halt(call.tag, timeout=call.timeout)
    return Reply(status=204)


async def recover(service: Service, call: Call) -> Reply:
    """Recover a tag, or show what that would do."""
    dry_run = call.body.get("dry_run", True)
    at_least = call.body.get("at_least", 0)
    done = await service.ids.recover(call.tag, at_least=at_least, dry_run=dry_run, timeout=call.timeout)
    return shown({"dry_run": dry_run, "recoveries": list(map(view, done))}, as_string=call.as_string)


async def healthz(service: Service, call: Call) -> Reply:
    """Say that the loop runs."""
    del service
    return shown({"status": "ok"}, as_string=call.as_string)


async def readyz(service: Service, call: Call) -> Reply:
    """Say whether numbers can be had, and why not."""
    found = await service.ready()
    content = view(found)
    halted = content.pop("halted")
    # Anybody may ask: names of tags, and of servers in messages, are for those who may read them.
    shown_tags = [tag for tag in halted if call.caller.may("read", tag)]
    content |= {"halted": len(halted), "halted_tags": shown_tags}
    if found:
        return shown(content, as_string=call.as_string)
    reasons = [name for name in ("store", "redis") if content[name] is not None] + (["halted"] if halted else [])
    problem = {
        "type": "about:blank", "title": "Service Unavailable", "status": 503, "code": "not_ready",
        "detail": f"not ready: {', '.join(reasons)}",
    }  # fmt: skip
    return Reply(dumped(problem | content), PROBLEM, 503, [(b"retry-after", b"1")])


async def metrics(service: Service, call: Call) -> Reply:
    """Show the metrics that the server counts."""
    del call
    if service.metrics is None:
        raise Problem(404, "not_found", "this server counts no metrics")
    media, body = await asyncio.to_thread(service.metrics)  # it may read other workers' files
    return Reply(body, media.encode())


async def document(service: Service, call: Call) -> Reply:
    """Show the document of the API."""
    del call
    return Reply(service.document)


async def page(service: Service, call: Call) -> Reply:
    """Show the same to people."""
    del call
    policy = [(b"content-security-policy", service.policy), (b"referrer-policy", b"no-referrer")]
    return Reply(service.page, b"text/html; charset=utf-8", headers=policy)
