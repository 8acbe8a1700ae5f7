"""One connection to a Redis server: redis-py's own, with the shortest way for a packed call and its reply."""

from __future__ import annotations

import math
import select
import socket
import struct
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.clock import Deadline

NO_RETRY = Retry(NoBackoff(), 0)

#: What the reader says while a reply isn't whole.
MORE = object()

#: Read at once from the socket: a reply of `next` has about 60 bytes.
READ = 4096

#: Within so many seconds nearly every reply has come.
SOON = 0.005


class Link:
    """A redis-py connection that is ours alone. redis-py connects it: login, TLS, RESP2 or 3, unix sockets are its own.

    A call then takes the short way: the packed bytes into its socket, the reply through a reader in C. `SO_RCVTIMEO`
    lets the kernel watch the time, where Python would poll before each read and write: 2 us of 28. Through TLS, whose
    socket can't be read like that, and with redis-py's health checks, redis-py itself sends and reads.

    The kernel watches for `SOON` only, whatever the deadline: after a signal Python reads again, and the kernel's time
    begins anew, so that a timer that ticks more often would keep a call waiting for ever. Later replies are polled for,
    and Python's poll counts on.
    """

    __slots__ = ("connection", "feed", "gets", "receive", "send", "short", "wait")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        #: Whether it takes the short way: `send`, `receive`, `wait`, `feed` and `gets` are there then.
        self.short = False

    def connect(self, end: Deadline) -> None:
        """Connect, with one budget for all the replies of the handshake: redis-py gives each the whole timeout."""
        connection = self.connection
        read = connection.read_response

        def in_time(*args: Any, **options: Any) -> Any:
            options.setdefault("timeout", _left(end))
            return read(*args, **options)

        connection.socket_connect_timeout = connection.socket_timeout = _left(end)
        connection.read_response = in_time
        try:
            connection.connect()
        finally:
            del connection.read_response
        sock = connection._sock  # noqa: SLF001 - redis-py shows it nowhere else
        if type(sock) is not socket.socket or connection.health_check_interval:  # TLS, or a double
            return
        reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=connection._parser.parse_error,  # noqa: SLF001 - redis-py's exception for each error code
            notEnoughData=MORE,
        )
        self.send, self.receive = sock.sendall, sock.recv
        self.feed, self.gets = reader.feed, reader.gets
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self.wait = poll.poll
        sock.settimeout(None)
        span = struct.pack("ll", 0, int(SOON * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        self.short = True

    def ask(self, packed: bytes, seconds: float) -> Any:
        """Send it and return the reply, an exception if the server answered with an error.

        After anything raised, the connection must be dropped: the reply may still come.
        """
        if not self.short:
            return self._through_redis_py(packed, seconds)
        self.send(packed)
        return self.whole(MORE, Deadline(seconds))

    def whole(self, reply: Any, end: Deadline) -> Any:
        """Read on until the reply is whole, past messages that nobody has asked for."""
        while reply is MORE or isinstance(reply, hiredis.PushNotification):
            if reply is MORE:
                if not self.wait(math.ceil(end.left() * 1000)):
                    raise redis.TimeoutError("no whole answer in time")
                data = self.receive(READ)
                if not data:
                    raise redis.ConnectionError("the server closed the connection")
                self.feed(data)
            reply = self.gets()
        return reply

    def _through_redis_py(self, packed: bytes, seconds: float) -> Any:
        self.connection.send_packed_command((packed,), check_health=True)
        try:
            return self.connection.read_response(disable_decoding=True, timeout=seconds, disconnect_on_error=False)
        except redis.ResponseError as error:
            return error

    @property
    def stale(self) -> bool:
        """Whether it was closed while it was idle, or holds a reply that nobody has read."""
        try:
            return bool(self.connection.can_read(0))
        except redis.RedisError:
            return True

    def drop(self) -> None:
        """Close it."""
        self.connection.disconnect()


def _left(end: Deadline) -> float:
    """Return what is left as a socket takes it: 0 would mean not to block at all."""
    return max(0.001, end.left())
