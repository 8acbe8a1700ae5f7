"""Commands for Redis as JSON: a client without Redis sends them to `issuer serve`, which sends them to its Redis.

Only commands that cannot issue a number are relayed. Numbers are drawn at the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from issuer.gateway.commands import NAMES, RedisCall, evalsha, pack, script
from issuer.gateway.keys import tag_of

Scope = Literal["read", "reserve", "admin"]

#: The beginnings of keys: of tags, and of the machine numbers of tags and namespaces. Each is followed by `:{name}`.
_TAGS, _MACHINES = ("",), (":machines", ":namespace")

#: The scripts and commands that are relayed: the scope that a token needs, and the beginnings of the keys.
_RELAYED: Mapping[str, tuple[Scope, tuple[str, ...]]] = {
    "read": ("read", _TAGS),
    "HMGET": ("read", _TAGS),
    "TIME": ("read", _TAGS + _MACHINES),
    "floor": ("admin", _TAGS),
    "HGETALL": ("read", _MACHINES),
    "machine_claim": ("reserve", _MACHINES),
    "machine_renew": ("reserve", _MACHINES),
    "machine_release": ("reserve", _MACHINES),
    "HSET": ("admin", _MACHINES),
    "HDEL": ("admin", _MACHINES),
}


def required(name: str, words: list[str], key: str) -> tuple[Scope, str] | None:
    """Return the scope that a token needs for a command, and the tag or namespace. None: it is not relayed.

    `name`: name of a script, or "". `key`: the command's key without the prefix.
    """
    command = name or (words or [""])[0]
    scope, beginnings = _RELAYED.get(command, ("admin", ()))
    if bool(name) is not (command in NAMES):  # a script is not a command
        return None
    found = [tag for each in beginnings if (tag := tag_of(f"x{each}", f"x{key}")) is not None]
    # Its key stands where the server puts its own. TIME has none, and only goes to the node that has the key.
    return (scope, found[0]) if found and (words == ["TIME"] or words[1:2] == [key]) else None


def sent(call: RedisCall[Any], prefix: str) -> dict[str, Any]:
    """Return a command for JSON, with its key without the prefix: that of the server may differ.

    A script is sent by its name, as the server may have another version of its text.
    """
    words = _words(call.packed)
    found = next((name for name in NAMES if call.text and script(name).text == call.text), "")
    key = call.key.removeprefix(prefix)
    words = words[2:] if found else words
    if words[1:2] == [call.key]:
        words[1] = key
    return {"script": found, "words": words, "key": key, "repeatable": call.repeatable}


def _words(packed: bytes) -> list[str]:
    """Return the words of a packed command. A word may contain line breaks."""
    words, at = [], packed.index(b"\r\n") + 2
    while at < len(packed):
        end = packed.index(b"\r\n", at)
        size = int(packed[at + 1 : end])
        words.append(packed[end + 2 : end + 2 + size].decode())
        at = end + size + 4
    return words


def reply_sent(reply: Any) -> Any:
    """Return a reply of Redis for JSON. Each byte of a text becomes the character with its number."""
    if isinstance(reply, bytes):
        return reply.decode("latin-1")
    if isinstance(reply, dict):
        return [reply_sent(each) for pair in reply.items() for each in pair]
    return [reply_sent(each) for each in reply] if isinstance(reply, list | tuple) else reply


def reply_of(found: Any) -> Any:
    """Return the reply of Redis. The reverse of `reply_sent`."""
    if isinstance(found, str):
        return found.encode("latin-1")
    return [reply_of(each) for each in found] if isinstance(found, list) else found


def call_of(name: str, words: list[str], key: str, *, repeatable: bool, prefix: str) -> RedisCall[Any]:
    """Return a command for this server's Redis, with the reply as it is. Check it with `required` first.

    `name`: name of a script, or "". `key`: the command's key without the prefix. `prefix`: that of this server.
    """
    own = f"{prefix}{key}"
    if name:
        return evalsha(name, (own,), words[2:], lambda reply: reply, repeatable=repeatable)
    placed = [words[0], *([own] if len(words) > 1 else []), *words[2:]]
    return RedisCall(pack(*placed), "", lambda reply: reply, repeatable=repeatable, key=own)
