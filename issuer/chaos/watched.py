"""The tags of a run, and the faults that happened in it, as the checks need them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Strike:
    """One occurrence of a fault in a run. Times are in ns of the monotonic clock.

    `began`: when the fault began. `back`: when all servers answered again. `segments`: how many segments in Redis may
    lose their numbers. `hits`: how many processes may lose the numbers that they hold. `split`: two masters served at
    once, so no order is promised from `began` to `back`. `settled`: the strike is charged for numbers that were lost
    after this time. It is earlier than `began`, because the preparation of a fault may lose numbers. -1 means `began`.
    """

    name: str
    began: int
    back: int
    segments: int = 2
    hits: int = 0
    split: bool = False
    settled: int = -1

    @property
    def since(self) -> int:
        """From this time on, the fault may have lost numbers."""
        return self.began if self.settled < 0 else self.settled


@dataclass(slots=True)
class Watched:
    """A tag of the run.

    `base`: the number before the first number. `timeout`: timeout of a call, in ns. `samples`: pairs of the time in ns
    at which the store was read, and the tag's `max` at this time. `keyed`: each number is drawn for an idempotency key.
    A repeated key returns the same number, so these numbers are in no order. `counted`: the numbers come from the tag's
    counter, so they are limited by `max`, and missing numbers are gaps. `served`: numbers are drawn through `issuer
    serve`. Several server processes answer one client, so the client receives numbers of a trend tag in no order.
    """

    name: str
    order: str
    base: int
    step: int
    lease: int
    timeout: int
    samples: list[tuple[int, int]] = field(default_factory=list)
    keyed: bool = False
    counted: bool = True
    served: bool = False

    @property
    def ascends(self) -> bool:
        """True if each worker must receive increasing numbers."""
        return not self.keyed and (self.order == "strict" or not self.served)
