"""Servers that tests of RESP share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.access import Access
from issuer.doors.budget import Budget
from tests.doors.resp.serving import Raw, Served
from tests.servers.proxy import FaultProxy

Serve = Callable[..., Served]


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers: `serve(access=..., redis=..., **options of start)`; those with a Redis share a store in a file."""
    with ExitStack() as ends:

        def one(
            access: Access | None = None,
            idle: float = 300.0,
            clients_most: int = 10_000,
            progress: float = 300.0,
            budget: Budget | None = None,
            **settings: Any,
        ) -> Served:
            store = f"sqlite:///{tmp_path / 'ids.db'}" if "redis" in settings else "memory://"
            chosen = {"redis": "none", "store": store, **settings}
            limits = {"idle": idle, "clients_most": clients_most, "progress": progress, "budget": budget}
            return ends.enter_context(Served(chosen, access, **limits))

        yield one


@pytest.fixture
def direct(serve: Serve) -> Served:
    """A server without Redis, with a trend tag `a`."""
    served = serve()
    served.create("a", order="trend")
    return served


@pytest.fixture
def client(direct: Served) -> Iterator[Raw]:
    """A client of `direct`."""
    with direct.client() as made:
        yield made


@pytest.fixture
def strict(serve: Serve, redis_url: str) -> Served:
    """A server on a real Redis, with a strict tag `a` in segments of 1000."""
    served = serve(redis=redis_url)
    served.create("a", order="strict", step=1000)
    return served


@pytest.fixture
def proxied(serve: Serve, redis_proxy: FaultProxy) -> Served:
    """A server that reaches Redis through the proxy, with a strict tag `a`."""
    served = serve(redis=redis_proxy.url)
    served.create("a", order="strict")
    return served
