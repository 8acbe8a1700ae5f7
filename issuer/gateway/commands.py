"""Commands for Redis: each consists of packed bytes and a decoder for the reply. The drivers send the commands."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from issuer.errors import ConfigurationError

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T_co]):
    """A command for Redis.

    Attributes:
        packed: The command as bytes.
        text: If the command calls a script: text of the script, for a server that does not have it yet. Otherwise "".
        decode: Function that converts the reply.
        repeatable: True if the command can be sent again after an error. If the server then runs it twice, some numbers
            are never issued: a gap. Other commands are sent only once.
        key: Redis key of the command. The key selects the node of a Cluster, and error messages contain it.
    """

    packed: bytes
    text: str
    decode: Callable[[Any], T_co]
    repeatable: bool = False
    key: str = ""


#: Finds the calls of Redis commands in the text of a script. Before MYID, CLUSTER is part of the name.
_CALLED = re.compile(r"redis\.p?call\('(\w+(?:', 'MYID)?)'")

#: Commands with a separate permission for each subcommand, such as "config|get".
_CONTAINERS = ("CONFIG", "CLUSTER", "SENTINEL")


def rights(call: RedisCall[Any]) -> set[str]:
    """Return the permissions that this call needs, with their names in a Redis ACL, such as "hget", "script|load"."""
    if call.text:
        return {"evalsha", "script|load", *(name.replace("', '", "|").lower() for name in _CALLED.findall(call.text))}
    name, *words = [word.decode() for word in call.packed.split(b"\r\n")[2::2]]
    return {f"{name}|{words[0]}".lower() if name in _CONTAINERS else name.lower()}


def pack(*words: str | int) -> bytes:
    """Encode a command in the protocol of Redis: an array of bulk strings."""
    packed = b"*%d\r\n" % len(words)
    for word in words:
        encoded = str(word).encode()
        packed += b"$%d\r\n%s\r\n" % (len(encoded), encoded)
    return packed


NAMES = (
    "next",
    "lease",
    "giveback",
    "open",
    "load",
    "floor",
    "once",
    "read",
    "machine_claim",
    "machine_renew",
    "machine_release",
)

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with its includes: its name, its text as sent to Redis, and its SHA-1 for EVALSHA."""

    name: str
    text: str
    sha: str


def folder() -> Path:
    """Return the directory of the Lua scripts: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_lua", package.parent / "lua"):
        if (place / "next.lua").is_file():
            return place
    raise ConfigurationError(
        "the Lua scripts are missing: install segment-issuer from its wheel, or run a full checkout"
    )


@cache
def script(name: str) -> Script:
    """Return the script with this name, with its includes. Raises ConfigurationError if no script has this name."""
    if name not in NAMES:
        raise ConfigurationError(f"no script {name!r}; there are {', '.join(NAMES)}")
    place = folder()
    text = (place / f"{name}.lua").read_text(encoding="utf-8")
    while found := _INCLUDE.search(text):  # an include may have includes
        included = (place / "include" / f"{found[1]}.lua").read_text(encoding="utf-8").rstrip()
        text = text[: found.start()] + included + text[found.end() :]
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def evalsha(
    name: str,
    keys: tuple[str, ...],
    args: Iterable[str | int],
    decode: Callable[[Any], T_co],
    *,
    repeatable: bool = False,
) -> RedisCall[T_co]:
    """Return a call of the script `name`.

    `decode`: function that converts the reply. `repeatable`: whether the call can be sent again after an error.
    `keys`, `args`: KEYS and ARGV of the script. The first key also selects the node of a Cluster.
    """
    source = script(name)
    return RedisCall(pack("EVALSHA", source.sha, len(keys), *keys, *args), source.text, decode, repeatable, keys[0])


def pairs(reply: Any) -> dict[bytes, bytes]:
    """Return a reply of names and values as a dictionary. RESP2 sends a list: name, value, name, value and so on."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
