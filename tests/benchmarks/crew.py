"""A process of the crew: draws when it is told to, in the shape that it was given. Started by spawn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Literal

import issuer
from tests.benchmarks.awaited import futures
from tests.benchmarks.rounds import tasks, threads
from tests.benchmarks.servers import TAG


@dataclass(frozen=True, slots=True)
class Shape:
    """How the callers of one process call: so many threads, or tasks."""

    kind: Literal["threads", "tasks"]
    callers: int

    def __str__(self) -> str:
        if self.callers == 1:
            return "1 caller"
        return f"{self.callers} {self.kind}"


def serve(shape: Shape, redis: str, store: str, orders: Connection) -> None:
    """Obey: ("draw" or "alone", seconds) is answered with numbers a second; None ends it."""
    with ExitStack() as ends:
        run = (_threads if shape.kind == "threads" else _tasks)(shape.callers, redis, store, ends)
        orders.send("ready")
        while (order := orders.recv()) is not None:
            what, seconds = order
            orders.send(run(what, seconds))


def _threads(callers: int, redis: str, store: str, ends: ExitStack) -> Callable[[str, float], float]:
    ids = ends.enter_context(issuer.connect(redis=redis, store=store))
    ids.next(TAG)
    lock, counter = threading.Lock(), count(1)

    def alone() -> int:
        with lock:
            return next(counter)

    calls: dict[str, Callable[[], object]] = {"draw": partial(ids.next, TAG), "alone": alone}
    return lambda what, seconds: threads(calls[what], callers, seconds)()


def _tasks(callers: int, redis: str, store: str, ends: ExitStack) -> Callable[[str, float], float]:
    runner = ends.enter_context(asyncio.Runner())
    face = issuer.aconnect(redis=redis, store=store)
    ids = runner.run(face.__aenter__())
    ends.callback(lambda: runner.run(face.__aexit__(None, None, None)))
    runner.run(ids.next(TAG))
    alone = ends.enter_context(futures(runner))
    calls: dict[str, Callable[[], Awaitable[Any]]] = {"draw": partial(ids.next, TAG), "alone": alone.next}
    return lambda what, seconds: tasks(runner, calls[what], callers, seconds)()
