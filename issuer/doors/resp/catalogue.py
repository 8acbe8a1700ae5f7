"""The description of a command, as COMMAND sends it to clients, and the refusals of commands that do not exist here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from issuer.doors.resp.replies import array, error, number, pairs, simple, text
from issuer.doors.resp.shared import ClientInfo

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


@dataclass(frozen=True, slots=True)
class Spec:
    """A command: its arguments, its function, and its description in replies to COMMAND.

    Attributes:
        name: Its name, in capitals.
        least: Smallest number of arguments, without the name of the command.
        most: Largest number of arguments. None means no limit.
        run: Function that returns the reply. For a command with tags, it returns an awaitable.
        tags: Whether the first argument is a tag. Such a command queries Redis or the store.
        each: Whether all arguments are tags.
        early: Whether a client may send the command before it has sent a token.
    """

    name: str
    least: int
    most: int | None
    run: Callable[[ClientInfo, Sequence[bytes]], Any]
    summary: str
    group: str = "connection"
    flags: tuple[str, ...] = ("loading", "stale", "fast")
    tags: bool = False
    each: bool = False
    early: bool = False

    def refused(self, arguments: int) -> bytes | None:
        """Return the reply to a call with this number of arguments if they are too many or too few."""
        least, most = self.least, self.most
        if least <= arguments and (most is None or arguments <= most):
            return None
        count = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        return error(f"ERR wrong number of arguments for '{self.name.lower()}' command: it takes {count}")

    def told(self) -> bytes:
        """Return the entry of the command in the reply to COMMAND INFO."""
        first = int(self.tags)
        keys = [number(first), number(-1 if self.each else first), number(first)]
        words = self.least + 1
        # As in Redis, -n means n or more words.
        arity = words if self.most == self.least else -words
        flags = array([simple(flag) for flag in self.flags])
        return array([text(self.name.lower()), number(arity), flags, *keys, *[array([])] * 4])

    def documented(self, protocol: int) -> bytes:
        """Return the entry of the command in the reply to COMMAND DOCS. `protocol`: version 2 or 3."""
        said = {"summary": self.summary, "since": "1.0.0", "group": self.group}
        return pairs({name: text(value) for name, value in said.items()}, protocol)
