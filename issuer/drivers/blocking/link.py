"""A connection of redis-py for threads, with a fast path for a packed call and its reply."""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.clock import Deadline, monotonic
from issuer.drivers.inherited import AnyLink, refuse_parents
from issuer.drivers.servers import FAR, LOOK_OUT, Permit

NO_RETRY = Retry(NoBackoff(), 0)

#: Returned by the parser while a reply is incomplete.
MORE = object()

#: Bytes per read. A reply of `next` has about 60 bytes.
READ = 4096

#: The kernel's timeout for a read, in seconds. Nearly every reply arrives within this time.
SOON = 0.005


class Shown:
    """Base class for redis-py's connection classes. It gives access to values that have no public name there."""

    __slots__ = ()

    _sock: Any

    @property
    def socket(self) -> Any:
        """The socket while it is connected."""
        return self._sock

    def send_command(self, *words: Any, **options: Any) -> None:
        """Send a command of the login. In a forked child, refuse to send it over the parent's connection."""
        refuse_parents(self)
        super().send_command(*words, **options)  # type: ignore[misc]  # redis-py's


class Link(AnyLink):
    """A connection of redis-py that only the issuer uses. redis-py connects it (login, TLS, RESP2 or 3, unix sockets).

    After connecting, a call takes the fast path: it writes the packed bytes to the socket, and reads the reply with a
    parser in C. `SO_RCVTIMEO` makes the kernel check the timeout. If Python checked the timeout, it would poll before
    each read and write, which takes 2 us of 28. With TLS, with a socket of gevent, or with a health check of redis-py,
    there is no fast path: redis-py itself sends and reads.

    The kernel's timeout is always `SOON`. After a signal, Python reads again, and the kernel's timeout restarts. So
    frequent signals could extend a longer timeout for ever. If no reply comes within `SOON`, Python polls until the
    deadline.
    """

    __slots__ = (
        "_far",
        "_feed",
        "_gets",
        "_receive",
        "_send",
        "_short",
        "_wait",
    )

    def __init__(self, connection: Any, permit: Permit) -> None:
        super().__init__(connection, permit)
        #: Whether the fast path is used. Then `_send`, `_receive`, `_wait`, `_feed` and `_gets` exist.
        self._short = False
        #: This many of the next calls sleep and do not poll for the reply, because the last reply came after the poll.
        self._far = 0

    async def connect(self, end: Deadline) -> None:
        """Connect before the deadline. redis-py alone would use the whole timeout for each reply of the handshake."""
        connection = self.connection
        read = connection.read_response

        def in_time(*args: Any, **options: Any) -> Any:
            options.setdefault("timeout", max(0.001, end.left()))  # 0 would mean: do not wait
            return read(*args, **options)

        connection.socket_connect_timeout = connection.socket_timeout = max(0.001, end.left())
        connection.read_response = in_time
        try:
            connection.connect()
        finally:
            del connection.read_response
        sock = connection.socket
        if type(sock) is not socket.socket or connection.health_check_interval:  # TLS, or a test double
            return
        sock.settimeout(None)
        if not os.get_blocking(sock.fileno()):
            # gevent's socket waits in gevent's loop, which ignores the kernel's timeout. So it would wait for ever.
            sock.settimeout(connection.socket_timeout)
            return
        reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=redis.connection.DefaultParser.parse_error,
            notEnoughData=MORE,
        )
        self._send, self._receive = sock.sendall, sock.recv
        self._feed, self._gets = reader.feed, reader.gets
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._wait = poll.poll
        span = struct.pack("ll", 0, int(SOON * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        self._short = True

    async def reply(self, packed: bytes, end: Deadline) -> Any:
        """Send a call and return the reply. If the reply is an error of the server, raise it. See `ask`."""
        seconds = max(0.001, end.left())
        try:
            reply = self.ask(packed, seconds)
        except BlockingIOError as error:
            raise redis.TimeoutError(f"no answer within {seconds:.3g} s") from error
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def replies(self, packed: bytes, count: int, end: Deadline) -> list[Any]:
        """Send `count` packed calls at once, and return their replies. An error reply is an exception in the list."""
        seconds = max(0.001, end.left())
        if self._short:
            try:
                self._send(packed)
            except BlockingIOError as error:
                raise redis.TimeoutError(f"no answer within {SOON:g} s") from error
            return [self._whole(self._gets(), end) for _ in range(count)]
        return [self._through_redis_py(packed if number == 0 else b"", seconds) for number in range(count)]

    def ask(self, packed: bytes, seconds: float) -> Any:
        """Send a call and return the reply. An error of the server is returned as an exception object.

        After any exception the caller must drop the connection, because the reply to this call may still arrive.
        """
        if not self._short:
            return self._through_redis_py(packed, seconds)
        self._send(packed)
        if self._far:
            self._far -= 1
        elif not self._look_out():
            self._far = FAR
        try:
            self._feed(self._receive(READ))
            reply = self._gets()
        except BlockingIOError:
            reply = MORE
        return reply if type(reply) is list else self._whole(reply, Deadline(seconds - SOON))

    def _look_out(self) -> bool:
        """Poll for the reply without sleep, and return whether it has arrived.

        Waking a thread takes longer than a nearby Redis takes to answer. With two processors, a number takes 32 us
        instead of 82: this process uses the same processor time, and the server uses half as much. Between two polls,
        another thread or process may use this processor, especially Redis. If Redis and this process share one
        processor, a number takes 29 us instead of 28.
        """
        ready = self._wait
        end = monotonic() + LOOK_OUT
        while not ready(0):
            if monotonic() > end:
                return False
            os.sched_yield()
        return True

    def _whole(self, reply: Any, end: Deadline) -> Any:
        """Read until `reply` is complete, and return it. Push messages of Redis are skipped."""
        while reply is MORE or isinstance(reply, hiredis.PushNotification):
            if reply is MORE:
                if not self._wait(math.ceil(end.left() * 1000)):
                    raise redis.TimeoutError("no complete answer in time")
                data = self._receive(READ)
                if not data:
                    raise redis.ConnectionError("the server closed the connection")
                self._feed(data)
            reply = self._gets()
        return reply

    def _through_redis_py(self, packed: bytes, seconds: float) -> Any:
        if packed:
            self.connection.send_packed_command((packed,), check_health=True)
        try:
            return self.connection.read_response(disable_decoding=True, timeout=seconds, disconnect_on_error=False)
        except redis.ResponseError as error:
            return error

    async def stale(self) -> bool:
        """Return whether the server has closed the idle connection, or has sent a reply that nobody has read."""
        try:
            return bool(self.connection.can_read(0))
        except redis.RedisError:
            return True

    def drop(self) -> None:
        """Close the connection, and return its permit to the pool, so that another one can be made."""
        try:
            self.connection.disconnect()
        finally:
            self.permit = None


class Waker:
    """Lets a thread sleep until a connection is free. It uses a lock in C, which is released to wake the thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread. If it is not asleep, its next sleep ends at once."""
        with suppress(RuntimeError):  # it was already woken
            self._lock.release()

    async def wait(self, seconds: float) -> None:
        """Sleep until `wake`, at most `seconds` seconds."""
        self._lock.acquire(timeout=seconds)
