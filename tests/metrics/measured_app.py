"""A WSGI service for gunicorn --preload that is measured: each request draws, /metrics shows."""

import os
from collections.abc import Callable, Iterable

import issuer
from issuer.metrics import install

ids = issuer.connect(redis=os.environ["MEASURED_REDIS"], store=os.environ["MEASURED_STORE"])
metrics = install(ids)
ids.take("a", 7)  # before the fork


def app(environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Draw two numbers, or show the metrics of all workers."""
    kind, body = "text/plain", b""
    if environ["PATH_INFO"] == "/metrics":
        kind, body = metrics.exposition()
    else:
        body = f"{os.getpid()} {[ids.next('a'), ids.next('a')]}".encode()
    start_response("200 OK", [("Content-Type", kind)])
    return [body]
