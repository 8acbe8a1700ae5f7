"""What was really issued: the demo's numbers, counted and compared, with no word from whoever issued them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers low..high that nobody got, and why."""

    low: int
    high: int
    cause: str

    @property
    def size(self) -> int:
        """How many."""
        return self.high - self.low + 1


@dataclass(slots=True)
class Tally:
    """Every number drawn, with the time when its process had it (monotonic seconds)."""

    times: dict[int, float] = field(default_factory=dict)
    count: int = 0
    #: When the clients were let in to the rolled back server; None: never.
    back_at: float | None = None
    #: The floor that `recover` left; None: none.
    floor: int | None = None

    #: The last number before the rollback and the first one after it, as far as they have come.
    last_before: int = 0
    first_after: int | None = None

    def add(self, number: int, at: float) -> None:
        """Count what a process reports."""
        self.count += 1
        self.times.setdefault(number, at)
        if self.back_at is None or at < self.back_at:
            self.last_before = max(self.last_before, number)
        else:
            self.first_after = min(self.first_after or number, number)

    @property
    def repeats(self) -> int:
        """How many numbers came once too often."""
        return self.count - len(self.times)

    @property
    def lowest(self) -> int:
        """The lowest number issued, 0 if none was."""
        return min(self.times, default=0)

    @property
    def highest(self) -> int:
        """The highest number issued, 0 if none was."""
        return max(self.times, default=0)

    def gaps(self) -> list[Gap]:
        """Return every run of numbers between the lowest and the highest that nobody got."""
        return [
            Gap(before + 1, after - 1, self._cause(before, after))
            for before, after in pairwise(sorted(self.times))
            if after - before > 1
        ]

    def _cause(self, before: int, after: int) -> str:
        if self.back_at is not None and self.times[before] < self.back_at <= self.times[after]:
            return "Redis killed and rolled back"
        if self.floor is not None and before < self.floor < after:
            return "recover"
        if self.back_at is not None and self.times[after] < self.back_at:
            return "a reply lost when Redis was killed"
        return "unexplained"
