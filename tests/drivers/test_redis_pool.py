"""The pool of permits for connections: none is lost, and those that wait are served in their order."""

import gc
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from issuer import clock
from issuer.clock import Deadline
from issuer.drivers.blocking.connections import Node
from issuer.drivers.blocking.link import Link, Waker
from issuer.drivers.servers import Permit, Pool
from issuer.drivers.topology import Address
from issuer.threads import finished


@pytest.fixture
def pool() -> Pool[Waker]:
    return Pool(2, Waker)


def test_there_are_so_many_permits_and_one_that_is_lost_comes_back(pool: Pool[Waker]) -> None:
    held = [pool.permit(), pool.permit()]
    assert None not in held
    assert pool.permit() is None
    for _ in range(3):  # each time, and not only once
        held.pop()
        held.append(pool.permit())
        assert None not in held
        assert pool.permit() is None


def test_a_pool_that_nothing_refers_to_ends_with_its_permits(pool: Pool[Waker]) -> None:
    def alive() -> int:
        return sum(type(each) is Pool for each in gc.get_objects())

    before = alive()
    other = Pool(2, Waker)
    permit = other.permit()
    assert alive() == before + 1
    del other
    assert alive() == before
    del permit
    assert pool.permit() is not None


@pytest.fixture
def node(pool: Pool[Waker]) -> Node:
    return Node(Address("one"), pool)


def put_back(node: Node, permit: Permit) -> Link:
    """Return the connection of a call that has ended, as calls do."""
    link = Link(SimpleNamespace(health_check_interval=0, disconnect=lambda: None), permit)
    node.idle.append(link)
    node.settle()
    return link


def test_each_connection_that_is_free_goes_to_the_call_that_has_waited_longest(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    first, second, third = (pool.queue(node, Deadline(60.0)) for _ in range(3))
    links = [put_back(node, held.pop()) for _ in range(2)]  # type: ignore[arg-type]
    assert [turn.given for turn in (first, second, third)] == [[links[0]], [links[1]], []]
    for turn in (first, second):
        finished(lambda: turn.waker.wait(60.0))  # noqa: B023 - called at once
    assert [*pool.waiting] == [third]
    assert not node.idle, "what comes later finds nothing that these calls could use"


def test_a_permit_that_comes_back_goes_to_the_call_that_has_waited_longest(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    turns = [pool.queue(node, Deadline(60.0)) for _ in range(3)]
    held.clear()
    assert [[type(each) for each in turn.given] for turn in turns] == [[Permit], [Permit], []]
    finished(lambda: turns[1].waker.wait(60.0))
    assert not pool.free
    pool.leave(turns[0])
    assert [type(each) for each in turns[2].given] == [Permit], "a call that leaves passes on what it was given"


def test_a_call_that_leaves_passes_its_connection_on(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    first, second = (pool.queue(node, Deadline(60.0)) for _ in range(2))
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    pool.leave(first)
    assert second.given == [link]
    pool.leave(second)
    assert [*node.idle] == [link]
    assert not pool.waiting


def test_a_connection_to_another_server_is_closed_for_the_call_that_has_waited_longest(
    pool: Pool[Waker], node: Node
) -> None:
    held = [pool.permit(), pool.permit()]
    turns = [pool.queue(each, Deadline(60.0)) for each in (Node(Address("two"), pool), node)]
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    assert link.permit is None
    assert [[type(each) for each in turn.given] for turn in turns] == [[Permit], []]


def test_a_call_that_was_interrupted_stands_in_nobodys_way(
    pool: Pool[Waker], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [pool.permit(), pool.permit()]
    gone, waits = (pool.queue(node, Deadline(seconds)) for seconds in (60.0, 600.0))
    now: Callable[[], float] = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: now() + 100.0)
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    assert (gone.given, waits.given) == ([], [link])
    assert not pool.waiting
