"""Handlers of the routes for numbers: next, take, reserve, warm, peek, decode, who."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, TTL, whole
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import JSON, TEXT, Problem, Reply, dumped, shown
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument, NotDecodable, brief
from issuer.numbers.codec import DIGITS_MOST
from issuer.operations.numbers import DrawOptions
from issuer.settings import seconds
from issuer.views import view

#: How many numbers one piece of a body contains. Each piece takes 0.15 ms to make, during which no other request runs.
_PIECE: Final = 1000

#: Bytes that a number in a list takes.
_NUMBER: Final = 40

#: Bytes that a reply in pieces takes while its client does not read it: 105 KB with 2000 such clients.
_WRITING: Final = 131_072

#: Bodies of a reply with a number: the first without `as=string`, the second with it. %b stands for the result of
#: `before_number`, %d for the number.
NUMBER_BODY: Final = (b"%b%d}", b'%b"%d"}')


def before_number(tag: str) -> bytes:
    """Return the beginning of a reply, up to the number, for a tag whose numbers have no texts."""
    return b'{"tag":' + dumped(tag) + b',"number":'


async def next_number(service: Service, call: Request) -> Reply:
    """Draw one number."""
    ids, said, tag, key = service.ids, call.body, call.tag, _key_of(call)
    if "ttl" in said and key is None:
        raise InvalidArgument("requires an Idempotency-Key", tag=tag, value=said["ttl"], argument="ttl")
    settings = service.settings
    ttl = seconds(said.get("ttl", min(TTL, settings.longest_ttl)), "ttl", zero=False)
    if ttl > settings.longest_ttl:
        problem = f"must be at most {settings.longest_ttl:g} s on this server (longest_ttl), not {ttl:g}"
        raise InvalidArgument(problem, tag=tag, value=ttl, argument="ttl")
    again, over = (bool, None) if key is None else service.count_key(call.caller.name, ttl)
    how = DrawOptions(
        key,
        ttl,
        said.get("shard_key"),
        said.get("restart_key"),
        owner=call.caller.name,
        again=again,
        over=over,
        series_most=settings.series_per_tag,
    )
    if how.restart_key is not None or await service.composed(tag, call.timeout):
        return _issued(call, await service.ids.engine.issue(tag, how, call.timeout))
    # `next` is called here, and not `issue`: only concurrent calls of `next` share a draw, and plugins can change only
    # the numbers of `next`.
    if key is None and how.shard_key is None:
        number = await ids.next(tag, timeout=call.timeout)
    else:
        number = await service.ids.engine.number(tag, how, call.timeout)
    if call.as_text:
        return Reply(b"%d" % number, TEXT)
    return Reply(NUMBER_BODY[call.as_string] % (before_number(tag), number))


def _key_of(call: Request) -> str | None:
    key = call.headers.get(b"idempotency-key")
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed", "the header Idempotency-Key is not UTF-8") from error


def _issued(call: Request, issued: Issued) -> Reply:
    if call.as_text:
        return Reply(b"%d" % issued.value, TEXT)
    content = {"tag": issued.tag, "number": issued.value, "text": issued.text}
    content |= {name: part for name in ("period", "shard") if (part := getattr(issued, name)) is not None}
    return shown(content, as_string=call.as_string)


async def take(service: Service, call: Request) -> Reply:
    """Draw n numbers."""
    parts = await ranges(service, call, call.tag, call.body["n"], call.timeout)
    if call.as_text:
        return in_pieces(parts, b"", b"\n", b"\n", TEXT)
    quote = b'"' if call.as_string else b""
    before = b'{"tag":' + dumped(call.tag) + b',"numbers":[' + quote
    return in_pieces(parts, before, quote + b"," + quote, quote + b"]}")


async def ranges(service: Service, call: Request, tag: str, n: int, timeout: float | None) -> Sequence[Sequence[int]]:
    """Count the memory that n numbers will take until they are written. Then draw them. Raises Problem."""
    engine = service.ids.engine
    n, deadline = whole(n, "n", 1, TAKE_MOST), engine.deadline(timeout)
    call.hold(_NUMBER * n if await engine.lists(tag, deadline) else min(_NUMBER * n, _WRITING))
    return await engine.ranges(tag, n, deadline)


def in_pieces(
    parts: Sequence[Sequence[int]], before: bytes, between: bytes, after: bytes, media: bytes = JSON
) -> Reply:
    """Return a reply with numbers. If there are many, its body is sent in pieces."""
    if sum(map(len, parts)) <= _PIECE:
        return Reply(before + between.join(b"%d" % each for part in parts for each in part) + after, media)
    return Reply(before, media, rest=_pieces(parts, between, after))


async def _pieces(parts: Sequence[Sequence[int]], between: bytes, after: bytes) -> AsyncIterator[bytes]:
    lead = b""
    for part in parts:
        for at in range(0, len(part), _PIECE):
            yield lead + between.join(b"%d" % each for each in part[at : at + _PIECE])
            lead = between
            await asyncio.sleep(0)  # a million numbers take 0.2 s: between the pieces, other requests run
    yield after


async def reserve(service: Service, call: Request) -> Reply:
    """Reserve n contiguous numbers."""
    numbers = await service.ids.reserve(call.tag, call.body["n"], timeout=call.timeout)
    content = {"tag": call.tag, "first": numbers.start, "last": numbers.stop - 1}
    return shown(content, as_string=call.as_string)


async def warm(service: Service, call: Request) -> Reply:
    """Load numbers, so that the first draw does not wait for the store."""
    await service.ids.warm(call.tag, timeout=call.timeout)
    return Reply(status=204)


async def peek(service: Service, call: Request) -> Reply:
    """Show the next number without drawing it."""
    keys = {name: call.query.get(name) for name in ("shard_key", "restart_key")}
    return _issued(call, await service.ids.peek(call.tag, timeout=call.timeout, **keys))


async def decode(service: Service, call: Request) -> Reply:
    """Show the parts of a number, or of the text of a number."""
    value: int | str = call.path["shown"]
    if call.query.get("number"):
        value = _whole(call.tag, call.path["shown"])
    holder = bool(call.query.get("holder"))
    found = await service.ids.decode(call.tag, value, holder=holder, timeout=call.timeout)
    return shown(view(found), as_string=call.as_string)


async def who(service: Service, call: Request) -> Reply:
    """Show which process reserved a number."""
    ids, tag, value = service.ids, call.tag, _whole(call.tag, call.path["number"])
    decoded = await ids.decode(tag, value, timeout=call.timeout)
    if decoded.counter is None:
        problem = f"{value} of {tag!r} has no single counter value, so the ledger does not show who reserved it"
        raise NotDecodable(problem, tag=tag, value=value)
    part = decoded.part or tag
    content: dict[str, Any] = view(await ids.who(part, decoded.counter, timeout=call.timeout))
    if (part, decoded.counter) != (tag, value):
        content["value"] = value
    return shown(content, as_string=call.as_string)


def _whole(tag: str, text: str) -> int:
    if not re.fullmatch(rf"[0-9]{{1,{DIGITS_MOST}}}", text, re.ASCII):
        raise NotDecodable(f"{brief(text)} is not a whole number", tag=tag, value=text)
    return int(text)
