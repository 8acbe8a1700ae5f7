"""Forked children, greenlets and event loops: each has connections of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest

import issuer
from issuer_persistence.errors import Misconfigured
from issuer_persistence.ledger import Purpose
from issuer_persistence.sql.connections import SQLLink
from issuer_persistence.sql.store import SQLStore
from issuer_persistence.sql.transaction import SQLTransaction
from tests.audit import repeats
from tests.forks import in_child
from tests.servers.ports import LOOPBACK
from tests.servers.proxy import FaultProxy
from tests.stores.benches import TIMEOUT, before, check_contiguous, create, get, reserve, spans
from tests.waiting import run, until

if TYPE_CHECKING:
    from tests.stores.sql.conftest import Database

#: The id of a child's session, and what it has reserved.
Answer = tuple[int, list[tuple[int, int]]]

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")]


@pytest.mark.covers("U.14")
def test_a_child_has_connections_of_its_own_and_its_parents_go_on(database: Database) -> None:
    store = database.opened()
    create(store)
    held, before = [reserve(store, 10)], database.session(store)

    def work() -> Answer:
        own = database.session(store)
        done = spans([reserve(store, 10) for _ in range(5)])
        store.close()
        gc.collect()  # with it goes whatever has a finalizer
        return own, done

    children = [in_child(work) for _ in range(3)]
    held += [reserve(store, 10) for _ in range(5)]
    answers = [cast("Answer", child()) for child in children]
    sessions = {before, *(own for own, _ in answers)}
    assert len(sessions) == 4
    assert database.session(store) == before
    held.append(reserve(store, 10))
    check_contiguous([*spans(held), *(each for _, done in answers for each in done)], 0, 220)


def test_a_call_in_a_child_ends_at_its_deadline_though_the_server_answers_nothing(database: Database) -> None:
    """The thread that watches the deadlines is the parent's, and does not exist in the child."""
    connected, silent = multiprocessing.Event(), multiprocessing.Event()
    with FaultProxy((LOOPBACK, database.server.port)) as proxy:
        url = database.server.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        store = database.opened(url)
        create(store)

        def work() -> object:
            get(store)
            connected.set()
            assert silent.wait(TIMEOUT)
            return store.get("orders", timeout=0.5)

        child = in_child(work)
        assert connected.wait(TIMEOUT)
        proxy.blackhole()
        silent.set()
        assert str(child()).startswith("Unconfirmed")


def test_a_child_that_is_forked_within_a_call_does_not_end_its_parents_session(database: Database) -> None:
    """An error that passes the call in the child, on its way out, ends the connection there."""
    store = database.opened()
    create(store)
    assert database.session(store)
    with store.transaction(TIMEOUT) as transaction:
        found = transaction.read("orders")
        assert found

        def broken_off() -> object:
            for link in [each for each in gc.get_objects() if issubclass(type(each), SQLLink)]:  # no weak proxy
                if hasattr(link, "_process"):  # else its connection has failed, in an earlier test
                    link.close()
            gc.collect()
            return get(store).max

        assert in_child(broken_off)() == 0
        transaction.write(found.changed(max=10))
    assert get(store).max == 10


@pytest.mark.parametrize("at", ["enter", "commit"])
def test_a_child_that_is_forked_within_a_call_commits_nothing(database: Database, at: str) -> None:
    """As by a signal's handler, before the last statement or before the commit: the connection is the parent's."""
    store = database.opened()
    create(store)
    children = list[int]()
    kind = type(store) if at == "commit" else SQLTransaction
    with before(kind, at, lambda: children.append(os.fork()), once=True):
        try:
            got = SQLStore.reserve_checked(
                store, "orders", 10, purpose=Purpose("fork"), at_least=0, exact=False, timeout=TIMEOUT
            )
        except Misconfigured as error:
            os._exit(3 if "forked in the middle of a call" in str(error) else 4)
        finally:
            if children == [0]:
                os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 3
    assert (got.high, get(store).max, reserve(store, 10).high) == (10, 10, 20)


def test_a_child_that_is_forked_within_a_call_does_not_wait_for_a_thread_of_its_parent(database: Database) -> None:
    """The thread that watches the deadlines may hold its lock at the fork, and does not exist in the child."""
    store, threads = database.opened(), database.threads()
    create(store)
    held, release, child = threading.Event(), threading.Event(), -1

    def hold() -> None:
        with store._links._deadlines._changed:
            held.set()
            assert release.wait(TIMEOUT)

    try:
        with store.transaction(TIMEOUT):
            threads.submit(hold)
            assert held.wait(TIMEOUT)
            if (child := os.fork()) == 0:
                sys.exit()
    except SystemExit:
        os._exit(7)
    finally:
        release.set()
    try:
        until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), 30, "the child has ended")
    finally:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(ended) == 7


def test_tasks_of_an_event_loop_share_a_store(database: Database) -> None:
    async def main() -> list[int]:
        async with issuer.aconnect(redis="none", store=database.url, timeout=40) as ids:
            tags = [f"t{number}" for number in range(12)]
            for tag in tags:
                await ids.create(tag, step=3)
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    await asyncio.sleep(0.01)
                    beats += 1

            beating = asyncio.create_task(beat())
            found = await asyncio.gather(*(ids.take(tag, 10) for tag in tags * 2))
            beating.cancel()
            assert beats > 0  # the loop was not held up
            assert all(repeats(found[at] + found[at + 12]) == [] for at in range(12))
            return sorted(found[0] + found[12])

    assert len(run(main())) == 20


GEVENT = """
from gevent import monkey
monkey.patch_all()
import json, sys
import gevent
import issuer
url = sys.argv[1]
from issuer_persistence.opening import open_store
ticks = []
def tick():
    while True:
        gevent.sleep(0.01)
        ticks.append(1)
gevent.spawn(tick)
with issuer.connect(redis="none", store=url, scheduler=None, timeout=40) as ids:
    ids.create("orders", step=5)
    drawn = [gevent.spawn(lambda: [ids.next("orders") for _ in range(20)]) for _ in range(10)]
    gevent.joinall(drawn, timeout=120)
    holder, waiter = open_store(url), open_store(url)
    with holder.transaction(30) as holding:
        holding.read("orders")
        before = len(ticks)
        try:
            waiter.halt("orders", timeout=0.7)
        except Exception as error:
            refused = type(error).__name__
        meanwhile = len(ticks) - before
    print(json.dumps([[number for each in drawn for number in each.get(block=False)], refused, meanwhile]))
"""


def test_greenlets_share_a_store_and_none_holds_up_the_others(database: Database) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", GEVENT, database.url], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    numbers, refused, meanwhile = json.loads(ended.stdout.splitlines()[-1])
    assert sorted(numbers) == list(range(1, 201))
    assert refused == "Unconfirmed"
    assert meanwhile > 0
