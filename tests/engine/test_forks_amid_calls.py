"""Programs that fork beside and within calls, several times at once, or in C: nothing comes twice, nobody hangs."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.core.steps import Steps, sleep
from issuer.drivers.aio import runner as aio
from issuer.drivers.blocking import runner as blocking
from issuer.errors import Unavailable
from issuer.forks import GENERATION
from tests.audit import repeats
from tests.colours import COLOURS
from tests.programs import fresh

PLACES = {
    "plain": ("reply", "released", "take", "issue", "reserve", "refill", "drawn", "strategy"),
    "greenlets": ("set aside", "batch"),
    "tasks": ("next", "take", "issue", "refill", "waiter"),
}


#: These need no Redis: the numbers are in memory.
IN_MEMORY = ("drawn", "set aside")


def ran(*line: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = fresh(*line, env=env)
    assert "forked in the meantime" not in done.stderr, "each fork had its turn"
    return done


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ids.db'}"


@pytest.mark.parametrize(("way", "where"), [(way, where) for way, places in PLACES.items() for where in places])
def test_a_call_that_a_fork_leaves_in_both_processes_returns_in_one(
    way: str, where: str, redis_url: str, db: str, tmp_path: Path
) -> None:
    redis, child = "none" if where in IN_MEMORY else redis_url, tmp_path / "child"
    parents = json.loads(ran("-m", "tests.engine.amid_calls_app", way, where, redis, db, str(child)).stdout)
    childs = json.loads(child.read_text(encoding="utf-8"))
    assert (childs["numbers"], childs["others"]) == ([], [])
    assert childs["refused"], "the fork came in the middle of a call"
    assert parents
    assert repeats(parents) == []


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
def test_two_threads_fork_at_the_same_time(way: str, behind: str, request: pytest.FixtureRequest, db: str) -> None:
    """The second fork found the store held by the first, and the store stayed locked in that process."""
    redis = request.getfixturevalue("redis_url") if behind == "redis" else "none"
    numbers = json.loads(ran("-c", AT_ONCE, redis, db, way).stdout)
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
def test_a_handler_forks_amid_the_hooks_of_another_fork(where: str, db: str) -> None:
    """All four processes draw: the store has nothing open between two calls. A hook that fails stops no other one."""
    numbers = json.loads(ran("-c", AMID, db, where).stdout)
    assert sorted(map(len, numbers)) == [1, 8, 8, 8, 8]
    assert repeats(chain.from_iterable(numbers)) == []


@pytest.mark.parametrize("colour", COLOURS)
def test_steps_that_try_again_in_a_child_are_ended(colour: str) -> None:
    """Those that wait for a lease would be refused, and try again, until their deadline: with a core at full load."""
    tried = list[int]()

    def stubborn() -> Steps[int]:
        for attempt in range(50):
            tried.append(attempt)
            with suppress(Unavailable):
                yield from sleep(1)
        return 0

    async def do(_: object) -> None:
        raise AssertionError

    earlier = GENERATION.now - 1
    calls = {
        "blocking": lambda: blocking.drive(stubborn(), do, earlier, "t"),
        "asyncio": lambda: asyncio.run(aio.drive(stubborn(), do, earlier, "t")),
    }
    with pytest.raises(Unavailable, match="before the fork"):
        calls[colour]()
    assert len(tried) <= 2


#: A hook forks itself.
ONCE = """
import os
from issuer_persistence import forks

ran = []

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def forking():
    ran.append("second")
    if len(ran) < 3:
        fork()

forks.register(before=lambda: ran.append("first"))
forks.register(before=forking)
fork()
print(*ran)
"""


def test_each_hook_runs_once_though_one_of_them_forks() -> None:
    assert ran("-c", ONCE).stdout.split() == ["second", "first"]


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


def test_an_unseen_child_forks_before_anything_else(db: str) -> None:
    numbers = json.loads(ran("-c", UNNOTICED, db).stdout)
    assert [len(each) for each in numbers] == [9, 8, 8]
    assert repeats(chain.from_iterable(numbers)) == []


#: The drawing task gives the others a turn after each hundred numbers in hand: there the fork comes.
PROGRAM = """
import asyncio, json, os, sys
import issuer
from issuer.plugins import Plugin

redis, store, plugged, child_file = sys.argv[1:]

class Looking(Plugin):
    def after(self, call, number):
        return None

async def main():
    ids = issuer.aconnect(redis=redis, store=store, lease=5000, plugins=[Looking()] if plugged == "plugin" else [])
    await ids.create("t", order="trend", step=20_000)
    drawn, parent = [await ids.next("t")], os.getpid()

    async def fork():
        if os.fork() == 0:
            drawn.clear()

    forking = asyncio.create_task(fork())
    try:
        while len(drawn) < 1000:
            drawn.append(await ids.next("t"))
    except Exception:
        assert os.getpid() != parent
    if os.getpid() != parent:
        with open(child_file, "w") as out:
            json.dump(drawn, out)
        os._exit(0)
    await forking
    os.wait()
    await ids.close()
    print(json.dumps(drawn))

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["plain", "plugin"])
def test_a_call_that_a_fork_leaves_in_the_child_has_no_number_of_its_parents(
    way: str, redis_url: str, db: str, tmp_path: Path
) -> None:
    parents = json.loads(ran("-c", PROGRAM, redis_url, db, way, str(tmp_path / "child")).stdout)
    assert len(parents) == 1000
    assert repeats(parents + json.loads((tmp_path / "child").read_text(encoding="utf-8"))) == []


#: Prints what the first calls import while another thread may fork.
IMPORTS = """
import asyncio, sys
import issuer
from issuer.forks import no_fork

redis, store, colour = sys.argv[1:]
unlocked = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if not no_fork()._is_owned():
            unlocked.append(name)
        return None

CALLS = [
    lambda ids: ids.create("t", order="trend"), lambda ids: ids.take("t", 30),
    lambda ids: ids.create("s", strategy="snowflake"), lambda ids: ids.next("s"),
]

def calls():
    with issuer.connect(redis=redis, store=store, lease=10) as ids:
        sys.meta_path.insert(0, Finder())
        for call in CALLS:
            call(ids)

async def acalls():
    async with issuer.aconnect(redis=redis, store=store, lease=10) as ids:
        sys.meta_path.insert(0, Finder())
        for call in CALLS:
            await call(ids)

calls() if colour == "blocking" else asyncio.run(acalls())
print(*unlocked)
"""


@pytest.mark.parametrize("colour", COLOURS)
def test_first_calls_import_nothing_while_a_thread_may_fork(colour: str, redis_url: str, db: str) -> None:
    """A child that another thread forks meanwhile would wait for the lock of that import for ever (seen)."""
    assert ran("-c", IMPORTS, redis_url, db, colour).stdout.split() == []


#: A thread's first call imports what it needs, and takes a second for one of the modules; meanwhile the process forks.
FORKED_WHILE_IMPORTING = """
import os, sys, threading, time
from importlib.machinery import PathFinder
import issuer

called, slow, importing = *sys.argv[1:], threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name != slow or threading.current_thread() is not thread:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def slowly(module):  # not in find_spec: Python's own lock, for which each fork waits, is held there
            importing.set()
            time.sleep(1)
            execute(module)

        spec.loader.exec_module = slowly
        return spec

def use():
    if called == "next":
        issuer.next("orders")
    elif called == "connect":
        issuer.connect(redis="redis://127.0.0.1:1", store="memory://", scheduler=None).close()
    else:
        with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
            ids.create("orders", format="{seq}")

thread = threading.Thread(target=use)
sys.meta_path.insert(0, Slow())
thread.start()
assert importing.wait(60)
if (child := os.fork()) == 0:
    late = threading.Timer(60, os._exit, [1])
    late.daemon = True
    late.start()
    use()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("called", "slow"),
    [("connect", "redis"), ("connect", "secrets"), ("next", "issuer.api.blocking"), ("create", "issuer.numbers.given")],
    ids=["connect", "pool", "next", "create"],
)
def test_a_child_that_is_forked_while_a_thread_imports_can_import_too(called: str, slow: str, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ran("-c", FORKED_WHILE_IMPORTING, called, slow, env=env)


#: A thread imports the SQLite store while a fork waits, and is within a call when the import is over.
FORKED_WHILE_THE_STORE_IS_IMPORTED = """
import os, sys, threading
from issuer.forks import no_fork

importing, forking, over = threading.Event(), threading.Event(), threading.Event()
os.register_at_fork(before=forking.set, after_in_parent=over.set)

def use():
    global store
    with no_fork():
        importing.set()
        assert forking.wait(60)
        from issuer_persistence.sqlite.store import SQLiteStore
        store = SQLiteStore(sys.argv[1])
        call = store.transaction(60)
        call.__enter__()
    over.wait(0.5)
    call.__exit__(None, None, None)

thread = threading.Thread(target=use)
thread.start()
assert importing.wait(60)
if (child := os.fork()) == 0:
    try:
        store.store_id(timeout=60)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
thread.join()
assert over.is_set()
store.store_id(timeout=60)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.live
def test_a_fork_that_waits_for_the_import_of_a_store_waits_for_its_call_too(tmp_path: Path) -> None:
    ran("-c", FORKED_WHILE_THE_STORE_IS_IMPORTED, str(tmp_path / "ids.db"))


KINDS: dict[str, dict[str, Any]] = {
    "strict": {"order": "strict"},
    **{kind: {"order": "trend"} for kind in ("leased", "direct", "stream", "tasks")},
    "snowflake": {"strategy": "snowflake"},
}


@pytest.mark.parametrize(
    ("kind", "children"),
    [*((kind, 4) for kind in KINDS), ("leased", 0), ("tasks", 0)],
    ids=[*KINDS, "leased, and its child only ends", "tasks, and its child only ends"],
)
def test_no_number_comes_twice_after_a_fork_in_c(kind: str, children: int, redis_url: str, db: str) -> None:
    redis = "none" if kind == "direct" else redis_url
    with issuer.connect(redis=redis, store=db, scheduler=None) as ids:
        ids.create("t", **KINDS[kind])
    told = json.loads(ran("-m", "tests.engine.c_fork_app", redis, db, kind, str(children), "700").stdout)
    assert [len(each) for each in told] == [10 + (children + 1) * 700, *[700] * children, 0, 20]
    assert repeats(chain.from_iterable(told)) == []
    assert all(each == sorted(each) for each in told)


FORK = """
import os, sys, threading
import issuer
from issuer_persistence.memory import MemoryStore

begun, go_on = threading.Event(), threading.Event()

class Hanging(MemoryStore):
    def tags(self, *args, **options):
        begun.set()
        go_on.wait()
        return super().tags(*args, **options)

ids = issuer.connect(redis="none", store=Hanging(), timeout=60, store_timeout=60)
ids.create("a")
thread = threading.Thread(target=ids.tags)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
go_on.set()
thread.join()
"""


def test_a_child_that_inherits_a_call_of_another_thread_says_nothing_of_it() -> None:
    done = ran("-W", "always", "-c", FORK)
    assert (done.stdout, done.stderr) == ("7\n", "")
