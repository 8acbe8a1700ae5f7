"""Extension: the next segment, from the store into Redis.

open -> reserve -> load, in that order: `open` tells the reign and the born that the load must still find, and elects
one loader among the processes; `reserve` makes the range the loader's; `load` is sent once. Whatever comes back, a
segment that was sent is spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from issuer import gateway
from issuer.core.arithmetic import mark
from issuer.core.outcomes import refused
from issuer.core.steps import Steps, ask, send
from issuer.errors import StoreBehind, UnknownTag
from persistence.errors import MaxBehind, TagPresent
from persistence.records import HIGHEST, Tag, fresh_version

#: Step of a tag that is created without one.
DEFAULT_STEP = 1000

#: How often a load that came too late is followed by another reservation. Each one costs a gap of a segment.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Extension:
    """How an extension ended.

    "loaded": (low, high] is in Redis, and `cur` was the last number issued when it began. "ready": there was no need.
    "elsewhere": another process was elected. "stale": what was loaded came too late, each time.
    """

    outcome: Literal["loaded", "ready", "elsewhere", "stale"]
    tag: Tag | None = None
    low: int = 0
    high: int = 0
    cur: int = 0


@dataclass(slots=True)
class Election:
    """Whether this process is the elected loader of the tag. It stays so after a failure, until a segment is there.

    A count, not a flag: a draw may win an election while an extension that knows nothing of it ends. A flag would be
    cleared then, and the tag would wait until the election lapses.
    """

    won: int = 0
    served: int = 0

    @property
    def mine(self) -> bool:
        """Whether an election was won that no extension has served yet."""
        return self.won > self.served


def known(tag: str, *, make: bool = False) -> Steps[Tag]:
    """Return the tag's record; UnknownTag if it isn't there. `make` it if it never was: a deleted one stays deleted."""
    record = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if record is None and make:
        record = yield from _made(tag)
    if record is None or record.deleted:
        raise UnknownTag(tag)
    return record


def _made(tag: str) -> Steps[Tag | None]:
    try:
        return (
            yield from ask(
                lambda store, timeout: store.create(
                    tag, above=0, step=DEFAULT_STEP, limit=HIGHEST, order="trend", description="", timeout=timeout
                )
            )
        )
    except TagPresent:  # another process was quicker
        return (yield from ask(lambda store, timeout: store.get(tag, timeout=timeout)))


def extend(tag: str, key: str, *, seen: int, window: float, election: Election) -> Steps[Extension]:
    """Load one segment, if one is due and this caller is elected.

    `seen` is the highest number of the tag that this process has seen: a store that stands below it went back in time.
    `election` may have been won already, in a draw. `window`: how long an election stands, in seconds.
    """
    store_id = yield from ask(lambda store, timeout: store.store_id(timeout=timeout))
    for _ in range(ATTEMPTS):
        won = election.won
        role: Literal["claim", "mine"] = "mine" if election.mine else "claim"
        opened = yield from send(gateway.open(key, fresh_version(), store_id, window, role))
        if opened.status != "open":
            raise refused(opened, tag, key, store_id)
        if not opened.due:
            election.served = won
            return Extension("ready")
        if not opened.elected:
            return Extension("elsewhere")
        if not election.mine:
            election.won = won = won + 1
        try:
            extension = yield from _reserve_and_load(tag, key, opened, at_least=max(opened.top, seen))
        except MaxBehind as behind:
            yield from confirm_behind(tag, key, store_id, opened, behind.max, seen=seen)
            continue
        if extension.outcome != "stale":
            election.served = won
            return extension
    return Extension("stale")


def _reserve_and_load(tag: str, key: str, opened: gateway.Opened, *, at_least: int) -> Steps[Extension]:
    reserved = yield from ask(
        lambda store, timeout: store.reserve(tag, None, at_least=at_least, reason="load", timeout=timeout)
    )
    low, high = reserved.low, reserved.high
    loaded = yield from send(gateway.load(key, low, high, mark(low, high), reign=opened.reign, born=opened.born))
    match loaded.status:
        case "current" | "next":
            return Extension("loaded", reserved.tag, low, high, opened.cur)
        case "full":
            return Extension("ready", reserved.tag)
        case "stale":
            return Extension("stale", reserved.tag)
    raise refused(loaded, tag, key)


def confirm_behind(
    tag: str, key: str, store_id: str, opened: gateway.Opened, stands_at: int, *, seen: int
) -> Steps[None]:
    """Tell a store that went back in time from a lost race; if it did, halt the tag and raise StoreBehind.

    Redis, the store and Redis again, with the same reign and born and both tops above: nobody emptied the hash and
    handed its numbers back in between. A number that this process itself has seen needs no second look.
    """
    taken = seen
    if stands_at >= seen:
        again = yield from send(gateway.open(key, fresh_version(), store_id, 0, "look"))
        if again.status != "open":
            raise refused(again, tag, key, store_id)
        if (again.reign, again.born) != (opened.reign, opened.born) or again.top <= stands_at:
            return
        taken = again.top
    halted = yield from ask(lambda store, timeout: store.halt(tag, below=taken, timeout=timeout))
    if halted:
        raise StoreBehind(tag, max=stands_at, taken=taken)
