"""Connections to Redis that are ours alone: no retries, a timeout for every call, dropped after any error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer import gateway
from issuer.clock import Deadline
from issuer.errors import ConfigurationError, CorruptState, FenceError, IssuerError, RedisUnavailable

T = TypeVar("T")

#: The shortest time that a round trip gets, so that a call with no time left can still see what is in hand.
SHORTEST = 0.05

#: The oldest Redis whose scripts behave as ours need it.
OLDEST = (6, 2)


_DENIED = (
    "denies a command that the fence needs; give this user +info +evalsha +script|load +time +hmget +hget +hset +hdel "
    "+hincrby on the keys of the prefix"
)

#: What a server says when it can't be trusted with the fence, and what that means.
_REFUSALS = (
    ("NOPERM", _DENIED),
    ("has no permissions", _DENIED),
    ("No permissions", _DENIED),
    ("can't run this command", _DENIED),
    ("can't write against a read only", "is a read-only replica: point the issuer at the master"),
    ("BADARG", "does not run the script as it should"),
    ("unknown command", "lacks a command that every supported server has"),
    ("Unknown Redis command", "lacks a command that every supported server has"),
)


class Connections:
    """A stack of idle redis-py connections to one server, shared by the threads of a process.

    Each call goes out once: redis-py's own retries are off, since a `load` sent twice can repeat numbers. A connection
    that saw an error is dropped, so that no reply is taken for another call's.
    """

    def __init__(self, make: Callable[[], Any], timeout: float, name: str) -> None:
        """`make` returns a new redis-py connection; `timeout` bounds one call, in seconds; `name` is for messages."""
        self._make = make
        self._timeout = timeout
        self.name = name
        self._idle: deque[Any] = deque()
        self._checked = False
        self._closed = False

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str) -> Connections:
        """Make them from a redis://, rediss:// or unix:// URL; ConfigurationError if it is none."""
        try:
            pool = redis.ConnectionPool.from_url(url, driver_info=None)
            connections = cls(_maker(pool), timeout, name)
            connections._make()  # does no I/O, and tells whether the URL's parameters make sense
        except (ValueError, TypeError, OSError, redis.RedisError) as error:
            raise ConfigurationError(f"redis {name}: {error}") from error
        return connections

    @classmethod
    def from_client(cls, client: redis.Redis, timeout: float) -> Connections:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(_maker(client.connection_pool), timeout, "client")

    def call(self, call: gateway.Call[T], deadline: Deadline, tag: str | None = None) -> T:
        """Send it and return the decoded reply.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        if not self._checked:
            self._check_server(deadline)
        return self._round_trip(call, deadline, tag)

    def _round_trip(self, call: gateway.Call[T], deadline: Deadline, tag: str | None) -> T:
        end = Deadline(min(self._timeout, max(SHORTEST, deadline.left())))
        connection, reused = self._connection(repeatable=call.repeatable)
        try:
            if not reused:
                _connect(connection, end)
            answer = call.decode(_exchange(connection, call, end))
        except redis.RedisError as error:
            connection.disconnect()
            if reused and call.repeatable and isinstance(error, redis.ConnectionError):
                # The server closed it while it was idle, and then it has closed the others too.
                self._drop_idle()
                return self._round_trip(call, deadline, tag)
            raise self._meaning(error, call.key, tag) from error
        except UnicodeError as error:
            connection.disconnect()
            raise ConfigurationError(f"redis {self.name}: that can't be a host's name: {error}") from error
        except Exception as error:
            # Another server than Redis, or a broken one: its replies make redis-py or the decoder stumble.
            connection.disconnect()
            raise RedisUnavailable(
                f"redis {self.name} answered nothing that makes sense: {error!r}", tag=tag
            ) from error
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append(connection)
        if self._closed:
            self._drop_idle()
        return answer

    def _connection(self, *, repeatable: bool) -> tuple[Any, bool]:
        """Return an idle connection and True, or a new one that isn't connected and False."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._make(), False
            # What goes out once must not go out on a connection that the server has closed meanwhile.
            if repeatable or not _stale(connection):
                return connection, True
            connection.disconnect()

    def _check_server(self, deadline: Deadline) -> None:
        info = self._round_trip(gateway.server_info(), deadline, None)
        if "dragonfly_version" in info:
            raise FenceError(
                "Dragonfly is not supported: all its restarts look like one reign, so a rollback goes unseen"
            )
        version = info.get("redis_version", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers < OLDEST:
            raise FenceError(
                f"Redis {version or 'of unknown version'} is not supported: 6.2 or newer, or Valkey, is needed"
            )
        self._checked = True

    def _meaning(self, error: redis.RedisError, key: str, tag: str | None) -> IssuerError:
        text = str(error)
        if isinstance(error, redis.exceptions.AuthenticationError):
            return ConfigurationError(f"redis {self.name} refuses the login: {text}")
        if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
            return RedisUnavailable(f"redis {self.name}: {text}", tag=tag)
        if "WRONGTYPE" in text:
            return CorruptState(
                f"Redis key {key} holds something else than a hash: move it away with "
                f"`redis-cli RENAME '{key}' '{key}.old'`, then run `issuer recover {tag}`",
                tag=tag,
            )
        for word, meaning in _REFUSALS:
            if word in text:
                return FenceError(f"redis {self.name} {meaning}: {text}", tag=tag)
        # BUSY, OOM, MISCONF, NOREPLICAS, LOADING and their like: the server is there but can't serve now.
        return RedisUnavailable(f"redis {self.name} can't serve now: {text}", tag=tag)

    def after_fork(self) -> None:
        """In a child: forget the parent's connections."""
        self._idle = deque()

    def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while True:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return


def _maker(pool: redis.ConnectionPool) -> Callable[[], Any]:
    """Return what makes connections like the pool's. Not its own method: that counts them, and 100 is its most."""
    settings = {
        **pool.connection_kwargs,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }
    return lambda: pool.connection_class(**settings)


def _connect(connection: Any, end: Deadline) -> None:
    """Connect, with one budget for all the replies of the handshake: redis-py gives each of them the whole timeout."""
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


def _exchange(connection: Any, call: gateway.Call[Any], end: Deadline) -> Any:
    try:
        return _ask(connection, call.packed, end)
    except redis.exceptions.NoScriptError:
        # The one error after which nothing can have happened, so sending again is no second sending.
        _ask(connection, gateway.pack("SCRIPT", "LOAD", call.text), end)
        return _ask(connection, call.packed, end)


def _ask(connection: Any, packed: bytes, end: Deadline) -> Any:
    connection.send_packed_command((packed,), check_health=False)
    return connection.read_response(disable_decoding=True, timeout=_left(end))


def _left(end: Deadline) -> float:
    """Return what is left as a socket takes it: 0 would mean not to block at all."""
    return max(0.001, end.left())


def _stale(connection: Any) -> bool:
    """Whether an idle connection was closed, or holds a reply that nobody has read."""
    try:
        return bool(connection.can_read(0))
    except redis.RedisError:
        return True
