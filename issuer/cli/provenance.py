"""A number's provenance, as commands tell it from the ledger."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from issuer.api.blocking import Issuer
from issuer.core.inspect.verification import Provenance
from issuer.persistence.records import LedgerEntry


def content(entry: LedgerEntry) -> dict[str, Any]:
    """Return a ledger entry as JSON shows it: the segment (low, high], `low` being the number before its first."""
    fields = asdict(entry)
    del fields["tag"]
    return {**fields, "utc": utc(entry.time)}


def utc(milliseconds: int) -> str:
    """Return the time as ISO in UTC, to be compared with what other hosts have noted."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def ambiguous(issuer: Issuer, tag: str) -> str:
    """Say why a number of the tag stands for several counters."""
    scheme = issuer.inspect(tag).scheme
    if "restart" in scheme:
        return "each period has that number; give its text, which tells the period"
    return "the tag's numbers come again" if "cycle" in scheme else "each series has that number; give its text"


def state(found: Provenance) -> str:
    """Return what can be said of the number."""
    if found.entries:
        if found.in_redis:
            return "in Redis, not issued yet"
        return "reserved; issued, or lost in a gap" if found.in_redis is False else "reserved"
    if found.number > found.max:
        return f"not reserved yet, as the store's max is {found.max}"
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
