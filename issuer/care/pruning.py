"""Deletes old ledger entries in the background, by few at a time."""

from __future__ import annotations

from issuer.clock import monotonic
from issuer.core.steps import Steps, ask, sleep
from issuer_persistence.ledger import LEDGER_KEPT
from issuer_persistence.records import now_ms

#: How long one run takes, in seconds. There is one run per sweep.
SHARE = 0.8

#: Longest duration of one call to the store, in seconds.
LONGEST = 1.0


def prune() -> Steps[float]:
    """Delete old ledger entries, until none is left or the time is over. Return the seconds until the next run.

    After each call to the store there is a pause that is as long as the call. So draws find the store free for half of
    the time, and the more they use it, the longer are the pauses.
    """
    end = monotonic() + SHARE
    while True:
        began = monotonic()
        done = yield from ask(
            lambda store, left: store.prune(before=now_ms() - LEDGER_KEPT, timeout=left), within=LONGEST
        )
        took = monotonic() - began
        if done.wait or monotonic() + 2 * took > end:
            return done.wait
        yield from sleep(took)
