"""The load in small, and that its count would notice."""

import threading
from array import array
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.load.client import taken
from tests.load.leaks import FIXED, POOLED, ceilings, leaks
from tests.load.run import STORE_DELAY, Report, counted, load
from tests.servers.mongo import MongoServer
from tests.servers.proxy import FaultProxy

GOOD = Report(10.0, 40, 1000, 0, 0, [], 0.1, 0.01, [], {})

#: What a process that has warmed up tells, with three threads that draw.
WARM = {"pool": 2, "threads": 9, "redis": 3, "store": 4, "files": 7}
THREADS = 3


@pytest.mark.live
@pytest.mark.covers("1.1", "3.1")
@pytest.mark.parametrize(
    ("processes", "threads", "seconds"),
    [(2, 5, 2), pytest.param(4, 10, 10, marks=pytest.mark.soak)],
    ids=["ten clients", "forty"],
)
def test_clients_in_several_processes_repeat_nothing_and_see_no_error(
    redis_url: str, mongo_server: MongoServer, tmp_path: Path, *, processes: int, threads: int, seconds: float
) -> None:
    host, _, port = mongo_server.url.removeprefix("mongodb://").partition("/")[0].rpartition(":")
    store = f"{mongo_server.url}/load{threads}"
    with FaultProxy((host, int(port))) as far:
        far.delay_replies(STORE_DELAY)
        slow = f"mongodb://{far.address[0]}:{far.port}/load{threads}"
        report = load(
            redis_url,
            store,
            slow,
            tmp_path,
            processes=processes,
            threads=threads,
            seconds=seconds,
            warm=int(seconds // 5),
        )
    assert (report.repeats, report.above_max, report.errors) == (0, 0, [])
    assert report.numbers > 0
    # In a few seconds nothing has its size yet.
    assert report.leaked == [] or seconds < 10


def test_the_count_finds_repeats_across_files_and_numbers_above_max(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    files[0].write_bytes(array("q", [1, 2, 3, 2**40]).tobytes())
    files[1].write_bytes(array("q", [4, 3, 3, 100]).tobytes())
    assert counted(files, 100) == (8, 2, 1)


def test_each_harm_makes_a_run_unsound() -> None:
    assert GOOD.sound
    for harm in ({"repeats": 1}, {"above_max": 1}, {"errors": ["gone"]}, {"memory": 0.06}, {"leaked": ["a file"]}):
        assert not replace(GOOD, **harm).sound, harm


def history(*changes: dict[str, int]) -> list[dict[str, int]]:
    """Seven seconds of warming up, then one for each of these."""
    return [{**WARM, "redis": 1}] * 7 + [{**WARM, **change} for change in changes]


def test_a_pool_that_fills_up_to_its_ceiling_is_no_leak() -> None:
    most = ceilings(THREADS)
    assert leaks(history(*[{}] * 10, *[{kind: most[kind] for kind in POOLED}] * 10), 7, THREADS) == []
    # Two steps up, in other quarters, and then no more.
    steps = [*[2] * 10, *[3] * 10, *[4] * 20]
    assert leaks(history(*[{"pool": at, "redis": at} for at in steps]), 7, THREADS) == []


@pytest.mark.parametrize("kind", POOLED)
def test_one_beyond_the_ceiling_even_for_a_moment_or_ever_more_below_it_is_a_leak(kind: str) -> None:
    (found,) = leaks(history({}, {}, {kind: ceilings(THREADS)[kind] + 1}, {}, {}), 7, THREADS)
    assert found.startswith(POOLED[kind])
    (found,) = leaks(history(*[{kind: 4 + second // 10} for second in range(40)]), 7, THREADS)
    assert found == f"{POOLED[kind]}: ever more, 4, 5, 6, 7"


@pytest.mark.parametrize("kind", FIXED)
def test_one_more_of_what_is_made_once_is_a_leak(kind: str) -> None:
    more = {kind: WARM[kind] + 1}
    assert leaks(history({}, {}, more, {}, {}), 7, THREADS) == []
    assert leaks(history({}, {}, more, more, {}), 7, THREADS) == [
        f"{FIXED[kind]}: {WARM[kind] + 1}, and {WARM[kind]} when warm"
    ]


@pytest.mark.live
def test_what_a_process_takes_is_counted(redis_url: str, tmp_path: Path) -> None:
    def counts() -> dict[str, int]:
        return taken(redis_url, "mongodb://127.0.0.1:1/nowhere")

    # So many, as some of what earlier tests have left may go meanwhile.
    before, ended, many = counts(), threading.Event(), range(10)
    with ExitStack() as ends:
        ends.callback(ended.set)
        for at in many:
            ends.enter_context((tmp_path / f"{at}").open("w"))
            assert ends.enter_context(closing(redis.Redis.from_url(redis_url))).ping()
            threading.Thread(target=ended.wait).start()
        after = counts()
    assert [kind for kind in ("threads", "files", "redis") if after[kind] <= before[kind]] == []
