"""Each of the faults that `issuer chaos` doesn't offer, twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from issuer.cli.chaos.faults import WIRE
from tests.chaos.more import MORE
from tests.chaos.wire import MACHINE_SCRIPTS, WIRED
from tests.chaos.worlds import assert_kept, suffer
from tests.servers.disks import find_mounting

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8", "3.20")
def test_each_fault_twice_and_no_number_comes_twice() -> None:
    verdict = suffer(MORE, times=2)
    assert_kept(verdict)
    assert verdict.struck == 2 * len(MORE)
    assert verdict.acknowledged > 10_000


@pytest.mark.covers("N.1", "N.3", "N.8", "3.33")
def test_each_call_that_is_seldom_sent_is_dropped_and_late_and_no_number_comes_twice() -> None:
    verdict = suffer(WIRED, times=2)
    assert_kept(verdict)
    calls = {"giveback": "F9g", "floor of recover": "F9h", "floor": "F9h", "once": "F9i"}
    calls |= dict.fromkeys(MACHINE_SCRIPTS, "F9j")
    assert verdict.faults == {f"{name} {manner}: {call}": 2 for manner in WIRE for call, name in calls.items()}
    assert verdict.acknowledged > 10_000


@pytest.mark.covers("N.8")
def test_the_long_run_fills_a_disk_where_it_may_mount_one(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    line = [sys.executable, "-m", "tests.chaos", "--faults", "F19", "--times", "2", "--one-server", "--out", str(out)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    # Two faults are fewer than its bars ask for.
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert (found["kept"], found["turns"]) == (True, {"F19": 2})
    assert found["faults"] == {f"F19 disk full ({'ENOSPC' if find_mounting() else 'limit'})": 2}
