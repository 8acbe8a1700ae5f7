"""The load in small, and that its count would notice."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from tests.proofs.load.__main__ import Report, counted, load
from tests.proofs.load.leaks import FIXED, POOLED, ceilings, leaks
from tests.servers.mongo import MongoServers

GOOD = Report(10.0, 40, 1000, 0, 0, [], 0.1, 0.01, [], {})

#: What a process that has warmed up tells, with three threads that draw.
WARM = {"pool": 2, "threads": 9, "redis": 3, "store": 4, "files": 7}
THREADS = 3
MOST = ceilings(THREADS)


@pytest.mark.live
@pytest.mark.covers("1.1", "3.1")
def test_clients_in_several_processes_repeat_nothing_and_see_no_error(
    redis_url: str, mongo_server: MongoServers, tmp_path: Path
) -> None:
    """In two seconds nothing has its size yet: of leaks the load of `make soak` tells."""
    report = load(redis_url, mongo_server, tmp_path, processes=2, threads=5, seconds=2, warm=0)
    assert (report.repeats, report.above_max, report.errors) == (0, 0, [])
    assert report.numbers > 0


def test_the_count_finds_repeats_across_files_and_numbers_above_max_and_each_harm_is_told(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    files[0].write_bytes(array("q", [1, 2, 3, 2**40]).tobytes())
    files[1].write_bytes(array("q", [4, 3, 3, 100]).tobytes())
    assert counted(files, 100) == (8, 2, 1)
    assert GOOD.sound
    for harm in ({"repeats": 1}, {"above_max": 1}, {"errors": ["gone"]}, {"memory": 0.06}, {"leaked": ["a file"]}):
        assert not replace(GOOD, **harm).sound, harm


def test_a_leak_is_told_and_a_pool_that_fills_up_is_none() -> None:
    def told(*changes: dict[str, int]) -> list[str]:
        """Seven seconds of warming up, then one for each of these."""
        return leaks([{**WARM, "redis": 1}] * 7 + [{**WARM, **change} for change in changes], 7, THREADS)

    assert told(*[{}] * 10, *[{kind: MOST[kind] for kind in POOLED}] * 30) == []
    assert told(*({"pool": at, "redis": at} for at in [*[2] * 10, *[3] * 10, *[4] * 20])) == []
    for kind, name in POOLED.items():
        assert told({}, {kind: MOST[kind] + 1}, {}) == [f"{name}: {MOST[kind] + 1}, and {MOST[kind]} at most are right"]
        assert told(*({kind: 4 + second // 10} for second in range(40))) == [f"{name}: ever more, 4, 5, 6, 7"]
    for kind, name in FIXED.items():
        more = {kind: WARM[kind] + 1}
        assert told({}, more, {}) == []
        assert told({}, more, more, {}) == [f"{name}: {WARM[kind] + 1}, and {WARM[kind]} when warm"]
