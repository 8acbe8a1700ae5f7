"""A double and forks: children draw from the double of their parent, never end it, and make doubles of their own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import issuer
from issuer.testing import Double, override
from tests.audit import repeats
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("production"), pytest.mark.covers("U.22")]


def in_child(work: Callable[[], object]) -> None:
    """Run it in a forked child, and wait for the child."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent must not go on twice
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def draw(n: int) -> list[int]:
    return issuer.take("orders", n)


def test_children_draw_what_their_parent_and_siblings_do_not() -> None:
    with override() as double:
        double.ids.create("orders", step=10)
        numbers = draw(5)
        with multiprocessing.get_context("fork").Pool(4) as pool:
            for each in pool.map(draw, [7] * 20):
                numbers += each
            numbers += draw(5)
        assert repeats(numbers) == []
        assert max(numbers) <= 200
        assert double.ids.verify() == []


def test_a_child_does_not_end_it_nor_leave_the_defaults() -> None:
    with override() as double:
        double.ids.create("orders")
        assert issuer.next("orders") == 1
        in_child(double.close)
        in_child(double.ids.close)
        assert issuer.next("orders") == 2


def test_a_child_does_not_use_the_sqlite_connection_of_its_parent() -> None:
    """SQLite does not allow it."""
    with Double() as double:
        double.ids.create("orders")
        store = double.store
        assert store.get("orders", timeout=60)
        parents = store._file._connection
        assert parents is not None

        def own() -> None:
            assert store.get("orders", timeout=60)
            assert store._file._connection is not parents

        in_child(own)


def test_a_child_orders_faults_of_the_store_but_not_of_redis() -> None:
    with override() as double:
        double.ids.create("orders", step=1)

        def order() -> None:
            with pytest.raises(issuer.IssuerError, match="forked child"):
                double.lose_reply()
            with pytest.raises(issuer.IssuerError, match="forked child"):
                double.clock.move(1)
            with pytest.raises(issuer.IssuerError, match="forked child"):
                double.lose_data()
            double.store_away()

        in_child(order)
        with pytest.raises(issuer.StoreUnavailable):
            issuer.default().create("others", timeout=0)


def test_a_child_has_no_copy_of_the_sockets_of_the_proxy() -> None:
    # While a copy is open, a connection that the proxy cuts does not end, and its client waits.
    with override() as double:
        double.ids.create("orders")
        double.redis_away(calls=1)
        assert issuer.next("orders") == 1
        assert double._server.proxy is not None
        numbers = double._server.proxy._numbers()
        assert len(numbers) >= 3

        def look() -> None:
            assert {str(Path(f"/proc/self/fd/{number}").readlink()) for number in numbers} == {os.devnull}

        in_child(look)
        assert issuer.next("orders") == 2, "here they are open"


def test_siblings_have_servers_of_their_own() -> None:
    def own(number: int) -> int:
        with Double() as double:
            double.ids.create("orders")
            for each in range(1, 6):
                assert double.ids.next("orders", key=str(each)) == each
            double.lose_data()
            assert double.ids.next("orders") > number
        return os.getpid()

    with Double() as double:
        double.ids.create("orders")
        assert double.ids.next("orders") == 1
        for number in range(2):
            in_child(partial(own, number))
        assert double.ids.next("orders") == 2


def test_a_child_makes_doubles_of_its_own() -> None:
    with override() as double:
        double.ids.create("orders")
        assert issuer.next("orders") == 1

        def own() -> None:
            with override() as other:
                assert other.ids.tags() == []
                other.ids.create("orders")
                assert issuer.next("orders") == 1
                other.lose_data()
                assert issuer.next("orders") > 1

        in_child(own)
        assert issuer.next("orders") == 2


PROGRAM = """
import os, signal, sys
from issuer.testing import Double
double = Double().__enter__()
double.ids.create("orders")
double.ids.next("orders")
print(double._server.pid, double._server.directory, double._server.folder, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end", ["", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)"]
)
def test_the_server_ends_with_its_process_however_that_ends(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-Werror::ResourceWarning", "-c", PROGRAM.format(end=end)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    pid, *folders = done.stdout.split()
    until(lambda: not any(Path(each).exists() for each in (f"/proc/{pid}", *folders)), message="all is gone")


def test_the_server_ends_with_its_process_although_a_child_lives() -> None:
    end = "if os.fork(): os._exit(3)\nprint(os.getpid(), flush=True); os.close(1); os.close(2); signal.pause()"
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, check=False)
    pid, *_, child = done.stdout.split()
    try:
        until(lambda: not Path(f"/proc/{pid}").exists(), message="the server has ended")
    finally:
        os.kill(int(child), signal.SIGKILL)
