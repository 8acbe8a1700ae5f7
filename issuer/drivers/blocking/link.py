"""One connection to a Redis server: redis-py's own, with the shortest way for a packed call and its reply."""

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
from issuer.drivers.redis_pool import Permit
from issuer.drivers.servers import FAR, LOOK_OUT

NO_RETRY = Retry(NoBackoff(), 0)

#: The reader's answer while a reply isn't whole.
MORE = object()

#: Read at once from the socket: a reply of `next` has about 60 bytes.
READ = 4096

#: Within this many seconds nearly every reply has come.
SOON = 0.005


class Shown:
    """A base for the classes of redis-py's connections, before their own: what these have no public name for."""

    __slots__ = ()

    _sock: Any

    @property
    def socket(self) -> Any:
        """The socket while it is connected."""
        return self._sock


class Link:
    """A redis-py connection that is ours alone. redis-py connects it: login, TLS, RESP2 or 3, unix sockets are its own.

    A call then takes the short way: the packed bytes into its socket, the reply through a reader in C. `SO_RCVTIMEO`
    lets the kernel watch the time, where Python would poll before each read and write: 2 us of 28. Through TLS or with
    gevent, whose sockets can't be read like that, and with redis-py's health checks, redis-py itself sends and reads.

    The kernel watches for `SOON` only, whatever the deadline: after a signal Python reads again, and the kernel's time
    begins again, so that a timer that ticks more often would keep a call waiting for ever. Later replies are polled
    for, and Python's poll counts on.
    """

    __slots__ = ("_far", "_feed", "_gets", "_process", "_receive", "_send", "_short", "_wait", "connection", "permit")

    def __init__(self, connection: Any, permit: Permit) -> None:
        self.connection = connection
        self.permit: Permit | None = permit
        #: Whether it takes the short way: `_send`, `_receive`, `_wait`, `_feed` and `_gets` are there then.
        self._short = False
        #: How many more calls sleep at once, as their replies come too late to look out for.
        self._far = 0
        self._process = os.getpid()

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
        sock = connection.socket
        if type(sock) is not socket.socket or connection.health_check_interval:  # TLS, or a double
            return
        sock.settimeout(None)
        if not os.get_blocking(sock.fileno()):
            # gevent's: it waits in its loop, where the kernel's time doesn't count, and so for ever.
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

    def reply(self, packed: bytes, end: Deadline) -> Any:
        """Send it and return the reply, or raise the error that the server answered with. Then as `ask`."""
        seconds = max(0.001, end.left())
        try:
            reply = self.ask(packed, seconds)
        except BlockingIOError as error:
            raise redis.TimeoutError(f"no answer within {seconds:.3g} s") from error
        if isinstance(reply, Exception):
            raise reply
        return reply

    def ask(self, packed: bytes, seconds: float) -> Any:
        """Send it and return the reply, an exception if the server answered with an error.

        After anything raised, the connection must be dropped: the reply may still come.
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
        """Look out for the reply, wide awake, and return whether it is there.

        To sleep and be woken takes longer than Redis needs: a number in 32 us instead of 82 between two processors, for
        the same processor time here, and half of it in the server. Between two looks any other thread or process that
        wants this processor gets it, Redis above all: where all share one, a number takes 29 us instead of 28.
        """
        ready = self._wait
        end = monotonic() + LOOK_OUT
        while not ready(0):
            if monotonic() > end:
                return False
            os.sched_yield()
        return True

    def _whole(self, reply: Any, end: Deadline) -> Any:
        """Read on until the reply is whole, past messages that no call has asked for."""
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
        self._check_process()
        self.connection.send_packed_command((packed,), check_health=True)
        try:
            return self.connection.read_response(disable_decoding=True, timeout=seconds, disconnect_on_error=False)
        except redis.ResponseError as error:
            return error
        finally:
            self._check_process()

    def _check_process(self) -> None:
        """Refuse in a forked child, where gevent runs copies of all greenlets on: two would talk over one socket."""
        if os.getpid() != self._process:
            raise redis.ConnectionError("this connection belongs to the parent process")

    def stale(self) -> bool:
        """Whether it was closed while it was idle, or holds a reply that was never read."""
        try:
            return bool(self.connection.can_read(0))
        except redis.RedisError:
            return True

    def drop(self) -> None:
        """Close it."""
        try:
            self.connection.disconnect()
        finally:
            self.permit = None


class Waker:
    """The sleep of a thread that waits for a connection: a lock in C, held but for the moment of its waking."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End its sleep, or the next one if it does not sleep."""
        with suppress(RuntimeError):  # it was woken already
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """Sleep until `wake`, or for so long."""
        self._lock.acquire(timeout=seconds)


def _left(end: Deadline) -> float:
    """Return what is left as a socket takes it: 0 would mean not to block at all."""
    return max(0.001, end.left())
