"""`issuer demo`: what it prints adds up, and nothing of it is left."""

import multiprocessing.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from issuer.cli.demo.tally import Gap, Tally
from tests import programs
from tests.e2e.conftest import PROGRAM, Program, Start
from tests.servers.absent import absent
from tests.servers.binaries import primary_server
from tests.waiting import until


@pytest.fixture
def scratch(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001 - for its environment
    """The folder that temporary files go to; short, because of the socket."""
    multiprocessing.util.get_temp_dir()  # of the server that programs are forked from: made elsewhere, once
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path_with_redis(tmp_path: Path) -> str:
    binary = primary_server()
    if binary is None:
        absent("a redis-server")
    folder = tmp_path / "bin"
    folder.mkdir()
    name = "valkey-server" if "valkey" in binary.name else "redis-server"
    (folder / name).symlink_to(binary)
    return str(folder)


def _facts(text: str) -> dict[str, str]:
    """The closing table, by the name of the row."""
    return dict(re.findall(r"^  ([a-z][a-z, ]+?)  +(.+)$", text, re.MULTILINE))


def _whole(text: str) -> int:
    found = re.match(r"\d+", text)
    assert found
    return int(found[0])


def _check_facts(text: str) -> None:
    facts = _facts(text)
    lowest, highest = (int(number) for number in facts["lowest, highest"].split(", "))
    issued, store_max = _whole(facts["numbers issued"]), _whole(facts["store max"])
    gaps = [tuple(map(int, gap)) for gap in re.findall(r"(\d+)\.\.(\d+): (\d+), ", text)]
    assert facts["repeats"] == "0"
    assert lowest == 1
    assert highest <= store_max
    assert all(high - low + 1 == size for low, high, size in gaps)
    assert highest - lowest + 1 == issued + sum(size for _, _, size in gaps)
    assert _whole(facts["gaps"]) == sum(size for _, _, size in gaps)
    extensions = re.findall(r"segment (\d+)\.\.(\d+) loaded at number (\d+): (\d+)% of (\d+)\.\.(\d+) used", text)
    assert extensions, text
    for low, high, number, percent, first, last in (tuple(map(int, found)) for found in extensions):
        assert high - low + 1 == last - first + 1 == 1000
        # At the mark; or as late as the machine lets the loader run.
        assert 0.2 <= (number - first + 1) / 1000 <= 1
        assert percent == round((number - first + 1) / 10)


#: The demo with its acts sooner, each as far from the marks.
SHORT = """
from issuer.cli import main
from issuer.cli.demo import story
story.SNAPSHOT_AT, story.KILL_AT, story.RECOVER_AT, story.GOAL = 350, 700, 1150, 1600
main(["demo"])
"""


@pytest.mark.live
@pytest.mark.parametrize("command", ["short", pytest.param("whole", marks=pytest.mark.soak)])
def test_with_a_redis_it_shows_a_rollback_and_no_repeat(
    home: Path, scratch: Path, path_with_redis: str, command: str
) -> None:
    (home / "short.py").write_text(SHORT)
    line = ("short.py",) if command == "short" else (*PROGRAM, "demo")
    ended = programs.run(*line, env={**os.environ, "PATH": path_with_redis, "ISSUER_TIMEOUT": "rubbish"})
    assert (ended.returncode, ended.stderr) == (0, "")
    _check_facts(ended.stdout)
    believed = re.search(r"believes that (\d+) was the last number", ended.stdout)
    fence = re.search(r"the fence refuses that state: after (\d+) come numbers above (\d+)", ended.stdout)
    assert believed
    assert fence
    before, after = int(fence[1]), int(fence[2])
    assert int(believed[1]) < before < after
    # A reply that was lost with Redis makes the gap begin earlier, or end later.
    gap = re.search(r"(\d+)\.\.(\d+): (\d+), Redis killed and rolled back", ended.stdout)
    assert gap
    assert int(gap[1]) == before + 1
    # The first number that is told after it need not be the lowest one.
    assert int(believed[1]) < int(gap[2])
    assert int(gap[3]) == int(gap[2]) - int(gap[1]) + 1
    # Others are a call's that timed out, on a machine that stood still.
    assert re.search(r"\d+\.\.\d+: \d+, recover", ended.stdout)
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.soak  # on fakeredis it takes long; what it is without both is shown below
def test_without_a_redis_it_says_so_and_leaves_the_rollback_out(program: Program, scratch: Path) -> None:
    ended = program("demo", env={"PATH": str(scratch)})
    assert (ended.code, ended.err) == (0, "")
    assert "no redis-server is on PATH" in ended.out
    assert "kill" not in ended.out
    assert "unexplained" not in ended.out
    _check_facts(ended.out)
    assert list(scratch.iterdir()) == []


@pytest.mark.live
def test_without_redis_and_fakeredis_it_says_what_to_install(scratch: Path) -> None:
    code = "import sys; sys.modules['fakeredis'] = None; from issuer.cli import main; main(['demo'])"
    env = {**os.environ, "PATH": str(scratch)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "redis-server" in ended.stderr
    assert "segment-issuer[demo]" in ended.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGHUP, 129),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak),  # all three are one handler's: test_terminal.py
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak),
    ],
)
def test_ended_early_it_leaves_nothing_behind(
    start: Start, scratch: Path, path_with_redis: str, number: signal.Signals, code: int
) -> None:
    process = start("demo", env={"PATH": path_with_redis})
    assert process.stdout is not None
    while "segment 1..1000 loaded" not in process.stdout.readline():
        assert process.poll() is None
    assert list(scratch.iterdir())
    process.send_signal(number)
    assert process.wait(60) == code
    assert list(scratch.iterdir()) == []
    until(lambda: not _mentions(str(scratch)), message="its processes are gone")


def _mentions(text: str) -> list[str]:
    """The processes of this machine whose command line has the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass  # it has just ended
    return found


# ------------------------------------------------------------------------------------------------ its verdict


def test_the_tally_sees_a_number_that_came_twice() -> None:
    tally = Tally()
    for number in (1, 2, 3, 2):
        tally.add(number, 0.0)
    assert (tally.count, tally.repeats, tally.lowest, tally.highest) == (4, 1, 1, 3)


def test_the_tally_tells_why_numbers_are_missing() -> None:
    tally = Tally(back_at=10.0, floor=300)
    for number, at in ((1, 1.0), (2, 2.0), (4, 3.0), (101, 11.0), (103, 12.0), (301, 13.0)):
        tally.add(number, at)
    assert tally.gaps() == [
        Gap(3, 3, "a reply lost when Redis was killed"),
        Gap(5, 100, "Redis killed and rolled back"),
        Gap(102, 102, "unexplained"),
        Gap(104, 300, "recover"),
    ]
    assert (tally.last_before, tally.first_after) == (4, 101)
