"""Parses requests of clients: arrays of bulk strings, which programs send, or lines, which people type.

hiredis is not used. When hiredis reads the header of an array, it allocates a list of the declared length, without a
limit: thirteen bytes of a client would allocate 8 GB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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

#: Bytes that a client may make the server hold without a place in the budget of the worker. So no longer read is
#: remembered.
FREE: Final = 2048

#: Bytes of an element in memory beside its content, in an incomplete request.
_OVERHEAD: Final = 41

#: Maximum number of bytes in a header such as `$65536`.
_HEADER_MOST: Final = 16

#: First words of two lines in an HTTP request. A web page can make a browser send such a request to any port of its
#: machine, with Redis commands in the body. So the server closes a connection that sends such a line.
OF_BROWSERS: Final = (b"POST", b"HOST:")

_ASTERISK, _DOLLAR = b"*$"

#: Pattern of the most frequent requests, INCR of a tag with a short name, and INCRBY of it with 1 (see `is_incr`).
_INCR: Final = re.compile(
    rb"\*(?:2\r\n\$4\r\n(?:INCR|incr)|(3)\r\n\$6\r\n(?:INCRBY|incrby))"
    rb"\r\n\$(\d{1,3})\r\n([^\r\n]*)\r\n(?(1)\$1\r\n1\r\n)"
).match

#: What stands before and after the commands of a transaction.
_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$5\r\nmulti\r\n"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n", b"*1\r\n$4\r\nexec\r\n"

#: The length of an array, or of one of its elements. An array of a negative length is empty.
_HEADER: Final = re.compile(rb"(\*-?|\$)(\d+)\r\n").match

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
    name, size = request[0].upper(), len(request)
    return (name == b"INCR" and size == 2) or (name == b"INCRBY" and size == 3 and request[2] == b"1")  # noqa: PLR2004


def packed(request: Request) -> bytes:
    """Return the bytes of a request, as programs send it."""
    return b"*%d\r\n%b" % (len(request), b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in request]))


class MalformedError(Exception):
    """The client sent bytes that are not a request, or a too large request. The message does not quote the bytes."""


@dataclass(slots=True, eq=False)
class Parser:
    """Parses the requests of one client. A request may arrive in several reads.

    Bytes are parsed only when the next request is wanted: as objects, the requests of a read take a hundred times as
    much memory, and much time.

    Attributes:
        stranger: Whether the client must still authenticate.
        between: Whether the next byte begins a new request.
        more: Whether `next` may have a request.
        times: How often the last request of `next` stood there in a row if it is an INCR, and 0 if it is none.
        begun: How many requests have begun that were not complete in the same read.
        same: The last bytes that `is_row` has accepted. Clients often send them again: they are not parsed again.
        same_request, same_times: The INCR in `same`, and how often it stands there.
        same_multi: Whether MULTI and EXEC stand around the INCRs in `same`.
    """

    stranger: bool = False
    between: bool = True
    more: bool = False
    times: int = 0
    begun: int = 0
    same: bytes = b""
    same_request: Request = field(default_factory=list)
    same_times: int = 0
    same_multi: bool = False
    #: The bytes that are not parsed yet begin at `_at`.
    _data: bytes = b""
    _at: int = 0
    #: An incomplete array: its elements until now, the number of missing elements, and the bytes of its elements.
    _arguments: Request = field(default_factory=list)
    _missing: int = 0
    _size: int = 0

    def drop(self) -> None:
        """Forget all bytes that are not parsed yet."""
        self.between, self.more = True, False
        self._data, self._at = b"", 0
        self._arguments, self._missing, self._size = [], 0, 0

    @property
    def held(self) -> int:
        """Number of bytes in memory: those that are not parsed, and the elements of an incomplete array."""
        return len(self._data) + self._size + _OVERHEAD * len(self._arguments)

    def is_row(self, data: bytes) -> bool:
        """Remember these bytes, with which a request begins, if they are equal INCRs, or a transaction of equal INCRs.

        Return whether they are.
        """
        if len(data) > FREE:
            return False
        multi = data.startswith(_MULTI) and data.endswith(_EXEC)
        row = data[len(_MULTI[0]) : -len(_EXEC[0])] if multi else data
        found = _incr(row, 0)
        if found is None or row != row[: found[1]] * (times := len(row) // found[1]):
            return False
        self.same, self.same_request, self.same_times, self.same_multi = data, found[0], times, multi
        return True

    def feed(self, data: bytes) -> None:
        """Add the next bytes."""
        self.begun += self.between
        self._data, self._at = self._data[self._at :] + data, 0
        self.between, self.more = False, True

    def insert(self, data: bytes) -> None:
        """Put complete requests before those that `next` has not returned yet."""
        self._data, self._at = data + self._data[self._at :], 0
        self.between, self.more = False, True

    def next(self) -> Request | None:
        """Return the next request, which is not empty. Return None if no complete request is left.

        Raises MalformedError.
        """
        data, at, whole = self._data, self._at, not self._missing
        if whole and (found := _incr(data, at)) is not None:
            request: Request | None
            (request, self._at), self.times = found, 1
        else:
            while (request := self._request(data, at)) == []:
                at, whole = self._at, True
            self.times = int(request is not None and is_incr(request))
        if self.times and whole and data.startswith(one := data[at : self._at], self._at):
            self._at = _row(data, one, self._at)
            self.times = (self._at - at) // len(one)
        self.more = request is not None and self._at < len(data)
        if self.more:
            return request
        self.begun += at > 0 and request is None
        self._data, self._at = data[self._at :], 0
        self.between = not self._data and not self._missing
        return request

    def _request(self, data: bytes, at: int) -> Request | None:
        """Parse the request at a position. Return None if it is not complete. Move `_at` behind what was parsed."""
        if not self._missing:
            if at == len(data):
                return None
            if data[at] != _ASTERISK:
                return self._line(data, at)
            header = self._header(data, at, "multibulk", ELEMENTS_MOST, STRANGERS_ELEMENTS)
            if header is None:
                return None
            self._missing, self._at = header
        self._fill(data)
        if self._missing:
            return None
        request, self._arguments, self._size = self._arguments, [], 0
        return request

    def _line(self, data: bytes, at: int) -> Request | None:
        longest = STRANGERS_BYTES if self.stranger else LINE_MOST
        stops = data.find(b"\n", at, at + longest + 1)
        if stops < 0:
            if len(data) - at > longest:
                raise MalformedError("too big inline request")
            return None
        words = split(data[at:stops])
        if len(words) > ELEMENTS_MOST:
            raise MalformedError("too many words in an inline request")
        self._at = stops + 1
        return words

    def _fill(self, data: bytes) -> None:
        end = len(data)
        while self._missing and (at := self._at) < end:
            if data[at] != _DOLLAR:
                raise MalformedError(f"expected '$', got {chr(data[at])!r}")
            header = self._header(data, at, "bulk", BULK_MOST, STRANGERS_BYTES)
            if header is None:
                return
            length, begins = header
            if self._size + length > REQUEST_MOST:
                raise MalformedError("too big request")
            stops = begins + length
            if end < stops + 2:
                return
            if data[stops : stops + 2] != b"\r\n":
                raise MalformedError("expected a line break after a bulk string")
            self._arguments.append(data[begins:stops])
            self._size += length
            self._missing -= 1
            self._at = stops + 2

    def _header(self, data: bytes, at: int, what: str, most: int, strangers: int) -> tuple[int, int] | None:
        """Return the length in a header, and the position after the header. Return None if it is not complete.

        `most`, `strangers`: largest length, and the largest for a client that must still authenticate.
        """
        found = _HEADER(data, at, at + _HEADER_MOST)
        if found is None:
            if len(data) - at >= _HEADER_MOST or b"\r\n" in data[at:]:
                raise MalformedError(f"invalid {what} length")
            return None
        length = int(found[2])
        if length > most:
            raise MalformedError(f"invalid {what} length")
        if self.stranger and length > strangers:
            raise MalformedError(f"unauthenticated {what} length")
        return (0 if found[1] == b"*-" else length), found.end()


def _incr(data: bytes, at: int) -> tuple[Request, int] | None:
    """Return the INCR at a position, and where it ends. None if there is another request, or a rare form of an INCR."""
    found = _INCR(data, at)
    return ([b"INCR", found[3]], found.end()) if found is not None and int(found[2]) == len(found[3]) else None


def _row(data: bytes, one: bytes, ends: int) -> int:
    """Return where a row of equal requests ends. `ends`: where the first one ends."""
    row = one
    while data.startswith(row, ends):
        ends += len(row)
        row += row
    while len(row) > len(one):
        row = row[: len(row) // 2]
        ends += len(row) * data.startswith(row, ends)
    return ends


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
