"""The health of an issuer: one sentence that says if numbers are being issued now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from issuer.board.rows import rank_of
from issuer.times import lasting

#: "down": some callers get no numbers now. "risk": an operator should act soon. "ok": neither.
Level = Literal["down", "risk", "ok"]

#: Codes of errors of a token. The server that raised them may be sound.
REFUSED: Final = frozenset({"forbidden", "unauthenticated"})

#: What the reader must be told if the collector has not written for this many ms.
STALE: Final = 15_000


@dataclass(slots=True, kw_only=True)
class Health:
    """The health of an issuer, as the collector last found it. Times are in ms since 1970.

    Attributes:
        redis: Error of Redis as text. "" if it answers.
        redis_code: Code of this error.
        redis_since: Since when this error lasts.
        store: Error of the store as text. "" if it answers.
        store_code: Code of this error.
        store_since: Since when this error lasts.
        has_redis: Whether the issuer uses Redis.
        states: How many tags have each state.
        shortest: Shortest runway of a tag in use, in seconds. None if unknown.
        waiting: Callers that wait for a number, in all processes that report.
        complete: Whether all tags were read since the start.
    """

    redis: str = ""
    redis_code: str = ""
    redis_since: int = 0
    store: str = ""
    store_code: str = ""
    store_since: int = 0
    has_redis: bool = True
    states: Mapping[str, int] = field(default_factory=dict)
    shortest: float | None = None
    waiting: int = 0
    complete: bool = False

    def content(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @property
    def tags(self) -> int:
        """How many tags there are."""
        return sum(self.states.values())

    @property
    def verdict(self) -> tuple[Level, str]:
        """Return whether numbers are being issued now, and the reason as a sentence."""
        for code, text in ((self.store_code, self.store), (self.redis_code, self.redis)):
            if code in REFUSED:
                return "risk", f"Whether numbers are being issued is unknown: {text}."
        urgent = [f"{count:,} {state}" for state, count in self.states.items() if rank_of(state) == 0]
        if self.store and (self.redis or not self.has_redis):
            both = "Redis and the store do" if self.has_redis else "The store does"
            return "down", f"{both} not answer. Processes issue the numbers that they hold, then calls fail."
        if self.redis:
            told = "Calls for strict tags wait and then fail. Trend tags are served from the store."
            return "down", f"Redis does not answer. {told}"
        if self.waiting:
            return "down", f"Callers are waiting for numbers: {self.waiting:,}."
        if self.store:
            left = "" if self.shortest is None else f" The first tag in use runs out in {lasting(self.shortest, 1)}."
            return "risk", f"The store does not answer. Numbers are issued from Redis until they run out.{left}"
        needs = f", but some tags need an operator: {', '.join(urgent)}" if urgent else ""
        return "risk" if urgent else "ok", f"Numbers are being issued{needs}."
