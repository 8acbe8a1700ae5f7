"""Replies in the format of the protocol, and error replies for the errors of the library."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from traceback import extract_tb
from typing import Final

from issuer.advice import command_line
from issuer.doors.outside import outside
from issuer.errors import (
    Forbidden,
    InvalidArgument,
    IssuerError,
    LimitReached,
    Unauthenticated,
    Unavailable,
    UnknownTag,
)
from issuer.times import ROUGH

log = logging.getLogger("issuer.doors.resp")

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"

#: The first word of an error reply, by class of the error. For other classes, the word is the error's code in capitals.
WORDS: Final[Sequence[tuple[type[IssuerError], str]]] = (
    (Unavailable, "UNAVAILABLE"),
    (UnknownTag, "NOTAG"),
    (LimitReached, "LIMIT"),
    (Unauthenticated, "NOAUTH"),
    (Forbidden, "NOPERM"),
    (InvalidArgument, "ERR"),
)

#: Maximum number of characters in an error reply. Some errors quote what a client has sent.
MESSAGE_MOST: Final = 500


def simple(text: str) -> bytes:
    """Return a short text without line breaks as a simple string of the protocol."""
    return b"+%b\r\n" % text.encode()


def error(message: str) -> bytes:
    """Return an error reply in one line. The first word of the message must be the error's code."""
    line = "".join(letter if letter.isprintable() else " " for letter in message[:MESSAGE_MOST])
    return b"-%b\r\n" % line.encode(errors="backslashreplace")


def number(value: int) -> bytes:
    """Return an integer reply."""
    return b":%d\r\n" % value


def bulk(content: bytes) -> bytes:
    """Return the content as a bulk string, which can contain any bytes."""
    return b"$%d\r\n%b\r\n" % (len(content), content)


def null(protocol: int) -> bytes:
    """Return a null reply. `protocol`: version 2 or 3."""
    return b"$-1\r\n" if protocol == 2 else b"_\r\n"  # noqa: PLR2004 - the versions have no other names


def text(content: str) -> bytes:
    """Return a text of any length as a bulk string."""
    return bulk(content.encode())


def array(items: Sequence[bytes]) -> bytes:
    """Return an array of replies."""
    return b"*%d\r\n%b" % (len(items), b"".join(items))


def pairs(items: Mapping[str, bytes], protocol: int) -> bytes:
    """Return replies with names: a map in version 3 of the protocol, an array of names and values in version 2."""
    packed = b"".join(text(name) + value for name, value in items.items())
    if protocol == 2:  # noqa: PLR2004 - the versions have no other names
        return b"*%d\r\n%b" % (2 * len(items), packed)
    return b"%%%d\r\n%b" % (len(items), packed)


def failure(error_: BaseException) -> bytes:
    """Return the error reply for an error that a command has raised.

    If the error is not an IssuerError, log it without its text, because the text may quote a token of a client.
    """
    if not isinstance(error_, IssuerError):
        frames = extract_tb(error_.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
        log.error("a command failed because of a bug in the issuer: %s at %s", type(error_).__name__, where)
        return error("ERR internal error")
    word = next((word for kind, word in WORDS if isinstance(error_, kind)), error_.code.upper())
    message = outside(error_).told(command_line)
    if isinstance(error_, Unavailable):
        # Shorten only the text before the time: programs may read the time at the end. It is always in seconds, and has
        # no exponent.
        seconds = max(error_.retry_after, 0.001)
        shown = f"{seconds:.0f}" if seconds >= ROUGH else f"{seconds:.2g}"
        message = f"{message[: MESSAGE_MOST - 60]}; retry in {shown} s"
    return error(f"{word} {message}")
