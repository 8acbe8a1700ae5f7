"""Sockets that a server listens on: made before any process of it, so that a port in use is told at once."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final

from issuer.clock import monotonic
from issuer.doors.server.options import Endpoint
from issuer.errors import ConfigurationError

#: How many connections may wait to be accepted.
BACKLOG = 1024

#: Seconds for handshakes that have begun to end, and at most until all who have connected are accepted.
HANDSHAKES: Final = 0.2
ACCEPTING: Final = 1.0

#: The same on every platform of Linux that Python has wheels for; Python's `socket` does not name it.
_SO_ATTACH_FILTER: Final = 26
#: A program of the packet filter, over a TCP header: drop packets that have SYN without ACK, let all others pass.
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone: go on, else skip a line
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
)
#: Where in Linux's tcp_info of a listening socket stands how many connections wait to be accepted.
_WAITING_AT: Final = 24

_WHY = {
    errno.EADDRINUSE: "another program listens there: end it, or name another port",
    errno.EACCES: "the system doesn't allow this port: name one above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def listen(endpoints: Iterable[Endpoint]) -> dict[str, socket.socket]:
    """Return a listening socket for each, by name. Raises ConfigurationError, and listens nowhere then.

    All workers accept from the same sockets. With sockets of their own (SO_REUSEPORT) a second server would start on
    the same port without a word, and connections that wait for a worker that dies would die with it.
    """
    with ExitStack() as failed:
        sockets = {each.name: failed.enter_context(_bound(each)) for each in endpoints}
        failed.pop_all()
    return sockets


def _bound(endpoint: Endpoint) -> socket.socket:
    bound = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        # Connections of a server that has just ended are no reason to wait a minute.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(endpoint.address[0] != "::"))
        bound.bind(endpoint.address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        why = _WHY.get(error.errno or 0, error.strerror)
        raise ConfigurationError(f"can't listen on {endpoint.shown(endpoint.address[1])}: {why}") from error
    return bound


def close(sockets: Iterable[socket.socket]) -> None:
    """Close sockets from which other processes accept: let nobody else connect, and wait for those who have.

    Linux resets connections that wait to be accepted when the last copy of a socket is closed, with the requests that
    their clients have sent. So new handshakes are dropped first: their clients send them again after a second, and are
    refused then. Elsewhere there is no such filter, and clients that connect in the very moment of the end are reset.
    """
    listening = list(sockets)
    if sys.platform == "linux":
        for each in listening:
            with suppress(OSError):  # an imitation of Linux without the filter
                _drop_handshakes(each)
        time.sleep(HANDSHAKES)
        deadline = monotonic() + ACCEPTING
        while any(map(_waiting, listening)) and monotonic() < deadline:
            time.sleep(HANDSHAKES / 20)
    for each in listening:
        each.close()


def _drop_handshakes(listening: socket.socket) -> None:
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _NO_SYN))
    described = struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def _waiting(listening: socket.socket) -> int:
    """Return how many connections wait to be accepted."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING_AT + 4)
    return int(struct.unpack_from("I", info, _WAITING_AT)[0])
