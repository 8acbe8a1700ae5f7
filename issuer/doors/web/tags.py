"""Handlers of the routes for tags: list, create, inspect, configure, delete, and show the ledger in pages."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec.json import decode

from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply, shown
from issuer.doors.web.service import Service
from issuer.errors import CorruptState, Forbidden, InvalidArgument
from issuer.views import view
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag

#: Default number of entries in a page.
PAGE: Final = 100
#: Largest number of entries in a page.
PAGE_MOST: Final = 1000
#: Type of a position in a ledger.
_POSITION: Final = tuple[int, int, str]


def _count(query: Mapping[str, Any]) -> int:
    count: int = query.get("count", PAGE)
    if not 1 <= count <= PAGE_MOST:
        raise InvalidArgument(f"must be 1..{PAGE_MOST}, not {count}", value=count, argument="count")
    return count


async def tags(service: Service, call: Request) -> Reply:
    """Show a page of the tags that the caller may read, sorted by name.

    If the token is valid for some tags, the page has those among the next PAGE_MOST tags, and may be empty.
    """
    count = _count(call.query)
    beyond = _beyond(call.query, str)
    refusal: Forbidden | None = None
    try:
        call.caller.need("read")
    except Forbidden as error:  # a token that is valid for some tags lists only these tags
        refusal = error
    most = count if refusal is None else PAGE_MOST
    pages = service.ids.engine.care.tag_pages(call.timeout, after=beyond, count=most + 1)
    page = await anext(pages)
    found = [each for each in page[:most] if refusal is None or call.caller.may("read", each.tag)]
    last = found[count - 1] if len(found) > count else page[most - 1] if len(page) > most else None
    if refusal is not None and not found and beyond is None and last is None:
        raise refusal
    whole = [view(each) for each in found[:count] if isinstance(each, Tag)]
    damaged = [{"tag": each.tag, "problem": each.problem} for each in found[:count] if isinstance(each, Corrupt)]
    content = {"tags": whole, "damaged": damaged, "next": None if last is None else cursor(last.tag)}
    return shown(content, as_string=call.as_string)


async def create(service: Service, call: Request) -> Reply:
    """Create a tag, or several tags."""
    if "tags" in call.body:
        return await _create_many(service, call)
    if "tag" not in call.body:
        raise Problem(422, "missing_member", "the body lacks the member tag", member="tag")
    said = {name: value for name, value in call.body.items() if name not in ("tag", "timeout")}
    made = await service.ids.create(call.tag, timeout=call.timeout, **said)
    place = (b"location", b"/v1/tags/" + quote(made.tag, safe="").encode())
    # With exist_ok, the result does not show whether the tag already existed, so the status is not 201 (created).
    status = 200 if said.get("exist_ok") else 201
    return shown(view(made), as_string=call.as_string, status=status, headers=[place])


async def _create_many(service: Service, call: Request) -> Reply:
    beside = sorted(call.body.keys() - {"tags", "exist_ok", "timeout"})
    if beside:
        problem = f"{beside[0]} is beside tags: give it in each object of tags"
        raise Problem(422, "unknown_member", problem, member=beside[0])
    wanted = {each["tag"]: {name: each[name] for name in each if name != "tag"} for each in call.body["tags"]}
    if len(wanted) < len(call.body["tags"]):
        raise InvalidArgument("must have each tag once", value=[*wanted], argument="tags")
    exist_ok = call.body.get("exist_ok", False)
    made = await service.ids.create_many(wanted, exist_ok=exist_ok, timeout=call.timeout)
    status = 200 if exist_ok else 201
    return shown({"tags": list(map(view, made))}, as_string=call.as_string, status=status)


async def inspect(service: Service, call: Request) -> Reply:
    """Show the settings and the state of a tag."""
    found = await service.ids.inspect(call.tag, timeout=call.timeout)
    return shown(view(found), as_string=call.as_string)


async def configure(service: Service, call: Request) -> Reply:
    """Change settings of a tag."""
    said = {name: value for name, value in call.body.items() if name != "timeout"}
    # Forget that the tag has plain numbers, because the change may add a format. Forget it again below, because a draw
    # during the change may remember it.
    service.plain.pop(call.tag, None)
    changed = await service.ids.configure(call.tag, timeout=call.timeout, **said)
    service.plain.pop(call.tag, None)
    return shown(view(changed), as_string=call.as_string)


async def delete(service: Service, call: Request) -> Reply:
    """Delete a tag."""
    await service.ids.delete(call.tag, timeout=call.timeout)
    return Reply(status=204)


async def segments(service: Service, call: Request) -> Reply:
    """Show a page of the ledger of a tag."""
    beyond = _beyond(call.query, _POSITION)
    upward = bool(call.query.get("upward"))
    page = await service.ids.segments(call.tag, _count(call.query), beyond=beyond, upward=upward, timeout=call.timeout)
    following = None if page.last is None else cursor(page.last)
    try:
        _beyond({"cursor": following}, _POSITION)
    except InvalidArgument:
        problem = f"the ledger of tag {call.tag!r} has a damaged entry: `verify` shows it"
        raise CorruptState(problem, tag=call.tag) from None
    return shown(view(page) | {"next": following}, as_string=call.as_string)


def cursor(place: Any) -> str:
    """Return the text with which a client requests the page after this position."""
    return urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _beyond(query: Mapping[str, Any], kind: Any) -> Any:
    """Return the last entry of the previous page. None: the first page. Raises InvalidArgument for a bad cursor."""
    cursor = query.get("cursor")
    try:
        return None if cursor is None else decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=kind)
    except ValueError:
        raise InvalidArgument("must be the `next` of a page", value=cursor, argument="cursor") from None
