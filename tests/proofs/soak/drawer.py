"""A drawing process of `tests.proofs.soak.churn`: python -m tests.proofs.soak.drawer SETUP, a JSON object.

It draws until its stdin ends, and records each number. It prints a line of JSON for each extension that was late, and
at its end one about itself.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import redis

import issuer
from issuer.core.events import Event, ExtensionLate
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from tests.proofs.soak.plan import Call, Group, Records, Setup, calls, tag_at

#: How long a process measures how fast it can draw, in seconds.
MEASURED = 5.0

#: Settings of an issuer: a machine that stands still for seconds is no fault.
PATIENT: dict[str, Any] = {"timeout": 60, "insist": 60, "redis_timeout": 30}

#: Draws that wait for a keeper ask again after this many seconds.
AGAIN = 0.01


class Tally:
    """What a process has done. `errors` counts those that no deleted tag explains."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._records = Records(setup.file)
        self.calls = 0
        self.slowest = 0.0
        self.gone = 0
        self.errors: Counter[str] = Counter()

    def note(self, call: Call, numbers: list[int] | range, seconds: float) -> None:
        self._records.note(call.at, numbers)
        self.calls += 1
        self.slowest = max(self.slowest, seconds)

    def failed(self, call: Call, error: Exception) -> None:
        if isinstance(error, issuer.UnknownTag) and tag_at(call.at).group in ("churn", "new"):
            self.gone += 1
        else:
            self.errors[repr(error)] += 1

    def told(self, rate: float) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "slowest": self.slowest,
            "gone": self.gone,
            "errors": dict(self.errors),
            "rate": rate,
        }


def late(event: Event) -> None:
    if isinstance(event, ExtensionLate):
        tell({"late": event.tag, "after": event.after})


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class Pace:
    """When a caller makes its next call: at random, so often on average."""

    def __init__(self, setup: Setup, caller: int, rate: float) -> None:
        """`rate`: calls per second of all callers."""
        self._random = random.Random(f"{setup.seed} {setup.name} {caller} pace")
        self._each = rate / setup.callers
        self._due = time.monotonic()

    def pause(self) -> float:
        """Return how long to wait before the next call, in seconds."""
        now = time.monotonic()
        # A process that stood still does not make up for it.
        self._due = max(self._due + self._random.expovariate(self._each), now - 1.0)
        return max(0.0, self._due - now)


# ------------------------------------------------------------------ ways to draw

Draw = Callable[[Call], "list[int] | range"]


def by_issuer(ids: issuer.Issuer) -> Draw:
    def draw(call: Call) -> list[int] | range:
        tag = tag_at(call.at).name
        match call.manner:
            case "next":
                return [ids.next(tag)]
            case "take":
                return ids.take(tag, call.n)
            case "keyed":
                return [ids.next(tag, key=_fresh_key(), ttl=5)]
            case "reserve":
                return ids.reserve(tag, call.n)

    return draw


async def awaited(ids: issuer.AsyncIssuer, call: Call) -> list[int] | range:
    tag = tag_at(call.at).name
    match call.manner:
        case "next":
            return [await ids.next(tag)]
        case "take":
            return await ids.take(tag, call.n)
        case "keyed":
            return [await ids.next(tag, key=_fresh_key(), ttl=5)]
        case "reserve":
            return await ids.reserve(tag, call.n)


def _fresh_key() -> str:
    return random.SystemRandom().randbytes(12).hex()


def raw(client: redis.Redis) -> Draw:
    """Draw with EVALSHA alone. Whoever finds no number asks again: a keeper loads the segment."""
    drawing = client.register_script(script("next").text)
    had: set[int] = set()

    def draw(call: Call) -> range:
        tag = tag_at(call.at).name
        while True:
            status, *rest = drawing(keys=[redis_key("issuer", tag)], args=[call.n, -1])
            if status == b"ok":
                had.add(call.at)
                return range(int(rest[0]) + 1, int(rest[1]) + 1)
            if call.at in had:
                had.discard(call.at)
                tell({"late": tag, "after": status.decode()})
            time.sleep(AGAIN)

    return draw


def by_http(port: int) -> Draw:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def draw(call: Call) -> list[int]:
        connection.request("POST", f"/v1/tags/{tag_at(call.at).name}/next")
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {body!r}")
        return [json.loads(body)["number"]]

    return draw


# ------------------------------------------------------------------ callers


def drawn(setup: Setup, tally: Tally, ended: threading.Event, draw: Callable[[], Draw]) -> float:
    """Draw in threads until `ended`. Return the rate, in calls per second."""

    def caller(way: Draw, todo: Iterator[Call], pace: Pace | None, over: Callable[[], bool]) -> None:
        while not over():
            if pace is not None and ended.wait(pace.pause()):
                return
            call, began = next(todo), time.monotonic()
            try:
                numbers = way(call)
            except Exception as error:  # noqa: BLE001 - it is counted, and the caller goes on
                tally.failed(call, error)
                ended.wait(AGAIN)
            else:
                tally.note(call, numbers, time.monotonic() - began)

    def together(pace: float | None, groups: list[Group], over: Callable[[], bool]) -> None:
        given = Setup(**{**json.loads(setup.dumped()), "groups": groups})
        threads = [
            threading.Thread(
                target=caller, args=(draw(), calls(given, number), Pace(setup, number, pace) if pace else None, over)
            )
            for number in range(setup.callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rate = setup.rate
    if rate is None:
        until = time.monotonic() + MEASURED
        together(None, ["fast"], lambda: ended.is_set() or time.monotonic() > until)
        rate = setup.share * tally.calls / MEASURED or 1.0
    together(rate, setup.groups, ended.is_set)
    return rate


async def drawn_by_tasks(setup: Setup, tally: Tally, ended: asyncio.Event, ids: issuer.AsyncIssuer) -> float:
    """Draw in tasks until `ended`. Return the rate, in calls per second."""

    async def caller(todo: Iterator[Call], pace: Pace | None, over: Callable[[], bool]) -> None:
        while not over():
            if pace is not None:
                await asyncio.sleep(pace.pause())
            call, began = next(todo), time.monotonic()
            try:
                numbers = await awaited(ids, call)
            except Exception as error:  # noqa: BLE001 - it is counted, and the caller goes on
                tally.failed(call, error)
                await asyncio.sleep(AGAIN)
            else:
                tally.note(call, numbers, time.monotonic() - began)

    async def together(pace: float | None, groups: list[Group], over: Callable[[], bool]) -> None:
        given = Setup(**{**json.loads(setup.dumped()), "groups": groups})
        async with asyncio.TaskGroup() as group:
            for number in range(setup.callers):
                group.create_task(caller(calls(given, number), Pace(setup, number, pace) if pace else None, over))

    rate = setup.rate
    if rate is None:
        until = time.monotonic() + MEASURED
        await together(None, ["fast"], lambda: ended.is_set() or time.monotonic() > until)
        rate = setup.share * tally.calls / MEASURED or 1.0
    await together(rate, setup.groups, ended.is_set)
    return rate


async def _tasks(setup: Setup, tally: Tally) -> float:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    async with issuer.aconnect(
        redis=setup.redis, store=setup.store, idle_after=setup.idle_after, metrics=True, **PATIENT
    ) as ids:
        ids.observe(late)
        return await drawn_by_tasks(setup, tally, ended, ids)


def _threads(setup: Setup, tally: Tally) -> float:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    if setup.way == "raw":
        with redis.Redis.from_url(setup.redis) as client:
            return drawn(setup, tally, ended, lambda: raw(client))
    if setup.way == "http":
        return drawn(setup, tally, ended, lambda: by_http(setup.http))
    with issuer.connect(
        redis=setup.redis, store=setup.store, idle_after=setup.idle_after, metrics=True, **PATIENT
    ) as ids:
        ids.observe(late)
        return drawn(setup, tally, ended, lambda: by_issuer(ids))


def main(text: str) -> None:
    """Draw until stdin ends, and print what came of it."""
    setup = Setup.parsed(text)
    tally = Tally(setup)
    rate = asyncio.run(_tasks(setup, tally)) if setup.way == "tasks" else _threads(setup, tally)
    tell(tally.told(rate))


if __name__ == "__main__":
    main(sys.argv[1])
