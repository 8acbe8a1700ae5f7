"""Processes draw while faults strike, and every number is checked."""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from issuer.cli.chaos.faults import FAULTS, WIRE, Fault
from issuer.cli.chaos.play import play
from issuer.cli.chaos.world import Terms
from tests.chaos.administered import ADMINISTERED, CALLS
from tests.chaos.groups import MongoWorld
from tests.chaos.kinds import KINDS
from tests.chaos.more import MORE
from tests.chaos.wire import MACHINE_SCRIPTS, WIRED
from tests.chaos.worlds import assert_kept, binary, folder, named, suffer
from tests.servers.disks import find_mounting

pytestmark = [pytest.mark.live, pytest.mark.covers("N.1", "N.8")]

#: One or more of each family. The others take longest: whole processes are started anew, eight recover at once.
SEVERAL = "F1c,F2,F3a,F4,F6a,F9b,F12,F18,F21"


def test_several_faults_strike_once_and_no_number_comes_twice() -> None:
    verdict = suffer(named(SEVERAL), patience=60)
    assert_kept(verdict)
    # The one on the wire hits four scripts.
    assert verdict.struck == len(named(SEVERAL)) + 3
    assert verdict.acknowledged > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    "faults",
    # Those that hit an administrator have tests of their own: each is a long row.
    [FAULTS, MORE, WIRED, *([fault for fault in kind.faults if fault not in ADMINISTERED] for kind in KINDS[1:])],
    ids=["offered", "more", "seldom sent", *(kind.name for kind in KINDS[1:])],
)
def test_each_fault_strikes_twice_and_no_number_comes_twice(faults: Sequence[Fault]) -> None:
    verdict = suffer(faults, times=2)
    assert_kept(verdict)
    assert verdict.struck >= 2 * len(faults)
    assert verdict.acknowledged > 1_000
    if faults is WIRED:
        calls = {"giveback": "F9g", "floor of recover": "F9h", "floor": "F9h", "once": "F9i"}
        calls |= dict.fromkeys(MACHINE_SCRIPTS, "F9j")
        assert verdict.faults == {f"{name} {manner}: {call}": 2 for manner in WIRE for call, name in calls.items()}


@pytest.mark.soak
def test_each_call_of_the_store_is_hit_in_each_manner_and_no_number_comes_twice() -> None:
    manners = {"F9l": "request dropped", "F9m": "reply dropped", "F9n": "300 ms late"}
    # A long step, as the wire server of the tests gets slow when the ledger gets long.
    with folder() as path, MongoWorld(path, binary(), Terms(step=30_000)) as world:
        verdict = play(world, ADMINISTERED)
    assert_kept(verdict)
    assert verdict.faults == {f"{name} {manner}: {call}": 1 for (name, manner), call in product(manners.items(), CALLS)}
    assert verdict.acknowledged > 10_000


@pytest.mark.soak
def test_the_long_run_fills_a_disk_where_it_may_mount_one(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    line = [sys.executable, "-m", "tests.chaos", "--faults", "F19", "--times", "2", "--one-server", "--out", str(out)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    # Two faults are fewer than its bars ask for.
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert (found["kept"], found["turns"]) == (True, {"F19": 2})
    assert found["faults"] == {f"F19 disk full ({'ENOSPC' if find_mounting() else 'limit'})": 2}
