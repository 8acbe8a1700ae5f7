"""Connections to Redis in a forked child: those of the parent are cut there."""

from __future__ import annotations

import os
import socket
import stat
import weakref
from contextlib import suppress
from typing import Any

from issuer.clock import Deadline
from issuer.forks import GENERATION, living, refuse_inherited


class AnyLink:
    """A connection of either driver.

    Attributes:
        connection: The connection of redis-py. Its `socket` is the socket, or None while there is none.
        permit: Counts for the pool that this connection is open. None if it was dropped.
    """

    __slots__ = ("__weakref__", "connection", "permit")

    def __init__(self, connection: Any, permit: Any) -> None:
        self.connection = connection
        self.permit = permit
        connection.generation = GENERATION.now
        LINKS.add(self)

    async def connect(self, end: Deadline) -> None:
        """Connect and log in before the deadline."""
        raise NotImplementedError

    async def reply(self, packed: bytes, end: Deadline) -> Any:
        """Send a call and return the reply. If the reply is an error of the server, raise it."""
        raise NotImplementedError

    async def replies(self, packed: bytes, count: int, end: Deadline) -> list[Any]:
        """Send `count` packed calls at once, and return their replies. An error reply is an exception in the list."""
        raise NotImplementedError

    async def stale(self) -> bool:
        """Return whether the server has closed the idle connection, or has sent a reply that nobody has read."""
        raise NotImplementedError

    def drop(self) -> None:
        """Close the connection at once, without waiting."""
        raise NotImplementedError


def _cut(connection: Any) -> None:
    """In a forked child: put a closed socket in the place of the parent's.

    A call that was in progress at the fork can continue in the child. It must not read the parent's replies, or write
    into the parent's requests. Python code cannot prevent all of this: if a signal handler forks, the C code of `recv`
    reads again in both processes. The parent's own connection stays open.

    After this, Python may collect the objects of the parent's event loop. The child shares the loop's epoll object. If
    Python closed the parent's sockets in the child, they would be removed from this object, and the parent would get no
    more replies (seen: each of its calls took 5 s and raised RedisUnavailable).
    """
    ours = connection.socket
    number = -1 if ours is None else ours.fileno()
    # A socket that was closed elsewhere, or that is a double, may name a file that has its number now (seen: a pipe).
    if number >= 0 and _is_socket(number):
        near, far = socket.socketpair()
        far.close()
        os.dup2(near.fileno(), number, inheritable=False)
        near.close()


def _is_socket(number: int) -> bool:
    with suppress(OSError):
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    return False


def refuse_parents(connection: Any) -> None:
    """Before a login command: raise Unavailable if the parent has begun to connect, and this is the child.

    At the fork, the connection had no socket yet that could be cut. A second login would shift the parent's replies by
    one: a tag got the numbers of another tag (seen).
    """
    if connection.generation != GENERATION.now:
        _cut(connection)
        refuse_inherited(connection.generation)


#: All connections of this process, including those in use.
LINKS: weakref.WeakSet[AnyLink] = living(lambda each: _cut(each.connection))
