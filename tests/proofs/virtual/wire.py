"""The way from virtual processes to a fake Redis: it takes time, and goes wrong when told to, as FaultProxy does."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import redis
import redis.asyncio

from tests.proofs.virtual.turns import Event, Turns
from tests.servers.fake import FencedConnection, FencedFakeServer

#: The shortest and the longest time that a request, a reply or a connection takes, in seconds.
TRAVEL = 0.0001, 0.001


class Wire:
    """What stands between the processes and the server."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.server = FencedFakeServer(clock=turns.wall)
        #: When each connection was tried, and by which process.
        self.tried: list[tuple[float, int]] = []
        self._processes = itertools.count()
        #: What was struck by a hold, and waits for `release`.
        self.held: list[Callable[[], object]] = []
        self._fault = ""
        self._match, self._left = b"", 0
        self._denied: dict[bytes, Exception] = {}
        self._links: dict[Link, None] = {}
        self._inner = FencedConnection(server=self.server)

    def client(self) -> redis.Redis:
        return redis.Redis(connection_pool=redis.ConnectionPool(BlockingLink, **self._settings()))

    def async_client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis(
            connection_pool=redis.asyncio.ConnectionPool(cast("Any", AsyncLink), **self._settings())
        )

    def _settings(self) -> dict[str, Any]:
        return {"wire": self, "process": next(self._processes)}

    def pass_through(self) -> None:
        """Misbehave no longer; connections that were silenced are cut."""
        self._set("")

    def refuse(self) -> None:
        """Cut every connection and refuse new ones."""
        self._set("refuse")

    def blackhole(self) -> None:
        """Accept and never answer."""
        self._set("blackhole")

    def drop_requests(self) -> None:
        """Cut the connection instead of delivering a request."""
        self._set("drop")

    def hold_replies(self, match: bytes, times: int = 1) -> None:
        """Deliver so many requests that contain this, and keep their replies until `release`."""
        self._match, self._left = match, times

    def deny(self, match: bytes, error: str) -> None:
        """Answer requests that contain this with an error instead."""
        self._denied[match] = redis.ResponseError(error)

    def release(self) -> None:
        held, self.held = self.held, []
        for bring in held:
            bring()

    def _set(self, fault: str) -> None:
        self._fault = fault
        for link in list(self._links):
            if fault == "refuse" or (link.silent and not fault):
                link.lose()

    def travel(self) -> float:
        return self.turns.chance.uniform(*TRAVEL)

    def dial(self, link: "Link") -> float:
        """Take note that a connection is tried, and return how long it takes to be made."""
        self.tried.append((self.turns.now, link.process))
        return self.travel()

    def dialled(self, link: "Link") -> None:
        """Take note that it is made. Raises ConnectionError."""
        if self._fault == "refuse":
            raise redis.ConnectionError("refused")
        self._links[link] = None

    def hung_up(self, link: "Link") -> None:
        """Take note of a connection that has ended."""
        self._links.pop(link, None)

    def carry(self, link: "Link", packed: bytes) -> None:
        """Bring a request to the server, and its reply back."""
        if self._fault == "blackhole":
            link.silent = True
        if not link.silent:
            self.turns.later(self.travel(), link.lose if self._fault == "drop" else partial(self._arrive, link, packed))

    def _arrive(self, link: "Link", packed: bytes) -> None:
        bring = partial(link.bring, [self.execute(each) for each in apart(packed)])
        if self._left and self._match in packed:
            self._left -= 1
            self.held.append(bring)
        else:
            self.turns.later(self.travel(), bring)

    def execute(self, packed: bytes) -> Any:
        """Return the server's reply; an error is returned too."""
        for match, denial in self._denied.items():
            if match in packed:
                return denial
        self._inner.send_packed_command((packed,))  # type: ignore[no-untyped-call]
        try:
            return self._inner.read_response(disable_decoding=True)
        except redis.RedisError as error:
            return error


def apart(packed: bytes) -> Iterator[bytes]:
    """Return the commands that are packed one after the other."""
    while packed:
        count, _, rest = packed[1:].partition(b"\r\n")
        for _ in range(int(count)):
            size, _, rest = rest[1:].partition(b"\r\n")
            rest = rest[int(size) + 2 :]
        yield packed[: len(packed) - len(rest)]
        packed = rest


class Link:
    """A connection of redis-py's face, as far as the drivers use it: a request, or several at once."""

    health_check_interval = 0
    socket_timeout: float | None = None
    _sock = None

    def __init__(self, wire: Wire, process: int, **_: object) -> None:
        self.wire, self.process = wire, process
        self.silent = self.lost = False
        self._replies: deque[Any] = deque()

    def signal(self) -> None:
        """Wake whoever reads."""

    def lose(self) -> None:
        self.lost = True
        self.wire.hung_up(self)
        self.signal()

    def bring(self, replies: list[object]) -> None:
        """Take replies in."""
        if not (self.silent or self.lost):
            self._replies += replies
            self.signal()

    def send(self, packed: bytes) -> None:
        if self.lost:
            raise redis.ConnectionError("the connection was cut")
        self.wire.carry(self, packed)

    def taken(self) -> Any:
        """Return the reply that has come. Raises it if it is an error, and ConnectionError if the connection ended."""
        if not self._replies:
            raise redis.ConnectionError("the connection was cut")
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply


class BlockingLink(Link):
    """For threads."""

    def __init__(self, wire: Wire, process: int, **options: object) -> None:
        super().__init__(wire, process, **options)
        self._here = Event(wire.turns)

    def signal(self) -> None:
        self._here.set()

    def connect(self) -> None:
        self.wire.turns.sleep(self.wire.dial(self))
        self.wire.dialled(self)

    def send_packed_command(self, command: tuple[bytes], check_health: bool = True) -> None:
        assert check_health
        self._here.clear()
        self.send(command[0])

    def read_response(self, *, timeout: float, **_: object) -> Any:
        if not self._here.wait(timeout):
            raise redis.TimeoutError("no answer in time")
        return self.taken()

    def can_read(self, timeout: float = 0) -> bool:
        assert not timeout
        return self.lost or bool(self._replies)

    def disconnect(self) -> None:
        self.lose()


class AsyncLink(Link):
    """For tasks."""

    def __init__(self, wire: Wire, process: int, **options: object) -> None:
        super().__init__(wire, process, **options)
        self._loop = asyncio.get_running_loop()
        self._writer = SimpleNamespace(transport=SimpleNamespace(abort=self.lose))
        self._here = asyncio.Event()

    def signal(self) -> None:
        self._loop.call_soon_threadsafe(self._here.set)

    async def connect(self) -> None:
        await asyncio.sleep(self.wire.dial(self))
        self.wire.dialled(self)

    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None:
        assert not check_health
        self._here.clear()
        self.send(command)

    async def read_response(self, **_: object) -> Any:
        await self._here.wait()
        return self.taken()

    async def can_read(self) -> bool:
        return self.lost or bool(self._replies)
