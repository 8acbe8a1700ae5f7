"""The main thread has returned, and the program's other threads draw on: bots, web servers in a thread."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import issuer
from tests.programs import fresh
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live

#: Begins a thread that draws once the main one has returned, and tells what it sees, line by line.
PROGRAM = """
import asyncio, json, logging, os, sys, threading, time
import issuer
from issuer import events

work, redis, store, daemon = sys.argv[1:]
main, told = threading.main_thread(), threading.Lock()

def tell(**what):
    with told:
        print(json.dumps(what), flush=True)

def drawing():
    while main.is_alive():
        time.sleep(0.001)
    try:
        globals()[work]()
    finally:
        ended.set()

def borders(**settings):
    with issuer.connect(redis=redis, store=store, **settings) as ids:
        by = []
        def observe(event):
            if isinstance(event, events.Reserved | events.LeaseDrawn):
                by.append(threading.current_thread() is me)
        me = threading.current_thread()
        for tag in ("strict", "trend", "leased"):
            ids.next(tag)
        ids.observe(observe)
        for tag in ("strict", "trend", "leased"):
            by.clear()
            while len(by) < 20:
                ids.next(tag)
                time.sleep(0.002)  # a segment lasts long enough to fetch the next one meanwhile
            tell(tag=tag, in_person=sum(by))

def draw(tag, until):
    with issuer.connect(redis=redis, store=store, redis_timeout=1) as ids:
        seen, me = set(), threading.current_thread()
        def observe(event):
            if threading.current_thread() is not me:
                seen.add(type(event).__name__)
            tell(event=type(event).__name__)
        ids.observe(observe)
        tell(first=ids.next(tag))
        for _ in range(4000):  # 20 s: no more than lie open, so that the caller itself finds nothing out
            time.sleep(0.005)
            number = ids.next(tag)
            if until in seen:
                break
        tell(number=number, seen=until in seen)

def leased():
    draw("much leased", "LeaseDropped")

def trend():
    draw("trend", "Rejoined")

def closing():
    async def run():
        async with issuer.aconnect(redis=redis, store=store, timeout=20) as ids:
            numbers = [await ids.next("strict") for _ in range(30)]
        left = [each for each in os.popen(f"ls -l /proc/{os.getpid()}/fd") if store.removeprefix("sqlite:///") in each]
        tell(numbers=numbers, open=left)
    asyncio.run(run())

ended = threading.Event()
threading.Thread(target=drawing, daemon=daemon == "daemon").start()
threading.Thread(target=ended.wait).start()
"""


Lines = Iterator[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/s.db"
    with issuer.connect(redis="redis://unused", store=url, scheduler=None) as ids:
        ids.create("strict", step=10)
        ids.create("trend", step=10, order="trend")
        ids.create("leased", step=10, order="trend", lease=10)
        ids.create("much leased", step=1_000_000, order="trend", lease=100_000)
    return url


@contextmanager
def running(work: str, redis: str, store: str, thread: str = "plain") -> Iterator[Lines]:
    """Yield what the program tells. Then it ends by itself, with nothing to complain of."""
    line = [sys.executable, "-c", PROGRAM, work, redis, store, thread]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield map(json.loads, program.stdout)
            _, complaints = program.communicate(timeout=60)
            assert program.returncode == 0, complaints
            assert "Traceback" not in complaints
        finally:
            program.kill()


@pytest.mark.parametrize("thread", ["plain", "daemon"])
def test_segments_and_leases_are_fetched_in_the_background(server: RedisServer, store: str, thread: str) -> None:
    with running("borders", server.url, store, thread) as told:
        for each in told:
            assert each["in_person"] < 10, f"{each['tag']}: the caller waits at each border"


def test_a_lease_does_not_outlive_a_recover(server: RedisServer, store: str) -> None:
    with running("leased", server.url, store) as told:
        assert any("first" in each for each in told)
        with issuer.connect(redis=server.url, store=store, scheduler=None) as operator:
            operator.recover("much leased", at_least=2_000_000)
        assert [each["seen"] for each in told if "number" in each] == [True], "the scheduler looks at it"


def test_a_trend_tag_comes_back_to_redis_after_an_outage(server: RedisServer, store: str) -> None:
    with running("trend", server.url, store) as told:
        assert any("first" in each for each in told)
        server.pause()
        assert any(each.get("event") == "WentDirect" for each in told)
        server.resume()
        assert [each["seen"] for each in told if "number" in each] == [True]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_an_issuer_of_an_event_loop_finds_its_redis_and_closes_its_store(
    server: RedisServer, store: str, tls: bool, request: pytest.FixtureRequest
) -> None:
    """By its name, which asyncio looks up in its executor."""
    url = request.getfixturevalue("start_tls")().url if tls else server.url
    with running("closing", url.replace("127.0.0.1", "localhost"), store) as told:
        assert list(told) == [{"numbers": list(range(1, 31)), "open": []}]


AFTER_MAIN = """
import threading, issuer
ids = issuer.connect(redis="none", store="memory://", timeout=40)
ids.create("a", step=10)
ids.next("a")
def work():
    threading.main_thread().join()
    print(ids.take("a", 60)[-1])
threading.Thread(target=work).start()
"""


@pytest.mark.live
def test_a_thread_that_outlives_the_main_one_still_gets_numbers() -> None:
    assert fresh("-c", AFTER_MAIN).stdout == "61\n"


TO_THE_END = """
import logging, issuer
from issuer.engine import blocking
blocking.CLOSING = 60  # a machine that stands still keeps it from handing back
for _ in range({count}):
    n = issuer.next("a")
print(n)
"""


@pytest.mark.live
@pytest.mark.parametrize("count", [200, 1200])  # the mark of its first segment is at 200
def test_a_program_that_just_ends_hands_back_quietly(tmp_path: Path, count: int) -> None:
    patience = {name: os.environ[name] for name in ("ISSUER_TIMEOUT", "ISSUER_STORE_TIMEOUT")}
    home = {name: str(tmp_path) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    for last in (count, count + 1):  # the first number of the second says what the first one handed back
        program, env = TO_THE_END.format(count=count if last == count else 1), {"PATH": os.environ["PATH"], **home}
        done = fresh("-c", program, env={**env, **patience}, cwd=tmp_path)
        assert done.stdout == f"{last}\n"
        assert re.fullmatch("no Redis and no store are configured, .*\n", done.stderr)
