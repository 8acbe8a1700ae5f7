"""OpenTelemetry spans for each call to the store, and each call to Redis outside of the fast path.

Spans are made if the program has loaded OpenTelemetry's API and set a tracer provider. This module does not import the
API. If the program has not loaded the API, a call costs one lookup in a dict. Names and attributes follow the
conventions for database clients. Spans contain no numbers, and no texts of errors, which could contain numbers.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from issuer.core.steps import Ask, Elsewhere, Masters, Pipeline, Send, Silence, Visit
from issuer.errors import IssuerError
from issuer.gateway.keys import PART
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from issuer.gateway.commands import RedisCall

_API = "opentelemetry.trace"
_NAME = "issuer"
_NOTHING: AbstractContextManager[None] = nullcontext()
#: The last tracer provider and its tracer. They are kept because creating a tracer takes longer than a span.
_last: tuple[Any, Any] = (None, None)

#: Finds the name of a Lua script at the start of its header.
_SCRIPT = re.compile(r"--\[\[\s*(\w+):")


def around(
    step: Ask | Send | Pipeline | Masters | Silence | Visit | Elsewhere, tag: str | None, store: Store | None = None
) -> AbstractContextManager[None]:
    """Return a context manager that makes the span of a step. Without tracing it does nothing.

    `store`: the store that is called, None for a call to Redis. `tag`: the tag of the call, or None. If the tag is a
    part, the span has the name of the parent tag, because the name of a part may be personal.
    """
    global _last  # noqa: PLW0603 - a cache, one per process
    api = sys.modules.get(_API)
    provided = getattr(api, "get_tracer_provider", None)  # missing while the API is being imported
    if api is None or provided is None:
        return _NOTHING
    provider = provided()
    if isinstance(provider, api.ProxyTracerProvider):  # no provider is set; redis-py may have imported the API
        return _NOTHING
    if _last[0] is not provider:
        _last = provider, provider.get_tracer(_NAME)
    # In the conventions, a database is named by the scheme of its URL without the transport: mongodb+srv is mongodb.
    system = "redis" if store is None else store.url.partition("://")[0].partition("+")[0]
    operation, script = _operation(step)
    attributes = {"db.system.name": system, "db.operation.name": operation}
    if script:
        attributes["db.stored_procedure.name"] = script
    if tag is not None:
        attributes["issuer.tag"] = tag.partition(PART)[0]
    return _span(_last[1], f"{operation} {script}".rstrip(), attributes)


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
            if not isinstance(error, StoreError):  # a StoreError is a normal reply of the store, no failure
                span.set_status(api.StatusCode.ERROR)
            raise


def _operation(step: Ask | Send | Pipeline | Masters | Silence | Visit | Elsewhere) -> tuple[str, str]:
    """Return the name of the operation and the name of its script. The script's name is "" if there is no script."""
    if isinstance(step, Ask):
        return _question(step.question), ""
    match step:
        case Masters() | Silence():
            return "find masters", ""
        case Send() | Visit():
            return _command(step.call)
    operation, script = _command(step.calls[0])
    return (operation if len(step.calls) == 1 else "PIPELINE"), script


def _command(call: RedisCall[Any]) -> tuple[str, str]:
    if call.text:
        return "EVALSHA", _script(call.text)
    return call.packed.split(b"\r\n", 3)[2].decode(), ""


@cache
def _script(text: str) -> str:
    found = _SCRIPT.match(text)
    return found[1] if found else ""


def _question(question: Callable[..., Any]) -> str:
    """Return the name of the store's method that `question` calls, as its code shows. "ask" if no method is found."""
    called = question if hasattr(question, "__code__") else type(question).__call__  # `Read` is no function
    names = getattr(getattr(called, "__code__", None), "co_names", ())
    return next((name for name in names if callable(getattr(Store, name, None))), "ask")
