"""Segment issuer: unique, increasing, short 64-bit numbers per business tag.

    import issuer
    issuer.next("orders")

`connect` makes an Issuer for given servers, `aconnect` an AsyncIssuer for asyncio; `next`, `take`, `stream` and
`reserve` use the default one, made from the settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from issuer.async_facade import AsyncIssuer
from issuer.core.discrepancies import (
    AboveMax,
    DamagedEntry,
    DamagedHash,
    Discrepancy,
    OtherStore,
    OutsideLedger,
    Overlap,
    RedisAboveMax,
    RedisUnseen,
)
from issuer.core.doctor.finding import Finding
from issuer.core.inspection import Inspection, RedisState, StoreState, Waste
from issuer.core.issued import Issued
from issuer.core.retire import Recovery
from issuer.core.verification import Provenance
from issuer.errors import (
    ClockBehind,
    ConfigurationError,
    CorruptState,
    FenceError,
    ForeignHash,
    FormatOverflow,
    InvalidArgument,
    IssuerError,
    JournalDamaged,
    LimitReached,
    NoMachineNumber,
    NotDecodable,
    RedisUnavailable,
    Refused,
    SchemeError,
    StoreBehind,
    StoreUnavailable,
    StrategyFailed,
    TagExists,
    TransformFailed,
    UnknownTag,
)
from issuer.facade import Issuer
from issuer.numbers.scheme import Decoded
from issuer.wiring import aconnect, connect, default
from persistence.contract import Store
from persistence.records import LedgerEntry, Tag

# Without `next`, which would shadow the builtin in `from issuer import *`.
__all__ = [
    "AboveMax",
    "AsyncIssuer",
    "ClockBehind",
    "ConfigurationError",
    "CorruptState",
    "DamagedEntry",
    "DamagedHash",
    "Decoded",
    "Discrepancy",
    "FenceError",
    "Finding",
    "ForeignHash",
    "FormatOverflow",
    "Inspection",
    "InvalidArgument",
    "Issued",
    "Issuer",
    "IssuerError",
    "JournalDamaged",
    "LedgerEntry",
    "LimitReached",
    "NoMachineNumber",
    "NotDecodable",
    "OtherStore",
    "OutsideLedger",
    "Overlap",
    "Provenance",
    "Recovery",
    "RedisAboveMax",
    "RedisState",
    "RedisUnavailable",
    "RedisUnseen",
    "Refused",
    "SchemeError",
    "Store",
    "StoreBehind",
    "StoreState",
    "StoreUnavailable",
    "StrategyFailed",
    "Tag",
    "TagExists",
    "TransformFailed",
    "UnknownTag",
    "Waste",
    "aconnect",
    "connect",
    "default",
    "reserve",
    "stream",
    "take",
]


def next(tag: str, *, timeout: float | None = None) -> int:
    """Return the next number of the tag from the default issuer; see Issuer.next."""
    return default().next(tag, timeout=timeout)


def take(tag: str, n: int, *, timeout: float | None = None) -> list[int]:
    """Return exactly n numbers of the tag from the default issuer; see Issuer.take."""
    return default().take(tag, n, timeout=timeout)


def reserve(tag: str, n: int, *, timeout: float | None = None) -> range:
    """Return n contiguous numbers of the tag from the default issuer; see Issuer.reserve."""
    return default().reserve(tag, n, timeout=timeout)


def stream(tag: str, *, timeout: float | None = None) -> Iterator[int]:
    """Return an endless iterator over the tag's numbers from the default issuer; see Issuer.stream."""
    return default().stream(tag, timeout=timeout)
