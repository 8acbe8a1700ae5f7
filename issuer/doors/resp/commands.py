"""The commands, and their functions. Each function returns the reply to its command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from issuer import __version__
from issuer.clock import monotonic
from issuer.core.requests import TAKE_MOST
from issuer.doors.resp.catalogue import Spec, unsupported
from issuer.doors.resp.replies import OK, PONG, array, bulk, error, null, number, pairs, simple, text
from issuer.doors.resp.shared import ClientInfo
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


def not_text(argument: bytes) -> InvalidArgument:
    """Return the error for a tag that is not UTF-8."""
    return InvalidArgument("a tag must be UTF-8 text", value=argument)


def tag_of(argument: bytes) -> str:
    """Return an argument as the name of a tag. Raises InvalidArgument if the argument is not UTF-8."""
    try:
        return argument.decode()
    except UnicodeDecodeError:
        raise not_text(argument) from None


# ---------------------------------------------------------------------- commands that wait for Redis or the store


async def incrby(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
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
    shared = session.shared
    await shared.look_ups.look_up(tag, session.owner)
    return number((await shared.engine.contiguous(tag, int(digits)))[-1])


async def get(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Return the highest issued number in Redis, or null if no number was issued or the tag does not exist."""
    tag = _readable(session, arguments[0])
    last = await session.shared.engine.last(tag) if await _exists(session, tag) else None
    return null(session.protocol) if last is None else bulk(b"%d" % last)


async def exists(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Return how many of the tags exist. A tag that is given twice counts twice, as in Redis."""
    tags = [_readable(session, argument) for argument in arguments]
    known = {tag: await _exists(session, tag) for tag in dict.fromkeys(tags)}
    return number(sum(known[tag] for tag in tags))


async def type_of(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Return `string`, the type that counters have in Redis. If the tag does not exist, return `none`."""
    return simple("string" if await _exists(session, _readable(session, arguments[0])) else "none")


def _readable(session: ClientInfo, argument: bytes) -> str:
    tag = tag_of(argument)
    session.caller().need(READING, tag)
    return tag


async def _exists(session: ClientInfo, tag: str) -> bool:
    return await session.shared.look_ups.exists(tag, session.owner)


# ---------------------------------------------------------------------------------------------- other commands


def auth(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Authenticate the client with a token, the last argument. A user name before the token is ignored."""
    session.authenticate(arguments[-1])
    return OK


def hello(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
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


def select(_: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Select database 0, the only one."""
    return OK if arguments[0] == b"0" else error("ERR DB index is out of range: 0 is the only database")


def client(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
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
            library = "".join(f" {name}={value}" for name, value in session.library.items())
            fields = f"id={session.number} addr={session.address} name={session.name} db=0 resp={session.protocol}"
            return text(f"{fields}{library}\n")
        case _:
            return unsupported(b"CLIENT", what)
    return OK


def _name(given: bytes) -> str:
    name = given.decode(errors="backslashreplace")
    if len(name) > _NAME_MOST or any(not "!" <= letter <= "~" for letter in name):
        raise InvalidArgument("Client names cannot contain spaces, newlines or special characters.", value=given)
    return name


def command(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Count, list or describe commands (COUNT, LIST, INFO, DOCS). INFO and DOCS without names describe all commands."""
    what, rest = arguments[0].upper() if arguments else b"INFO", arguments[1:]
    names = [name.decode(errors="replace").upper() for name in rest] or list(SPECS)
    match what:
        case b"COUNT" if not rest:
            return number(len(SPECS))
        case b"LIST" if not rest:
            return array([text(name.lower()) for name in SPECS])
        case b"INFO":
            return array([SPECS[name].told() if name in SPECS else null(session.protocol) for name in names])
        case b"DOCS":
            found = {name.lower(): SPECS[name].documented(session.protocol) for name in names if name in SPECS}
            return pairs(found, session.protocol)
    return unsupported(b"COMMAND", what)


def config(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Return the requested settings that are in _SETTINGS. All other names are ignored, as in Redis."""
    if arguments[0].upper() != b"GET" or len(arguments) == 1:
        return unsupported(b"CONFIG", arguments[0].upper())
    asked = [name.lower() for name in arguments[1:]]
    found = {name.decode(): text(value) for name, value in _SETTINGS.items() if name in asked}
    return pairs(found, session.protocol)


def info(session: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Describe this server. Arguments select sections; without arguments, return all sections."""
    shared = session.shared
    sections: Mapping[str, Mapping[str, object]] = {
        "Server": {
            "redis_version": REDIS_VERSION,
            "redis_mode": "standalone",
            "server_name": "segment-issuer",
            "segment_issuer_version": __version__,
            "process_id": os.getpid(),
            "tcp_port": shared.port,
            "uptime_in_seconds": int(monotonic() - shared.began),
        },
        "Clients": {"connected_clients": len(shared.connections), "maxclients": shared.most},
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


def scan(_: ClientInfo, arguments: Sequence[bytes]) -> bytes:
    """Return no keys: the server stores none."""
    if not arguments[0].isdigit():
        return error("ERR invalid cursor")
    return array([bulk(b"0"), array([])])


def time_(_: ClientInfo, __: Sequence[bytes]) -> bytes:
    """Return the seconds and microseconds since 1970."""
    seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
    return array([text(str(seconds)), text(str(micros))])


def reset(session: ClientInfo, _: Sequence[bytes]) -> bytes:
    """Reset the connection to its initial state: the client must authenticate again."""
    session.reset()
    return simple("RESET")


def _always(reply: bytes) -> Callable[[ClientInfo, Sequence[bytes]], bytes]:
    return lambda _, __: reply


def _without_multi(name: str) -> Callable[[ClientInfo, Sequence[bytes]], bytes]:
    return _always(error(f"ERR {name} without MULTI"))


_WRITE: Final = ("write", "denyoom", "fast")
_READ: Final = ("readonly", "fast")

#: WATCH is an error. A client that uses it expects EXEC to fail if the key has changed since WATCH. Here, EXEC never
#: fails for this reason.
_NO_WATCH: Final = _always(
    error("ERR WATCH is not supported, and not needed: each number is issued to one caller only")
)

#: The commands by name, in capitals. `Connection` draws the numbers of INCR itself, and handles EXEC and DISCARD after
#: MULTI.
SPECS: Final = {
    spec.name: spec
    for spec in (
        Spec("INCR", 1, 1, incrby, "Returns the next number of a tag.", "string", _WRITE, tags=True),
        Spec("INCRBY", 2, 2, incrby, "Returns the last of n contiguous numbers of a tag.", "string", _WRITE, tags=True),
        Spec("GET", 1, 1, get, "Returns the highest number that was issued for a tag.", "string", _READ, tags=True),
        Spec("EXISTS", 1, None, exists, "Returns how many of the tags exist.", "generic", _READ, tags=True, each=True),
        Spec("TYPE", 1, 1, type_of, "Returns the type of a tag: string, or none.", "generic", _READ, tags=True),
        Spec("AUTH", 1, 2, auth, "Authenticates the connection with a token.", early=True),
        Spec("HELLO", 0, None, hello, "Selects the protocol version: 2 or 3.", early=True),
        Spec("PING", 0, 1, lambda _, given: bulk(given[0]) if given else PONG, "Returns PONG, or the message."),
        Spec("ECHO", 1, 1, lambda _, given: bulk(given[0]), "Returns the message."),
        Spec("SELECT", 1, 1, select, "Selects database 0, the only one."),
        Spec("CLIENT", 1, None, client, "Names this connection, or describes it."),
        Spec("COMMAND", 0, None, command, "Lists and describes the commands."),
        Spec("CONFIG", 1, None, config, "Returns some settings of a Redis server.", "server"),
        Spec("INFO", 0, None, info, "Describes this server.", "server"),
        Spec("MULTI", 0, 0, _always(OK), "Starts a transaction: the commands that follow are queued.", "transactions"),
        Spec("EXEC", 0, 0, _without_multi("EXEC"), "Runs the queued commands.", "transactions"),
        Spec("DISCARD", 0, 0, _without_multi("DISCARD"), "Discards the queued commands.", "transactions"),
        Spec("WATCH", 1, None, _NO_WATCH, "Always an error: numbers never need a watch.", "transactions"),
        Spec("UNWATCH", 0, 0, _always(OK), "Does nothing: no keys are watched.", "transactions"),
        Spec("SCAN", 1, None, scan, "Returns no keys: this server stores none.", "generic"),
        Spec("DBSIZE", 0, 0, _always(number(0)), "Returns 0: this server stores no keys.", "server"),
        Spec("TIME", 0, 0, time_, "Returns the server's time.", "server"),
        Spec("RESET", 0, 0, reset, "Resets the connection to its initial state.", early=True),
        Spec("QUIT", 0, None, _always(OK), "Closes the connection.", early=True),
    )
}
