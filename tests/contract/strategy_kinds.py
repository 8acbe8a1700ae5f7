"""Each strategy that the conformance suite runs over, opened alike; as a program it prints numbers of one.

python -m tests.contract.strategy_kinds KIND PLACE REDIS-URL INDEX COUNT
"""

from __future__ import annotations

import fcntl
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Steps, ask
from issuer.persistence.opening import open_store
from issuer.strategies import Instance, Strategy, register
from tests.strategies import Desk, Opening

TAG = "orders"

#: Those whose machine number is given: a forked child has none.
GIVEN = ("snowflake-fixed", "snowflake-ordinal")
#: Those that lease it.
LEASED = ("snowflake-redis", "snowflake-file")
STORED = "snowflake-store"
KINDS = ("segment", *GIVEN, *LEASED, STORED, "own")


class Counted(Strategy):
    """A user's own: a counter in a file."""

    def prepare(self) -> None:
        self.path = Path(str(self.context.options["path"]))
        self.path.touch()

    def generate(self, n: int) -> list[int]:
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = int(file.read() or 0)
            file.seek(0)
            file.write(str(last + n))
        return list(range(last + 1, last + n + 1))


register("counted", Counted)


def open_kind(kind: str, place: Path, redis: str, index: int, opening: Opening = Desk) -> Desk:
    """Open it for process `index` of those that share the place and the server."""
    opening = partial(opening, timeout=60.0)  # on a machine busy with other things
    instance = Instance("tests", 8000 + index, "192.0.2.5", machine=None, directory=str(place))
    if kind == "segment":
        return _segment(place, opening)
    if kind == "own":
        return opening("counted", {"path": str(place / "counter")})
    options: dict[str, Any] = {"machine": kind.removeprefix("snowflake-")}
    if kind in LEASED or kind == STORED:
        place.mkdir(exist_ok=True)
        store = open_store(f"sqlite:///{place}/machines.db")
        leasing = redis if kind in LEASED else None
        return opening("snowflake", options, redis=leasing, instance=instance, store=store)
    if kind == "snowflake-ordinal":
        socket.gethostname = lambda: f"orders-{index}"
    else:
        instance = Instance("tests", 0, "192.0.2.5", machine=index, directory=str(place))
    return opening("snowflake", options, instance=instance)


def _segment(place: Path, opening: Opening) -> Desk:
    ids = issuer.connect(redis="none", store=f"sqlite:///{place}/store.db", scheduler=None)
    with suppress(issuer.TagExists):
        ids.create(TAG)

    def draw(n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        return (yield from ask(lambda _store, _seconds: ids.take(TAG, min(n, 1000), timeout=deadline.left())))

    desk = opening("segment", draw=draw)
    close = desk.close

    def close_both() -> None:
        close()
        ids.close()

    desk.close = close_both  # type: ignore[method-assign]  # with its counter
    return desk


def main(kind: str, place: str, redis: str, index: str, count: str) -> None:
    with open_kind(kind, Path(place), redis, int(index)) as desk:
        numbers = [desk.next() for _ in range(int(count) // 2)]
        numbers += desk.take(int(count) - len(numbers))
    print(*numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
