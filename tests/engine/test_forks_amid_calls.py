"""A fork in the middle of a call that goes on in the child: the number of the call leaves in one process only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit import repeats

pytestmark = pytest.mark.usefixtures("patient")

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "plain": ("reply", "released", "take", "issue", "reserve", "drawn", "strategy"),
    "greenlets": ("set aside", "batch"),
    "tasks": ("next", "take", "issue", "waiter"),
}
#: These need no Redis: the numbers are in memory.
IN_MEMORY = ("drawn", "set aside")


@pytest.mark.parametrize(("way", "where"), [(way, where) for way, places in PLACES.items() for where in places])
def test_a_call_that_a_fork_leaves_in_both_processes_returns_in_one(
    way: str, where: str, redis_url: str, tmp_path: Path
) -> None:
    redis, store = "none" if where in IN_MEMORY else redis_url, f"sqlite:///{tmp_path / 'ids.db'}"
    child = tmp_path / "child"
    line = [sys.executable, "-m", "tests.engine.amid_calls_app", way, where, redis, store, str(child)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    parents, childs = json.loads(done.stdout), json.loads(child.read_text(encoding="utf-8"))
    assert childs["numbers"] == []
    assert childs["others"] == []
    assert childs["refused"], "the fork came in the middle of a call"
    assert parents
    assert repeats(parents) == []
