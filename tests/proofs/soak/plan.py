"""What the processes of the churn draw: the tags, the setup of a process, and the file of its numbers."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from issuer.chaos.call_files import runs

#: Of which processes a tag's numbers come: `steady` and `auto` from those that end in order, `harsh` also from those
#: that are killed, `raw` from EVALSHA alone, `web` from HTTP alone. `churn`: a tag that is deleted and made again.
#: `new`: a tag that is used for a while, and then never again. `fast`: drawn without a pause, to measure the rate.
Group = Literal["steady", "auto", "harsh", "raw", "web", "churn", "fast", "new"]

LEASE = 500
#: The most that one call takes.
TAKE_MOST = 20


class SoakTag(NamedTuple):
    """A tag, and the settings with which it is created."""

    name: str
    group: Group
    settings: dict[str, Any]

    @property
    def strict(self) -> bool:
        return "order" not in self.settings


def _pair(name: str, group: Group, step: int | Literal["auto"]) -> tuple[SoakTag, SoakTag]:
    return (
        SoakTag(f"{name}-strict", group, {"step": step}),
        SoakTag(f"{name}-trend", group, {"step": step, "order": "trend", "lease": LEASE}),
    )


#: Every tag but the new ones, which follow without an end. A number's record has the index of its tag.
TAGS = [
    *_pair("a", "steady", 100_000),
    *_pair("b", "steady", 20_000),
    # A trend tag's segment that is wasted lease by lease would look like one that came late for Redis.
    *(SoakTag(f"auto-{number}", "auto", {"step": "auto"}) for number in range(2)),
    *_pair("harsh", "harsh", 20_000),
    SoakTag("raw", "raw", {"step": 2000}),
    SoakTag("web", "web", {"step": 2000}),
    *_pair("fast", "fast", 1_000_000),
    *(tag for number in range(50) for tag in _pair(f"churn-{number}", "churn", "auto")),
]

#: A new tag is made so often, in seconds, and the newest ones are drawn.
NEW_EVERY, NEWEST = 5.0, 10


def tag_at(index: int) -> SoakTag:
    """Return the tag of an index."""
    return TAGS[index] if index < len(TAGS) else SoakTag(f"new-{index - len(TAGS)}", "new", {"step": 5000})


def indexes(group: Group) -> list[int]:
    return [index for index, tag in enumerate(TAGS) if tag.group == group]


#: How often a caller draws from each group, relative to the others.
SHARES: dict[Group, int] = {"steady": 800, "harsh": 80, "auto": 10, "churn": 100, "new": 10}

#: How often a caller makes each call, relative to the others. Only strict tags have keys, only trend tags are reserved.
Manner = Literal["next", "take", "keyed", "reserve"]
MANNERS: dict[Manner, int] = {"next": 8000, "take": 1700, "keyed": 290, "reserve": 10}


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a drawing process.

    `way`: how it draws. `callers`: its threads or tasks. `rate`: calls per second; None: as fast as it can for MEASURED
    seconds, and then `share` of that rate. `began`: when the run began, on the monotonic clock.
    """

    name: str
    way: Literal["threads", "tasks", "raw", "http"]
    redis: str
    store: str
    folder: str
    seed: int
    began: float
    groups: list[Group] = field(default_factory=list)
    callers: int = 4
    rate: float | None = None
    share: float = 0.6
    http: int = 0
    idle_after: float = 20.0

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parsed(cls, text: str) -> Setup:
        return cls(**json.loads(text))

    @property
    def file(self) -> Path:
        return Path(self.folder, self.name)


class Call(NamedTuple):
    """A call to make: of the tag at this index, for n numbers."""

    at: int
    manner: Manner
    n: int


def calls(setup: Setup, caller: int) -> Iterator[Call]:
    """Yield the calls of one caller, without an end. The same seed gives the same calls, but for the new tags."""
    random_ = random.Random(f"{setup.seed} {setup.name} {caller}")
    groups = {group: indexes(group) for group in setup.groups}
    shares, manners = [SHARES.get(group, 1) for group in groups], [*MANNERS]
    while True:
        [group] = random_.choices([*groups], shares)
        [manner] = random_.choices(manners, [*MANNERS.values()])
        if group == "new":
            index = int((time.monotonic() - setup.began) / NEW_EVERY) - random_.randint(1, NEWEST)
            if index < 0:
                continue
            index += len(TAGS)
        else:
            index = random_.choice(groups[group])
        if group in ("raw", "web") or (manner == "keyed" and not tag_at(index).strict):
            manner = "next"
        elif manner == "reserve" and (tag_at(index).strict or group == "churn"):
            manner = "take"
        yield Call(index, manner, random_.randint(1, TAKE_MOST) if manner in ("take", "reserve") else 1)


#: A record: index of the tag, how many numbers, the number before the first one.
_RECORD = struct.Struct("=iiq")


class Records:
    """Writes each number that a process has got into its file, at once: what a killed process had got is there too."""

    def __init__(self, file: Path) -> None:
        self._to = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, index: int, numbers: Iterable[int]) -> None:
        os.write(self._to, b"".join(_RECORD.pack(index, last - first + 1, first - 1) for first, last in runs(numbers)))


class RecordReader:
    """Reads what a process has recorded since the last read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0

    def fresh(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index, n, low) of each new record."""
        if not self._file.exists():
            return
        with self._file.open("rb") as source:
            source.seek(self._at)
            data = source.read()
        whole = len(data) - len(data) % _RECORD.size
        self._at += whole
        yield from _RECORD.iter_unpack(data[:whole])


class Numbers:
    """The numbers that were issued of one tag: a bit for each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self.issued = 0
        self.repeats: list[int] = []

    def add(self, low: int, n: int) -> None:
        """Add low + 1 .. low + n, and find those that came before."""
        bits = self._bits
        if len(bits) <= (low + n) >> 3:
            bits.extend(bytes(((low + n) >> 3) + 4096 - len(bits)))
        for number in range(low + 1, low + n + 1):
            place, bit = number >> 3, 1 << (number & 7)
            if bits[place] & bit:
                self.repeats.append(number)
            else:
                bits[place] |= bit
        self.issued += n

    def within(self, low: int, high: int) -> int:
        """Return how many different numbers of low + 1 .. high were issued."""
        if high <= low:
            return 0
        part = int.from_bytes(self._bits[(low + 1) >> 3 : (high >> 3) + 1], "little") >> ((low + 1) & 7)
        return (part & ((1 << (high - low)) - 1)).bit_count()
