"""A tag as this process knows it: its record, its scheme, what was seen of its numbers. It asks and tells nobody."""

from __future__ import annotations

from issuer import gateway
from issuer.clock import monotonic
from issuer.core.arithmetic import spent
from issuer.core.events import LimitNear
from issuer.core.periods import PERIOD_BITS, SEQ_MOST
from issuer.core.scheme_record import Numbering, last_value, periods, reserved
from issuer.core.steps import renewed
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import BUFFERS, LocalBuffer
from issuer.errors import IssuerError
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import Tag

#: What a process holds of a tag in its own memory.
Hand = LocalBuffer[Lease | Reservation]


class TagState:
    """A process's knowledge of a tag. `Origin` changes it, and combiners read it in each draw."""

    def __init__(self, tag: str, key: str) -> None:
        """`key` is the tag's hash in Redis."""
        self.tag = tag
        self.key = key
        #: The tag's record as this process saw it last, None if it never did; and when, on the monotonic clock.
        self.record: Tag | None = None
        self.learnt_at = 0.0
        #: The scheme that makes its numbers of its counter, and its id: None and "" if they are the counter.
        self.scheme: Numbering | None = None
        self.scheme_id = ""
        #: The highest number that this process has seen issued by Redis.
        self.seen: int = 0
        #: The highest number that it has reserved for a caller: past both buffers, so that Redis issues lower ones yet.
        self.reserved = 0
        #: The buffer that this process serves itself from; None while each draw goes to Redis.
        self.hand: Hand | None = None
        #: Whether the tag's hash was seen to be this store's. Until then each draw goes the long way, and looks.
        self.owned = False
        #: The error that callers get, once this process serves nothing of the tag any more.
        self.ended: IssuerError | None = None
        #: The tag's hash as it was read last, None if it never was; and when, on the monotonic clock.
        self.hash: gateway.Hash | None = None
        self.looked_at = 0.0
        #: Draws from Redis that brought numbers to callers of this process: those for a lone caller, which brought one
        #: each; all others, and how many numbers came by them and from buffers that are dropped. Counted for metrics.
        self.alone = 0
        self.draws = 0
        self.numbers = 0
        #: The limit, and the period, of which observers have heard that it is near.
        self._warned_of: tuple[int, int] | None = None

    def know(self, record: Tag, scheme: Numbering | None) -> LimitNear | None:
        """Take the record as the present one; return the news that few numbers are left, once."""
        before, self.record = self.record, record
        self.learnt_at = monotonic()
        self.scheme, self.scheme_id = scheme, record.scheme_id
        return self.near_limit(0, reserved_now=before is not None and record.max > before.max)

    def near_limit(self, cur: int, *, reserved_now: bool = False) -> LimitNear | None:
        """Return the news that few numbers are left, once; `cur`: the last one that Redis has issued.

        In the period if the tag has any, and then only as some are reserved: it may be over. Those that were issued
        count, as far as that is known: a tag whose limit is no more than two segments has all of its numbers reserved
        with the first. What lies in both buffers may be unused. If all are reserved, and this process has seen none
        issued, none may be left: then the first draw tells, by its number or by LimitReached.
        """
        record = self.record
        if record is None:
            return None
        restarts = periods(record) is not None
        if restarts and not reserved_now:
            return None
        used, last = self.used(record, cur)
        if record.max >= record.limit and not (reserved_now or cur or self.taken()):
            return None
        where = last, record.max >> PERIOD_BITS if restarts else 0
        told, near = self._warned_of == where, spent(used, last)
        self._warned_of = where if near or told else None
        if told or not near:
            return None
        return LimitNear(self.tag, used, last, last_value(record.scheme, last), restarts, record.scheme)

    def used(self, record: Tag, cur: int) -> tuple[int, int]:
        """Return how many numbers are used, of how many up to the limit, in the present period if there are any.

        `cur` as in `near_limit`.
        """
        restarts = periods(record) is not None
        taken, last = reserved(record)
        seen = max(cur, self.taken())
        if restarts:
            seen = seen & SEQ_MOST if seen >> PERIOD_BITS == record.max >> PERIOD_BITS else 0
        used = min(last, max(seen, taken - BUFFERS * record.segment))
        return used, last

    def look(self, hash: gateway.Hash) -> None:
        """Take note of the tag's hash as it is now."""
        self.hash, self.looked_at = hash, monotonic()

    def drew(self, n: int) -> None:
        """Take note that a draw from Redis has brought n numbers to callers, other than one to a lone caller."""
        self.draws += 1
        self.numbers += n

    @property
    def issued(self) -> int:
        """How many numbers this process has given to its callers: a gap where a caller had gone meanwhile."""
        hand = self.hand
        return self.alone + self.numbers + (0 if hand is None else hand.count)

    def refuse_if_ended(self) -> None:
        """Raise the error that callers get, if this process serves nothing of the tag any more."""
        if self.ended is not None:
            raise renewed(self.ended)

    def value(self, counter: int) -> int:
        """Return the number that users see. Raises LimitReached."""
        return counter if self.scheme is None else self.scheme.value(counter)

    def taken(self) -> int:
        """Return the highest number that this process has seen issued: no process lowers the store's `max` below it.

        Not what it holds: another thread may be handing that back.
        """
        hand = self.hand
        return max(self.seen, self.reserved, 0 if hand is None else hand.issued)

    @property
    def strict(self) -> bool:
        """Whether its numbers increase across all processes, as far as this one knows."""
        return self.record is None or self.record.order == "strict"

    def went_back(self, low: int, before: int) -> bool:
        """Whether a strict tag's draw began below `before`, the highest number seen when it was sent.

        Within a reign Redis counts upwards: another hash was put in the place of the tag's (RENAME, MOVE, COPY, SWAPDB,
        RESTORE), an older one with the same fence, or another store's. What was drawn may be another caller's.
        """
        return low < before and self.strict
