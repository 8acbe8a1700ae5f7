"""Several forks of a process at once: each is a fork of its own, and none leaves a store locked."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.audit import repeats

pytestmark = pytest.mark.usefixtures("patient")


def told(program: str, *arguments: str) -> Any:
    """Run the program in an interpreter of its own, and return what it prints."""
    line = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "forked in the meantime" not in done.stderr, "each fork had its turn"
    return json.loads(done.stdout)


#: Two threads fork at the same time; the process goes on, and so do the children that Python knows of.
AT_ONCE = """
import json, os, subprocess, sys, threading
import issuer

redis, store, way = sys.argv[1:]
subprocess._USE_VFORK = False  # it forks in C then, and the C library calls us
ids = issuer.connect(redis=redis, store=store, timeout=30)
# With Redis no child wins an election: it would stand for seconds, as they are killed.
ids.create("t", step=5 if redis == "none" else 10_000)
drawn, told, gate = [ids.next("t")], [], threading.Barrier(2, timeout=60)

def forked():
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "w") as out:
            json.dump([ids.next("t") for _ in range(3)], out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as child:
        told.append(child.read())

def forked_in_c():
    subprocess.run(["true"], check=True)

def fork(once):
    for _ in range(20):
        gate.wait()
        once()

threads = [threading.Thread(target=fork, args=[each]) for each in (forked, forked if way == "Python" else forked_in_c)]
for each in threads:
    each.start()
for each in threads:
    each.join()
drawn += ids.take("t", 50)
assert redis == "none" or "t" in ids._open, "after a fork the parent's draws don't lie open again"
ids.close()
print(json.dumps([drawn, *map(json.loads, told)]))
"""


@pytest.mark.parametrize("way", ["Python", "C"])
@pytest.mark.parametrize("behind", ["a store", pytest.param("redis", marks=pytest.mark.live)])
def test_two_threads_fork_at_the_same_time(
    way: str, behind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The second fork found the store held by the first, and the store stayed locked in that process."""
    redis = request.getfixturevalue("redis_url") if behind == "redis" else "none"
    numbers = told(AT_ONCE, redis, f"sqlite:///{tmp_path / 'ids.db'}", way)
    assert [len(each) for each in numbers] == [51, *[3] * (40 if way == "Python" else 20)]
    assert repeats(chain.from_iterable(numbers)) == []


#: A signal's handler forks while the hooks of another fork run: all four processes go on.
AMID = """
import fcntl, json, os, signal, sys, threading, time
import issuer
from issuer_persistence import forks
from issuer_persistence.sqlite import SQLiteStore

file, where, reading, writing = sys.argv[1].removeprefix("sqlite:///"), sys.argv[2], *os.pipe()
store = SQLiteStore(file)
ids = issuer.connect(redis="none", store=store, timeout=30)
ids.create("t", step=5)
children, first, struck = [], [ids.next("t")], []

def fork(*_):
    if child := os.fork():
        children.append((os.getpid(), child))

def strike():
    if not struck:
        struck.append(True)
        if where == "beside a call":
            held = os.open(file + "-lock", os.O_RDWR)
            fcntl.flock(held, fcntl.LOCK_EX)
            threading.Thread(target=ids.inspect, args=("t",)).start()
            while not store._lock.locked():
                time.sleep(0.001)
            threading.Timer(0.3, fcntl.flock, (held, fcntl.LOCK_UN)).start()
        signal.raise_signal(signal.SIGUSR1)

def fail():
    raise ValueError

signal.signal(signal.SIGUSR1, fork)
forks.register(before=strike, in_child=fail, in_parent=fail)
if where == "behind":  # hooks run from the last one to the first
    forks._hooks.insert(0, forks._hooks.pop())
parent = os.getpid()
fork()
drawn = ids.take("t", 8)
os.write(writing, json.dumps(drawn).encode() + b"\\n")
for forked, child in children:
    assert forked != os.getpid() or os.waitpid(child, 0)[1] == 0
if os.getpid() != parent:
    os._exit(0)
ids.close()
os.close(writing)
with os.fdopen(reading) as lines:
    print(json.dumps([first, *map(json.loads, lines)]))
"""


@pytest.mark.parametrize("where", ["before", "behind", "beside a call"])
def test_a_handler_forks_amid_the_hooks_of_another_fork(where: str, tmp_path: Path) -> None:
    """All four processes draw: the store has nothing open between two calls. A hook that fails stops no other one."""
    numbers = told(AMID, f"sqlite:///{tmp_path / 'ids.db'}", where)
    assert sorted(map(len, numbers)) == [1, 8, 8, 8, 8]
    assert repeats(chain.from_iterable(numbers)) == []


#: A thread of the child of a fork in C forks before anything of the issuer's was called there.
UNNOTICED = """
import ctypes, json, os, sys, threading
from types import SimpleNamespace
import issuer

# See c_fork_app.py.
parent = os.getpid()
sys.modules["uwsgi"] = SimpleNamespace(worker_id=lambda: int(os.getpid() != parent))
ids = issuer.connect(redis="none", store=sys.argv[1], scheduler=None)
ids.create("t", step=5)
drawn, (reading, writing) = [ids.next("t")], os.pipe()

def in_child():
    grandchild = os.fork()
    os.write(writing, json.dumps(ids.take("t", 8, timeout=30)).encode() + b"\\n")
    os._exit(os.waitpid(grandchild, 0)[1] if grandchild else 0)

if ctypes.PyDLL(None).fork() == 0:
    threading.Thread(target=in_child).start()
    threading.Event().wait()
drawn += ids.take("t", 8, timeout=30)
assert os.wait()[1] == 0
os.close(writing)
with os.fdopen(reading) as lines:
    print(json.dumps([drawn, *map(json.loads, lines)]))
"""


def test_an_unseen_child_forks_before_anything_else(tmp_path: Path) -> None:
    numbers = told(UNNOTICED, f"sqlite:///{tmp_path / 'ids.db'}")
    assert [len(each) for each in numbers] == [9, 8, 8]
    assert repeats(chain.from_iterable(numbers)) == []
