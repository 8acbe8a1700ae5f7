"""Refusals of commands that this server does not have. Each names what was asked, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from issuer.doors.resp.catalogue import SPECS
from issuer.doors.resp.replies import error

#: For commands and subcommands that clients send: what to use instead. Each key lists the commands that share a text.
_TEXTS: Final[Mapping[str, str]] = {
    "DECR DECRBY": "numbers are never taken back; INCR tag draws the next one",
    "SET SETNX SETEX PSETEX GETSET GETDEL GETEX MSET MSETNX APPEND INCRBYFLOAT DEL UNLINK RENAME EXPIRE PEXPIRE "
    "PERSIST FLUSHALL FLUSHDB": "a client cannot change a tag; INCR tag draws a number, `issuer create` makes a tag",
    "MGET": "use GET tag for each tag",
    "KEYS": "`issuer tags` shows the tags",
    "EVAL EVALSHA EVAL_RO EVALSHA_RO SCRIPT FCALL FCALL_RO FUNCTION": "this server runs no scripts; use the method of "
    "your client that sends INCR tag or INCRBY tag n, such as incrementAndGet",
    "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE PUBLISH SPUBLISH PUBSUB MONITOR": "this "
    "server sends no messages; INCR tag draws a number",
    "CLUSTER READONLY READWRITE ASKING": "this server is no Redis Cluster; use the mode of your client for one server",
    "SENTINEL": "this server is no Sentinel; use the mode of your client for one server",
    "CLIENT_TRACKING CLIENT_CACHING CLIENT_TRACKINGINFO CLIENT_GETREDIR": "this server sends no invalidations; turn "
    "off the client-side cache",
    "CLIENT": "use ID, GETNAME, SETNAME name, SETINFO LIB-NAME|LIB-VER value, INFO or LIST",
    "COMMAND": "use COUNT, LIST, INFO or DOCS",
    "CONFIG": "use CONFIG GET name",
}
_INSTEAD: Final = {name.encode(): text for names, text in _TEXTS.items() for name in names.split()}

_OTHERWISE: Final = "use INCR, INCRBY, GET, EXISTS or TYPE"

#: Maximum number of bytes of a command's name in a refusal.
_SHOWN: Final = 64


def unsupported(name: bytes, subcommand: bytes = b"") -> bytes:
    """Return the reply to a command, or to the subcommand of a command, that this server does not have.

    It never begins with "ERR unknown command": after such an error, Redisson sends a script again without end.
    """
    given = name.upper()
    instead = _INSTEAD.get(b"%b_%b" % (given, subcommand)) or _INSTEAD.get(given, _OTHERWISE)
    asked = " ".join(word[:_SHOWN].decode(errors="backslashreplace") for word in (name, subcommand) if word)
    return error(f"ERR '{asked}' is not supported here: {instead}")


def wrong_number(name: str) -> bytes:
    """Return the reply to a command with too many or too few arguments."""
    least, most = SPECS[name].least, SPECS[name].most
    count = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
    return error(f"ERR wrong number of arguments for '{name.lower()}' command: it takes {count}")
