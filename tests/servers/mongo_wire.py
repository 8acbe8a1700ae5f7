"""A proxy before a MongoDB server that falsifies replies, as mongod's own `failCommand` does, and its `hello`.

Any server then looks like the primary of a replica set with one member, the proxy itself. What makes a write one that
can be sent again, its number, is taken out of it on its way, since a standalone server refuses it: so a write that
arrives twice is done twice.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any

import bson

from issuer.chaos import proxy
from tests.servers.proxy import FaultProxy

Document = dict[str, Any]

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_MSG = 1, 2013
#: Before the document: flags, and in a message the kind of its first section; in a reply of old a cursor and counts.
_BEFORE = {_OP_REPLY: 20, _OP_MSG: 5}

#: A write that was done on the primary, and that no majority has yet.
NO_MAJORITY: Document = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}


@dataclass(eq=False, kw_only=True)
class _Falsify(proxy.ProxyFault):
    """Answers with that instead of asking the server; or, `after`, adds it to the server's own answer."""

    answer: Document | None = None
    after: bool = False


class MongoProxy(FaultProxy):
    """`upstream` is (host, port). `replica_set`: the name of the one that it says it is the primary of."""

    def __init__(self, upstream: tuple[str, int], *, replica_set: str | None = None) -> None:
        self.replica_set = replica_set
        #: The commands that reached the server, in order, but for those of pymongo's own watch.
        self.delivered: list[str] = []
        self._spoilt: dict[proxy.ProxiedConnection, Document] = {}
        super().__init__(upstream)

    def mongo_url(self, database: str, options: str) -> str:
        how = "directConnection=true" if self.replica_set is None else f"replicaSet={self.replica_set}"
        return f"mongodb://127.0.0.1:{self.port}/{database}?{how}&{options}"

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
        if self.replica_set is not None and b"txnNumber\0" in request:
            request = _without(request, "txnNumber")
        if (name := _command(request)) not in {"", "hello", "ismaster", "isMaster"}:
            self.delivered.append(name)
        await super()._deliver(link, up, request, strike)

    async def _answer(self, link: proxy.ProxiedConnection, writer: asyncio.StreamWriter, reply: bytes) -> None:
        more = self._spoilt.pop(link, {})
        if self.replica_set is not None and b"maxBsonObjectSize" in reply and b"maxWireVersion" in reply:
            more |= self._primary()
        await super()._answer(link, writer, _with(reply, more) if more else reply)

    def _primary(self) -> Document:
        me = f"127.0.0.1:{self.port}"
        names = {"setName": self.replica_set, "hosts": [me], "me": me, "primary": me}
        return {**names, "setVersion": 1, "isWritablePrimary": True, "ismaster": True, "secondary": False}


def _named(command: str) -> bytes:
    """Return what a request for the command begins with: its name as the first key of a document."""
    return b"\x02" + command.encode() + b"\0"


def _command(request: bytes) -> str:
    length, _, _, kind = _HEADER.unpack_from(request)
    if kind != _OP_MSG or length > len(request):
        return ""
    at = _HEADER.size + _BEFORE[kind]
    size = struct.unpack_from("<i", request, at)[0]
    return next(iter(bson.decode(request[at : at + size])))


def _message(answer: Document, request: bytes) -> bytes:
    body = b"\0" * _BEFORE[_OP_MSG] + bson.encode(answer)
    return _HEADER.pack(_HEADER.size + len(body), 1, _HEADER.unpack_from(request)[1], _OP_MSG) + body


def _without(request: bytes, field: str) -> bytes:
    """Return the request without that field of the command; what follows the command stays as it is."""
    _, number, to, kind = _HEADER.unpack_from(request)
    at = _HEADER.size + _BEFORE[kind]
    end = at + int(struct.unpack_from("<i", request, at)[0])
    command = bson.decode(request[at:end])
    command.pop(field, None)
    body = request[_HEADER.size : at] + bson.encode(command) + request[end:]
    return _HEADER.pack(_HEADER.size + len(body), number, to, kind) + body


def _with(reply: bytes, more: Document) -> bytes:
    """Return the reply with more in its document, which is all that it has."""
    length, number, to, kind = _HEADER.unpack_from(reply)
    assert length == len(reply), "a reply came in more than one piece, or two in one"
    at = _HEADER.size + _BEFORE[kind]
    body = reply[_HEADER.size : at] + bson.encode({**bson.decode(reply[at:]), **more})
    return _HEADER.pack(_HEADER.size + len(body), number, to, kind) + body
