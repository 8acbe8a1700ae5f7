"""How far the way of a call is: the functions of ours that it enters, and their files: docs/explain/figures.md.

`.venv/bin/pytest -rP tests/engine/test_ways.py` prints them all.
"""

import asyncio
import inspect
import json
import re
import socket
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import redis

import issuer
from issuer import AsyncIssuer, Issuer
from issuer.doors.access import Access
from issuer.doors.resp.server import start
from issuer.doors.web.app import application
from issuer_persistence.memory import MemoryStore
from tests.doors.http.doors import Door
from tests.doors.resp.serving import packed
from tests.programs import REPOSITORY, fresh
from tests.waiting import run, until

FIGURES = (REPOSITORY / "docs/explain/figures.md").read_text(encoding="utf-8")
#: What a way may take more than is listed: a wait that has to look twice, a callback that comes early or late. A draw
#: takes one more if its reply is late.
SLACK = 5
#: Most calls of ours between the draw that reaches the mark and the extension.
HOPS = 6
#: The shortest way of so many requests counts.
REQUESTS = 10
#: At most so many, on a machine so busy that replies come late.
REQUESTS_MOST = 1000


class Trace:
    """The functions of ours that are entered while it is on, in any thread that was started since it was made."""

    def __init__(self) -> None:
        self.on = False
        #: The only thread whose functions count, if that is said.
        self.thread: int | None = None
        self.entered: set[CodeType] = set()
        #: By name, the names of the functions that one was called through at first.
        self.callers: dict[str, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Python 3.12 has no functions for comprehensions any more.
        elsewhere = self.thread is not None and self.thread != threading.get_ident()
        if (
            self.on
            and not elsewhere
            and event == "call"
            and ours(code)
            and code.co_flags & inspect.CO_OPTIMIZED  # no body of a class or module that is loaded on the way
            and not code.co_name.endswith(("comp>", "genexpr>"))
        ):
            self.entered.add(code)
            self.callers.setdefault(code.co_qualname, list(names_above(frame)))

    def of(self, way: Callable[[], object], thread: int | None = None) -> set[CodeType]:
        """Return the functions that are entered on this way."""
        self.on, self.thread, self.entered = True, thread, set()
        try:
            way()
        finally:
            self.on = False
        return self.entered


def by_file(entered: Iterable[CodeType]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for code in entered:
        found[str(Path(code.co_filename).resolve().relative_to(REPOSITORY))].append(code.co_qualname)
    return found


def ours(code: CodeType) -> bool:
    return code.co_filename.startswith((f"{REPOSITORY}/issuer/", f"{REPOSITORY}/persistence/"))


def names_above(frame: FrameType) -> Iterator[str]:
    above = frame.f_back
    while above is not None:
        if ours(above.f_code):
            yield above.f_code.co_qualname
        above = above.f_back


@pytest.fixture
def trace() -> Iterator[Trace]:
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    yield trace
    sys.setprofile(None)
    threading.setprofile(None)


@pytest.fixture
def ids(trace: Trace, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """An issuer that has issued of another tag, and doesn't sweep meanwhile."""
    assert not trace.on
    monkeypatch.setattr("issuer.engine.scheduler.SWEEP_EVERY", 3600)
    with issuer.connect(redis=redis_url, store=MemoryStore()) as made:
        made.create("another")
        made.next("another")
        yield made


def in_hand(ids: Issuer) -> Callable[[], object]:
    ids.create("a", step=10_000, order="trend", lease=1000)
    ids.take("a", 3)
    return lambda: ids.next("a")


def drawn(ids: Issuer) -> Callable[[], object]:
    return lambda: ids.next("another")


def first(ids: Issuer) -> Callable[[], object]:
    ids.create("a", step=100)
    return lambda: ids.next("a")


def segment(ids: Issuer) -> Callable[[], object]:
    ids.create("a", step=100)
    ids.take("a", 19)
    flights: Any = ids.engine.registry.combiner("a").supply.refill.segments.flights

    def drawn_and_loaded() -> None:
        ids.next("a")
        until(lambda: flights.flight is None)

    return drawn_and_loaded


def recover(ids: Issuer) -> Callable[[], object]:
    ids.create("a", step=100)
    ids.next("a")
    return lambda: ids.recover("a")


def create(ids: Issuer) -> Callable[[], object]:
    return lambda: ids.create("a", step=100)


@pytest.mark.parametrize(
    ("row", "way"),
    [
        ("a number from memory", in_hand),
        ("a strict draw", drawn),
        ("the first `next` of a tag", first),
        ("the draw that reaches the threshold, and its segment", segment),
        ("`recover` of a tag", recover),
        ("`create`", create),
    ],
)
def test_a_way_is_no_longer_than_docs_figures_says(
    row: str, way: Callable[[Issuer], Callable[[], object]], ids: Issuer, trace: Trace
) -> None:
    gone = way(ids)
    each_number = way in (in_hand, drawn)
    entered = trace.of(gone, threading.get_ident() if each_number else None)
    assert_as_listed(row, entered, 0 if way is in_hand else 1 if way is drawn else SLACK)


def listed(row: str, page: str = FIGURES) -> tuple[int, int]:
    """Return how many functions and files the page has for a way."""
    found = re.search(rf"^\| {re.escape(row)} \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert found is not None
    return int(found[1]), int(found[2])


def assert_as_listed(row: str, entered: set[CodeType], slack: int) -> None:
    assert_near(row, by_file(entered), *listed(row), slack)


def assert_near(row: str, found: dict[str, list[str]], functions: int, files: int, slack: int) -> None:
    print(f"{row}: {count(found)} functions in {len(found)} files")
    for file, names in sorted(found.items()):
        print(f"  {file}: {', '.join(sorted(names))}")
    # Nor much shorter: the table is out of date then.
    assert abs(count(found) - functions) <= slack
    assert abs(len(found) - files) <= min(slack, 1)


def count(found: dict[str, list[str]]) -> int:
    """Return how many functions these are."""
    return sum(map(len, found.values()))


Ask = Callable[[], Awaitable[object]]


@asynccontextmanager
async def over_http(ids: AsyncIssuer) -> AsyncIterator[Ask]:
    http = Door(ids, application(ids, Access(None)))
    yield lambda: http.good("POST", "/v1/tags/a/next")


@asynccontextmanager
async def over_resp(ids: AsyncIssuer) -> AsyncIterator[Ask]:
    server = await start(ids, Access(None), socket.create_server(("127.0.0.1", 0)))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.shared.port)

    async def incr() -> bytes:
        writer.write(packed("INCR", "a"))
        return await reader.readline()

    yield incr
    writer.close()
    await server.close(60.0)


@pytest.mark.parametrize(("row", "served"), [("HTTP next, warm", over_http), ("RESP INCR, warm", over_resp)])
def test_the_way_of_a_request_is_no_longer_than_docs_figures_says(
    row: str, served: Callable[[AsyncIssuer], AbstractAsyncContextManager[Ask]], redis_url: str, trace: Trace
) -> None:
    """The shortest of several: a look at the clock, or a reply of Redis that comes late, is not of each request."""
    ways: list[set[CodeType]] = []
    functions, _ = listed(row)

    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
            await ids.create("a", step=100_000)
            async with served(ids) as ask:
                await ask()
                await ask()
                # A busy machine delays every reply: go on until one was not late.
                while len(ways) < REQUESTS or (len(min(ways, key=len)) > functions + 1 and len(ways) < REQUESTS_MOST):
                    trace.on, trace.entered = True, set()
                    await ask()
                    trace.on = False
                    ways.append(trace.entered)

    run(main())
    assert_as_listed(row, min(ways, key=len), 1)


def test_few_calls_lie_between_the_mark_and_the_extension(ids: Issuer, trace: Trace) -> None:
    trace.of(segment(ids))
    asked = trace.callers["Scheduler.background"]
    before = [*asked[: asked.index("Refill.elected")], "Scheduler.background"]
    # Whatever runs steps turns their errors into public ones; and a thread waits for jobs before.
    apart = re.compile(r"public$|^Crew\.|^begun|^_done$")
    after = [name for name in trace.callers["extend"] if not apart.search(name)]
    print(*before, *reversed(after))
    assert len(before + after) <= HOPS


@pytest.mark.parametrize(
    ("row", "call"),
    [
        ("`next` of a tag", "next"),
        ("the draw that reaches the threshold, and its segment", "segment"),
        ("`create`", "create"),
        ("`issuer recover` of a tag in the shell", "issuer recover"),
    ],
)
def test_a_first_call_enters_no_more_functions_than_docs_figures_says(
    row: str, call: str, redis_url: str, mongo_url: str
) -> None:
    """In a process, with Redis and MongoDB."""
    functions, files = listed(row, FIGURES.partition("First call in a process")[2])
    # On a busy machine a reply is late now and then: the shortest of some tries counts.
    entered = tried(call, redis_url, mongo_url)
    for _ in range(9):
        if count(entered) > functions + SLACK or len(entered) > files + 1:
            entered = min(entered, tried(call, redis_url, mongo_url), key=count)
    assert_near(row, entered, functions, files, SLACK)


def tried(call: str, redis_url: str, mongo_url: str) -> dict[str, list[str]]:
    """Make the call in a new process, with a new store. Return the functions that it entered, by file."""
    server, question, options = mongo_url.partition("?")
    store = f"{server.rstrip('/')}/calls{uuid.uuid4().hex[:12]}{question}{options}"
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    with issuer.connect(redis=redis_url, store=store) as ids:
        ids.create("orders", step=100)
    done = fresh("-m", "tests.engine.first_calls", redis_url, store, call)
    entered: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return entered
