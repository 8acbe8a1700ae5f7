"""A WSGI service that draws while it is loaded, before it is forked: for gunicorn --preload."""

import json
import os
from collections.abc import Callable, Iterable

import issuer

ids = issuer.connect(
    redis=os.environ["PREFORK_REDIS"], store=os.environ["PREFORK_STORE"], lease=int(os.environ["PREFORK_LEASE"])
)
before = [*ids.take("a", 10), ids.next("a")]  # a lease, or a segment, is left in hand


def app(environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Answer with this process's id, what was drawn before the fork, and fresh numbers."""
    del environ
    start_response("200 OK", [("Content-Type", "application/json")])
    numbers = [ids.next("a") for _ in range(20)] + ids.take("a", 20)
    return [json.dumps({"pid": os.getpid(), "before": before, "numbers": numbers}).encode()]
