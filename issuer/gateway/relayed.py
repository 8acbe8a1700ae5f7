"""Commands for Redis as JSON: a client without Redis sends them to `issuer serve`, which sends them to its Redis.

Only commands that cannot issue a number are relayed. Numbers are drawn at the server.
"""

from __future__ import annotations

from typing import Any, Literal

from issuer.errors import InvalidArgument
from issuer.gateway.commands import NAMES, RedisCall, evalsha, pack, script
from issuer.gateway.keys import tag_of

#: The scope that a token needs for each script and command. All others are rejected.
SCOPES: dict[str, Literal["read", "reserve", "admin"]] = {
    "read": "read",
    "HMGET": "read",
    "HGETALL": "read",
    "machine_claim": "reserve",
    "machine_renew": "reserve",
    "machine_release": "reserve",
    "floor": "admin",
    "HSET": "admin",
    "HDEL": "admin",
    "INFO": "admin",
    "CONFIG": "admin",
    "CLUSTER": "admin",
    "TIME": "admin",
}

#: The hashes of a prefix: of tags, of machine numbers of a tag, and of machine numbers of a namespace.
_KINDS = ("", ":machines", ":namespace")


def sent(call: RedisCall[Any], prefix: str) -> dict[str, Any]:
    """Return a command for JSON, with its key without the prefix: that of the server may differ.

    A script is sent by its name, as the server may have another version of its text.
    """
    words = _words(call.packed)
    found = next((name for name in NAMES if call.text and script(name).text == call.text), "")
    key = call.key.removeprefix(prefix)
    words = [key if call.key and word == call.key else word for word in (words[2:] if found else words)]
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
    """Return the command for this server's Redis, with the reply as it is.

    `name`: name of a script, or "". `key`: the command's key without the prefix, see `own_key`. `prefix`: that of this
    server. Raises InvalidArgument.
    """
    own = f"{prefix}{key}" if key else ""
    at = 1 if words and (name or words[0].startswith("H")) else None
    if at is not None and (len(words) <= at or words[at] != key):
        raise InvalidArgument("must have its key in its place", argument="words")
    placed = [own if place == at else word for place, word in enumerate(words)]
    if name:
        if name not in NAMES or words[0] != "1":
            raise InvalidArgument(f"must be the name of a script with one key, not {name}", argument="script")
        return evalsha(name, (own,), placed[2:], lambda reply: reply, repeatable=repeatable)
    return RedisCall(pack(*placed), "", lambda reply: reply, repeatable=repeatable, key=own)


def tag_in(key: str) -> str | None:
    """Return the tag or namespace to which a key without its prefix belongs. None if it is no key of the issuer."""
    return next((tag for kind in _KINDS if (tag := tag_of(f"x{kind}", f"x{key}")) is not None), None)
