"""Servers that tests of RESP share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.access import Access
from issuer.doors.budget import Budget
from tests.doors.resp.serving import Served

Serve = Callable[..., Served]


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers: `serve(access=..., redis=..., store=..., **options of start)`; without Redis unless told."""
    with ExitStack() as ends:

        def one(
            access: Access | None = None,
            idle: float = 300.0,
            clients_most: int = 10_000,
            progress: float = 300.0,
            budget: Budget | None = None,
            **settings: Any,
        ) -> Served:
            chosen = {"redis": "none", "store": "memory://", **settings}
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
def strict(serve: Serve, redis_url: str, tmp_path: Path) -> Served:
    """A server on a real Redis, with a strict tag `a` in segments of 1000."""
    served = serve(redis=redis_url, store=f"sqlite:///{tmp_path / 'ids.db'}")
    served.create("a", order="strict", step=1000)
    return served
