"""Leaf, its Go port and tinyid as a store meets them: their statements, transactions, steps and retries.

As a program: theirs.py LAYOUT URL TAG COUNT. It fetches like one process of the other program, and prints "low high"
for each fetch, low being the number before the first one, as loader.py does. COUNT 0: until it is killed. It waits for
a line on its standard input before it begins.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pymysql

if TYPE_CHECKING:
    from collections.abc import Callable

#: Leaf doubles its step up to this one.
MAX_STEP = 1_000_000
#: Leaf doubles its step if the last fetch is younger than this, in seconds.
SEGMENT_DURATION = 15 * 60
#: How often tinyid tries.
RETRY = 3


def connected(url: str, **options: Any) -> pymysql.Connection[Any]:
    """Connect as the JDBC driver or Go's does: by name and password, with the isolation of the server."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/"),
        charset="utf8mb4",
        **options,
    )


def leaf(link: pymysql.Connection[Any], tag: str, step: int | None) -> range:
    """IDAllocDaoImpl.updateMaxIdAndGetLeafAlloc; with a step updateMaxIdByCustomStepAndGetLeafAlloc."""
    with link.cursor() as cursor:
        if step is None:
            cursor.execute("UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = %s", (tag,))
        else:
            cursor.execute("UPDATE leaf_alloc SET max_id = max_id + %s WHERE biz_tag = %s", (step, tag))
        cursor.execute("SELECT biz_tag, max_id, step FROM leaf_alloc WHERE biz_tag = %s", (tag,))
        _, top, column = cursor.fetchone()
    link.commit()
    return range(top - (column if step is None else step), top)


def leaf_go(link: pymysql.Connection[Any], tag: str, _: int | None = None) -> range:
    """The Go port's NextSegment; the numbers of it."""
    link.begin()
    with link.cursor() as cursor:
        cursor.execute(
            "update leaf_alloc set max_id = max_id + step, update_time = %s where biz_tag = %s", (int(time.time()), tag)
        )
        cursor.execute(
            "select id, biz_tag, max_id, step, description, update_time from leaf_alloc where biz_tag = %s", (tag,)
        )
        found = cursor.fetchone()
    link.commit()
    return range(found[2] - found[3], found[2])


def tinyid(link: pymysql.Connection[Any], tag: str, _: int | None = None) -> range:
    """DbSegmentIdServiceImpl.getNextSegmentId: @Transactional(isolation = READ_COMMITTED), tried three times."""
    with link.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        link.begin()
        for _ in range(RETRY):
            cursor.execute(
                "select id, biz_type, begin_id, max_id, step, delta, remainder, create_time, update_time, version "
                "from tiny_id_info where biz_type = %s",
                (tag,),
            )
            row, _, _, old, step, *_, version = cursor.fetchone()
            done = cursor.execute(
                "update tiny_id_info set max_id= %s, update_time=now(), version=version+1 "
                "where id=%s and max_id=%s and version=%s and biz_type=%s",
                (old + step, row, old, version, tag),
            )
            if done == 1:
                link.commit()
                return range(old + 1, old + step + 1)
    link.rollback()
    raise RuntimeError("get next segmentId conflict")


FETCHES: dict[str, Callable[[pymysql.Connection[Any], str, int | None], range]] = {
    "leaf": leaf,
    "leaf-go": leaf_go,
    "tinyid": tinyid,
}


class Steps:
    """The step of a Leaf process: that of the column for the first two fetches, then its own, doubled or halved."""

    def __init__(self) -> None:
        self._fetches, self._step, self._last = 0, 0, 0.0

    def next(self, column: int) -> int | None:
        """Return the step of the next fetch; None for that of the column, which is `column` now."""
        now, self._fetches = time.time(), self._fetches + 1
        passed, self._last = now - self._last, now
        if self._fetches <= 2:
            self._step = column
            return None
        if passed < SEGMENT_DURATION:
            if self._step * 2 <= MAX_STEP:
                self._step *= 2
        elif passed >= 2 * SEGMENT_DURATION and self._step // 2 >= column:
            self._step //= 2
        return self._step


def main(layout: str, url: str, tag: str, count: str, column: str = "10") -> None:
    """Fetch `count` times, and print what each fetch brings once it is committed."""
    link, steps, left = connected(url), Steps(), int(count) or sys.maxsize
    print("ready", flush=True)
    sys.stdin.readline()
    while left:
        left -= 1
        try:
            got = FETCHES[layout](link, tag, steps.next(int(column)) if layout == "leaf" else None)
        except RuntimeError:
            print("conflict", flush=True)
            continue
        print(got[0] - 1, got[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
