"""Listening sockets of a server, and its limits of open files.

The server creates its sockets before it starts processes, so that it reports a port in use at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select
from typing import Final

from issuer.clock import monotonic
from issuer.doors.server.options import Endpoint
from issuer.errors import ConfigurationError

#: Maximum number of connections that wait until a worker accepts them.
BACKLOG = 1024

#: Bytes of replies that the system keeps for a client that does not read them. By default, it keeps up to 4 MB. With
#: 64 KB, a reply of 2.4 MB took 1.7 times as long.
UNREAD_MOST: Final = 262_144
#: If a client reads nothing for this many seconds, although replies wait, its connection is closed. It is longer than
#: `budget.PROGRESS`, because the time of an interrupted network counts too. TCP sends again 6 s and 13 s after a loss:
#: with 10 s, an interruption of 7 s would close the connection.
UNREAD: Final = 30.0

#: Seconds that a stopping server waits, so that TCP handshakes that have begun can finish.
HANDSHAKES: Final = 0.2
#: Maximum time, in seconds, that a stopping server then waits until its workers have accepted all waiting connections.
ACCEPTING: Final = 1.0

#: Socket option that sets a packet filter. Python's `socket` lacks the name. The value is valid on every Linux platform
#: with Python wheels.
_SO_ATTACH_FILTER: Final = 26
#: Program of the packet filter (BPF). It drops TCP packets that begin a handshake. Such packets have SYN but not ACK.
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN without ACK: continue, else skip one line
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
)

_WHY = {
    errno.EADDRINUSE: "another program listens there: end it, or name another port",
    errno.EACCES: "the system doesn't allow it: name a port above 1023, or a folder that this user can write",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def listen(endpoints: Iterable[Endpoint], ends: ExitStack) -> dict[str, socket.socket]:
    """Return a listening socket for each endpoint, by name, which `ends` closes. Raises ConfigurationError.

    All workers accept from the same sockets. If each worker had its own socket (SO_REUSEPORT), a second server could
    start on the same port without an error. If a worker died, connections that wait for this worker would be lost.
    """
    found = {}
    for each in endpoints:
        listening = found[each.name] = ends.enter_context(each.passed or _bound(each))
        # Accepted connections inherit these options. The system closes a connection whose client reads nothing.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_MOST)
        if not each.is_unix:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD * 1000))
    return found


def _bound(endpoint: Endpoint) -> socket.socket:
    bound = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        if endpoint.is_unix:
            _remove_abandoned(endpoint.address)
        else:
            # Without SO_REUSEADDR, old connections of a server would keep the port in use for a minute after its end.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if endpoint.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(endpoint.address[0] != "::"))
        bound.bind(endpoint.address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        why = _WHY.get(error.errno or 0, error.strerror)
        raise ConfigurationError(f"can't listen on {endpoint.shown(endpoint.address, tls=False)}: {why}") from error
    return bound


def _remove_abandoned(path: str) -> None:
    """Remove the Unix socket of a server that was killed. Nobody accepts its connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        if probe.connect_ex(path) == errno.ECONNREFUSED and Path(path).is_socket():
            Path(path).unlink()


def close(sockets: Mapping[str, socket.socket], endpoints: Iterable[Endpoint]) -> None:
    """Close the listening sockets, after the workers have accepted all connections that wait.

    When the last copy of a socket is closed, Linux resets the connections that wait to be accepted, and their requests
    are lost. So a filter first drops the packets of new handshakes. The clients of these handshakes retry after a
    second, and the system then refuses the connection. Systems other than Linux lack this filter: they may reset the
    connection of a client that connects just before the end. The path of a Unix socket is removed instead.

    The service manager has copies of the sockets that it has passed: there connections wait for the next server.
    """
    own = [each for each in endpoints if each.passed is None]
    listening = [sockets[each.name] for each in own]
    for each in own:
        if each.is_unix:
            Path(each.address).unlink(missing_ok=True)
        elif sys.platform == "linux":
            with suppress(OSError):  # a system may emulate Linux without the filter
                _drop_handshakes(sockets[each.name])
    if listening:
        time.sleep(HANDSHAKES)
        deadline = monotonic() + ACCEPTING
        while select(listening, (), (), 0)[0] and monotonic() < deadline:
            time.sleep(HANDSHAKES / 20)
    for socket_ in sockets.values():
        socket_.close()


def leave(passed: os.stat_result) -> None:
    """Accept no more connections in this process from a socket that the service manager has passed.

    Connections wait there for the next server. granian has no way to accept no more without closing connections that
    have sent nothing yet. So each copy of the socket in this process becomes a copy of a socket that nobody knows.
    `passed`: status of a copy.
    """
    with socket.socket(socket.AF_UNIX) as unknown:
        unknown.bind("")  # Linux chooses an address
        unknown.listen()
        unknown.settimeout(0)
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the descriptor of the list itself is closed
                if os.path.samestat(os.fstat(int(each.name)), passed):
                    os.dup2(unknown.fileno(), int(each.name))


def _drop_handshakes(listening: socket.socket) -> None:
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _NO_SYN))
    described = struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


# ------------------------------------------------------------------ open files

#: The highest limit of open files that a process requests from the system.
FILES_MOST: Final = 65_536

#: Maximum number of connections of clients in a worker, for each protocol.
CONNECTIONS_MOST: Final = 10_000
#: If the limit of open files allows fewer connections than this, the server does not start.
CONNECTIONS_LEAST: Final = 50

#: Number of files that a worker needs for the store, the metrics and the listening sockets. Connections to Redis are
#: counted separately.
_OWN: Final = 168


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Many systems set the soft limit to 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system may have a limit lower than the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections(protocols: int, to_redis: int) -> int:
    """Return how many clients a worker accepts for each protocol. Raises ConfigurationError if files are too few.

    `protocols`: number of protocols that the server serves. `to_redis`: number of connections of a worker to Redis.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MOST if soft == resource.RLIM_INFINITY else soft
    each = (files - _OWN - to_redis) // protocols
    if each < CONNECTIONS_LEAST:
        least = _OWN + to_redis + CONNECTIONS_LEAST * protocols
        raise ConfigurationError(
            f"the limit of open files is {files}, and at least {least} are needed: raise it "
            "(ulimit -n; LimitNOFILE= in a unit of systemd), or lower redis_connections"
        )
    return min(CONNECTIONS_MOST, each)
