"""The servers of the benchmark, and the issuers on them."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Literal, Self

import hiredis

import issuer
from issuer import AsyncIssuer, Issuer
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence.contract import Store
from issuer_persistence.records import Order
from tests.servers.binaries import primary_server
from tests.servers.redis import RedisServer

TAG = "orders"
PREFIX = "issuer"

#: Numbers a segment where the store is not what is measured: no run reaches its mark.
ENDLESS = 10**12

#: How long an elected loader has, in milliseconds, as the drivers say with the default timeouts.
WINDOW = 4000


@contextmanager
def redis_server(*arguments: str) -> Iterator[RedisServer]:
    """Start a Redis of our own on loopback TCP, without persistence by default; ended with the row."""
    if (binary := primary_server()) is None:
        raise RuntimeError("no redis-server, no valkey-server: install one")
    with RedisServer(binary, *arguments) as server:
        yield server


@contextmanager
def drawing(
    server: RedisServer | None,
    *,
    store: str | Store = "memory://",
    step: int = ENDLESS,
    order: Order = "strict",
    lease: int | None = None,
    scheduler: Literal["background"] | None = "background",
) -> Iterator[Issuer]:
    """Connect an issuer, make TAG and draw its first number, so that segment, script and connection are there."""
    url = "none" if server is None else server.url
    with issuer.connect(redis=url, store=store, prefix=PREFIX, lease=lease, scheduler=scheduler) as ids:
        ids.create(TAG, step=step, order=order)
        ids.next(TAG)
        yield ids


@contextmanager
def on_loop(runner: asyncio.Runner, make: Callable[[], Any]) -> Iterator[Any]:
    """Make an asynchronous context, and enter and leave it, on the loop of `runner`."""

    async def begin() -> Any:
        return await ends.enter_async_context(make())

    ends = AsyncExitStack()
    try:
        yield runner.run(begin())
    finally:
        runner.run(ends.aclose())


@contextmanager
def drawing_tasks(runner: asyncio.Runner, **settings: Any) -> Iterator[AsyncIssuer]:
    """Connect an asyncio issuer on the loop of `runner`, make TAG unless it is there, and draw once."""
    with on_loop(runner, partial(issuer.aconnect, prefix=PREFIX, **settings)) as ids:
        runner.run(ids.create(TAG, step=ENDLESS, order="strict", exist_ok=True))
        runner.run(ids.next(TAG))
        yield ids


def draw_command(n: int) -> tuple[str, ...]:
    """Return the draw of n numbers of TAG as any language sends it: lua/README.md."""
    return ("EVALSHA", script("next").sha, "1", redis_key(PREFIX, TAG), str(n), str(WINDOW))


def pack(*words: str) -> bytes:
    return bytes(hiredis.pack_command(words))  # type: ignore[arg-type]  # typed as a tuple of one


class Wire:
    """The least that Python can do: one socket, bytes prepared in advance, and hiredis for the reply."""

    def __init__(self, server: RedisServer) -> None:
        self._socket = socket.create_connection((server.host, server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def ask(self, packed: bytes) -> Any:
        """Send the packed command and return the reply, however many pieces it comes in. Raises what Redis says."""
        self.send(packed)
        return self.reply()

    def send(self, packed: bytes) -> None:
        self._socket.sendall(packed)

    def reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        if isinstance(reply, hiredis.HiredisError):
            raise reply
        return reply

    def command(self, *words: str) -> Any:
        return self.ask(pack(*words))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
