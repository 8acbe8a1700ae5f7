"""Reserves numbers of a trend tag in the store, for one caller alone. For threads and asyncio tasks."""

from __future__ import annotations

from typing import Final

from issuer.clock import monotonic
from issuer.core.requests import check_reserving
from issuer.core.steps import Steps
from issuer.core.supply import direct
from issuer.core.supply.supply import Supply
from issuer.errors import IssuerError
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import Tag

#: Before a step is reserved for a client, the record is read if it is older than this, in seconds.
RECENT: Final = 1.0


def reserve(supply: Supply, n: int) -> Steps[range]:
    """Reserve exactly n numbers of a trend tag in the store, for the caller alone."""
    reserved = yield from _reserve(supply, n, exact=True, reason="reserve")
    return range(reserved.low + 1, reserved.high + 1)


def recent(supply: Supply) -> Steps[Tag]:
    """Return the record, at most RECENT seconds old: each reservation of this process brings it."""
    state = supply.state
    if state.record is not None and monotonic() - state.read_at < RECENT:
        return state.record
    return (yield from supply.origin.read())


def reserve_step(supply: Supply, step: int, reason: str) -> Steps[Reservation]:
    """Reserve `step` numbers of a trend tag in the store, near the limit fewer. The tag may have a stride."""
    return (yield from _reserve(supply, step, exact=False, reason=reason))


def _reserve(supply: Supply, n: int, *, exact: bool, reason: str) -> Steps[Reservation]:
    state, runtime = supply.state, supply.runtime
    check_reserving(state.record or (yield from supply.origin.read()), n, spaced=not exact)
    steps = direct.reserve(
        state.tag,
        seen=state.taken(),
        store_id=runtime.identity.id,
        n=n,
        exact=exact,
        reason=reason,
        application=runtime.application,
        emit=runtime.emit,
    )
    reserved = yield from supply.origin.public(steps)
    try:
        check_reserving(reserved.tag, n, spaced=not exact)
        supply.origin.use(reserved.tag)
    except IssuerError:
        # The scheme was changed after the record was read, so users must not see these counters.
        yield from supply.origin.give_back((reserved,), reserved.low)
        raise
    state.reserved = max(state.reserved, reserved.high)
    return reserved
