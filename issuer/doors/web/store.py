"""The handler of /v1/store: another issuer uses the store of this one.

Its token needs the scope `reserve`. For calls that only read, the scope `read` is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, ValidationError, convert

from issuer import __version__
from issuer.core.scheme_record import periods
from issuer.core.steps import ask
from issuer.doors.access import Caller
from issuer.doors.tokens import Scope
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import PIECE, Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument
from issuer.gateway.keys import check_found, check_tag
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError
from issuer_persistence.ledger import LedgerEntry, Purpose, Reservation
from issuer_persistence.records import HIGHEST, SETTINGS, Tag, TagChanges, TagSettings, now_ms
from issuer_persistence.remote.messages import ERRORS, error_sent, sent
from issuer_persistence.remote.store import BATCH, PAGE, READS

#: The types of arguments. Other texts and numbers would make the server hold much, or a database raise its own errors.
_Number = Annotated[int, Meta(ge=0, le=HIGHEST)]
_Count = Annotated[int, Meta(ge=1, le=HIGHEST)]
_Text = Annotated[str, Meta(max_length=200)]
_Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{24}\Z")]
#: Of a damaged entry, each part may have any type. An object would be an operator of MongoDB.
_Scalar = Annotated[int, Meta(ge=-HIGHEST, le=HIGHEST)] | _Text | float | bool | None
_Position = tuple[_Scalar, _Scalar, _Scalar] | None


class _Reserve(Struct):
    reason: _Text
    id: _Id
    n: _Count | None = None
    application: _Text = ""
    born: _Text = ""
    at_least: _Number = 0
    exact: bool = False
    again: bool = False


class _HandBack(Struct):
    entries: Annotated[list[_Id], Meta(max_length=PAGE)]
    version: _Text
    used: _Number


class _Configure(Struct):
    settings: dict[str, Any]
    raise_to: _Number | None = None
    seen: _Text | None = None


class _Page(Struct):
    count: _Count
    after: _Text | None = None
    beyond: _Position = None
    upward: bool = False


class _Options(Struct):
    newest: Annotated[int, Meta(ge=0, le=BATCH)] = 0
    count: _Count = 1
    beyond: _Position = None


class _Batch(Struct):
    read: str
    tags: Annotated[list[str], Meta(max_length=BATCH)]
    options: _Options


class _Other(Struct):
    """The arguments of the other calls."""

    at_least: _Number = 0
    below: _Number | None = None
    ids: Annotated[list[_Text], Meta(max_length=PAGE)] = []
    settings: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class _StoreCall:
    """A call for the store of this issuer. `given`: its arguments, of the type in `_CALLS`. `seconds`: its timeout."""

    store: Store
    tag: str
    given: Any
    seconds: float
    request: Request

    @property
    def caller(self) -> Caller:
        return self.request.caller

    def named(self, id: str) -> str:
        """Return the id in the ledger for a reservation of the caller. No other token can name it."""
        name = self.caller.name
        return sha256(f"{name}/{id}".encode()).hexdigest()[: len(id)] if name else id

    def own(self, ids: Sequence[str]) -> list[LedgerEntry]:
        """Return the ledger entries of the caller's reservations with these ids, which the caller has chosen."""
        names = {self.named(each): each for each in ids}
        found = self.store.own(self.tag, [*names], timeout=self.seconds)
        return [replace(each, id=names[each.id]) for each in found]

    def administer(self) -> None:
        """Make this the call of an operator. Raise Forbidden if the token does not allow it."""
        self.request.administers = True
        self.caller.check("admin", self.tag)


def _reserve(call: _StoreCall) -> object:
    said, store, seconds = call.given, call.store, call.seconds
    purpose = Purpose(said.reason, call.caller.name or said.application, said.born, call.named(said.id))
    if said.again and (found := _reserved(call)):
        return found
    try:
        made = store.reserve(
            call.tag, said.n, purpose=purpose, at_least=said.at_least, exact=said.exact, timeout=seconds
        )
    except StoreError:
        if said.again and (found := _reserved(call)):  # the first request had not ended before
            return found
        raise
    return replace(made, entry=said.id)


def _reserved(call: _StoreCall) -> Reservation | None:
    """Return the reservation that was made before with this id: the reply was lost. None if there is none."""
    found, record = call.own([call.given.id]), call.store.get(call.tag, timeout=call.seconds)
    if not found or record is None:
        return None
    store_id = call.store.store_id(timeout=call.seconds)
    return Reservation(record, found[0].low, found[0].high, call.given.id, store_id)


def _hand_back(call: _StoreCall) -> bool:
    """Return numbers of the caller's own reservations. Its ledger entries say which numbers these are."""
    said, record = call.given, call.store.get(call.tag, timeout=call.seconds)
    entries = sorted(call.own(said.entries), key=lambda each: each.low)
    if record is None or len(entries) < len(said.entries):
        return False
    seen = replace(record, version=said.version)
    held = [Reservation(seen, each.low, each.high, call.named(each.id), "") for each in entries]
    try:
        return call.store.hand_back(held, said.used, timeout=call.seconds)
    except ValueError:  # they were handed back before
        return False


def _tags(call: _StoreCall) -> object:
    """Return a page of the tags that the token allows, and the last tag that was looked at, or None at the end."""
    count = min(call.given.count, PAGE)
    page = call.store.tags(after=call.given.after, count=count, timeout=call.seconds)
    shown = [each for each in page if call.caller.may(READ, each.tag)]
    return {"tags": sent(shown), "after": page[-1].tag if len(page) == count else None}


def _configure(call: _StoreCall) -> object:
    said, record = call.given, call.store.get(call.tag, timeout=call.seconds)
    if record is None or not _adapts(said, record):
        call.administer()
    elif said.settings and said.seen is None:  # an operator may set the step meanwhile
        said.seen = record.version
    changes = TagChanges(raise_to=said.raise_to, seen=said.seen, **said.settings)
    return call.store.configure(call.tag, changes, timeout=call.seconds)


def _adapts(said: _Configure, record: Tag) -> bool:
    """Whether an issuer makes this change by itself: it adapts the step, or begins the next period of the tag."""
    if not said.settings:
        return periods(record) is not None
    auto = said.raise_to is None and said.settings.keys() == {"step"} and record.step_mode == "auto"
    return auto and said.settings["step"] in range(record.min_step, record.max_step + 1)


def _halt(call: _StoreCall) -> bool:
    """Halt a tag. A store that has lost reservations is halted for everybody, so this is in the audit log, too."""
    if call.given.below is None:
        call.administer()
    call.request.administers = halted = call.store.halt(call.tag, below=call.given.below, timeout=call.seconds)
    return halted


def _create_many(call: _StoreCall) -> object:
    settings = {}
    for tag, each in call.given.settings.items():
        if unknown := each.keys() - SETTINGS.keys() - {"above"}:
            raise InvalidArgument(f"this server does not know the setting {min(unknown)}", tag=tag, value=min(unknown))
        settings[tag] = convert(each, TagSettings)
    return call.store.create_many(settings, timeout=call.seconds)


def _batch(call: _StoreCall) -> object:
    said, options = call.given, call.given.options
    kind = next((kind for kind, (name, _) in READS.items() if name == said.read), None)
    if kind is None:
        raise InvalidArgument(f"must be one of get, ledger, segments, not {said.read}", argument="read")
    # A page of a batch may be shorter than requested. All pages together are one page.
    most = max(1, PAGE // max(1, len(said.tags)))
    known = {"newest": options.newest, "count": min(options.count, most), "beyond": options.beyond}
    given = {name: known[name] for name in kind.__dataclass_fields__ if name != "tag"}
    found = call.store.batch([kind(tag=tag, **given) for tag in said.tags], timeout=call.seconds)
    answers = [*takewhile(lambda each: not isinstance(each, StoreError) or type(each) in ERRORS, found)]
    if found and not answers:
        raise found[0]
    return [{"error": error_sent(each)} if isinstance(each, StoreError) else {"result": sent(each)} for each in answers]


def _witnessed(call: _StoreCall) -> object:
    tops = call.store.witnessed(timeout=call.seconds)
    return {tag: top for tag, top in tops.items() if call.caller.may(READ, tag)}


def _examine(call: _StoreCall) -> object:
    facts = call.store.examine(timeout=call.seconds)
    return {"version": __version__, "lasting": facts.lasting, "time": facts.time or now_ms()}


def _segments(call: _StoreCall) -> object:
    said = call.given
    count = min(said.count, PAGE)
    return call.store.segments(call.tag, beyond=said.beyond, upward=said.upward, count=count, timeout=call.seconds)


#: The scopes of calls that only read, of calls that also write, and of calls for operators.
READ: Final[tuple[Scope, ...]] = ("read", "reserve")
_RESERVE: Final[tuple[Scope, ...]] = ("reserve",)
_ADMIN: Final[tuple[Scope, ...]] = ("admin",)

#: The calls: the scopes of which the token needs one, the type of the arguments, and the function. The scope is checked
#: for each tag.
_CALLS: Final[Mapping[str, tuple[tuple[Scope, ...], type[Struct], Callable[[_StoreCall], object]]]] = {
    "store_id": (READ, _Other, lambda call: call.store.store_id(timeout=call.seconds)),
    "made_id": (_RESERVE, _Other, lambda call: call.store.made_id(timeout=call.seconds)),
    "examine": (READ, _Other, _examine),
    "witnessed": (READ, _Other, _witnessed),
    "tags": (READ, _Page, _tags),
    "batch": (READ, _Batch, _batch),
    "get": (READ, _Other, lambda call: call.store.get(call.tag, timeout=call.seconds)),
    "reserve": (_RESERVE, _Reserve, _reserve),
    "hand_back": (_RESERVE, _HandBack, _hand_back),
    "halt": (_RESERVE, _Other, _halt),
    "configure": (_RESERVE, _Configure, _configure),
    "segments": (READ, _Page, _segments),
    "entries": (READ, _Other, lambda call: call.store.entries(call.tag, call.given.ids, timeout=call.seconds)),
    "own": (READ, _Other, lambda call: call.own(call.given.ids)),
    "create_many": (_ADMIN, _Other, _create_many),
    "delete": (_ADMIN, _Other, lambda call: call.store.delete(call.tag, timeout=call.seconds)),
    "recover": (
        _ADMIN,
        _Other,
        lambda call: call.store.recover(call.tag, at_least=call.given.at_least, timeout=call.seconds),
    ),
}

#: The names of the calls, for the schema of the route.
NAMES: Final = tuple(_CALLS)

#: Calls without a tag. What they return contains only the tags of the token.
_OF_NONE: Final = frozenset({"store_id", "made_id", "examine", "witnessed", "tags"})


async def store(service: Service, request: Request) -> Reply:
    """Make one call of the contract of stores, in the store of this issuer."""
    name, tag, caller = request.body["call"], request.body.get("tag", ""), request.caller
    scopes, kind, make = _CALLS[name]
    request.name, request.tag, request.administers = f"store.{name}", tag, scopes == _ADMIN
    caller.need_scope(scopes)
    try:
        given: Any = convert(request.body.get("arguments", {}), kind)
    except ValidationError as error:
        raise Problem(422, "wrong_type", f"arguments: {error}", member="arguments") from None
    makes = name == "create_many"
    tags = [*given.settings] if makes else given.tags if name == "batch" else [tag]
    request.tag = ", ".join(tags)
    for each in () if name in _OF_NONE else tags:
        caller.check(scopes, (check_tag if makes else check_found)(each))

    def question(store: Store, seconds: float) -> bytes:
        try:
            return dumped({"result": sent(make(_StoreCall(store, tag, given, seconds, request)))})
        except StoreError as error:
            if type(error) not in ERRORS:  # an error of the store itself may have its address
                raise
            return dumped({"error": error_sent(error)})
        except (ValidationError, ValueError, TypeError) as error:  # of values that settings cannot have
            if isinstance(error, InvalidArgument) or name not in ("create_many", "configure"):
                raise
            raise InvalidArgument(str(error), tag=tag or None) from None

    body = await service.ids.engine.run(ask(question), service.ids.engine.deadline(request.timeout), tag or None)
    if request.administers and body.startswith(b'{"result"'):
        await service.ids.engine.chronicle.act("create" if makes else name, dict.fromkeys(tags, ""))
    if scopes == READ and len(body) > PIECE:  # nothing is lost if the reply is refused
        request.hold(len(body))
    return Reply(body)
