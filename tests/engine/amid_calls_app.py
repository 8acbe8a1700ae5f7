"""Forks in the middle of calls that go on in the child; the child writes what its callers got, the parent prints it.

python -m tests.engine.amid_calls_app WAY WHERE REDIS STORE CHILD_FILE
"""

# ruff: noqa: E402 - gevent patches first of all

import sys

way, where, redis, store, child_file = sys.argv[1:]
if way == "greenlets":
    from gevent import monkey

    monkey.patch_all()

import asyncio
import importlib
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import issuer
from issuer.drivers.aio.callers import Waiter

CALLERS = 20
#: More than the parent uses of a lease that it draws when the fork comes.
LEASE = 100
parent = os.getpid()
numbers: list[int] = []
refused: list[str] = []
others: list[str] = []
children: list[int] = []
forks_left = [0]


def fork() -> None:
    """Fork once. The child forgets what was over before."""
    if forks_left[0]:
        forks_left[0] -= 1
        children.append(os.fork())
        if children[0] == 0:
            signal.alarm(100)  # a call that waits for ever ends the child
            for each in (numbers, refused, others):
                each.clear()


def fork_at(place: str, *, before: bool = False) -> None:
    """Fork at the next end of a method, or at its begin. `place`: module:Class.method."""
    module, _, path = place.partition(":")
    name, _, method = path.rpartition(".")
    owner = getattr(importlib.import_module(module), name)
    original = getattr(owner, method)

    def called(*args: Any, **more: Any) -> Any:
        if before:
            fork()
        result = original(*args, **more)
        if not before:
            fork()
        return result

    async def awaited(*args: Any, **more: Any) -> Any:
        result = await original(*args, **more)
        fork()
        return result

    setattr(owner, method, awaited if iscoroutinefunction(original) else called)
    forks_left[0] = 1


def got(call: Callable[[], list[int]]) -> None:
    """Keep what a call returns, or its error."""
    try:
        numbers.extend(call())
    except issuer.IssuerError as error:
        numbers.extend(error.drawn)
        (refused if isinstance(error, issuer.Unavailable) else others).append(repr(error))


def end() -> None:
    """Let the child write what its callers got, and the parent print it."""
    if os.getpid() != parent:
        told = json.dumps({"numbers": numbers, "refused": refused, "others": others})
        Path(child_file).write_text(told, encoding="utf-8")
        os._exit(0)
    assert os.waitpid(children[0], 0)[1] == 0
    print(json.dumps(numbers), flush=True)
    os._exit(1 if others or refused else 0)


LINK = "issuer.drivers.blocking.link:Link.ask"
DONE = "issuer.drivers.blocking.runner:Runner._result"
#: For each place of a blocking call: where the fork comes, settings of the tag, and the call.
PLAIN: dict[str, tuple[str, dict[str, Any], Callable[[Any], list[int]]]] = {
    "reply": (LINK, {}, lambda ids: [ids.next("t")]),
    "released": ("issuer.drivers.blocking.connections:Node.draw", {}, lambda ids: [ids.next("t")]),
    "take": (LINK, {}, lambda ids: ids.take("t", 5)),
    "issue": (DONE, {}, lambda ids: [ids.issue("t").value]),
    "reserve": (DONE, {"order": "trend"}, lambda ids: list(ids.reserve("t", 5))),
    "refill": (
        "issuer.drivers.blocking.connections:Node.draw",
        {"order": "trend", "lease": LEASE},
        lambda ids: [ids.next("t") for _ in range(6 * LEASE)],
    ),
    "drawn": ("issuer.drivers.blocking.combiner:Combiner.draw", {"step": 7}, lambda ids: ids.take("t", 30)),
    "strategy": (
        "issuer.strategies.serving:StrategyRunner._checked",
        {"strategy": "snowflake"},
        lambda ids: ids.take("t", 5),
    ),
}
#: For each place where greenlets wait: where the fork comes, and settings of the tag.
GREENLETS: dict[str, tuple[str, dict[str, Any]]] = {
    "set aside": ("issuer.core.supply.local_buffer:LocalBuffer.add", {"order": "trend", "step": 5}),
    "batch": ("issuer.drivers.blocking.combiner:Batch.finish", {}),
}


def plain() -> None:
    """Fork within a call, as a signal handler may."""
    place, settings, call = PLAIN[where]
    ids = issuer.connect(redis=redis, store=store, scheduler="background" if where == "refill" else None)
    ids.create("t", **settings)
    ids.next("t")
    fork_at(place)
    got(partial(call, ids))
    if where == "refill" and os.getpid() != parent and (ids.inspect("t").redis.cur or 0) >= ids.next("t"):  # type: ignore[union-attr]  # Redis answers
        others.append("a number of the lease that belongs to the parent")
    end()


def greenlets() -> None:
    """Fork in one of several greenlets; copies of all go on in the child."""
    import gevent

    place, settings = GREENLETS[where]
    ids = issuer.connect(redis=redis, store=store)
    ids.create("t", **settings)
    ids.next("t")
    fork_at(place, before=where == "batch")
    while not children:  # on a busy machine they may all come one after the other, and make no batch
        calls = [gevent.spawn(got, lambda: [ids.next("t", timeout=60)]) for _ in range(CALLERS)]
        calls += [gevent.spawn(got, lambda: [ids.next("t")]) for _ in range(CALLERS)]
        gevent.joinall(calls, timeout=90)
    end()


class Asked(Waiter):
    """What a client of `issuer serve` is for a draw."""

    def __init__(self, n: int) -> None:
        self.missing, self.client, self.over = n, self, asyncio.Event()

    def flush(self) -> None:
        """Nothing is to be sent."""

    def done(self) -> bool:
        return self.over.is_set()

    def set_result(self, number: int) -> None:
        self.give([number])

    def give(self, given: Any) -> None:
        numbers.extend(given)
        self.missing -= len(given)
        if not self.missing:
            self.over.set()

    def set_exception(self, error: BaseException) -> None:
        refused.append(repr(error))
        self.over.set()


#: For each place of tasks: where the fork comes, or "" if the first task that has its number forks.
TASKS = {
    "next": "",
    "take": "issuer.engine.aio:AsyncEngine._drawn",
    "issue": "issuer.drivers.aio.runner:AsyncRunner.run",
    "waiter": "issuer.drivers.aio.connections:AsyncConnections.draw",
    "refill": "issuer.drivers.aio.connections:AsyncConnections.draw",
}


async def tasks() -> None:
    """Fork in one of several tasks; the loop goes on in the child."""
    ids = issuer.aconnect(redis=redis, store=store, scheduler=None)
    settings: dict[str, Any] = {"order": "trend", "lease": LEASE} if where == "refill" else {}
    await ids.create("t", **settings)
    await ids.next("t")

    async def call() -> None:
        try:
            if where == "waiter":
                asked = Asked(2)
                ids.engine.combiner("t").enqueue(asked)
                await asked.over.wait()
            elif where == "take":
                numbers.extend(await ids.take("t", 2))
            elif where == "issue":
                numbers.append((await ids.issue("t")).value)
            else:
                number = await ids.next("t")
                numbers.append(number)
                fork()
        except (issuer.Unavailable, RuntimeError) as error:  # Python 3.11: a forked child has no running loop
            refused.append(repr(error))

    if TASKS[where]:
        fork_at(TASKS[where])
    else:
        forks_left[0] = 1
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    end()


if __name__ == "__main__":
    if way == "tasks":
        asyncio.run(tasks())
    else:
        globals()[way]()
