"""The load in small, and that its count would notice."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from tests.load.run import STORE_DELAY, Report, counted, load
from tests.servers.mongo import MongoServer
from tests.servers.proxy import FaultProxy

GOOD = Report(10.0, 40, 1000, 0, 0, [], 0.1, 0.01, 0, 0, 0)


@pytest.mark.live
@pytest.mark.covers("1.1", "3.1")
def test_forty_clients_in_four_processes_repeat_nothing_and_see_no_error(
    redis_url: str, mongo_server: MongoServer, tmp_path: Path
) -> None:
    host, _, port = mongo_server.url.removeprefix("mongodb://").partition("/")[0].rpartition(":")
    with FaultProxy((host, int(port))) as far:
        far.delay_replies(STORE_DELAY)
        slow = "mongodb://{}:{}/load".format(*far.address)
        report = load(redis_url, f"{mongo_server.url}/load", slow, tmp_path, processes=4, threads=10, seconds=6, warm=2)
    assert (report.repeats, report.above_max, report.errors) == (0, 0, [])
    assert report.numbers > 1000


def test_the_count_finds_repeats_across_files_and_numbers_above_max(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    files[0].write_bytes(array("q", [1, 2, 3, 2**40]).tobytes())
    files[1].write_bytes(array("q", [4, 3, 3, 100]).tobytes())
    assert counted(files, 100) == (8, 2, 1)


@pytest.mark.parametrize(
    "harm",
    [
        {"repeats": 1},
        {"above_max": 1},
        {"errors": ["StoreUnavailable()"]},
        {"memory": 0.06},
        {"threads": 1},
        {"files": 1},
        {"connections": 1},
    ],
)
def test_each_harm_makes_a_run_unsound(harm: dict[str, object]) -> None:
    assert GOOD.sound
    assert not replace(GOOD, **harm).sound  # type: ignore[arg-type]
