"""`issuer bench`: what it shows, and that it cleans up behind itself. That it is fast is nobody's promise."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import redis

from issuer_persistence.opening import open_store
from tests.e2e.conftest import Cli, Start
from tests.programs import REPOSITORY
from tests.servers.ports import free_port
from tests.waiting import until

QUICK = ("bench", "--seconds", "0.1", "--threads", "2")
FIGURES = ("ping", "next", "threads", "take", "reservation")


def tombstones(store: str) -> set[str]:
    """The tags that a deletion left behind: found by their ledger, as no list shows them."""
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as database:
        tags = [name for (name,) in database.execute("SELECT DISTINCT tag FROM segments")]
    with closing(open_store(store)) as opened:
        return {tag for tag in tags if (record := opened.get(tag, timeout=60)) is not None and record.deleted}


def test_without_redis_it_shows_what_there_is_to_show_and_leaves_a_tombstone_alone(direct: Cli, store: str) -> None:
    direct("create", "bench")
    before = direct("tags", "--json").json()
    ended = direct(*QUICK)
    assert (ended.code, "the tag is deleted at the end" in ended.err) == (0, True)
    lines = ended.out.splitlines()
    assert lines[0].split() == ["MEASURED", "RATE", "MEDIAN", "P99", "MAX"]
    assert [line.partition("  ")[0] for line in lines[1:]] == [
        *("next, 1 caller", "next, 2 threads", "take(1000), a number", "one reservation in the store"),
    ]
    first = tombstones(store)
    content = direct(*QUICK, "--tag", "scratch", "--json").json()
    assert tombstones(store) - first == {content["tag"]}
    assert content["tag"].startswith("scratch-")
    assert (content["redis"], content["ping"]) == ("none", None)
    assert direct("tags", "--json").json() == before
    away = direct("--redis", f"redis://127.0.0.1:{free_port()}", *QUICK)
    assert (away.code, away.out, away.err.count("error: ")) == (5, "", 1)
    assert len(tombstones(store)) == 2
    ended = direct("bench", "--seconds", "nan")
    assert (ended.code, ended.out, "'nan' is not a valid number of seconds" in ended.err) == (2, "", True)


def test_with_redis_every_figure_is_there_for_programs(with_redis: Cli, redis_client: redis.Redis) -> None:
    content = with_redis(*QUICK, "--json").json()
    assert list(content) == ["redis", "store", "tag", "callers", *FIGURES]
    for name in FIGURES:
        figure = content[name]
        assert 0 < figure["median_us"] <= figure["p99_us"] <= figure["max_us"]
        assert (figure["rate"] is None) == (name == "reservation")
    assert content["callers"] == 2
    # What every deleted tag leaves: its hash, as a floor without numbers.
    (left,) = redis_client.keys()
    assert left == f"issuer:{{{content['tag']}}}".encode()
    assert redis_client.hget(left, "cur") == redis_client.hget(left, "max")


@pytest.mark.live
def test_ctrl_c_leaves_no_tag_behind(start: Start, home: Path, store: str) -> None:
    process = start("--store", store, "bench", "--seconds", "60")
    until(lambda: "drawing from" in (home / "talk").read_text())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert len(tombstones(store)) == 1
    assert "Traceback" not in (home / "talk").read_text()


def test_the_benchmark_of_the_project_needs_no_package_of_the_tests() -> None:
    code = "import sys; sys.modules['pytest'] = None; import tests.benchmarks.__main__"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
