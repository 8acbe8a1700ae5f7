"""A run as seen from outside: its tags, and the faults that struck it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that struck a run. Times are in ns of the monotonic clock.

    `began`, `back`: when it began, and when all servers answered again. `segments`: segments in Redis whose numbers may
    be lost. `hits`: processes whose held numbers may be lost. `split`: two masters served at once, so order is not
    promised from `began` to `back`. `settled`: end of the fault before; numbers may be lost from then on, as its
    preparation may cost some. -1: from `began` on.
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
        """The time from which on it may have cost numbers."""
        return self.began if self.settled < 0 else self.settled


@dataclass(slots=True)
class Watched:
    """A tag of the run.

    `base`: the number before its first. `timeout`: deadline of a call in ns. `samples`: times in ns at which the store
    was read, each with its `max`. `keyed`: each number is drawn for an idempotency key. A repeated key gets the same
    number again, so these numbers are in no order. `counted`: the numbers come from the tag's counter, which has a
    `max`, and missing numbers are gaps. `served`: drawn through servers. Their processes share the clients, so a client
    gets numbers of a trend tag in no order.
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
        """Whether a worker's numbers increase."""
        return not self.keyed and (self.order == "strict" or not self.served)
