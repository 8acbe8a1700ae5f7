"""Commands for the chronicle: two lists of lines, and a hash with a line for each process. All can be sent again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from issuer.gateway.commands import RedisCall, pack, pairs

#: How many lines each list keeps. The oldest lines are removed.
LINES_MOST = 1000


def read_lines(key: str) -> RedisCall[list[bytes]]:
    """`LRANGE`: the lines of a list, at most LINES_MOST, the line that was added last first."""
    return RedisCall(pack("LRANGE", key, 0, LINES_MOST - 1), "", list, repeatable=True, key=key)


def add_lines(key: str, lines: Iterable[str]) -> list[RedisCall[object]]:
    """`LPUSH`, `LTRIM`: add lines to a list, and remove all but the last LINES_MOST. Sent twice, they are added twice.

    `lines`: one or more.
    """
    words = ("LPUSH", key, *lines), ("LTRIM", key, 0, LINES_MOST - 1)
    return [RedisCall(pack(*each), "", bool, repeatable=True, key=key) for each in words]


def read_processes(key: str) -> RedisCall[Mapping[str, bytes]]:
    """`HGETALL`: the line of each process, by the name of the process."""
    return RedisCall(pack("HGETALL", key), "", _named, repeatable=True, key=key)


def _named(reply: Any) -> dict[str, bytes]:
    return {name.decode(errors="replace"): line for name, line in pairs(reply).items()}


def set_process(key: str, name: str, line: str) -> RedisCall[object]:
    """`HSET`: write the line of a process."""
    return RedisCall(pack("HSET", key, name, line), "", bool, repeatable=True, key=key)


def remove_processes(key: str, names: Iterable[str]) -> RedisCall[object]:
    """`HDEL`: remove the lines of processes. `names`: one or more."""
    return RedisCall(pack("HDEL", key, *names), "", bool, repeatable=True, key=key)
