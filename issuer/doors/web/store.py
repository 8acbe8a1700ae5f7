"""The handler of /v1/store: another issuer uses the store of this one, with a token that has the scope `reserve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from issuer import __version__
from issuer.core.steps import ask
from issuer.doors.access import Caller
from issuer.doors.tokens import Scope
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.records import TagChanges, TagSettings, is_id
from issuer_persistence.remote.messages import error_sent, sent
from issuer_persistence.remote.store import PAGE, READS

_Scalar = str | int | float | bool | None


class _Reserve(Struct):
    reason: str
    id: str
    n: int | None = None
    application: str = ""
    born: str = ""
    at_least: int = 0
    exact: bool = False
    again: bool = False


class _HandBack(Struct):
    entries: list[str]
    version: str
    used: int


class _Configure(Struct):
    settings: dict[str, Any]
    raise_to: int | None = None
    seen: str | None = None


class _Page(Struct):
    count: int
    after: str | None = None
    #: Of a damaged entry, each part may have any type. An object would be an operator of MongoDB.
    beyond: tuple[_Scalar, _Scalar, _Scalar] | None = None
    upward: bool = False


class _Batch(Struct):
    read: str
    tags: list[str]
    options: dict[str, Any]


class _Other(Struct):
    """The arguments of the other calls."""

    at_least: int = 0
    below: int | None = None
    newest: int = 1
    ids: list[str] = []
    settings: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call for the store of this issuer. `given`: its arguments, of the type in `_CALLS`. `seconds`: its timeout."""

    store: Store
    tag: str
    given: Any
    seconds: float
    caller: Caller


def _reserve(call: _Call) -> object:
    said, store, seconds = call.given, call.store, call.seconds
    if not is_id(said.id):
        raise InvalidArgument("must have 24 hexadecimal digits", value=said.id, argument="id")
    if said.again:  # the reply to the first request was lost
        record = store.get(call.tag, timeout=seconds)
        for each in [] if record is None else store.entries(call.tag, [said.id], timeout=seconds):
            if record is not None and _own(call, each.application):
                return Reservation(record, each.low, each.high, each.id, store.store_id(timeout=seconds))
    purpose = Purpose(said.reason, call.caller.name or said.application, said.born, said.id)
    return store.reserve(call.tag, said.n, purpose=purpose, at_least=said.at_least, exact=said.exact, timeout=seconds)


def _own(call: _Call, application: str) -> bool:
    """Whether a ledger entry with this label is one of the caller's token."""
    return call.caller.name in ("", application)


def _hand_back(call: _Call) -> bool:
    """Return numbers of the caller's own reservations. Its ledger entries say which numbers these are."""
    said, record = call.given, call.store.get(call.tag, timeout=call.seconds)
    entries = call.store.entries(call.tag, said.entries, timeout=call.seconds)
    if record is None or len(entries) < len(said.entries) or not all(_own(call, each.application) for each in entries):
        return False
    seen = replace(record, version=said.version)
    held = [Reservation(seen, each.low, each.high, each.id, "") for each in sorted(entries, key=lambda each: each.low)]
    try:
        return call.store.hand_back(held, said.used, timeout=call.seconds)
    except ValueError:  # they were handed back before
        return False


def _tags(call: _Call) -> object:
    """Return a page of the tags that the token allows, and the last tag that was looked at, or None at the end."""
    count = min(call.given.count, PAGE)
    page = call.store.tags(after=call.given.after, count=count, timeout=call.seconds)
    shown = [each for each in page if call.caller.may("reserve", each.tag)]
    return {"tags": sent(shown), "after": page[-1].tag if len(page) == count else None}


def _configure(call: _Call) -> object:
    said = call.given
    if not call.caller.may("admin", call.tag):
        # A process adapts the step of a tag with `step="auto"`. All other changes are an operator's.
        record = call.store.get(call.tag, timeout=call.seconds)
        if said.raise_to is not None or said.settings.keys() != {"step"} or not record or record.step_mode != "auto":
            call.caller.need("admin", call.tag)
    changes = TagChanges(raise_to=said.raise_to, seen=said.seen, **said.settings)
    return call.store.configure(call.tag, changes, timeout=call.seconds)


def _halt(call: _Call) -> bool:
    if call.given.below is None:
        call.caller.need("admin", call.tag)
    return call.store.halt(call.tag, below=call.given.below, timeout=call.seconds)


def _create_many(call: _Call) -> object:
    settings = {tag: convert(each, TagSettings) for tag, each in call.given.settings.items()}
    return call.store.create_many(settings, timeout=call.seconds)


def _batch(call: _Call) -> object:
    said = call.given
    kind = next((kind for kind, (name, _) in READS.items() if name == said.read), None)
    if kind is None:
        raise InvalidArgument(f"must be one of get, ledger, segments, not {said.read}", argument="read")
    if said.options.get("beyond"):
        said.options["beyond"] = convert(said.options["beyond"], tuple[_Scalar, _Scalar, _Scalar])
    reads = [convert({"tag": tag, **said.options}, kind) for tag in said.tags]
    found = call.store.batch(reads, timeout=call.seconds)
    return [{"error": error_sent(each)} if isinstance(each, StoreError) else {"result": sent(each)} for each in found]


def _witnessed(call: _Call) -> object:
    found = call.store.witnessed(timeout=call.seconds)
    return {tag: top for tag, top in found.items() if call.caller.may("reserve", tag)}


#: The calls: the scope, the type of the arguments, and the function. A function is given the whole call.
_CALLS: Final[Mapping[str, tuple[Scope, type[Struct], Callable[[_Call], object]]]] = {
    "store_id": ("reserve", _Other, lambda call: call.store.store_id(timeout=call.seconds)),
    "made_id": ("reserve", _Other, lambda call: call.store.made_id(timeout=call.seconds)),
    "version": ("reserve", _Other, lambda _: __version__),
    "witnessed": ("reserve", _Other, _witnessed),
    "tags": ("reserve", _Page, _tags),
    "batch": ("reserve", _Batch, _batch),
    "get": ("reserve", _Other, lambda call: call.store.get(call.tag, timeout=call.seconds)),
    "reserve": ("reserve", _Reserve, _reserve),
    "hand_back": ("reserve", _HandBack, _hand_back),
    "halt": ("reserve", _Other, _halt),
    "configure": ("reserve", _Configure, _configure),
    "ledger": (
        "reserve",
        _Other,
        lambda call: call.store.ledger(call.tag, newest=min(call.given.newest, PAGE), timeout=call.seconds),
    ),
    "segments": (
        "reserve",
        _Page,
        lambda call: call.store.segments(
            call.tag,
            beyond=call.given.beyond,
            upward=call.given.upward,
            count=min(call.given.count, PAGE),
            timeout=call.seconds,
        ),
    ),
    "entries": (
        "reserve",
        _Other,
        lambda call: call.store.entries(call.tag, call.given.ids, timeout=call.seconds),
    ),
    "create_many": ("admin", _Other, _create_many),
    "delete": ("admin", _Other, lambda call: call.store.delete(call.tag, timeout=call.seconds)),
    "recover": (
        "admin",
        _Other,
        lambda call: call.store.recover(call.tag, at_least=call.given.at_least, timeout=call.seconds),
    ),
}

#: The names of the calls, for the schema of the route.
NAMES: Final = tuple(_CALLS)

#: Calls without a tag. What they return contains only the tags of the token.
_OF_NONE: Final = frozenset({"store_id", "made_id", "version", "witnessed", "tags"})


async def store(service: Service, request: Request) -> Reply:
    """Make one call of the contract of stores, in the store of this issuer."""
    name, tag, caller = request.body["call"], request.body.get("tag", ""), request.caller
    scope, kind, make = _CALLS[name]
    try:
        given = convert(request.body.get("arguments", {}), kind)
    except ValidationError as error:
        raise Problem(422, "wrong_type", f"arguments: {error}", member="arguments") from None
    tags = {"create_many": getattr(given, "settings", {}), "batch": getattr(given, "tags", [])}.get(name, [tag])
    caller.need_scope(scope)
    for each in () if name in _OF_NONE else tags:
        caller.check(scope, each)
    request.administers = scope == "admin"
    deadline = service.ids.engine.deadline(request.timeout)

    def question(store: Store, seconds: float) -> object:
        try:
            return make(_Call(store, tag, given, seconds, caller))
        except StoreError as error:
            if not hasattr(error, "tag"):  # an error of the store itself may have its address
                raise
            return error

    try:
        found = await service.ids.engine.run(ask(question), deadline, tag or None)
    except (ValidationError, TypeError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(str(error), tag=tag or None) from error
    if isinstance(found, StoreError):
        return Reply(dumped({"error": error_sent(found)}))
    return Reply(dumped({"result": sent(found)}))
