"""`issuer chaos` from outside: it breaks its own servers only, its exit code tells, and nothing of it is left."""

import os
import re
import signal
from pathlib import Path

import pytest

from issuer.cli.chaos.guards import GUARDS
from tests.e2e.conftest import Cli, Program, Start
from tests.e2e.test_demo import _mentions, path_with_redis, scratch
from tests.waiting import until

__all__ = ["path_with_redis", "scratch"]


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_it_strikes_counts_and_finds_nothing(program: Program, scratch: Path, path_with_redis: str) -> None:
    ended = program("chaos", "--seconds", "5", env={"PATH": path_with_redis, "ISSUER_TIMEOUT": "rubbish"})
    assert (ended.code, ended.err) == (0, "")
    facts = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if line.startswith(("faults", "repeats")))
    assert int(facts["faults"]) >= 2
    assert facts["repeats"] == "0"
    assert "Every promise was kept." in ended.out
    listed = program("chaos", "--list").out
    assert all(len(line) <= 80 for line in listed.splitlines())
    names = {line.split()[0] for line in listed.splitlines() if line.startswith("F")}
    struck = re.findall(r"^(?:faults)? +(F\d+[a-z]?) .*: \d+$", ended.out, re.MULTILINE)
    assert struck
    assert set(struck) <= names
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_without_a_guard_it_finds_the_harm_and_says_so(program: Program, scratch: Path, path_with_redis: str) -> None:
    ended = program(
        *("chaos", "--seconds", "6", "--faults", "F4", "--without", "fence", "--json"), env={"PATH": path_with_redis}
    )
    assert ended.code == 4
    found = ended.json()
    assert found["repeats"] > 0
    assert not found["kept"]
    assert set(found["faults"]) == {"F4 A -> B -> A"}
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.covers("N.8")
def test_it_tells_which_guards_its_faults_can_not_show(program: Program, scratch: Path, path_with_redis: str) -> None:
    words = "chaos", "--seconds", "1", "--faults", "F12b", "--without", "kept", "--without", "fence"
    ended = program(*words, env={"PATH": path_with_redis})
    assert ended.code == 0
    assert re.search(r"No fault of this command .*: kept\.", ended.err)
    assert "That tells nothing of: kept." in ended.out
    assert program(*words, "--json", env={"PATH": path_with_redis}).json()["kept"]
    listed = program("chaos", "--list").out
    assert re.search(r"No fault of this command [^:]*: role, .*kept", listed, re.DOTALL)
    assert list(scratch.iterdir()) == []


@pytest.mark.live
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ended_early_it_leaves_nothing_behind(
    start: Start, scratch: Path, path_with_redis: str, number: signal.Signals, code: int
) -> None:
    process = start("chaos", "--seconds", "60", env={**os.environ, "PATH": path_with_redis})
    until(lambda: list(scratch.glob("issuer-chaos-*/0.w3.*")), 20, "it draws")
    process.send_signal(number)
    assert process.wait(20) == code
    assert list(scratch.iterdir()) == []
    until(lambda: not _mentions(str(scratch)), message="its processes are gone")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--faults", "F99"), "F99"), (("--without", "belt"), "belt"), (("--seconds", "0"), "--seconds")],
)
def test_what_it_does_not_know_is_a_usage_error(cli: Cli, arguments: tuple[str, ...], named: str) -> None:
    ended = cli("chaos", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert named in ended.err


def test_it_lists_what_it_can_do(cli: Cli) -> None:
    listed = cli("chaos", "--list", "--json").json()
    assert set(listed["guards"]) == set(GUARDS)
    assert listed["guards_not_shown"] == [name for name, guard in GUARDS.items() if not guard.shown]
    assert {"F2a", "F3a", "F4", "F12a"} <= set(listed["faults"])


@pytest.mark.live
def test_without_a_redis_it_says_what_to_install(program: Program, scratch: Path) -> None:
    ended = program("chaos", env={"PATH": str(scratch)})
    assert ended.code == 1
    assert "redis-server" in ended.err
    assert list(scratch.iterdir()) == []
