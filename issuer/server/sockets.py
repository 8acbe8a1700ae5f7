"""Sockets that a server listens on: made before any process of it, so that a port in use is told at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from contextlib import ExitStack

from issuer.errors import ConfigurationError
from issuer.server.options import Endpoint

#: How many connections may wait to be accepted.
BACKLOG = 1024

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
