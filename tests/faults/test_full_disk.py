"""The disk that the embedded store lies on is full, and then there is room again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit import repeats
from tests.colours import COLOURS
from tests.faults.conftest import covering
from tests.faults.full_disk_app import STEP
from tests.servers.disks import OWN_MOUNTS, find_mounting

pytestmark = pytest.mark.usefixtures("patient")


MANNERS = ["full disk", "no larger files"]


@pytest.mark.covers("3.27", "0.16")
@covering("colour, manner", [("blocking", MANNERS[0]), ("asyncio", MANNERS[1])], COLOURS, MANNERS)
def test_what_is_loaded_goes_on_and_the_rest_when_there_is_room(
    redis_url: str, tmp_path: Path, colour: str, manner: str
) -> None:
    # Where nobody may mount, both are the latter.
    mounting = find_mounting() if manner == "full disk" else None
    program = [sys.executable, "-m", "tests.faults.full_disk_app", redis_url, str(tmp_path), colour]
    ended = subprocess.run(
        [*(mounting or []), *program],
        env={**os.environ, **({OWN_MOUNTS: "1"} if mounting else {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["disk"] == (mounting is not None)
    assert len(told["during"]) >= STEP - 1
    assert told["refused"]["again"] > 0
    assert "disk" in told["refused"]["said"]
    numbers = told["before"] + told["during"] + told["after"]
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)
    assert max(numbers) <= told["max"]
