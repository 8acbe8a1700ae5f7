"""A proxy before a MongoDB server that falsifies replies, with the texts of any server."""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any

import bson

from issuer.chaos import proxy
from tests.servers.proxy import FaultProxy

Document = dict[str, Any]

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
#: Where the document begins: behind the header, flags, and the kind of the first section.
_AT = _HEADER.size + 5

#: A write that was done on the primary, and that no majority has yet.
NO_MAJORITY: Document = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}


@dataclass(eq=False, kw_only=True)
class _Falsify(proxy.ProxyFault):
    """Answers with that instead of asking the server; or, `after`, adds it to the server's own answer."""

    answer: Document | None = None
    after: bool = False


class MongoProxy(FaultProxy):
    """`upstream` is (host, port)."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        #: The commands that reached the server, in order, but for those of pymongo's own watch.
        self.delivered: list[str] = []
        self._spoilt: dict[proxy.ProxiedConnection, Document] = {}
        super().__init__(upstream)

    def mongo_url(self, database: str, options: str) -> str:
        return f"mongodb://127.0.0.1:{self.port}/{database}?directConnection=true&{options}"

    def fail(
        self, command: str, code: int, message: str, *, times: int | None = 1, labels: list[str] | None = None
    ) -> None:
        """Refuse the command with that error; it doesn't reach the server."""
        answer = {"ok": 0.0, "code": code, "errmsg": message, "errorLabels": labels or []}
        self._order(self._set(_Falsify(match=_named(command), left=times, answer=answer)))

    def refuse_collection(self, collection: str, code: int, message: str) -> None:
        """Refuse whatever is asked of that collection, as a server does whose user has no right to it."""
        match = struct.pack("<i", len(collection) + 1) + collection.encode() + b"\0"
        answer = {"ok": 0.0, "code": code, "errmsg": message}
        self._order(self._set(_Falsify(match=match, answer=answer)))

    def spoil(self, *, times: int | None = None) -> None:
        """Carry each write out, and answer that no majority has it, as when all other members are away."""
        self._order(self._set(_Falsify(match=b"writeConcern\0", left=times, answer=NO_MAJORITY, after=True)))

    def lose_then_fail(self, command: str, code: int, message: str) -> None:
        """Carry the command out, cut the connection instead of answering, and refuse its retry."""
        answer = {"ok": 0.0, "code": code, "errmsg": message}
        then = _Falsify(match=_named(command), left=1, answer=answer)
        self._order(self._set(proxy.ProxyFault(proxy.FaultKind.DROP_REPLY, _named(command), 1, then=then)))

    async def _deliver(
        self, link: proxy.ProxiedConnection, up: asyncio.StreamWriter, request: bytes, strike: proxy.ProxyFault
    ) -> None:
        if isinstance(strike, _Falsify) and strike.answer is not None:
            if not strike.after:
                assert link.writer is not None
                await proxy._send(link.writer, _message(strike.answer, request))
                return
            self._spoilt[link] = strike.answer
        if (name := _command(request)) not in {"", "hello", "ismaster", "isMaster"}:
            self.delivered.append(name)
        await super()._deliver(link, up, request, strike)

    async def _answer(self, link: proxy.ProxiedConnection, writer: asyncio.StreamWriter, reply: bytes) -> None:
        more = self._spoilt.pop(link, {})
        await super()._answer(link, writer, _with(reply, more) if more else reply)


def _named(command: str) -> bytes:
    """Return what a request for the command begins with: its name as the first key of a document."""
    return b"\x02" + command.encode() + b"\0"


def _command(request: bytes) -> str:
    length, _, _, kind = _HEADER.unpack_from(request)
    if kind != _OP_MSG or length > len(request):
        return ""
    size = struct.unpack_from("<i", request, _AT)[0]
    return next(iter(bson.decode(request[_AT : _AT + size])))


def _message(answer: Document, request: bytes) -> bytes:
    body = b"\0" * (_AT - _HEADER.size) + bson.encode(answer)
    return _HEADER.pack(_HEADER.size + len(body), 1, _HEADER.unpack_from(request)[1], _OP_MSG) + body


def _with(reply: bytes, more: Document) -> bytes:
    """Return the reply with more in its document, which is all that it has."""
    length, number, to, kind = _HEADER.unpack_from(reply)
    assert (length, kind) == (len(reply), _OP_MSG), "a reply came in more than one piece, or two in one"
    body = reply[_HEADER.size : _AT] + bson.encode({**bson.decode(reply[_AT:]), **more})
    return _HEADER.pack(_HEADER.size + len(body), number, to, kind) + body
