"""Knowledge of this process about a tag: its record, its scheme, the numbers it has seen. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from issuer.clock import monotonic
from issuer.core.events import LimitNear
from issuer.core.periods import PERIOD_BITS, SEQ_MOST
from issuer.core.scheme_record import SEGMENT, Numbering, countable, last_value, periods, reserved, strategy
from issuer.core.steps import renewed
from issuer.core.supply.lease import Lease
from issuer.core.supply.local_buffer import BUFFERS, LocalBuffer, share_at_refill
from issuer.core.supply.source import TagSource
from issuer.errors import IssuerError
from issuer.gateway import tag_scripts
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import DEFAULT_REFILL_AT, Tag

#: A process's own numbers of a tag.
Buffer = LocalBuffer[Lease | Reservation]


#: Warn when this share of the numbers is used, in percent of the limit.
WARN_AT = 80


class TagState:
    """Knowledge of this process about a tag. `Origin` changes this object.

    Combiners, which merge the draws of several callers into one, read it in each draw.
    """

    def __init__(self, tag: str, key: str) -> None:
        self.tag = tag
        self.key = key
        #: The record as last read, or None. `read_at`: when it was read, on the monotonic clock.
        self.record: Tag | None = None
        self.read_at = 0.0
        #: The scheme that converts the counter, and its id. None and "" if users see the counter itself.
        self.scheme: Numbering | None = None
        self.scheme_id = ""
        #: Highest number that this process has seen Redis issue.
        self.seen: int = 0
        #: Highest number that a caller got from `reserve`. Redis and local buffers may still issue lower numbers.
        self.reserved = 0
        #: Numbers of the tag used per second, by all processes. None if unknown: the rate is computed only in direct
        #: mode, and only if a setting of the tag needs it.
        self.rate: float | None = None
        #: The local buffer. None while each draw goes to Redis.
        self.buffer: Buffer | None = None
        #: Makes the numbers if the tag's strategy has no counter. None before the first of them, and for other tags.
        self.source: TagSource | None = None
        #: Whether the server of this client draws the numbers.
        self.elsewhere = False
        #: Whether the hash is known to belong to this store. Until then each draw takes the slow path and checks it.
        self.owned = False
        #: None while this process issues numbers of the tag. After that: the error that callers get.
        self.ended: IssuerError | None = None
        #: The hash as last read, or None. `looked_at`: when it was read, on the monotonic clock.
        self.hash: tag_scripts.Hash | None = None
        self.looked_at = 0.0
        #: For metrics. `alone`: draws for a single caller, of one number each. `draws`: all other draws. `numbers`: how
        #: many numbers came from those draws and from dropped buffers.
        self.alone = 0
        self.draws = 0
        self.numbers = 0
        #: How many of the issued numbers a call has taken together with others: a `take` of n numbers counts n - 1.
        self.bulk = 0
        #: The limit and period for which LimitNear was last sent.
        self._warned_of: tuple[int, int] | None = None

    def use(self, record: Tag, scheme: Numbering | None, *, elsewhere: bool) -> LimitNear | None:
        """Keep the record that was just read, and its scheme. Returns LimitNear if this event must be sent."""
        before, self.record, self.elsewhere = self.record, record, elsewhere
        self.read_at = monotonic()
        if elsewhere and record.scheme_id:
            self.seen = 0  # the server may have drawn numbers by this scheme already, and these are no counter values
        self.scheme, self.scheme_id = scheme, record.scheme_id
        return self.near_limit(0, reserved_now=before is not None and record.max > before.max)

    def near_limit(self, cur: int, *, reserved_now: bool = False) -> LimitNear | None:
        """Return LimitNear if at least 80 % of the numbers are used and the event was not sent yet.

        `cur`: last number that Redis has issued, 0 if unknown. `reserved_now`: the store has just reserved numbers. A
        tag with periods is checked only then, because the period in the store may be over at other times.

        Reserved numbers are not used numbers: the first segment of a small tag may reserve all its numbers. In this
        case, if this process has seen no number issued, the check waits for the first draw.
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
        told, near = self._warned_of == where, used * 100 >= last * WARN_AT
        self._warned_of = where if near or told else None
        if told or not near:
            return None
        return LimitNear(self.tag, used, last, last_value(record.scheme, last), restarts, record.scheme)

    def used(self, record: Tag, cur: int) -> tuple[int, int]:
        """Return how many numbers are used, and how many the limit permits.

        `cur`: last number that Redis has issued, 0 if unknown. If the tag has periods, both counts are for the current
        period.
        """
        restarts = periods(record) is not None
        taken, last = reserved(record)
        seen = max(cur, self.taken())
        if restarts:
            seen = seen & SEQ_MOST if seen >> PERIOD_BITS == record.max >> PERIOD_BITS else 0
        used = min(last, max(seen, taken - BUFFERS * record.segment))
        return used, last

    def lacks(self, n: int) -> bool:
        """Return whether fewer than n numbers are left up to the limit, as this process knows it."""
        record = self.record
        if record is None or n == 1:
            return False
        # Below the numbers of `reserve`, others may be left. Below an issued one, this process issues none.
        last = max(self.seen, 0 if self.buffer is None else self.buffer.issued)
        return n > reserved(record)[1] if "restart" in record.scheme else n > record.limit - last

    def drew(self, n: int) -> None:
        """Count a draw of n numbers from Redis, for metrics.

        A draw of one number for a single caller is counted in `alone` instead.
        """
        self.draws += 1
        self.numbers += n

    @property
    def issued(self) -> int:
        """How many numbers this process has given to callers, including callers that had stopped waiting."""
        buffer = self.buffer
        return self.alone + self.numbers + (0 if buffer is None else buffer.count)

    def refuse_if_ended(self) -> None:
        """Raise the error that callers get, if this process issues no more numbers of the tag."""
        if self.ended is not None:
            raise renewed(self.ended)

    @property
    def counts(self) -> bool:
        """Whether a counter makes the tag's numbers. True too while the record is unknown."""
        if self.source is not None or self.elsewhere:
            return False
        return self.record is None or strategy(self.record.scheme) == SEGMENT

    @property
    def climbs(self) -> bool:
        """Whether each number that the server of this client draws is a counter value above all earlier ones."""
        record = self.record
        if record is None or not self.elsewhere or record.order != "strict":
            return False
        return countable(record.scheme) and not record.scheme_id

    @property
    def open(self) -> Iterable[int]:
        """The iterator from which `next` takes numbers without a lock. The iterator may be exhausted."""
        if self.source is not None:
            return self.source.ready or ()
        return () if self.buffer is None else self.buffer.open

    def value(self, counter: int) -> int:
        """Return the number that users see. Raises LimitReached."""
        return counter if self.scheme is None else self.scheme.value(counter)

    def taken(self) -> int:
        """Return the highest number that this process has seen issued. The store's `max` is never lowered below it.

        Unissued numbers in the buffer are not included: another thread may be returning them.
        """
        buffer = self.buffer
        return max(self.seen, self.reserved, 0 if buffer is None else buffer.issued)

    @property
    def strict(self) -> bool:
        """Whether the tag is strict, or not known yet."""
        return self.record is None or self.record.order == "strict"

    @property
    def refill_at(self) -> float:
        """Share of a segment or lease that is used when the next one is fetched."""
        record = self.record
        return DEFAULT_REFILL_AT if record is None else share_at_refill(record, record.segment, self.rate)

    def went_back(self, low: int, before: int) -> bool:
        """Whether a strict tag's draw returned numbers below `before`, the highest number seen when the draw was sent.

        Within a term (one master without a restart) Redis only counts upwards. So the hash was replaced (by RENAME,
        MOVE, COPY, SWAPDB or RESTORE) by an older copy from the same term, or by a hash of another store. Other callers
        may already have the drawn numbers.
        """
        return low < before and self.strict
