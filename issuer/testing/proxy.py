"""The proxy of a double: it loses requests and replies on order, and moves the clock of Redis."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import weakref
from collections.abc import Mapping
from pathlib import Path

from issuer.chaos.ports import LOOPBACK
from issuer.chaos.proxy import FaultProxy, ProxiedConnection, ProxyFault
from issuer.forks import living
from issuer.gateway.commands import NAMES, pack, script

_TIME = "redis.call('TIME')"

#: A function for the scripts that returns the time of Redis and an offset, in the form of the command TIME.
_MOVED = """local function moved_time()
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2] + ({micros})
  return {{string.format('%.0f', math.floor(micros / 1000000)), string.format('%.0f', micros % 1000000)}}
end
"""


def moved(micros: int) -> tuple[list[str], dict[bytes, bytes]]:
    """Return scripts for a clock that is moved by an offset, and what to replace in the requests of the issuer.

    The scripts are copies of the issuer's scripts. Only the calls of TIME differ: Redis has no command that moves its
    clock.

    Args:
        micros: The offset in microseconds.
    """
    head = _MOVED.format(micros=micros)
    texts = {name: script(name).text for name in NAMES if _TIME in script(name).text}
    copies = {name: head + text.replace(_TIME, "moved_time()") for name, text in texts.items()}
    clock = f"{head}return moved_time()"
    replaced = {script(name).sha.encode(): _sha(copy).encode() for name, copy in copies.items()}
    replaced[pack("TIME")] = pack("EVALSHA", _sha(clock), 0)
    return [*copies.values(), clock], replaced


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


#: The command with which a client chooses its database. Each double has a database of its own.
_SELECT = re.compile(rb"\r\nSELECT\r\n\$\d+\r\n(\d+)\r\n", re.IGNORECASE)


class DoubleProxy(FaultProxy):
    """A FaultProxy whose faults affect one database, and which replaces bytes in requests.

    In a forked child it does nothing: the proxy belongs to the parent.
    """

    def __init__(self, server: Path, path: Path) -> None:
        """`server`: Unix socket of the server. `path`: of the proxy's Unix socket."""
        self.path = path
        self._server = server
        #: The database that faults affect, except those that refuse connections.
        self.database = 0
        #: What to replace in the requests of a database. No key of a mapping has a line end before its last byte but
        #: those of whole commands.
        self.replaced: dict[int, Mapping[bytes, bytes]] = {}
        self._owner = os.getpid()
        self._databases: weakref.WeakKeyDictionary[ProxiedConnection, int] = weakref.WeakKeyDictionary()
        self._rests: weakref.WeakKeyDictionary[ProxiedConnection, bytes] = weakref.WeakKeyDictionary()
        super().__init__((LOOPBACK, 0))
        _proxies.add(self)

    def close(self) -> None:
        """Close all connections and stop the thread."""
        if os.getpid() == self._owner:
            super().close()

    def _listening(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        return listener

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._server)

    def _affects(self, link: ProxiedConnection, request: bytes) -> bool:
        if found := _SELECT.search(request):
            self._databases[link] = int(found[1])
        return self._databases.get(link, 0) == self.database

    async def _deliver(
        self, link: ProxiedConnection, up: asyncio.StreamWriter, request: bytes, strike: ProxyFault
    ) -> None:
        replaced = self.replaced.get(self._databases.get(link, 0), {})
        if replaced or link in self._rests:
            # What is replaced must not be split: keep the part after the last line until the rest of it arrives.
            request = self._rests.pop(link, b"") + request
            end = request.rfind(b"\r\n") + 2 if b"\r\n" in request else 0
            if request[end:]:
                self._rests[link] = request[end:]
            request = request[:end]
            for old, new in replaced.items():
                request = request.replace(old, new)
        await super()._deliver(link, up, request, strike)

    def leave(self) -> None:
        """In a forked child, close the copies of the sockets.

        A connection ends only when all its copies are closed. So without this, a client would not notice that the
        parent has cut its connection.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            for number in self._numbers():
                # The socket objects of the parent's event loop still own the numbers, so the numbers must stay open.
                os.dup2(nothing, number)
        finally:
            os.close(nothing)

    def _numbers(self) -> list[int]:
        links = list(self._links)
        ups = [link.up.get_extra_info("socket") for link in links if link.up is not None]
        sockets = [self._listener, *(link.client for link in links), *ups]
        return [each.fileno() for each in sockets if each is not None and each.fileno() >= 0]


_proxies = living(DoubleProxy.leave)
