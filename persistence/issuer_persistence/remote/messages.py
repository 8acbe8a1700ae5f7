"""Values and errors of the contract as JSON, as a remote store and its server send them to each other.

A newer side may send members that an older one does not know: they are ignored. A member that is missing has its
default. A reply of another form raises Corrupt, or an error of Python, for which the caller raises Unconfirmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from issuer_persistence import errors
from issuer_persistence.errors import Corrupt, StoreError
from issuer_persistence.facts import StoreFacts
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Reservation
from issuer_persistence.records import HIGHEST, SETTINGS, Tag, TagSettings, check_argument, is_id, number, typed

#: The errors that a server sends, and the names of their attributes. They are about a tag.
ERRORS: Mapping[type[StoreError], tuple[str, ...]] = {
    errors.Corrupt: ("tag", "problem"),
    errors.TagMissing: ("tag",),
    errors.TagPresent: ("tag",),
    errors.LimitHit: ("tag", "limit", "max"),
    errors.LimitTooLow: ("tag", "limit", "max"),
    errors.LeaseOnStrict: ("tag", "lease"),
    errors.StepsCrossed: ("tag", "min_step", "max_step"),
    errors.SchemeMismatch: ("tag",),
    errors.VersionMoved: ("tag",),
    errors.MaxBehind: ("tag", "max", "at_least", "certain"),
    errors.Halted: ("tag", "max"),
}


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


def identity(found: Any) -> str:
    """Return the id of a store, or "" if there is none yet."""
    if found != "" and not is_id(found):
        raise ValueError("no id of a store")
    return str(found)


def flag(found: Any) -> bool:
    """Return a result that is true or false."""
    if not isinstance(found, bool):
        raise TypeError("neither true nor false")
    return found


def tag_of(found: Any) -> Tag | Corrupt:
    """Return the record, or the error in place of a damaged one."""
    name, problem = found["tag"], found.get("problem")
    if not isinstance(name, str):
        raise TypeError("no name of a tag")
    return Tag.checked(name, found) if problem is None else Corrupt(name, str(problem))


def live(found: Any) -> Tag:
    """Return the record. If it is damaged, raise Corrupt."""
    record = tag_of(found)
    if isinstance(record, Corrupt):
        raise record
    return record


def live_or_none(found: Any) -> Tag | None:
    """Return the record as `live` does, or None if there is none."""
    return None if found is None else live(found)


def reservation(found: Any, tag: str, entry: str) -> Reservation:
    """Return the reservation, if it is the one that was requested."""
    record = live(found["tag"])
    low, high = number(tag, found, "low"), number(tag, found, "high")
    if (record.tag, found["entry"]) != (tag, entry) or low >= high:
        raise ValueError("another reservation")
    return Reservation(record, low, high, entry, typed(tag, found, "store_id", str))


def entries(found: Any) -> list[LedgerEntry]:
    """Return the ledger entries."""
    return [LedgerEntry.checked(each) for each in found]


def page(found: Any) -> LedgerPage:
    """Return the page of a ledger."""
    damaged = [Corrupt(str(each["tag"]), str(each["problem"])) for each in found["damaged"]]
    last = found["last"]
    return LedgerPage(entries(found["entries"]), damaged, None if last is None else tuple(last))


def facts(found: Any) -> StoreFacts:
    """Return the facts about a server and its store."""
    check_argument("time", found["time"])
    lasting = found["lasting"] if found["lasting"] is None else flag(found["lasting"])
    return StoreFacts(kind="issuer", version=str(found["version"]), lasting=lasting, time=found["time"])


def tops(found: Any) -> dict[str, int]:
    """Return the highest number of each tag."""
    for tag, top in found.items():
        check_argument(tag, top, 0, HIGHEST)
    return dict(found)


def error_sent(error: StoreError) -> dict[str, Any]:
    """Return an error about a tag for JSON."""
    values = {name: getattr(error, name) for name in ERRORS[type(error)]}
    return {"kind": type(error).__name__, "message": str(error), "values": values}


def error_of(found: Any) -> StoreError:
    """Return the error that a server has sent."""
    kind = {each.__name__: each for each in ERRORS}[found["kind"]]
    error = kind.__new__(kind)
    error.args = (str(found["message"]),)
    vars(error).update({name: found["values"][name] for name in ERRORS[kind]})
    return error
