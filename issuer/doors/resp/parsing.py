"""Parses requests of clients: arrays of bulk strings, which programs send, or lines, which people type.

hiredis is not used. When hiredis reads the header of an array, it allocates a list of the declared length, without a
limit: thirteen bytes of a client would allocate 8 GB.
"""

from __future__ import annotations

import re
from typing import Final

#: Limits in bytes, in this order: one argument, a request in a line, and all arguments of a request together.
BULK_MOST: Final = 65_536
LINE_MOST: Final = 65_536
REQUEST_MOST: Final = 1_048_576

#: Maximum number of elements in a request: the name of the command and its arguments.
ELEMENTS_MOST: Final = 1024

#: Limits for a client that must still send a token: elements of a request, and bytes of an argument or a line.
STRANGERS_ELEMENTS: Final = 10
STRANGERS_BYTES: Final = 16_384

#: Maximum number of bytes in a header such as `$65536`.
_HEADER_MOST: Final = 16

#: First words of two lines in an HTTP request. A web page can make a browser send such a request to any port of its
#: machine, with Redis commands in the body. So the server closes a connection that sends such a line.
OF_BROWSERS: Final = (b"POST", b"HOST:")

_ASTERISK, _DOLLAR = b"*$"

#: Pattern of the most frequent request: a command with one argument, both short and without line breaks.
_PAIR: Final = re.compile(rb"\*2\r\n\$(\d{1,3})\r\n([^\r\n]*)\r\n\$(\d{1,3})\r\n([^\r\n]*)\r\n")

_BLANKS: Final = b" \n\r\t\0"
_QUOTED: Final = re.compile(rb""" "((?:\\.|[^"\\])*+)" | '((?:\\'|[^'])*+)' """, re.DOTALL | re.VERBOSE)
#: A word of a line, and the blanks after the word. A closing quote must be the end of the word.
_WORD: Final = re.compile(
    rb"""((?: [^\ \n\r\t\0"']++ | (?:%b)(?![^\ \n\r\t\0]) )++) [\ \n\r\t\0]*""" % _QUOTED.pattern,
    re.DOTALL | re.VERBOSE,
)
_ESCAPED: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}

Request = list[bytes]


def is_incr(request: Request) -> bool:
    """Return whether the request draws one number: INCR tag, or INCRBY tag 1, which redis-py sends for `incr(tag)`."""
    name, size = request[0], len(request)
    return (name == b"INCR" and size == 2) or (name == b"INCRBY" and size == 3 and request[2] == b"1")  # noqa: PLR2004


class MalformedError(Exception):
    """The client sent bytes that are not a request, or a too large request. The message does not quote the bytes."""


class Parser:
    """Parses the requests of one client. A request may arrive in several reads.

    Attributes:
        fault: Why the last bytes are not a request, or "". After a fault, the parser ignores all further bytes.
        stranger: Whether the client must still authenticate.
        between: Whether the next byte begins a new request.
    """

    __slots__ = ("_arguments", "_missing", "_needed", "_rest", "_size", "between", "fault", "stranger")

    def __init__(self, *, stranger: bool = False) -> None:
        self.stranger = stranger
        self.fault = ""
        self.between = True
        self._rest = b""
        #: Number of bytes that `_rest` (the bytes that are not parsed yet) must have before it is parsed again.
        self._needed = 0
        #: An incomplete array: its elements until now, the number of missing elements, and the bytes of its elements.
        self._arguments: Request = []
        self._missing = 0
        self._size = 0

    def feed(self, data: bytes) -> list[Request]:
        """Parse the next bytes. Return the requests that are complete now, also those before a fault.

        No request is empty.
        """
        requests: list[Request] = []
        if self.fault:
            return requests
        if self._rest:
            data = self._rest + data
        at = 0
        if len(data) >= self._needed:
            self._needed = 0
            try:
                at = self._parse(data, requests)
            except MalformedError as error:
                self.fault = str(error)
                at = len(data)
        self._rest = data[at:]
        self.between = not self._rest and not self._missing
        return requests

    def _parse(self, data: bytes, requests: list[Request]) -> int:
        """Add the complete requests to `requests`. Return the position of the first byte that is not parsed."""
        at, end = 0, len(data)
        while at < end:
            if not self._missing:
                pair = _PAIR.match(data, at)
                if pair is not None:
                    name_size, name, size, argument = pair.groups()
                    if int(name_size) == len(name) and int(size) == len(argument):
                        requests.append([name, argument])
                        at = pair.end()
                        continue
                begun, longest = at, STRANGERS_BYTES if self.stranger else LINE_MOST
                at = self._begun(data, at) if data[at] == _ASTERISK else _line(data, at, requests, longest)
                if at == begun:
                    return at
            if self._missing:
                at = self._filled(data, at)
                if self._missing:
                    return at
                requests.append(self._arguments)
                self._arguments = []
        return at

    def _begun(self, data: bytes, at: int) -> int:
        """Begin an array. Return the position of its first element, or `at` if its header is not complete."""
        header = _header(data, at, "invalid multibulk length")
        if header is None:
            return at
        length, at = header
        if length > ELEMENTS_MOST:
            raise MalformedError("invalid multibulk length")
        if self.stranger and length > STRANGERS_ELEMENTS:
            raise MalformedError("unauthenticated multibulk length")
        self._missing, self._size = max(0, length), 0
        return at

    def _filled(self, data: bytes, at: int) -> int:
        """Add the elements that are complete to the array. Return the position of the next element."""
        end = len(data)
        while self._missing and at < end:
            if data[at] != _DOLLAR:
                raise MalformedError(f"expected '$', got {_shown(data[at])}")
            header = _header(data, at, "invalid bulk length")
            if header is None:
                break
            length, begins = header
            if not 0 <= length <= BULK_MOST:
                raise MalformedError("invalid bulk length")
            if self.stranger and length > STRANGERS_BYTES:
                raise MalformedError("unauthenticated bulk length")
            self._size += length
            if self._size > REQUEST_MOST:
                raise MalformedError("too big request")
            stops = begins + length
            if end < stops + 2:
                self._size -= length
                self._needed = stops + 2 - at
                break
            if data[stops : stops + 2] != b"\r\n":
                raise MalformedError("expected a line break after a bulk string")
            self._arguments.append(data[begins:stops])
            self._missing -= 1
            at = stops + 2
        return at


def _header(data: bytes, at: int, fault: str) -> tuple[int, int] | None:
    r"""Return the number in a header such as `*2\r\n`, and the position after the header.

    Return None if the header is not complete. `fault`: message of the MalformedError for an invalid header.
    """
    stops = data.find(b"\r\n", at, at + _HEADER_MOST)
    if stops < 0:
        if len(data) - at >= _HEADER_MOST:
            raise MalformedError(fault)
        return None
    digits = data[at + 1 : stops]
    if not digits.removeprefix(b"-").isdigit():
        raise MalformedError(fault)
    return int(digits), stops + 2


def _shown(byte: int) -> str:
    letter = chr(byte)
    return f"'{letter}'" if letter.isascii() and letter.isprintable() else f"byte {byte}"


def _line(data: bytes, at: int, requests: list[Request], longest: int) -> int:
    """Add the request in a line to `requests`, unless the line is empty.

    Return the position of the next request, or `at` if the line is not complete.
    """
    stops = data.find(b"\n", at, at + longest + 1)
    if stops < 0:
        if len(data) - at > longest:
            raise MalformedError("too big inline request")
        return at
    words = split(data[at:stops])
    if len(words) > ELEMENTS_MOST:
        raise MalformedError("too many words in an inline request")
    if words:
        requests.append(words)
    return stops + 1


def split(line: bytes) -> Request:
    r"""Return the words of a line. Double quotes can contain escapes such as \n and \xff, single quotes only \'."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    words, at, line = [], 0, line.strip(_BLANKS)
    while at < len(line):
        word = _WORD.match(line, at)
        if word is None:
            raise MalformedError("unbalanced quotes in request")
        words.append(_QUOTED.sub(_unquoted, word[1]))
        at = word.end()
    return words


def _unquoted(part: re.Match[bytes]) -> bytes:
    if part[1] is None:
        return part[2].replace(b"\\'", b"'")
    return _ESCAPED.sub(
        lambda each: bytes.fromhex(each[1].decode()) if each[1] else _ESCAPES.get(each[2], each[2]), part[1]
    )
