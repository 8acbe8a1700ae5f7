"""Consoles that several tests of a module share, each with servers of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import issuer
from issuer.care.chronicle import Act, Happening, Process, line_of
from issuer.gateway.keys import chronicle_key
from issuer_persistence.records import now_ms
from tests.doors.console.browsing import WIDTHS, ConsoleBrowser, axe
from tests.doors.console.sites import Given, Site, console, program
from tests.house.site.browser import found
from tests.servers.absent import absent
from tests.servers.binaries import primary_server
from tests.servers.redis import RedisServer

#: The tokens of `guarded`.
TOKENS: Given = {
    "boss": (["admin"], ["*"]),
    "reader": (["read"], ["*"]),
    "some": (["admin"], ["orders", "eu-*"]),
    "drawer": (["issue"], ["*"]),
}


@pytest.fixture(scope="module")
def module_redis() -> Iterator[RedisServer]:
    """A Redis that belongs to the tests of this module."""
    with RedisServer(primary_server() or absent("a redis-server", "redis-server")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console with tokens, and the tag `orders`."""
    folder = tmp_path_factory.mktemp("guarded")
    with program(module_redis.url, store_in(folder)) as ids:
        ids.create("orders", step=1000)
        ids.next("orders")
    with console(folder, redis=module_redis.url, store=store_in(folder), tokens=TOKENS) as site:
        yield site


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder}/ids.db"


@pytest.fixture(scope="module")
def browser() -> Iterator[ConsoleBrowser]:
    """Chromium, which notes what moves and what is blocked."""
    axe()
    with ConsoleBrowser(found() or absent("Chromium", "chromium")) as opened:
        opened.watch()
        opened.resize(WIDTHS[-1])
        yield opened


@pytest.fixture(scope="module")
def filled(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console without tokens that may change tags, with all that its pages can show."""
    folder = tmp_path_factory.mktemp("filled")
    with program(module_redis.url, store_in(folder)) as ids:
        fill(ids)
    chronicle(module_redis)
    with console(folder, "--console-changes", redis=module_redis.url, store=store_in(folder)) as site:
        site.read_tags("orders", "visits")
        yield site


def fill(ids: issuer.Issuer) -> None:
    """Make tags in each state that needs no damage."""
    ids.create("orders", step=10, description="Numbers of orders, also of those that were cancelled later")
    for _ in range(30):
        ids.take("orders", 10)
    ids.create("visits", order="trend")
    ids.next("visits")
    ids.create("a-rather-long-name-of-a-tag-that-fits-into-no-column-of-a-phone-or-of-a-small-window", step=10)
    ids.create("halted", step=10)
    ids.take("halted", 5)
    ids.halt("halted")
    ids.create("used up", step=10, limit=20)
    ids.take("used up", 20)
    ids.create("near", step=90, limit=100)
    ids.next("near")
    ids.create("unused")
    ids.create("snow", strategy="snowflake")


def chronicle(server: RedisServer, text: str = "Redis has lost its data") -> None:
    """Write lines of a chronicle by hand, as any program with access to Redis can."""
    now = now_ms()
    with server.client() as client:
        for at, kind in enumerate(("FenceTripped", "StoreBehind", "RedisBack")):
            each = Happening(now - at * 3_600_000, kind, ("orders", text[:40]), 3, text, text, 7, text)
            client.rpush(chronicle_key("issuer", "events"), line_of(each))
        for what in ("recover", "configure", "create"):
            act = Act(now - 60_000, what, "orders", "ann", "10.0.0.1", f"step 10 -> 20 {text}")
            client.rpush(chronicle_key("issuer", "acts"), line_of(act))
        for at, role in enumerate(("worker", "keeper", "")):
            seen = now if at else now - 7_200_000
            running = Process("host", at, text, "0.1.0", now - 9_000_000, seen, 3, 100, 0, at, text, role)
            client.hset(chronicle_key("issuer", "processes"), f"host:{at}", line_of(running))
