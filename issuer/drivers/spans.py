"""Spans of OpenTelemetry around the calls of the cold path: each of the store, each of Redis but the draws of its own.

There are spans if the program has loaded OpenTelemetry's API and set a tracer provider, as each program does that
traces. Nothing is imported here, and where the API isn't loaded a look into a dict is all that a call costs. Names and
attributes are those of the conventions for database clients. No number stands in them, and no text of an error, which
may have one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from issuer.core.steps import Ask, Elsewhere, Masters, Send, Visit
from issuer.errors import IssuerError
from issuer.gateway import RedisCall
from issuer.gateway.keys import PART
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError

#: In place of a store's URL: the calls of Redis.
REDIS = "redis://"

_API = "opentelemetry.trace"
_NAME = "issuer"
_NOTHING: AbstractContextManager[None] = nullcontext()

#: The name of a script, at the beginning of its header.
_SCRIPT = re.compile(r"--\[\[\s*(\w+):")


def around(step: Ask | Send | Masters | Visit | Elsewhere, tag: str | None, url: str) -> AbstractContextManager[None]:
    """Return the span of a step, to be entered around it; nothing if the program doesn't trace.

    `url`: of the store that is asked, or REDIS. The name of a tag's part may be a user's: the span has the tag's.
    """
    tracer = _tracer() if _API in sys.modules else None
    if tracer is None:
        return _NOTHING
    # The conventions call a store as the scheme of its URL does, without a transport: mongodb+srv is mongodb.
    system = url.partition("://")[0].partition("+")[0]
    operation, script = _operation(step)
    attributes = {"db.system.name": system, "db.operation.name": operation}
    if script:
        attributes["db.stored_procedure.name"] = script
    if tag is not None:
        attributes["issuer.tag"] = tag.partition(PART)[0]
    return _span(tracer, f"{operation} {script}".rstrip(), attributes)


#: The tracer provider that was there last, and its tracer: to make one takes longer than a span.
_last: tuple[Any, Any] = (None, None)


def _tracer() -> Any:
    """Return the program's tracer for us; None if it doesn't trace."""
    global _last  # noqa: PLW0603 - one per process is what it is for
    api = sys.modules.get(_API)
    provided = getattr(api, "get_tracer_provider", None)  # missing while it is being loaded
    if api is None or provided is None:
        return None
    provider = provided()
    if isinstance(provider, api.ProxyTracerProvider):  # none is set: redis-py may have loaded the API for itself
        return None
    known, tracer = _last
    if known is not provider:
        tracer = provider.get_tracer(_NAME)
        _last = provider, tracer
    return tracer


@contextmanager
def _span(tracer: Any, name: str, attributes: dict[str, str]) -> Iterator[None]:
    api: Any = sys.modules[_API]
    with tracer.start_as_current_span(
        name, kind=api.SpanKind.CLIENT, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", error.code if isinstance(error, IssuerError) else type(error).__name__)
            if not isinstance(error, StoreError):  # the store's answer, which decides what is done next
                span.set_status(api.StatusCode.ERROR)
            raise


def _operation(step: Ask | Send | Masters | Visit | Elsewhere) -> tuple[str, str]:
    """Return the name of what is done, and that of the script that does it, "" for none."""
    if isinstance(step, Ask):
        return _question(step.question), ""
    return ("find masters", "") if isinstance(step, Masters) else _command(step.call)


def _command(call: RedisCall[Any]) -> tuple[str, str]:
    if call.text:
        return "EVALSHA", _script(call.text)
    return call.packed.split(b"\r\n", 3)[2].decode(), ""


@cache
def _script(text: str) -> str:
    found = _SCRIPT.match(text)
    return found[1] if found else ""


def _question(question: Callable[..., Any]) -> str:
    """Return the store's method that a question calls, as its code names it; "ask" if it calls none by name."""
    while isinstance(question, partial):
        question = next((each for each in question.args if callable(each)), question.func)
    names = getattr(getattr(question, "__code__", None), "co_names", ())
    return next((name for name in names if callable(getattr(Store, name, None))), "ask")
