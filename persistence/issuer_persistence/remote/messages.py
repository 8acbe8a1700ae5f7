"""Values and errors of the contract as JSON, as a remote store and its server send them to each other.

A newer side may send members that an older one does not know: they are ignored. A member that is missing has its
default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from issuer_persistence import errors
from issuer_persistence.errors import Corrupt, StoreError, Unconfirmed
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Reservation
from issuer_persistence.records import SETTINGS, Tag, TagSettings, number, typed


def settings_sent(settings: TagSettings) -> dict[str, Any]:
    """Return the settings of a new tag, without those that have their default: an older server may not know them."""
    sent = {name: value for name, value in settings.kept().items() if value != SETTINGS[name].default}
    return sent | {"above": settings.above}


def sent(value: object) -> Any:
    """Return a result of the contract for JSON."""
    match value:
        case Corrupt():
            return {"tag": value.tag, "problem": value.problem}
        case LedgerPage():
            return {"entries": sent(value.entries), "damaged": sent(value.damaged), "last": value.last}
        case Tag() | Reservation() | LedgerEntry():
            return asdict(value)
        case list() | tuple():
            return [sent(each) for each in value]
    return value


def tag_of(found: Any) -> Tag | Corrupt:
    """Return the record, or the error in place of a damaged one."""
    members = _object(found)
    name = str(members.get("tag"))
    return Corrupt(name, str(members["problem"])) if "problem" in members else Tag.checked(name, members)


def live(found: Any) -> Tag:
    """Return the record. If it is damaged, raise Corrupt."""
    record = tag_of(found)
    if isinstance(record, Corrupt):
        raise record
    return record


def reservation(found: Any) -> Reservation:
    """Return the reservation. If a number is no integer of 64 bits, raise Corrupt."""
    members = _object(found)
    record = live(members.get("tag"))
    low, high = number(record.tag, members, "low"), number(record.tag, members, "high")
    if low >= high:
        raise Corrupt(record.tag, f"the server has reserved ({low}, {high}], which has no number")
    return Reservation(
        record, low, high, typed(record.tag, members, "entry", str), typed(record.tag, members, "store_id", str)
    )


def entries(found: Any) -> list[LedgerEntry]:
    """Return the ledger entries."""
    return [LedgerEntry.checked(_object(each)) for each in _list(found)]


def page(found: Any) -> LedgerPage:
    """Return the page of a ledger."""
    members = _object(found)
    damaged = [
        Corrupt(str(each.get("tag")), str(each.get("problem"))) for each in map(_object, _list(members["damaged"]))
    ]
    last = members.get("last")
    return LedgerPage(entries(members["entries"]), damaged, None if last is None else tuple(_list(last)))


def error_sent(error: StoreError) -> dict[str, Any]:
    """Return an error about a tag for JSON."""
    return {"kind": type(error).__name__, "message": str(error), "values": vars(error)}


def error_of(found: Any) -> StoreError:
    """Return the error that a server has sent. An error of a kind that is not known here is an Unconfirmed."""
    members = _object(found)
    kind, values = getattr(errors, str(members.get("kind")), None), _object(members.get("values"))
    if not (isinstance(kind, type) and issubclass(kind, StoreError)):
        kind = Unconfirmed
    error = kind.__new__(kind)
    error.args = (str(members.get("message")),)
    vars(error).update(values)
    return error


def _object(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise Unconfirmed("the reply of the server is not one of an issuer")
    return found


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise Unconfirmed("the reply of the server is not one of an issuer")
    return found
