"""Reserves segments for this process itself, without Redis, and returns unused numbers to the store."""

from __future__ import annotations

from collections.abc import Sequence

from issuer.core.events import Emit, unobserved
from issuer.core.steps import Steps, ask
from issuer.core.supply.extend import behind, observed
from issuer.errors import ConfigurationError, StoreUnavailable
from issuer_persistence.errors import MaxBehind
from issuer_persistence.ledger import Purpose, Reservation

#: How many times a reservation is requested if the store's `max` seems too low. The store may not have gone back in
#: time: a deposed MongoDB primary can return old data until it learns of the new primary.
ATTEMPTS = 3


def reserve(
    tag: str,
    *,
    seen: int,
    store_id: str = "",
    n: int | None = None,
    exact: bool = False,
    reason: str = "direct",
    application: str = "",
    emit: Emit = unobserved,
) -> Steps[Reservation]:
    """Reserve a segment for this process alone.

    No process lowers the store's `max` below an issued number: if `max` is below `seen`, the store has gone back in
    time.

    Args:
        tag: Name of the tag.
        seen: Highest number of the tag that this process has seen issued.
        store_id: Id of the store, as this process has read it. "" if unknown. The numbers of another store are a gap.
        n: How many numbers to reserve. None: one segment. Near the limit fewer may be reserved.
        exact: Raise an error instead of reserving fewer than n.
        reason: Purpose of the reservation, for the ledger.
        application: Name of the service, for the ledger.
        emit: Receives the event of the reservation.
    """
    for _ in range(ATTEMPTS):
        try:
            reserved = yield from observed(
                tag,
                reason,
                emit,
                lambda store, timeout: store.reserve(
                    tag, n, purpose=Purpose(reason, application), at_least=seen, exact=exact, timeout=timeout
                ),
            )
        except MaxBehind as error:
            yield from behind(tag, stands_at=error.max, taken=max(seen, error.at_least))
            continue
        if store_id and reserved.store_id != store_id:
            raise ConfigurationError(
                f"the store was replaced while it was in use: its id was {store_id}, and is {reserved.store_id} now. "
                "Restart this process, then run `recover`",
                tag=tag,
            )
        return reserved
    raise StoreUnavailable(
        f"the store's servers disagree about tag {tag!r}: in turns they report {seen} as not reserved and as reserved. "
        "One of the servers returns outdated data",
        tag=tag,
    )


def hand_back(held: Sequence[Reservation], used: int) -> Steps[int]:
    """Return the reserved numbers above `used` to the store. Returns how many numbers the store took back.

    `held`: reservations, the lowest first. The caller must already have dropped them. If there are numbers between two
    reservations, they belong to another process. Then only the reservations after those numbers are returned, and
    earlier reservations are a gap.
    """
    tail = len(held) - 1
    while tail > 0 and held[tail - 1].high == held[tail].low:
        tail -= 1
    chain = held[tail:]
    start = max(used, chain[0].low)
    taken_back = yield from ask(lambda store, timeout: store.hand_back(chain, start, timeout=timeout))
    return chain[-1].high - start if taken_back else 0
