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

pytestmark = pytest.mark.usefixtures("patient")


@pytest.mark.covers("3.27", "0.16")
@pytest.mark.parametrize(("colour", "mounts"), [("blocking", True), ("asyncio", False)])
def test_what_is_loaded_goes_on_and_the_rest_when_there_is_room(
    redis_url: str, tmp_path: Path, colour: str, mounts: bool
) -> None:
    # Where nobody may mount, no file can grow instead.
    mounting = find_mounting() if mounts else None
    ended = subprocess.run(
        [*(mounting or []), sys.executable, "-m", "tests.stores.full_disk_app", redis_url, str(tmp_path), colour],
        env={**os.environ, **({OWN_MOUNTS: "1"} if mounting else {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["disk"] == (mounting is not None)
    assert told["again"] > 0
    assert "disk" in told["said"]
    if told["disk"]:
        assert told["code"] == "store_full"
        assert "No space left" in told["said"]
    assert repeats(told["numbers"]) == []
    assert told["numbers"] == sorted(told["numbers"])
    assert max(told["numbers"]) <= told["max"]


@pytest.mark.live
@pytest.mark.covers("3.27", "0.16")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_full_disk_of_an_sql_database_reserves_nothing_until_there_is_room(kind: str) -> None:
    found = find_postgres() if kind == "postgres" else find_mariadb()
    if found is None:
        absent(kind, {"postgres": "postgresql", "mariadb": "mariadb-server"}[kind])
    mounting = find_mounting()
    if mounting is None:
        pytest.skip("nobody may mount a small disk here")
    ended = subprocess.run(
        [*mounting, sys.executable, "-m", "tests.stores.sql.full_disk_app", kind],
        env={**os.environ, OWN_MOUNTS: "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert "No space left" in told["error"]
    assert told["code"] == "store_full"
    assert told["done"] < 1000
