"""Servers that are costly to start, lent to one test after the other: clean, and whole again if the last broke them.

A Cluster takes 2 s to start, a MongoDB 1 s, Sentinels 0.4. A single Redis takes 10 ms, and nothing is cleaner than
one that is new: those are not lent.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import urlencode

from tests.servers.redis import TIMEOUT, RedisServer


class Lent(Protocol):
    """A server or a group of them."""

    def __enter__(self) -> Self: ...

    def clean(self) -> None:
        """Make it as if it had just been started; raises if it can't be."""

    def end(self) -> None: ...


log = logging.getLogger(__name__)

S = TypeVar("S", bound=Lent)


class Pool(Generic[S]):
    """Starts what is missing, and keeps what comes back until the end."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._idle: list[S] = []

    @contextmanager
    def borrowed(self) -> Iterator[S]:
        server = self._sound() or self._make().__enter__()
        try:
            yield server
        finally:
            self._idle.append(server)

    def end(self) -> None:
        """End all that is not lent."""
        while self._idle:
            self._idle.pop().end()

    def _sound(self) -> S | None:
        while self._idle:
            server = self._idle.pop()
            try:
                server.clean()
            except Exception as error:  # noqa: BLE001 - whatever is the matter with it, another one takes its place
                log.warning("%r is replaced: %s", server, error)
                server.end()
            else:
                return server
        return None


class Group:
    """Servers that are started together by `_start`, and ended together, in the order of `_all`."""

    _all: Sequence[RedisServer]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {[server.port for server in self._all]}>"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill every process and remove the directories. Twice is harmless."""
        with ExitStack() as ends:
            for server in reversed(self._all):
                ends.callback(server.end)

    def _start(self) -> None:
        raise NotImplementedError


def query(parameters: Mapping[str, str]) -> str:
    """Return the end of a URL with these parameters."""
    return f"?{urlencode(parameters, safe='/')}" if parameters else ""


Configuration = dict[str, str]


def configuration(server: RedisServer) -> Configuration:
    """Return what CONFIG can set, without the master that is followed."""
    with server.client(decode_responses=True) as client:
        found: dict[str, Any] = client.config_get()
    return {name: value for name, value in found.items() if name not in {"replicaof", "slaveof"}}


def empty(server: RedisServer, replicas: int = 0) -> None:
    """Cut off whoever is connected, and remove all scripts; of a master the keys too, and those of its replicas."""
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.script_flush()
        if replicas:
            client.flushall()
            # One that has just come back says that it is in sync, but is sent nothing for up to a second.
            assert client.wait(replicas, 1000 * TIMEOUT // 2) == replicas
