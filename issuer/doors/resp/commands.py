"""The functions of all commands except INCR. Each function returns the reply to its command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from issuer import __version__
from issuer.core.requests import TAKE_MOST
from issuer.doors.lookups import LookUps
from issuer.doors.resp.catalogue import SPECS
from issuer.doors.resp.refusals import unsupported
from issuer.doors.resp.replies import OK, PONG, array, bulk, error, null, number, pairs, simple, text
from issuer.doors.resp.session import ClientInfo
from issuer.doors.tokens import Scope
from issuer.errors import InvalidArgument

#: The version of Redis that this server reports. Clients read it as three numbers, and send only commands that this
#: version of Redis supports.
REDIS_VERSION: Final = "7.0.0"

#: For GET, EXISTS and TYPE, a token needs one of these scopes.
READING: Final[Sequence[Scope]] = ("read", "issue")

#: Settings that clients read with CONFIG GET.
_SETTINGS: Final[Mapping[bytes, str]] = {b"save": "", b"appendonly": "no", b"databases": "1"}

_NAME_MOST: Final = 200


@dataclass(slots=True)
class About:
    """Facts about the server for the command INFO.

    Attributes:
        port: Port of the server.
        most: Largest number of clients.
        uptime: Function that returns the age of the server in seconds.
        clients: Function that returns the number of connected clients.
    """

    port: int
    most: int
    uptime: Callable[[], float]
    clients: Callable[[], int]


def tag_of(argument: bytes) -> str:
    """Return an argument as the name of a tag. Raises InvalidArgument if the argument is not UTF-8."""
    try:
        return argument.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("a tag must be UTF-8 text", value=argument) from None


# ---------------------------------------------------------------------- commands that wait for Redis or the store


async def incrby(session: ClientInfo, look_ups: LookUps, arguments: Sequence[bytes]) -> bytes:
    """Draw n contiguous numbers, and return the last of them."""
    tag = tag_of(arguments[0])
    caller = session.caller()
    caller.need("issue", tag)
    digits = arguments[1]
    if not digits.removeprefix(b"-").isdigit() or len(digits) > len(str(sys.maxsize)) + 1:
        raise InvalidArgument("value is not an integer or out of range", tag=tag, value=digits)
    if not 1 <= int(digits) <= TAKE_MOST:
        raise InvalidArgument(
            f"INCRBY takes 1..{TAKE_MOST} numbers; they cannot be returned", tag=tag, value=int(digits)
        )
    caller.spend(int(digits), tag)
    await look_ups.look_up(tag, session.owner)
    return number((await look_ups.engine.contiguous(tag, int(digits)))[-1])


async def get(session: ClientInfo, look_ups: LookUps, arguments: Sequence[bytes]) -> bytes:
    """Return the highest issued number in Redis, or null if no number was issued or the tag does not exist."""
    tag = tag_of(arguments[0])
    session.caller().need(READING, tag)
    last = await look_ups.engine.last(tag) if await look_ups.exists(tag, session.owner) else None
    return null(session.protocol) if last is None else bulk(b"%d" % last)


async def exists(session: ClientInfo, look_ups: LookUps, arguments: Sequence[bytes]) -> bytes:
    """Return how many of the tags exist. A tag that is given twice counts twice, as in Redis."""
    tags = [tag_of(argument) for argument in arguments]
    for tag in tags:
        session.caller().need(READING, tag)
    known = {tag: await look_ups.exists(tag, session.owner) for tag in dict.fromkeys(tags)}
    return number(sum(known[tag] for tag in tags))


async def type_of(session: ClientInfo, look_ups: LookUps, arguments: Sequence[bytes]) -> bytes:
    """Return `string`, the type that counters have in Redis. If the tag does not exist, return `none`."""
    tag = tag_of(arguments[0])
    session.caller().need(READING, tag)
    return simple("string" if await look_ups.exists(tag, session.owner) else "none")


#: The commands that query Redis or the store. While a client waits for such a command, its next commands do not begin.
ASKING: Final[Mapping[str, Callable[[ClientInfo, LookUps, Sequence[bytes]], Awaitable[bytes]]]] = {
    "INCRBY": incrby,
    "GET": get,
    "EXISTS": exists,
    "TYPE": type_of,
}

# ---------------------------------------------------------------------------------------------- other commands

AtOnce = Callable[[ClientInfo, About, Sequence[bytes]], bytes]


def auth(session: ClientInfo, _: About, arguments: Sequence[bytes]) -> bytes:
    """Authenticate the client with a token, the last argument. A user name before the token is ignored."""
    session.authenticate(arguments[-1])
    return OK


def hello(session: ClientInfo, _: About, arguments: Sequence[bytes]) -> bytes:
    """Select the version of the protocol. Options authenticate the client, or set its name.

    If the version or an option is invalid, nothing changes.
    """
    protocol, name, token = session.protocol, session.name, None
    rest = list(arguments)
    if rest:
        version = rest.pop(0)
        if version not in (b"2", b"3"):
            return error("NOPROTO unsupported protocol version: the versions are 2 and 3")
        protocol = int(version)
    while rest:
        option = rest.pop(0).upper()
        if option == b"AUTH" and len(rest) > 1:
            token = rest.pop(1)
            del rest[0]
        elif option == b"SETNAME" and rest:
            name = _name(rest.pop(0))
        else:
            return error("ERR Syntax error in HELLO option: the options are AUTH user token and SETNAME name")
    if token is not None:
        session.authenticate(token)
    session.protocol, session.name = protocol, name
    told = {
        "server": text("segment-issuer"),
        "version": text(REDIS_VERSION),
        "segment_issuer_version": text(__version__),
        "proto": number(protocol),
        "id": number(session.number),
        "mode": text("standalone"),
        "role": text("master"),
        "modules": array([]),
    }
    return pairs(told, protocol)


def ping(_: ClientInfo, __: About, arguments: Sequence[bytes]) -> bytes:
    """Return PONG, or the message."""
    return bulk(arguments[0]) if arguments else PONG


def echo(_: ClientInfo, __: About, arguments: Sequence[bytes]) -> bytes:
    """Return the message."""
    return bulk(arguments[0])


def select(_: ClientInfo, __: About, arguments: Sequence[bytes]) -> bytes:
    """Select database 0, the only one."""
    return OK if arguments[0] == b"0" else error("ERR DB index is out of range: 0 is the only database")


def client(session: ClientInfo, _: About, arguments: Sequence[bytes]) -> bytes:
    """Set the name of the client's own connection, or describe it. A client cannot see other connections."""
    what, rest = arguments[0].upper(), arguments[1:]
    match what, len(rest):
        case b"ID", 0:
            return number(session.number)
        case b"GETNAME", 0:
            return text(session.name) if session.name else null(session.protocol)
        case b"SETNAME", 1:
            session.name = _name(rest[0])
        case b"SETINFO", 2:
            if (field := rest[0].lower().decode(errors="replace")) not in session.library:
                return error("ERR Unrecognized option: CLIENT SETINFO takes LIB-NAME or LIB-VER")
            session.library[field] = _name(rest[1])
        case (b"INFO", 0) | (b"LIST", 0):
            return text(_described(session))
        case _:
            return unsupported(b"CLIENT", what)
    return OK


def _name(given: bytes) -> str:
    """Return a name from a client as a text. Raises InvalidArgument if the name is invalid."""
    name = given.decode(errors="backslashreplace")
    if len(name) > _NAME_MOST or any(not "!" <= letter <= "~" for letter in name):
        raise InvalidArgument("Client names cannot contain spaces, newlines or special characters.", value=given)
    return name


def _described(session: ClientInfo) -> str:
    fields = {
        "id": session.number,
        "addr": session.address,
        "name": session.name,
        "db": 0,
        "resp": session.protocol,
        **session.library,
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()) + "\n"


def command(session: ClientInfo, _: About, arguments: Sequence[bytes]) -> bytes:
    """Count, list or describe commands (COUNT, LIST, INFO, DOCS). INFO and DOCS without names describe all commands."""
    what, rest = arguments[0].upper() if arguments else b"INFO", arguments[1:]
    names = [name.decode(errors="replace").upper() for name in rest] or list(SPECS)
    match what:
        case b"COUNT" if not rest:
            return number(len(SPECS))
        case b"LIST" if not rest:
            return array([text(spec.name) for spec in SPECS.values()])
        case b"INFO":
            return array([SPECS[name].told() if name in SPECS else null(session.protocol) for name in names])
        case b"DOCS":
            found = {SPECS[name].name: SPECS[name].documented(session.protocol) for name in names if name in SPECS}
            return pairs(found, session.protocol)
    return unsupported(b"COMMAND", what)


def config(session: ClientInfo, _: About, arguments: Sequence[bytes]) -> bytes:
    """Return the requested settings that are in _SETTINGS. All other names are ignored, as in Redis."""
    if arguments[0].upper() != b"GET" or len(arguments) == 1:
        return unsupported(b"CONFIG", arguments[0].upper())
    asked = [name.lower() for name in arguments[1:]]
    found = {name.decode(): text(value) for name, value in _SETTINGS.items() if name in asked}
    return pairs(found, session.protocol)


def info(_: ClientInfo, about: About, arguments: Sequence[bytes]) -> bytes:
    """Describe this server. Arguments select sections; without arguments, return all sections."""
    sections: Mapping[str, Mapping[str, object]] = {
        "Server": {
            "redis_version": REDIS_VERSION,
            "redis_mode": "standalone",
            "server_name": "segment-issuer",
            "segment_issuer_version": __version__,
            "process_id": os.getpid(),
            "tcp_port": about.port,
            "uptime_in_seconds": int(about.uptime()),
        },
        "Clients": {"connected_clients": about.clients(), "maxclients": about.most},
        "Persistence": {"loading": 0},
        "Replication": {"role": "master", "connected_slaves": 0},
        "Cluster": {"cluster_enabled": 0},
    }
    asked = {name.decode(errors="replace").lower() for name in arguments}
    everything = not asked or asked & {"all", "default", "everything"}
    parts = [
        "".join([f"# {title}\r\n", *(f"{name}:{value}\r\n" for name, value in fields.items())])
        for title, fields in sections.items()
        if everything or title.lower() in asked
    ]
    return text("\r\n".join(parts))


def scan(_: ClientInfo, __: About, arguments: Sequence[bytes]) -> bytes:
    """Return no keys: the server stores none."""
    if not arguments[0].isdigit():
        return error("ERR invalid cursor")
    return array([bulk(b"0"), array([])])


def time_(_: ClientInfo, __: About, ___: Sequence[bytes]) -> bytes:
    """Return the seconds and microseconds since 1970."""
    seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
    return array([text(str(seconds)), text(str(micros))])


def reset(session: ClientInfo, _: About, __: Sequence[bytes]) -> bytes:
    """Reset the connection to its initial state: the client must authenticate again."""
    session.reset()
    return simple("RESET")


def _always(reply: bytes) -> AtOnce:
    """Return a handler whose reply is the same each time."""
    return lambda _, __, ___: reply


#: The commands that need neither Redis nor the store. They are answered at once.
AT_ONCE: Final[Mapping[str, AtOnce]] = {
    "AUTH": auth,
    "HELLO": hello,
    "PING": ping,
    "ECHO": echo,
    "SELECT": select,
    "CLIENT": client,
    "COMMAND": command,
    "CONFIG": config,
    "INFO": info,
    # `Connection` queues the commands after MULTI, and handles EXEC and DISCARD itself. The two errors below are the
    # replies to EXEC and DISCARD without a MULTI before them.
    "MULTI": _always(OK),
    "EXEC": _always(error("ERR EXEC without MULTI")),
    "DISCARD": _always(error("ERR DISCARD without MULTI")),
    # WATCH is an error. A client that uses it expects EXEC to fail if the key has changed since WATCH. Here, EXEC never
    # fails for this reason.
    "WATCH": _always(error("ERR WATCH is not supported, and not needed: each number is issued to one caller only")),
    "UNWATCH": _always(OK),
    "SCAN": scan,
    "DBSIZE": _always(number(0)),
    "TIME": time_,
    "RESET": reset,
    # `Connection` closes itself after this reply.
    "QUIT": _always(OK),
}
