"""Converts records, which calls of an Issuer return, and errors to dicts for JSON. Used by the CLI and the servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict
from functools import singledispatch
from typing import Any, Final

from issuer.advice import Words, command_line, python
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.findings import Finding
from issuer.care.inspection import Inspection, Readiness
from issuer.care.recovery import Recovery
from issuer.care.verification import Provenance
from issuer.core.scheme_record import SEGMENT, SNOWFLAKE, strategy
from issuer.errors import IssuerError, brief
from issuer.numbers.codec import Decoded
from issuer.strategies.snowflake.layout import Layout
from issuer.times import utc
from issuer_persistence.ledger import LedgerEntry, LedgerPage
from issuer_persistence.records import HIGHEST, PACING, StoredSettings, Tag

#: Fields of a record that have a meaning only for tags with a counter.
OF_COUNTERS: Final = ("max", "step", "step_mode", "limit", "lease", "lease_mode", *PACING)

#: Values of errors that are this large or larger are shown as shortened texts, as in messages.
_WIDE: Final = 2**64


@singledispatch
def view(record: Any) -> dict[str, Any]:
    """Return a record as a dict for JSON: its fields by name. The functions below do this for some classes."""
    return asdict(record)


def advised(finding: Finding | Discrepancy, words: Words) -> dict[str, Any]:
    """Return a finding as a dict for JSON, with its remedy in the words of one interface."""
    return view(finding) | {"remedy": finding.told(words)}


def supplied(found: StoredSettings) -> dict[str, object]:
    """Return the settings that decide how processes get a tag's numbers, as arguments of `create`."""
    said: dict[str, object] = {"order": found.order, "step": found.step}
    if found.step_mode == "auto":
        said |= {"step": "auto", "min_step": found.min_step, "max_step": found.max_step, "target": found.target}
    said["ahead"] = found.ahead
    if found.order == "trend":
        unset = "process" if found.lease is None else found.lease
        said["lease"] = "auto" if found.lease_mode == "auto" else unset
    return said


@view.register
def _(record: Tag) -> dict[str, Any]:
    return _counted(asdict(record), record.scheme)


@view.register
def _(record: Inspection) -> dict[str, Any]:
    content = asdict(record)
    del content["waiting"]  # not shown: it counts only the callers that wait in this process
    content = _without_empty(content, "redis_error", "scheme", "parts", "period", "shared_with")
    content = _counted(content, record.scheme) | {"store": _counted(content["store"], record.scheme)}
    layout = snowflake(record.scheme)
    return content if layout is None else content | {"layout": {**asdict(layout), "ends": layout.ends}}


@view.register
def _(record: Decoded) -> dict[str, Any]:
    """Return the parts of a number that are present. Fields of a strategy are not nested in a dict of their own."""
    content = {name: part for name, part in asdict(record).items() if part is not None}
    packed, holder = content.pop("fields", {}), content.pop("holder", None)
    content |= packed if holder is None else {**packed, "holder": holder}
    return content if record.date is None else content | {"date": record.date.isoformat()}


@view.register
def _(record: LedgerEntry) -> dict[str, Any]:
    """Return a ledger entry, without the tag. The segment is (low, high]: `low` is the number before the first one."""
    content = asdict(record)
    del content["tag"]
    return content | {"utc": utc(record.time)}


@view.register
def _(record: LedgerPage) -> dict[str, Any]:
    """Return a page of the ledger, without `last`, the position of the next page.

    Each interface shows `last` in its own way.
    """
    return {"segments": list(map(view, record.entries)), "damaged": [error.problem for error in record.damaged]}


@view.register
def _(record: Readiness) -> dict[str, Any]:
    """Return the errors as codes, because messages of errors may contain addresses of servers."""
    codes = {name: error and error.code for name, error in (("store", record.store), ("redis", record.redis))}
    return {"ready": bool(record), **codes, "halted": list(record.halted)}


@view.register
def _(record: Provenance) -> dict[str, Any]:
    below, oldest = (entry and view(entry) for entry in (record.below, record.oldest))
    content = asdict(record) | {"state": state(record), "entries": [view(entry) for entry in record.entries]}
    return content | {"below": below, "oldest": oldest}


@view.register
def _(record: Discrepancy) -> dict[str, Any]:
    numbers = record.numbers
    return {
        "tag": record.tag,
        "kind": record.kind,
        "first": numbers and numbers[0],
        "last": numbers and numbers[1],
        "message": str(record),
        "remedy": record.told(python),
        "entries": [view(entry) for entry in record.entries],
    }


@view.register
def _(record: Finding) -> dict[str, Any]:
    """Return a finding of `doctor`. Its remedy names methods of Python."""
    names = ("check", "level", "subject", "what", "why", "remedy", "tag")
    error = None if record.error is None else type(record.error).__name__
    return {name: getattr(record, name) for name in names} | {"error": error}


@view.register
def _(record: Recovery) -> dict[str, Any]:
    content = asdict(record)
    del content["sound"]  # not shown: `verify` and `doctor` report whether a tag has problems
    names = ("redis_error", "asked", "unasked", "unvouched", "old_in_period", "new_in_period")
    return _without_empty(content, *names)


@view.register
def _(error: IssuerError) -> dict[str, Any]:
    """Return the error and its values. `retry_after` is in seconds. The message names methods of Python."""
    content = {"error": type(error).__name__, "message": str(error), "tag": error.tag, "code": error.code}
    return content | {name: _plain(value) for name, value in error.values.items()}


def _plain(value: object) -> object:
    """Return a value of an error for JSON. A value that JSON cannot represent becomes a shortened text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    return round(value, 3) if isinstance(value, int | float) and abs(value) < _WIDE else brief(value)


def _counted(content: dict[str, Any], scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record. If the tag has no counter, leave out fields such as `step`: they mean nothing."""
    if counts(scheme):
        return content
    limited = content.get("limit", HIGHEST) != HIGHEST
    return {name: each for name, each in content.items() if name not in OF_COUNTERS or (limited and name == "limit")}


def _without_empty(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value or name not in names}


# ---------------------------------------------------------------------- parts of views, and errors as text


def said(error: object) -> str:
    """Return an error as text for the command line. An IssuerError names commands in place of Python methods."""
    return error.told(command_line) if isinstance(error, IssuerError) else str(error)


def message_of(record: logging.LogRecord) -> str:
    """Return the message of a log record, for the command line.

    An IssuerError in the message names commands in place of Python methods.
    """
    shown = copy(record)
    if isinstance(record.args, tuple):
        shown.args = tuple(said(each) if isinstance(each, IssuerError) else each for each in record.args)
    return shown.getMessage()


def counts(scheme: Mapping[str, Any]) -> bool:
    """Whether the tag's numbers come from counters. If they do not, its step, limit and max have no meaning."""
    return strategy(scheme) == SEGMENT


def snowflake(scheme: Mapping[str, Any]) -> Layout | None:
    """Return the layout of a snowflake tag, else None."""
    return Layout.of(scheme.get("options", {})) if strategy(scheme) == SNOWFLAKE else None


def state(found: Provenance) -> str:
    """Return the state of a number as text: for example reserved, in Redis, or a gap."""
    if found.entries:
        if found.in_redis:
            return "in Redis, not issued yet"
        return "reserved; issued, or lost in a gap" if found.in_redis is False else "reserved"
    if found.number > found.max:
        behind = f"the store is behind: its max is {found.max}, and numbers up to {found.taken} are reserved, as Redis "
        known = f"{behind}or a journal knows: see `issuer verify`"
        return known if found.number <= found.taken else f"not reserved yet, as the store's max is {found.max}"
    if found.oldest is None or found.number <= found.oldest.low:
        return (
            "the ledger begins above it. Its entry was dropped after 90 days, or the tag's start lies above the number"
        )
    below = found.below
    if below is None:
        return "it is a gap"
    return (
        f"a gap after {below.low + 1}..{below.high} of {below.host} pid {below.pid}. It was handed back when others "
        "had reserved already, or skipped by `recover` or a raised start, or its entry was dropped after 90 days"
    )
