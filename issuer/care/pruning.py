"""Deletes old ledger entries in the background, by few at a time.

An entry has the time of the process that has written it. If the clock of this process is wrong, it must not decide how
old the entries of others are. So the present time comes from the clock of the store. If the store has none, it comes
from the ledger.
"""

from __future__ import annotations

import logging

from issuer.clock import monotonic
from issuer.core.steps import Steps, ask, sleep
from issuer.times import lasting
from issuer_persistence.ledger import LEDGER_KEPT
from issuer_persistence.records import now_ms

log = logging.getLogger("issuer")

#: How long one run takes, in seconds. There is one run per sweep.
SHARE = 0.8

#: Longest duration of one call to the store, in seconds.
LONGEST = 1.0

#: Clocks of a process and of the store that differ by more than this many ms are wrong.
APART = 3_600_000

#: After this many seconds, a process whose clock was wrong compares it again: a day.
LOOK_AGAIN = 86_400.0


class Pruning:
    """Deletes ledger entries that are older than 90 days. Each issuer has one, also in other loops and after a fork."""

    def __init__(self, url: str) -> None:
        """`url`: the store's address, for a warning."""
        self._url = url
        #: When this issuer began, by this process's clock in ms since 1970, and in seconds on the monotonic clock.
        #: Later entries may be its own, so they do not show whether the clock is right.
        self._began, self._began_at = now_ms(), monotonic()
        #: Entries from before this time are old. None: not known, until a walk through the ledger begins.
        self._before: int | None = None
        self._warned = False

    def prune(self) -> Steps[float]:
        """Delete old ledger entries, until none is left or the time is over. Return the seconds until the next run.

        After each call to the store there is a pause that is as long as the call. So draws find the store free for half
        of the time, and the more they use it, the longer are the pauses.
        """
        end = monotonic() + SHARE
        if self._before is None:
            self._before = yield from self._look()
        while self._before is not None:
            began, before = monotonic(), self._before
            done = yield from ask(lambda store, left: store.prune(before=before, timeout=left), within=LONGEST)  # noqa: B023 - called at once
            took = monotonic() - began
            if done.wait:
                self._before = None
            if done.wait or monotonic() + 2 * took > end:
                return done.wait
            yield from sleep(took)
        return LOOK_AGAIN

    def _look(self) -> Steps[int | None]:
        """Return the time before which entries are old. None, and a warning once, if this process's clock is wrong."""
        now = (yield from ask(lambda store, left: store.examine(timeout=left))).time
        ahead = APART
        if now is None:
            now = yield from ask(lambda store, left: store.latest(before=self._began, timeout=left))
            if not now:
                return None
            # Nobody may have used the store for weeks before this issuer began, so the clock may be ahead.
            now, ahead = now + round((monotonic() - self._began_at) * 1000), LEDGER_KEPT
        apart = now_ms() - now
        if -APART <= apart <= ahead:
            return max(0, now - LEDGER_KEPT)
        if not self._warned:
            self._warned = True
            log.warning(
                "the clock of this process is %s %s %s: it deletes no old ledger entries. Set the clock",
                lasting(abs(apart) / 1000),
                "ahead of" if apart > 0 else "behind",
                self._url,
            )
        return None
