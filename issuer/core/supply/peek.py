"""Returns the next number without consuming it."""

from __future__ import annotations

from issuer.core import scheme_record
from issuer.core.periods import PERIOD_BITS
from issuer.core.steps import Steps, ask, send
from issuer.errors import CorruptState
from issuer.gateway import server_commands, tag_scripts
from issuer_persistence.errors import LimitHit
from issuer_persistence.records import Tag


def upcoming(record: Tag, key: str | None) -> Steps[int]:
    """Return the counter value of the next draw, if no other draw comes first. `key`: None if there is no Redis.

    If a new period has begun by Redis's clock, return the first counter of the new period. Raises LimitHit.
    """
    standing = None
    if key is not None:
        hash = yield from send(tag_scripts.read_hash(key))
        if hash.corrupt:
            problem = f"Redis key {key}: field {hash.corrupt} is not a whole number"
            raise CorruptState(problem, tag=record.tag, advice="corrupt_state.recover")
        if hash.cur is not None and hash.max is not None and hash.cur < hash.max:
            standing = hash.cur
        elif hash.next_max is not None:
            standing = hash.next_cur
    if standing is None:
        fresh = yield from ask(lambda store, timeout: store.get(record.tag, timeout=timeout))
        found = fresh or record
        if found.max >= found.limit:
            raise LimitHit(found.tag, found.limit, found.max)
        standing = found.max
    return (yield from after(record, standing, key))


def after(record: Tag, standing: int, key: str | None) -> Steps[int]:
    """Return the counter value that follows `standing`, the last one issued.

    `key`: key of the tag's hash in Redis. None if there is no Redis.
    If the tag has periods, such as days, the value is in the period that is current by Redis's clock.
    """
    periods = scheme_record.periods(record)
    if periods is not None:
        clock = yield from send(server_commands.server_time(key or ""))
        standing = max(standing, periods.index(clock) << PERIOD_BITS)
    return standing + 1
