"""Decides how many numbers a process reserves, and adapts the step of a tag with `step="auto"`.

An adapted step lasts about `target` seconds at the tag's rate of use.

The process that is about to reserve a segment changes the step of the tag's record first. The reservation itself is the
same for every tag: the store takes the size from its own record, in one atomic step. So a wrong step, or a process that
stops in between, can cost store calls, but no number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile

from issuer.core import arithmetic
from issuer.core.scheme_record import reserved
from issuer.core.steps import Steps, ask
from issuer.errors import Unavailable
from issuer_persistence.errors import StoreError
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import Tag, TagChanges, now_ms

#: The rate is computed from the newest SEGMENTS segments among the newest ENTRIES entries of the ledger. Other entries
#: come from callers of `reserve`, and are ignored.
SEGMENTS, ENTRIES = 5, 16

#: Near the limit, a segment has one of PARTS parts of the numbers that are left, but at least LEAST numbers.
PARTS, LEAST = 10, 10

#: How long a process waits for the ledger, or for the record, in seconds. After that the step stays as it is.
PATIENCE = 1.0


def adapt(record: Tag, used: Callable[[LedgerEntry], bool] | None) -> Steps[float | None]:
    """Before a reservation: double or halve the step in the store if it does not fit the tag's rate. Return the rate.

    The rate is that of all processes, in numbers per second: it comes from the ledger. None if it is not needed or
    unknown. An error of the store is ignored, and changes nothing: the reservation that follows raises it.

    Args:
        record: The tag's record, as this process last read it.
        used: Function that returns True if the numbers of a ledger entry were issued, and False if they may be lost.
            The ledger is read from the newest segment on. Only the segments before the first False can make the step
            grow. Otherwise a Redis that loses its data, or a program that crashes again and again, would look like
            much traffic. Segments of other applications, such as other regions, are left out: each has its own Redis.
            None: no segment's numbers were issued, so the step does not grow.
    """
    auto = record.step_mode == "auto" and (used is not None or record.step != record.min_step)
    if not (auto or record.survive) or record.max >= record.limit:  # such calls can be frequent
        return None
    rate = None
    with suppress(StoreError, Unavailable):
        ledger = yield from ask(lambda store, left: store.ledger(record.tag, newest=ENTRIES, timeout=left), PATIENCE)
        loads = [entry for entry in ledger if entry.reason in ("load", "direct")]
        own = {entry.application for entry in loads if used is not None and used(entry)}
        surely = [] if used is None else [*takewhile(used, (each for each in loads if each.application in own))]
        segments, surely = loads[:SEGMENTS], surely[:SEGMENTS]
        rate = arithmetic.rate_at_refill(segments, record.refill_at, now_ms())
        if not auto or fitting(record, segments, surely, now_ms()) == record.step:
            return rate
        found = yield from ask(lambda store, left: store.get(record.tag, timeout=left), PATIENCE)
        if found is None or found.step_mode != "auto":
            return rate
        step = fitting(found, segments, surely, now_ms())
        if step != found.step:
            changes = TagChanges(step=step, seen=found.version)  # `seen`: keep a step that a user sets meanwhile
            yield from ask(lambda store, left: store.configure(record.tag, changes, timeout=left), PATIENCE)
    return rate


def fitting(record: Tag, segments: Sequence[LedgerEntry], surely: Sequence[LedgerEntry], now: int) -> int:
    """Return the step for the next segment: the present step, or twice or half of it.

    Args:
        record: The tag's record.
        segments: The tag's newest segments, newest first. Some of their numbers may be lost.
        surely: The newest of these segments, up to the first one with numbers that may be lost, which is left out.
        now: Time in ms since 1970.
    """
    fastest, rate = (arithmetic.rate_at_refill(each, record.refill_at, now) for each in (segments, surely))
    step = record.step
    # Change the step only after a segment was reserved with the present step, as the size of the newest segment shows.
    # Otherwise a tag at its limit, which reserves no more segments, would change its step at each call.
    newest = segments[0].high - segments[0].low if segments else 0
    target = arithmetic.target(record, record.target)
    if rate is not None and arithmetic.too_small(step, rate, target) and newest >= record.segment:
        step *= 2
    elif fastest is not None and arithmetic.too_large(step, fastest, target) and newest <= record.segment:
        step //= 2
    return min(record.max_step, max(record.min_step, step))


def size(record: Tag, wanted: int, *, used: bool = True) -> int | None:
    """Return how many numbers to reserve if a caller wants `wanted` numbers. None: one segment.

    Near the tag's limit, a segment is a part of the numbers that are left: a restart of Redis, or a crash of a process,
    can lose two segments. A fast tag pays for it with about 90 reservations more, until its last number.

    Args:
        record: The tag's record.
        wanted: How many numbers a caller wants, 1 or more.
        used: Whether numbers of the last segment were used. If not, the segment is small, even if the adapted step is
            large: a program that crashes again and again would lose a whole segment each time.
    """
    whole, (taken, last) = record.segment, reserved(record)
    if record.step_mode == "auto" and not used:
        whole = min(whole, record.min_step * record.ahead)
    n = max(wanted, min(whole, max((last - taken) // PARTS, LEAST)))
    return None if n == record.segment else n
