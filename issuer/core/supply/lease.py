"""Leases: numbers that a process draws from Redis in advance and serves from memory. Only for trend tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from issuer.core.error_mapping import refused
from issuer.core.steps import Steps, send
from issuer.gateway import tag_scripts
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import fresh_version


@dataclass(frozen=True, slots=True)
class Lease:
    """A range drawn from Redis for this process alone, with the hash's term, `born` id and count of returns.

    The term (`reign`) is the time of one Redis master without a restart. A hash gets a new random `born` id each time
    it is created or emptied. `backs` counts how often numbers were returned to the hash. When a lease is returned,
    Redis checks all three.
    """

    low: int
    high: int
    reign: str
    born: str
    backs: int


def moved(tag: str, key: str, leases: Sequence[Lease], store_id: str, *, scheme: str, probe: bool) -> Steps[bool]:
    """Whether the hash was replaced since the leases were drawn: Redis failed over, or `recover` was run.

    The leased numbers still belong to this process, but after `recover` no old number may be issued. `probe`: whether
    the call may test a Redis that did not answer earlier calls (see Send in core/steps.py).
    """
    opened = yield from send(tag_scripts.open(key, fresh_version(), store_id, 0, "look", scheme=scheme), probe=probe)
    if opened.status == "otherscheme":
        return True
    if opened.status != "open":
        raise refused(opened, tag, key, store_id)
    return any((lease.reign, lease.born) != (opened.reign, opened.born) for lease in leases)


def give_back(key: str, held: Sequence[Lease], used: int) -> Steps[int]:
    """Return the numbers above `used` to Redis, if Redis has issued no later ones. Returns how many Redis took back.

    `held`: leases, the lowest first. The caller must already have dropped their numbers, and must never use them again,
    whatever the reply. A repeated call is rejected. Only the last adjacent leases with the same term and `born` id are
    returned. Earlier leases are a gap.
    """
    first = len(held) - 1
    while first > 0 and held[first - 1].high == held[first].low and _same(held[first - 1], held[first]):
        first -= 1
    last = held[-1]
    start = max(used, held[first].low)
    if start >= last.high:
        return 0
    call = tag_scripts.give_back(key, start, last.high, reign=last.reign, born=last.born, backs=last.backs)
    given = yield from send(call)
    return last.high - start if given.status == "back" else 0


def _same(one: Lease, other: Lease) -> bool:
    return (one.reign, one.born) == (other.reign, other.born)


def parted(held: Sequence[Lease | Reservation]) -> tuple[list[Lease], list[Reservation]]:
    """Split ranges into those drawn from Redis and those reserved in the store."""
    leases = [piece for piece in held if isinstance(piece, Lease)]
    return leases, [piece for piece in held if not isinstance(piece, Lease)]
