"""A row of the board: the state of one tag, as the store, its ledger and Redis showed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from issuer.care.inspection import RATE_FROM
from issuer.core import arithmetic, scheme_record
from issuer.core.parts import has_parts
from issuer.errors import IssuerError
from issuer.gateway.tag_scripts import Hash
from issuer.views import counts
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag

State = Literal["damaged", "foreign", "behind", "halted", "used up", "near limit", "empty", "ok", "unused"]

#: For each state: its rank (0 needs an operator now, 1 soon, 2 is sound), and its meaning.
STATES: Final[Mapping[State, tuple[int, str]]] = {
    "damaged": (0, "the record or the Redis hash of the tag is damaged: run doctor"),
    "foreign": (0, "the Redis hash belongs to another store: draws are rejected"),
    "behind": (0, "the store is behind Redis: recover the tag"),
    "halted": (0, "reservations are stopped: recover the tag"),
    "used up": (0, "the last number of the limit is reserved, and Redis has none left"),
    "near limit": (1, "at least 80 % of the limit is reserved"),
    "empty": (1, "Redis has no numbers left: the next call reserves a segment"),
    "ok": (2, "numbers are available"),
    "unused": (2, "no number was reserved yet"),
}


def rank_of(state: str) -> int:
    """Return how urgent a state is, see STATES. An unknown state, of a newer version, is sound."""
    return next((rank for known, (rank, _) in STATES.items() if known == state), 2)


#: Share of the limit from which a tag is near it, as for the event LimitNear.
NEAR: Final = 0.8

#: How many of the newest ledger entries a row contains.
TAIL: Final = 24

#: Sort key of a tag whose runway is unknown: after all others.
NEVER: Final = 1e300


class TailEntry(NamedTuple):
    """A reservation of the numbers low + 1 .. high. `time`: in ms since 1970."""

    time: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRow:
    """The state of a tag. Numbers are values of the tag's counter, except `limit`. Times are in ms since 1970.

    Attributes:
        kind: "counter", "parts" (the tag has no numbers of its own), or the name of a strategy.
        part_of: Name of the tag that this tag is a part of, or "".
        version: Version of the record. "" if the record is damaged.
        max: Highest number reserved in the store.
        cur: Last number issued from Redis.
        end: Last number of the current segment in Redis.
        next_cur: The number before the first one of the next segment in Redis.
        next_end: Last number of the next segment in Redis.
        mark: Threshold at which the next segment is loaded.
        remaining: How many numbers are left in Redis.
        rate: Numbers per second, as `issuer tags --usage` shows it.
        runway: How long `remaining` lasts at this rate, in seconds.
        used: Share of the limit that is reserved, 0..1.
        last: Time of the newest reservation. None if there was none.
        tail: The newest reservations, newest first, at most TAIL.
        read: When the store was read.
        hashed: When Redis was read. None if it was never read.
        error: Why the tag cannot be read, or "".
    """

    tag: str
    kind: str
    state: State
    order: str = ""
    step: int = 0
    step_mode: str = ""
    description: str = ""
    part_of: str = ""
    version: str = ""
    limit: int = 0
    max: int = 0
    cur: int | None = None
    end: int | None = None
    next_cur: int | None = None
    next_end: int | None = None
    mark: int | None = None
    remaining: int | None = None
    rate: float | None = None
    runway: float | None = None
    used: float = 0.0
    last: int | None = None
    tail: Sequence[TailEntry] = ()
    read: int = 0
    hashed: int | None = None
    error: str = ""

    @property
    def rank(self) -> int:
        """How urgent the state is, see STATES."""
        return STATES[self.state][0]

    @property
    def urgency(self) -> float:
        """Sort key: the time to exhaustion. Tags whose time is unknown are last."""
        return NEVER if self.runway is None else self.runway

    def __post_init__(self) -> None:
        """Take the reservations also as JSON has them."""
        object.__setattr__(self, "tail", tuple(TailEntry(*each) for each in self.tail))

    def content(self) -> dict[str, Any]:
        """Return the fields for JSON. `asdict` takes 70 times as long, as it copies each reservation."""
        return {each: getattr(self, each) for each in self.__slots__}

    def failed(self, error: IssuerError) -> TagRow:
        """Return the row with the error that prevented reading the ledger. The next look reads the ledger again."""
        return replace(self, error=str(error), version="")

    @property
    def segment(self) -> int | None:
        """How many numbers the two buffers in Redis can have, as far as it is known."""
        sizes = [high - low for _, low, high in self.tail[:2]]
        return sum(sizes) or None


#: The fields of a row that Redis knows.
REDIS: Final = ("cur", "end", "next_cur", "next_end", "mark", "remaining", "hashed")


def damaged(found: Corrupt, now: int) -> TagRow:
    """Return the row of a tag with a damaged record."""
    return TagRow(tag=found.tag, kind="counter", state="damaged", read=now, error=found.problem)


def row_of(
    record: Tag, tail: Sequence[TailEntry], hash: Hash | None, before: TagRow | None, *, store_id: str, now: int
) -> TagRow:
    """Return the row of a tag.

    Args:
        record: The tag's record, as it was just read.
        tail: The newest reservations, newest first.
        hash: The tag's hash in Redis. None if Redis was not read: then the numbers of `before` stay.
        before: The earlier row of the tag, or None.
        store_id: Id of the store. "" if it is unknown.
        now: Time in ms since 1970.
    """
    kind = (
        "parts" if has_parts(record) else "counter" if counts(record.scheme) else scheme_record.strategy(record.scheme)
    )
    true = scheme_record.in_true_order(record)
    taken, last = scheme_record.reserved(record) if kind == "counter" else (0, 0)
    used = taken / last if last else 0.0
    rate = arithmetic.rate(tail[:RATE_FROM], now) if kind == "counter" else None
    if hash is not None:
        redis: dict[str, Any] = {
            "cur": hash.cur, "end": hash.max, "next_cur": hash.next_cur, "next_end": hash.next_max, "mark": hash.mark,
            "remaining": hash.remaining, "hashed": now,
        }  # fmt: skip
    else:
        redis = {name: None if before is None else getattr(before, name) for name in REDIS}
    remaining = redis["remaining"]
    return TagRow(
        tag=record.tag,
        kind=kind,
        state=_state(record, hash, remaining, used, store_id=store_id, reserved=bool(tail))
        if kind == "counter"
        else "halted"
        if record.halted
        else "ok",
        order=true.order,
        step=record.step,
        step_mode=record.step_mode,
        description=record.description,
        part_of=str(record.scheme.get(scheme_record.PART_OF, "")),
        version=record.version,
        limit=scheme_record.last_value(record.scheme, record.limit),
        max=record.max,
        rate=rate,
        runway=arithmetic.runway(remaining, rate),
        used=used,
        last=tail[0].time if tail else None,
        tail=tail,
        read=now,
        **redis,
    )


def _state(
    record: Tag, hash: Hash | None, remaining: int | None, used: float, *, store_id: str, reserved: bool
) -> State:
    """Return the first state, in the order of STATES, that applies. `reserved`: whether there was a reservation."""
    top, owner = (0, None) if hash is None else (hash.top, hash.store)
    applies: dict[State, bool] = {
        "damaged": hash is not None and hash.corrupt is not None,
        "foreign": owner is not None and store_id not in ("", owner),
        "behind": top > record.max,
        "halted": record.halted,
        "used up": used >= 1 and not remaining,
        "near limit": used >= NEAR,
        "unused": not (reserved or top),
        "empty": remaining == 0,
    }
    return next((state for state, does in applies.items() if does), "ok")
