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
    line = [sys.executable, "-m", "tests.faults.amid_calls_app", way, where, redis, store, str(child)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    parents, childs = json.loads(done.stdout), json.loads(child.read_text(encoding="utf-8"))
    assert childs["numbers"] == []
    assert childs["others"] == []
    assert childs["refused"], "the fork came in the middle of a call"
    assert parents
    assert repeats(parents) == []


#: Numbers in memory: a signal handler that forks while `next` runs, and returns in the child.
IN_A_HANDLER = """
import json, os, random, signal, sys
import issuer

FORKS = 12
ids = issuer.connect(redis="none", store=sys.argv[1], scheduler=None)
ids.create("t", step=2_000_000)
ids.next("t")
numbers, children, reading, writing = [], [], *os.pipe()

def handler(_number, frame):
    while frame is not None and frame.f_globals["__name__"] != "issuer.api.blocking":
        frame = frame.f_back
    if frame is not None:
        children.append(os.fork())
        if not children[-1]:
            numbers.clear()
            children.extend([0] * FORKS)
            return
    if len(children) < FORKS:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-4))

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-4)
parent = os.getpid()
while len(children) < FORKS:
    try:
        numbers.append(ids.next("t"))
    except issuer.Unavailable:
        assert os.getpid() != parent
if os.getpid() != parent:
    os.write(writing, "".join(f"{number}\\n" for number in numbers).encode())
    os._exit(0)
for child in children:
    os.waitpid(child, 0)
os.close(writing)
with os.fdopen(reading) as told:
    childs = [int(line) for line in told]
print(sorted(set(childs) & set(numbers)))
"""


def test_a_handler_that_forks_beside_numbers_in_memory_repeats_none(tmp_path: Path) -> None:
    line = [sys.executable, "-c", IN_A_HANDLER, f"sqlite:///{tmp_path / 'ids.db'}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
