"""A run as it was watched from outside: its tags, and what was done to them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault: its name, when it began and when the servers were back, in ns; which workers had no part in it.

    `segments`: how many segments in Redis it may cost, and `hits`: how many processes it may cost what they hold.
    `split`: two masters served at once, so that no order was promised between its beginning and its end.
    `settled`: when all was well before it, in ns: since then what prepared it may have cost numbers; -1: as it began.
    """

    name: str
    began: int
    back: int
    spared: frozenset[str] = frozenset()
    segments: int = 2
    hits: int = 0
    split: bool = False
    settled: int = -1

    @property
    def since(self) -> int:
        """From when on it may have cost numbers."""
        return self.began if self.settled < 0 else self.settled


@dataclass(slots=True)
class Watched:
    """A tag of the run, as it was set up and watched.

    `base`: the number before its first. `timeout`: what each call may take, in ns. `samples`: when the store was asked,
    in ns, and what it said `max` was. `keyed`: each number is drawn for a key, and the same one whenever the key comes
    again: as old as the key, so in no order. `counted`: the numbers come of the tag's counter, so there is a `max`, and
    what is missing is a gap. `served`: drawn through servers, whose processes share their clients: of a trend tag one
    client gets numbers in no order, and perhaps one long after higher ones.
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
        """Whether what a worker draws goes up."""
        return not self.keyed and (self.order == "strict" or not self.served)
