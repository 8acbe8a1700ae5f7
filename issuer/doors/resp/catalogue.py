"""The supported commands, as COMMAND describes them to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from issuer.doors.resp.replies import array, number, pairs, simple, text

#: The name under which the metrics count all unknown commands.
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Spec:
    """A command: its arguments, and its description in replies to COMMAND.

    Attributes:
        least: Smallest number of arguments, without the name of the command.
        most: Largest number of arguments. None means no limit.
        tags: Whether the first argument is a tag.
        each: Whether all arguments are tags.
        early: Whether a client may send the command before it has sent a token.
    """

    name: str
    least: int
    most: int | None
    summary: str
    group: str = "connection"
    flags: tuple[str, ...] = ("loading", "stale", "fast")
    tags: bool = False
    each: bool = False
    early: bool = False

    def takes(self, arguments: int) -> bool:
        """Return whether the command accepts this number of arguments."""
        return self.least <= arguments and (self.most is None or arguments <= self.most)

    @property
    def arity(self) -> int:
        """Number of words in a call, including the command's name. As in Redis, -n means n or more."""
        words = self.least + 1
        return words if self.most == self.least else -words

    def told(self) -> bytes:
        """Return the entry of the command in the reply to COMMAND INFO."""
        first = int(self.tags)
        last = -1 if self.each else first
        flags = array([simple(flag) for flag in self.flags])
        none = array([])
        keys = [number(first), number(last), number(first)]
        return array([text(self.name), number(self.arity), flags, *keys, none, none, none, none])

    def documented(self, protocol: int) -> bytes:
        """Return the entry of the command in the reply to COMMAND DOCS. `protocol`: version 2 or 3."""
        said = {"summary": self.summary, "since": "1.0.0", "group": self.group}
        return pairs({name: text(value) for name, value in said.items()}, protocol)


_WRITE: Final = ("write", "denyoom", "fast")
_READ: Final = ("readonly", "fast")

#: The commands by name, in capitals.
SPECS: Final = {
    spec.name.upper(): spec
    for spec in (
        Spec("incr", 1, 1, "Returns the next number of a tag.", "string", _WRITE, tags=True),
        Spec("incrby", 2, 2, "Returns the last of n contiguous numbers of a tag.", "string", _WRITE, tags=True),
        Spec("get", 1, 1, "Returns the highest number that was issued for a tag.", "string", _READ, tags=True),
        Spec("exists", 1, None, "Returns how many of the tags exist.", "generic", _READ, tags=True, each=True),
        Spec("type", 1, 1, "Returns the type of a tag: string, or none.", "generic", _READ, tags=True),
        Spec("auth", 1, 2, "Authenticates the connection with a token.", early=True),
        Spec("hello", 0, None, "Selects the protocol version: 2 or 3.", early=True),
        Spec("ping", 0, 1, "Returns PONG, or the message."),
        Spec("echo", 1, 1, "Returns the message."),
        Spec("select", 1, 1, "Selects database 0, the only one."),
        Spec("client", 1, None, "Names this connection, or describes it."),
        Spec("command", 0, None, "Lists and describes the commands."),
        Spec("config", 1, None, "Returns some settings of a Redis server.", "server"),
        Spec("info", 0, None, "Describes this server.", "server"),
        Spec("multi", 0, 0, "Starts a transaction: the commands that follow are queued.", "transactions"),
        Spec("exec", 0, 0, "Runs the queued commands.", "transactions"),
        Spec("discard", 0, 0, "Discards the queued commands.", "transactions"),
        Spec("watch", 1, None, "Always an error: numbers never need a watch.", "transactions"),
        Spec("unwatch", 0, 0, "Does nothing: no keys are watched.", "transactions"),
        Spec("scan", 1, None, "Returns no keys: this server stores none.", "generic"),
        Spec("dbsize", 0, 0, "Returns 0: this server stores no keys.", "server"),
        Spec("time", 0, 0, "Returns the server's time.", "server"),
        Spec("reset", 0, 0, "Resets the connection to its initial state.", early=True),
        Spec("quit", 0, None, "Closes the connection.", early=True),
    )
}
