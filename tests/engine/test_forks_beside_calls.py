"""A fork beside calls under way, in tasks or threads: nothing of theirs is issued, or waited for, in the child."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit import repeats
from tests.colours import COLOURS

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


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["plain", "plugin"])
def test_a_call_that_a_fork_leaves_in_the_child_has_no_number_of_its_parents(
    way: str, redis_url: str, tmp_path: Path
) -> None:
    line = [sys.executable, "-c", PROGRAM, redis_url, f"sqlite:///{tmp_path / 'ids.db'}", way, str(tmp_path / "child")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    parents, childs = json.loads(done.stdout), json.loads((tmp_path / "child").read_text(encoding="utf-8"))
    assert len(parents) == 1000
    assert repeats(parents + childs) == []


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

def calls():
    with issuer.connect(redis=redis, store=store, lease=10) as ids:
        sys.meta_path.insert(0, Finder())
        ids.create("t", order="trend")
        ids.take("t", 30)
        ids.create("s", strategy="snowflake")
        ids.next("s")

async def acalls():
    async with issuer.aconnect(redis=redis, store=store, lease=10) as ids:
        sys.meta_path.insert(0, Finder())
        await ids.create("t", order="trend")
        await ids.take("t", 30)
        await ids.create("s", strategy="snowflake")
        await ids.next("s")

calls() if colour == "blocking" else asyncio.run(acalls())
print(*unlocked)
"""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("colour", COLOURS)
def test_first_calls_import_nothing_while_a_thread_may_fork(colour: str, redis_url: str, tmp_path: Path) -> None:
    """A child that another thread forks meanwhile would wait for the lock of that import for ever (seen)."""
    line = [sys.executable, "-c", IMPORTS, redis_url, f"sqlite:///{tmp_path / 'ids.db'}", colour]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


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
    line = [sys.executable, "-c", FORKED_WHILE_IMPORTING, called, slow]
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stderr


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
    line = [sys.executable, "-c", FORKED_WHILE_THE_STORE_IS_IMPORTED, str(tmp_path / "ids.db")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
