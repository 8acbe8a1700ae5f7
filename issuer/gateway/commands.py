"""A command for Redis: packed bytes, and the decoder of the reply. No I/O: the drivers send it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T_co]):
    """A command for Redis.

    Attributes:
        packed: The command as bytes.
        text: Text of the script, for a server that does not have it yet. "" for other commands.
        decode: Converts the reply.
        repeatable: Whether a second send costs at most a gap. All other commands are sent only once.
        key: The key concerned, for messages.
    """

    packed: bytes
    text: str
    decode: Callable[[Any], T_co]
    repeatable: bool = False
    key: str = ""


#: A command inside a script.
_CALLED = re.compile(r"redis\.p?call\('(\w+)'")

#: Commands that need a permission for each subcommand.
_CONTAINERS = ("CONFIG", "CLUSTER", "SENTINEL")


def rights(call: RedisCall[Any]) -> set[str]:
    """Return the permissions that a user needs for this call, as an ACL names them: "hget", "script|load"."""
    if call.text:
        return {"evalsha", "script|load", *(name.lower() for name in _CALLED.findall(call.text))}
    name, *words = [word.decode() for word in call.packed.split(b"\r\n")[2::2]]
    return {f"{name}|{words[0]}".lower() if name in _CONTAINERS else name.lower()}


def pack(*words: str | int) -> bytes:
    """Encode a command in the protocol of Redis: an array of bulk strings."""
    packed = b"*%d\r\n" % len(words)
    for word in words:
        encoded = str(word).encode()
        packed += b"$%d\r\n%s\r\n" % (len(encoded), encoded)
    return packed
