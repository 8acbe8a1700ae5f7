"""Converts errors of Redis servers to public errors. Some errors show that a server is not supported."""

from __future__ import annotations

import re
from typing import Any

import redis

from issuer.errors import ConfigurationError, CorruptState, FenceError, IssuerError, RedisUnavailable
from issuer.gateway.commands import RedisCall, rights
from issuer.interrupts import raise_interrupt
from issuer_persistence.errors import tls_fails

#: redis-py's handshake and our decoders raise these errors for an invalid reply. A UnicodeError, which is a ValueError,
#: means an invalid host name.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError)

#: Commands that the user of Redis must be allowed to run, for every tag with a counter.
_RIGHTS = ("info", "evalsha", "script|load", "time", "hmget", "hget", "hset", "hdel", "hincrby")

#: Parts of the error text of a server that denies a command.
_DENIED = ("NOPERM", "has no permissions", "No permissions", "can't run this command")

#: Finds the denied command in the error text, if the text names the command.
_NAMED = re.compile(r"to run the '(\S+)' command")

#: Part of the error TRYAGAIN. A Cluster returns it while it moves a slot: the keys of a call may then be on two nodes.
_MOVING = "during rehashing of slot"

#: Parts of the error text of a server that does not have the requested database.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed")

#: After an error reply, the next retry makes sense after this many seconds. The cause of the error may be gone then: a
#: server checks its replicas and its disk once a second.
SETTLING = 1.0

#: Each pair has a part of an error text, and what is wrong with the server. The fence does not work on such a server.
_REFUSALS = (
    ("can't write against a read only", "is a read-only replica: configure the address of the master"),
    ("BADARG", "does not run the script correctly"),
    ("unknown command", "lacks a command that every supported server has"),
    ("Unknown Redis command", "lacks a command that every supported server has"),
    ("not allowed from script", "does not allow in scripts a command that every supported server allows"),
)


class Crowded(Exception):
    """All connections were in use until the deadline. This is not a RedisError, because the server may work."""


def connection_error(error: Exception) -> redis.RedisError:
    """Convert an error on a connection to an error of redis-py, which all callers handle.

    An error that does not come from the connection, but for example from a signal handler, is raised.
    """
    raise_interrupt(error)
    if isinstance(error, redis.RedisError):
        return error
    if isinstance(error, OSError):
        meant: redis.RedisError = redis.ConnectionError(str(error))
    elif isinstance(error, _NONSENSE):
        meant = redis.exceptions.InvalidResponse(repr(error))
    else:
        raise error
    meant.__cause__ = error
    return meant


def settling(error: Exception) -> float:
    """Return how many seconds to wait before a retry: SETTLING if the server replied with an error, otherwise 0."""
    answered = isinstance(error, (redis.ResponseError, redis.exceptions.BusyLoadingError))
    return SETTLING if answered else 0.0


def meaning(error: Exception, name: str, key: str, tag: str | None, call: RedisCall[Any] | None = None) -> IssuerError:
    """Return the public error for an error of redis-py.

    Args:
        error: The error of redis-py, or Crowded. An IssuerError is returned unchanged.
        name: Name of the server in messages.
        key: Key that the failed call was for.
        tag: Tag that the failed call was for, or None.
        call: The call that was sent last, or None.
    """
    text = str(error).removesuffix(".")  # more text follows
    if isinstance(error, IssuerError):
        return error
    if isinstance(error, Crowded):
        return RedisUnavailable(text, tag=tag)
    if wrong := _misconfigured(error, text):
        return ConfigurationError(f"redis {name}{wrong}")
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return RedisUnavailable(f"redis {name}: {text or 'no answer in time'}", tag=tag)
    if isinstance(error, redis.exceptions.InvalidResponse):
        # The server is no Redis, or a broken one: redis-py or our decoder cannot read its replies.
        return RedisUnavailable(f"redis {name} sent an unreadable reply: {text}", tag=tag)
    return _answered(text, name, key, tag, call)


def _misconfigured(error: Exception, text: str) -> str:
    """If a wrong setting makes each connection fail, return a description of the setting. Otherwise return ""."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return f" refuses the login: {text}"
    if isinstance(error.__cause__, UnicodeError):
        return f": the host name is invalid: {error.__cause__}"
    if tls_fails(text):
        way_out = "correct ssl_ca_certs, ssl_certfile and ssl_keyfile in its URL, or the server's certificate"
        return f": no connection over TLS: {text}: {way_out}"
    return ""


def _answered(text: str, name: str, key: str, tag: str | None, call: RedisCall[Any] | None) -> IssuerError:
    if any(word in text for word in _NO_DATABASE):
        return ConfigurationError(f"redis {name} doesn't have the database that its URL names: {text}")
    if "WRONGTYPE" in text:
        problem = f"is not a hash: move it away with `redis-cli RENAME '{key}' '{key}.old'`"
        return CorruptState(f"Redis key {key} {problem}", tag=tag, advice="corrupt_state.recover")
    if any(word in text for word in _DENIED):
        # redis-py sends commands such as SELECT when it connects. If the server denies one of them, only the error text
        # names the command.
        own = {*_NAMED.findall(text), *(rights(call) if call is not None else ())}.difference(_RIGHTS)
        needed = " ".join(f"+{each}" for each in (*_RIGHTS, *sorted(own)))
        problem = f"denies a command that this call needs; give this user {needed} on the keys of the prefix"
        return FenceError(f"redis {name} {problem}: {text}", tag=tag)
    for word, what in _REFUSALS:
        if word in text:
            return FenceError(f"redis {name} {what}: {text}", tag=tag)
    if _MOVING in text:
        moves = "the Cluster is moving this slot to another node, and cannot create keys in it until that has ended"
        return RedisUnavailable(f"redis {name}: {moves}: {text}", tag=tag)
    # The server runs but cannot serve now: BUSY, OOM, MISCONF, NOREPLICAS, LOADING and similar errors.
    return RedisUnavailable(f"redis {name} can't serve now: {text}", tag=tag)
