"""`issuer chaos` from outside: it breaks its own servers only, its exit code tells, and nothing of it is left."""

import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from issuer.cli.chaos import play
from issuer.cli.chaos.guards import GUARDS
from tests.e2e.conftest import Cli, Ended, Program, Start
from tests.e2e.test_demo import _mentions, path_with_redis, scratch
from tests.waiting import until

__all__ = ["path_with_redis", "scratch"]


@pytest.fixture
def chaos(cli: Cli, scratch: Path, path_with_redis: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`issuer chaos` in this process, on a clock that moves on by a second whenever it is looked at."""
    monkeypatch.setattr(play, "time", SimpleNamespace(monotonic=count().__next__))

    def run(*arguments: str) -> Ended:
        ended = cli("chaos", *arguments, env={"PATH": path_with_redis, "ISSUER_TIMEOUT": "rubbish"})
        assert list(scratch.iterdir()) == []
        return ended

    return run


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_it_strikes_counts_and_finds_nothing(chaos: Cli) -> None:
    ended = chaos("--seconds", "6", "--faults", "F2a,F12b")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"^faults +2$", ended.out, re.MULTILINE), ended.out
    assert re.search(r"^repeats +0$", ended.out, re.MULTILINE), ended.out
    struck = re.findall(r"^ +(F\d+[a-z]?) .*: 1$", ended.out, re.MULTILINE)
    assert sorted(struck) == ["F12b", "F2a"]
    assert "Every promise was kept." in ended.out


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_without_a_guard_it_finds_the_harm_and_tells_which_guards_its_faults_can_not_show(chaos: Cli) -> None:
    ended = chaos("--seconds", "8", "--faults", "F4", "--without", "fence", "--without", "kept", "--json")
    assert ended.code == 4
    found = ended.json()
    assert found["repeats"] > 0
    assert not found["kept"]
    assert set(found["faults"]) == {"F4 A -> B -> A"}
    assert re.search(r"No fault of this command .*: kept\.", ended.err)


@pytest.mark.live
@pytest.mark.soak  # as above, with a program and its clock
@pytest.mark.covers("N.8")
def test_for_seconds_it_strikes_with_any_fault(program: Program, scratch: Path, path_with_redis: str) -> None:
    ended = program("chaos", "--seconds", "15", env={"PATH": path_with_redis})
    assert (ended.code, ended.err) == (0, "")
    assert "Every promise was kept." in ended.out
    assert "That tells nothing of" not in ended.out
    blind = program("chaos", "--seconds", "2", "--without", "kept", env={"PATH": path_with_redis})
    assert "That tells nothing of: kept." in blind.out
    assert list(scratch.iterdir()) == []


@pytest.mark.live
def test_ended_early_it_leaves_nothing_behind(start: Start, scratch: Path, path_with_redis: str) -> None:
    process = start("chaos", "--seconds", "600", env={"PATH": path_with_redis})
    until(lambda: list(scratch.glob("issuer-chaos-*/0.w3.*")), message="it draws")
    process.terminate()
    assert process.wait(60) == 143
    assert list(scratch.iterdir()) == []
    until(lambda: not _mentions(str(scratch)), message="its processes are gone")


def test_what_it_does_not_know_is_a_usage_error(cli: Cli) -> None:
    for arguments, named in (("--faults F99", "F99"), ("--without belt", "belt"), ("--seconds 0", "--seconds")):
        ended = cli("chaos", *arguments.split())
        assert (ended.code, ended.out) == (2, "")
        assert named in ended.err


def test_it_lists_what_it_can_do(cli: Cli) -> None:
    listed = cli("chaos", "--list", "--json").json()
    assert set(listed["guards"]) == set(GUARDS)
    assert listed["guards_not_shown"] == [name for name, guard in GUARDS.items() if not guard.shown]
    assert {"F2a", "F3a", "F4", "F12a"} <= set(listed["faults"])
    text = cli("chaos", "--list", env={"COLUMNS": "80"}).out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert re.search(r"No fault of this command [^:]*: role, .*kept", text, re.DOTALL)


def test_without_a_redis_it_says_what_to_install(cli: Cli, scratch: Path) -> None:
    ended = cli("chaos", env={"PATH": str(scratch)})
    assert ended.code == 1
    assert "redis-server" in ended.err
    assert list(scratch.iterdir()) == []
