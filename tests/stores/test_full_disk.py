"""The disk that the embedded store lies on is full, and then there is room again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit import repeats
from tests.servers.absent import absent
from tests.servers.disks import OWN_MOUNTS, find_mounting
from tests.servers.mariadb import find_mariadb
from tests.servers.postgres import find_postgres


def told(mounting: list[str] | None, program: str, *arguments: str) -> dict[str, Any]:
    """Run a program with mounts of its own, if there is a way to make some. Return what it reports."""
    ended = subprocess.run(
        [*(mounting or []), sys.executable, "-m", program, *arguments],
        env={**os.environ, **({OWN_MOUNTS: "1"} if mounting else {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.covers("3.27", "0.16")
@pytest.mark.parametrize(("colour", "mounts"), [("blocking", True), ("asyncio", False)])
def test_what_is_loaded_goes_on_and_the_rest_when_there_is_room(
    redis_url: str, tmp_path: Path, colour: str, mounts: bool
) -> None:
    # Where nobody may mount, no file can grow instead.
    mounting = find_mounting() if mounts else None
    found = told(mounting, "tests.stores.full_disk_app", redis_url, str(tmp_path), colour)
    assert found["disk"] == (mounting is not None)
    assert found["again"] > 0
    assert "disk" in found["said"]
    if found["disk"]:
        assert found["code"] == "store_full"
        assert "No space left" in found["said"]
    assert repeats(found["numbers"]) == []
    assert found["numbers"] == sorted(found["numbers"])
    assert max(found["numbers"]) <= found["max"]


@pytest.mark.live
@pytest.mark.covers("3.27", "0.16")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_full_disk_of_an_sql_database_reserves_nothing_until_there_is_room(kind: str) -> None:
    if (find_postgres() if kind == "postgres" else find_mariadb()) is None:
        absent(kind, {"postgres": "postgresql", "mariadb": "mariadb-server"}[kind])
    mounting = find_mounting()
    if mounting is None:
        pytest.skip("nobody may mount a small disk here")
    found = told(mounting, "tests.stores.sql.full_disk_app", kind)
    assert "No space left" in found["error"]
    assert found["code"] == "store_full"
    assert found["done"] < 1000
