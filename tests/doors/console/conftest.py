"""Consoles that several tests of a module share, each with servers of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.console.sites import Given, Site, console, program
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
