"""A command for Redis: packed bytes out, and a decoder for what comes back.

Nothing here sends or waits; the drivers do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T_co]):
    """A command: its bytes, the script's text for a server that doesn't have it, and the decoder of the reply.

    `repeatable`: sending it a second time costs a gap at most. Everything else goes out once, whatever the reply.
    `key`: the key that it is about, for messages.
    """

    packed: bytes
    text: str
    decode: Callable[[Any], T_co]
    repeatable: bool = False
    key: str = ""


#: A command that a script calls.
_CALLED = re.compile(r"redis\.p?call\('(\w+)'")

#: Commands whose rights are given by their second word, too.
_CONTAINERS = ("CONFIG", "CLUSTER", "SENTINEL")


def rights(call: RedisCall[Any]) -> set[str]:
    """Return what the server must let a user do for this call, as its ACL names it: "hget", "script|load"."""
    if call.text:
        return {"evalsha", "script|load", *(name.lower() for name in _CALLED.findall(call.text))}
    name, *words = [word.decode() for word in call.packed.split(b"\r\n")[2::2]]
    return {f"{name}|{words[0]}".lower() if name in _CONTAINERS else name.lower()}


def pack(*words: str | int) -> bytes:
    """Encode a command as Redis reads it: an array of bulk strings."""
    packed = b"*%d\r\n" % len(words)
    for word in words:
        encoded = str(word).encode()
        packed += b"$%d\r\n%s\r\n" % (len(encoded), encoded)
    return packed
