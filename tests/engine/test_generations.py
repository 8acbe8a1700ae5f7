"""What belongs to the parent of a fork does nothing more in the child."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Send, Steps, ask
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.blocking.runner import Runner
from issuer.drivers.inherited import LINKS, AnyLink
from issuer.drivers.topology import Address, Exchange
from issuer.drivers.wire import RoundTrips
from issuer.forks import GENERATION
from issuer.gateway import tag_scripts
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect


@pytest.fixture
def younger(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make this process a child, as far as what was made before can tell."""
    return lambda: monkeypatch.setattr(GENERATION, "now", GENERATION.now + 1)


@pytest.mark.parametrize("colour", COLOURS)
def test_steps_of_the_parent_run_no_further(colour: str, younger: Callable[[], None]) -> None:
    done: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield from ask(lambda _store, _timeout: younger())  # the fork comes while this request is on its way
            done.append("its answer was used")
        except issuer.Unavailable:
            yield from ask(lambda _store, _timeout: done.append("another request was sent"))

    def run() -> None:
        if colour == "blocking":
            Runner(MemoryStore(), None, 60.0).run(steps(), Deadline(60))
        else:
            asyncio.run(AsyncRunner(MemoryStore(), None, 60.0).run(steps(), Deadline(60)))

    with pytest.raises(issuer.Unavailable, match="began in the parent process"):
        run()
    assert done == []


@pytest.mark.live
def test_a_child_reads_nothing_from_connections_of_its_parent(connect: Connect, redis_url: str) -> None:
    with connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("a")
        ids.next("a")
        connected = [link.connection.socket.fileno() for link in LINKS if link.connection.socket is not None]
        assert connected
        if (child := os.fork()) == 0:
            try:
                os._exit(0 if all(os.read(each, 1) == b"" for each in connected) else 1)
            except BaseException:  # noqa: BLE001 - nothing of the parent may go on here
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ids.next("a") == 2


def test_a_file_with_the_number_of_a_closed_connection_stays_open_in_a_child() -> None:
    read, write = os.pipe()
    link = AnyLink(SimpleNamespace(socket=SimpleNamespace(fileno=lambda: write)), None)
    assert link in LINKS
    if (child := os.fork()) == 0:
        with suppress(OSError):
            os.write(write, b"still")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"still"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.live
def test_a_call_of_the_parent_is_not_sent_again(redis_url: str, younger: Callable[[], None]) -> None:
    with issuer.connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        redis, call = ids.engine.runner.redis, tag_scripts.read_hash(ids.engine.config.key("a"))
        assert redis is not None
        trips = RoundTrips(redis, Send(call), Deadline(60))
        finished(lambda: trips.exchange(Exchange(Address(), call)))
        younger()
        with pytest.raises(issuer.Unavailable, match="began in the parent process"):
            finished(lambda: trips.exchange(Exchange(Address(), call)))


async def dropped(link: Any) -> None:
    """Drop a connection in the loop that has made it."""
    link.drop()


@pytest.mark.live
def test_a_child_does_not_log_in_over_a_connection_that_its_parent_makes(
    connect: Connect, redis_url: str, younger: Callable[[], None]
) -> None:
    """The server would answer twice, and the parent would take each reply for that of its next call."""
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        redis = ids.engine.runner.redis
        assert redis is not None
        (node,) = redis.nodes.values()
        idle = [node.idle.pop() for _ in range(len(node.idle))]
        wait = getattr(ids, "wait", lambda done: finished(lambda: done))
        link, reused = wait(redis.connection(node, Deadline(60), connects=True))
        assert not reused
        younger()
        try:
            with pytest.raises(issuer.Unavailable, match="began in the parent process"):
                wait(link.connect(Deadline(60)))
        finally:
            wait(dropped(link)) if hasattr(ids, "wait") else link.drop()
            node.idle.extend(idle)
