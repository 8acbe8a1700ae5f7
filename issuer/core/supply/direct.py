"""Direct: segments that a process reserves for itself, without Redis, and giving back what it did not use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from issuer.clock import monotonic
from issuer.core.events import Emit, ReservationFailed, Reserved, unobserved
from issuer.core.steps import Steps, ask
from issuer.errors import StoreBehind, StoreUnavailable
from issuer_persistence.contract import Store
from issuer_persistence.errors import MaxBehind
from issuer_persistence.ledger import Purpose, Reservation

#: How often a reservation is asked for, when the store looks behind and isn't. A primary that was deposed, and doesn't
#: know it yet, answers from the past.
ATTEMPTS = 3


def observed(tag: str, reason: str, emit: Emit, question: Callable[[Store, float], Reservation]) -> Steps[Reservation]:
    """Ask the store for a reservation, and let observers hear what came of it."""
    began = monotonic()
    try:
        reserved = yield from ask(question)
    except Exception as error:
        emit(ReservationFailed(tag, reason, error, monotonic() - began))
        raise
    emit(Reserved(tag, reason, reserved.low, reserved.high, monotonic() - began))
    return reserved


def reserve(
    tag: str,
    *,
    seen: int,
    n: int | None = None,
    exact: bool = False,
    reason: str = "direct",
    application: str = "",
    emit: Emit = unobserved,
) -> Steps[Reservation]:
    """Reserve a segment for this process alone; with n, that many numbers, near the limit fewer unless `exact`.

    `seen` is the highest number of the tag that this process has seen issued. No process lowers `max` below it, as a
    hand back ends at a number that its own process has issued. So a store that stands below it went back in time.
    `application`: the service's label, for the ledger.
    """
    for _ in range(ATTEMPTS):
        try:
            return (
                yield from observed(
                    tag,
                    reason,
                    emit,
                    lambda store, timeout: store.reserve(
                        tag, n, purpose=Purpose(reason, application), at_least=seen, exact=exact, timeout=timeout
                    ),
                )
            )
        except MaxBehind as error:
            yield from behind(tag, stands_at=error.max, taken=max(seen, error.at_least))
    raise StoreUnavailable(
        f"the store's servers disagree about tag {tag!r}: in turns they report {seen} as not reserved and as reserved. "
        "One of the servers returns outdated data",
        tag=tag,
    )


def behind(tag: str, *, stands_at: int, taken: int) -> Steps[None]:
    """Halt a tag whose store stands below a number that is taken without a doubt, and raise StoreBehind.

    If the store no longer stands there when it is asked to halt, nothing is wrong: it was read on a server that lags,
    or has been recovered since.
    """
    if (yield from ask(lambda store, timeout: store.halt(tag, below=taken, timeout=timeout))):
        raise StoreBehind(tag, max=stands_at, taken=taken)


def hand_back(held: Sequence[Reservation], used: int) -> Steps[int]:
    """Give (used, the end] of contiguous reservations back to the store; return how many numbers it took back.

    The caller has forgotten the numbers already. Newest first, as far as they lie end to end: a hole between two of
    them may belong to another process, and what lies before it stays a gap.
    """
    tail = len(held) - 1
    while tail > 0 and held[tail - 1].high == held[tail].low:
        tail -= 1
    chain = held[tail:]
    start = max(used, chain[0].low)
    taken_back = yield from ask(lambda store, timeout: store.hand_back(chain, start, timeout=timeout))
    return chain[-1].high - start if taken_back else 0
