"""Leases: numbers that a process draws ahead from Redis and serves from its own memory. Trend tags only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from issuer import gateway
from issuer.core.error_mapping import refused
from issuer.core.steps import Steps, send
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import fresh_version


@dataclass(frozen=True, slots=True)
class Lease:
    """A range drawn from Redis for this process alone, and the hash that it came from: its reign, born and backs."""

    low: int
    high: int
    reign: str
    born: str
    backs: int


def moved(tag: str, key: str, leases: Sequence[Lease], store_id: str, *, scheme: str, probe: bool) -> Steps[bool]:
    """Say whether the hash is another one than the leases came from: Redis failed over, or `recover` has run.

    Their numbers are this process's alone even then; but after `recover` nothing old shall be issued any more.
    """
    opened = yield from send(gateway.open(key, fresh_version(), store_id, 0, "look", scheme=scheme), probe=probe)
    if opened.status == "otherscheme":
        return True
    if opened.status != "open":
        raise refused(opened, tag, key, store_id)
    return any((lease.reign, lease.born) != (opened.reign, opened.born) for lease in leases)


def give_back(key: str, held: Sequence[Lease], used: int) -> Steps[int]:
    """Give the numbers above `used` back to Redis, if no number was drawn since; return how many it took back.

    The caller has forgotten them already. They are spent, whatever the reply; a second copy is refused. They come back
    as far as the leases lie end to end, in one reign and of one born; what lies before stays a gap.
    """
    first = len(held) - 1
    while first > 0 and held[first - 1].high == held[first].low and _same(held[first - 1], held[first]):
        first -= 1
    last = held[-1]
    start = max(used, held[first].low)
    if start >= last.high:
        return 0
    call = gateway.give_back(key, start, last.high, reign=last.reign, born=last.born, backs=last.backs)
    given = yield from send(call)
    return last.high - start if given.status == "back" else 0


def _same(one: Lease, other: Lease) -> bool:
    return (one.reign, one.born) == (other.reign, other.born)


def parted(held: Sequence[Lease | Reservation]) -> tuple[list[Lease], list[Reservation]]:
    """Split what a process holds into what came from Redis and what it reserved itself."""
    leases = [piece for piece in held if isinstance(piece, Lease)]
    return leases, [piece for piece in held if not isinstance(piece, Lease)]
