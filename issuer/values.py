"""The classes of the objects that calls of an Issuer return. Use these names in annotations and in your own tests."""

from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.findings import Finding
from issuer.care.inspection import Inspection, Readiness, RedisState, StoreState, Waste
from issuer.care.recovery import Recovery
from issuer.care.verification import Provenance
from issuer.core.issued import Issued
from issuer.numbers.codec import Decoded
from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers
from issuer_persistence.facts import Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage
from issuer_persistence.records import Tag

__all__ = [
    "Decoded",
    "Discrepancy",
    "Finding",
    "Inspection",
    "Issued",
    "LedgerEntry",
    "LedgerPage",
    "MachineNumber",
    "MachineNumbers",
    "Provenance",
    "Readiness",
    "Recovery",
    "RedisState",
    "StoreState",
    "Tag",
    "Upgrade",
    "Waste",
]
