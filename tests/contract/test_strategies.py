"""What every strategy promises, one by one: the same tests on each, under threads and under asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from issuer.clock import Deadline
from issuer.errors import ConfigurationError, IssuerError, StrategyFailed, Unavailable
from issuer.persistence.records import HIGHEST
from issuer.strategies import Context, Instance, Serving, Snowflake, Strategy, registry
from issuer.strategies.machines import Clock, Leased
from issuer.strategies.ticks import OVER
from tests.audit import repeats
from tests.contract.processes import finish
from tests.contract.strategy_kinds import GIVEN, KINDS, LEASED, open_kind
from tests.programs import PIPE, REPOSITORY, Program
from tests.servers.fake import FencedFakeServer
from tests.strategies import DESKS, AwaitedDesk, Desk, MovedClock
from tests.waiting import until

# CPython warns that a fork in a process with threads may deadlock: those that a desk has don't keep locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Open = Callable[..., Desk]

_LONGEST = 60.0


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.live] if kind in LEASED else []) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    """Each strategy in turn; snowflake with each source of machine numbers."""
    return str(request.param)


@pytest.fixture(params=list(DESKS))
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redis_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a server in which the tag's namespace is known to be new, if the kind needs one."""
    if kind not in LEASED:
        return ""
    url: str = request.getfixturevalue("redis_url")
    with open_kind(kind, tmp_path, url, 99) as maker:
        maker.found()
    return url


@pytest.fixture
def opened(
    kind: str, redis_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int, str], Desk]]:
    """Opens the strategy as another process would: by index, and by colour."""
    monkeypatch.setattr("socket.gethostname", lambda: "host")  # put back afterwards, as one kind changes it
    desks: list[Desk] = []

    def open_one(index: int = 1, colour: str = "blocking") -> Desk:
        desks.append(open_kind(kind, tmp_path, redis_of, index, DESKS[colour]))
        return desks[-1]

    yield open_one
    for desk in desks:
        desk.__exit__(None, None, None)


# ------------------------------------------------------------------------------------------------ every strategy


@pytest.mark.covers("3.6", "3.39")
def test_exactly_as_many_numbers_as_asked_for_rising_until_it_is_closed(opened: Open, colour: str) -> None:
    opened(2, colour).close()  # never used
    desk = opened(1, colour)
    desk.sweep()
    numbers = [desk.next()]
    for n in (1, 7, 5000):
        numbers += [*desk.take(n), desk.next()]
        desk.sweep()
    assert len(numbers) == 1 + 5008 + 3
    assert all(one < two for one, two in pairwise(numbers))
    assert all(0 < number <= HIGHEST for number in numbers)
    desk.close()
    for ask in (desk.next, lambda: desk.take(3)):
        with pytest.raises(IssuerError, match="closed"):
            ask()
    desk.close()


def in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONGEST)


def test_threads_never_get_the_same_number_and_each_sees_them_rise(opened: Open, colour: str) -> None:
    desk = opened(1, colour)
    drawn: list[list[int]] = [[] for _ in range(8)]

    def draw(mine: list[int]) -> None:
        for _ in range(15):
            mine.append(desk.next())
            mine.extend(desk.take(5))

    in_threads([partial(draw, mine) for mine in drawn])
    numbers = [number for mine in drawn for number in mine]
    assert len(numbers) == 8 * 15 * 6
    assert not repeats(numbers)
    assert all(one < two for mine in drawn for one, two in pairwise(mine))


@pytest.mark.live
@pytest.mark.covers("3.34")
def test_processes_never_get_the_same_number(opened: Open, kind: str, redis_of: str, tmp_path: Path) -> None:
    desk = opened(1)
    numbers = desk.take(10)
    command = ["tests.contract.strategy_kinds", kind, str(tmp_path), redis_of or "-"]
    others = [Program("-m", *command, str(index), "1000", cwd=REPOSITORY, stdout=PIPE, stderr=PIPE) for index in (2, 3)]
    for other in others:
        numbers += [int(word) for word in finish(other).split()]
        numbers += desk.take(500)
    assert len(numbers) == 10 + 2 * 1500
    assert not repeats(numbers)


def in_a_child(desk: Desk, count: int) -> list[int] | str:
    """Fork; return the numbers that the child drew, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            desk.after_fork()
            said = " ".join(map(str, [desk.next(), *desk.take(count - 1)]))
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            said = type(error).__name__
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return [int(word) for word in said.split()] if said[:1].isdigit() else said


def test_a_forked_child_shares_no_number_with_its_parent(opened: Open, kind: str) -> None:
    desk = opened(1)
    numbers = desk.take(10)
    drawn = in_a_child(desk, 500)
    if kind in GIVEN:
        # The number is the parent's, and there is no other one to be had.
        assert drawn == ConfigurationError.__name__
        drawn = []
    assert isinstance(drawn, list)
    numbers += drawn + desk.take(500)
    assert not repeats(numbers)
    assert len(numbers) == (510 if kind in GIVEN else 1010)


def test_a_loop_goes_on_while_a_blocking_strategy_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    class Slow(Strategy):
        def generate(self, n: int) -> list[int]:
            assert go.wait(_LONGEST)
            return list(range(1, n + 1))

    monkeypatch.setitem(registry._registered, "slow", Slow)
    with AwaitedDesk("slow") as desk:
        under_way = asyncio.run_coroutine_threadsafe(
            desk.runner.run(desk.serving.take(3, Deadline(_LONGEST)), Deadline(_LONGEST)), desk.loop
        )
        desk.loop.call_soon_threadsafe(go.set)  # by the loop: it isn't blocked
        assert under_way.result(_LONGEST) == [1, 2, 3]


# ------------------------------------------------------------------------------------------------ a user's own


class Scripted(Strategy):
    """Does what the test says."""

    prepared = 0
    trouble: Exception | None = None
    gives: Any = None

    def prepare(self) -> None:
        type(self).prepared += 1
        if self.trouble is not None:
            raise self.trouble

    def generate(self, n: int) -> Any:
        return [1000] if self.gives is None else self.gives(n)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    made = type("Made", (Scripted,), {})
    monkeypatch.setitem(registry._registered, "scripted", made)
    return made


@pytest.mark.covers("3.39")
def test_it_is_prepared_once_before_the_first_number_and_again_if_that_failed(
    scripted: type[Scripted], colour: str
) -> None:
    with DESKS[colour]("scripted") as desk:
        assert scripted.prepared == 0
        scripted.trouble = OSError("no disk")
        with pytest.raises(StrategyFailed, match="strategy 'scripted' failed: OSError: no disk") as caught:
            desk.next()
        assert isinstance(caught.value.__cause__, OSError)
        assert (caught.value.tag, caught.value.strategy) == ("orders", "scripted")
        scripted.trouble = Unavailable("later", retry_after=7)  # an error of ours comes out as it is
        with pytest.raises(Unavailable, match="later") as ours:
            desk.next()
        assert (ours.value.retry_after, ours.value.tag) == (7, "orders")
        scripted.trouble = None
        assert (desk.next(), scripted.prepared) == (1000, 3)


def test_numbers_that_break_the_contract_are_not_issued(scripted: type[Scripted]) -> None:
    for gives, problem in (
        ([], "0 numbers instead of 2"),
        ([1, 2, 3], "3 numbers instead of 2"),
        ([2, 1], "1 after 2"),
        ([5, 5], "5 after 5"),
        ([0, 1], "0, which is no whole number"),
        ([1, 2**63], "9223372036854775808, which is no whole number"),
        ([1, "2"], "'2', which is no whole number"),
        ([True, 2], "True, which is no whole number"),
        (None, "gave None, which is no list"),
    ):
        scripted.gives = staticmethod(lambda _, gives=gives: gives)
        with Desk("scripted") as desk, pytest.raises(StrategyFailed, match=problem):
            desk.take(2)
    scripted.gives = staticmethod(lambda _: [1000])
    with Desk("scripted") as desk:
        assert desk.next() == 1000
        with pytest.raises(StrategyFailed, match="1000 after 1000; none of them was issued"):
            desk.next()


def test_blocking_methods_run_one_at_a_time(scripted: type[Scripted], colour: str) -> None:
    """Fifteen lines of a user needn't be safe for threads."""
    state = {"last": 0, "inside": 0, "asking": 0}
    found: list[int] = []

    def careless(n: int) -> list[int]:
        state["inside"] += 1
        assert state["inside"] == 1
        last = state["last"]
        until(lambda: state["asking"] == 12, timeout=_LONGEST)
        state["last"] = last + n
        state["inside"] -= 1
        return list(range(last + 1, last + n + 1))

    def ask() -> None:
        with counting:
            state["asking"] += 1
        found.extend(desk.take(3, _LONGEST))

    counting = threading.Lock()
    scripted.gives = staticmethod(careless)
    with DESKS[colour]("scripted") as desk:
        in_threads([ask] * 12)
    assert sorted(found) == list(range(1, 37))


def test_a_factory_that_makes_no_strategy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "wrong", lambda context: context)
    with pytest.raises(ConfigurationError, match="which is no Strategy"):
        Desk("wrong")


# ------------------------------------------------------------------------------------------------ without each guard


def test_without_the_guard_a_forked_child_repeats_its_parents_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = MovedClock()
    monkeypatch.setattr("issuer.clock.sleep", moved.sleep)
    monkeypatch.setitem(registry._registered, "moved", lambda context: Snowflake(context, clock=moved.clock))
    with Desk("moved", {}, instance=Instance(ip="192.0.2.5", machine=5, directory=str(tmp_path))) as desk:
        desk.take(5)
        assert in_a_child(desk, 50) == ConfigurationError.__name__
        monkeypatch.setattr(Serving, "_after_fork", lambda _serving: None)
        drawn = in_a_child(desk, 50)
        assert isinstance(drawn, list)
        assert len(repeats(drawn + desk.take(50))) == 50


def test_a_lease_counts_from_before_the_request_was_sent(
    fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over here before it is over there, however long the reply took."""
    moved = MovedClock(Clock().ms())

    def made(context: Context) -> Strategy:
        leased = Leased("issuer:machines:{orders}", context.instance.key, [5], clock=moved.clock, own=True)
        return Snowflake(context, clock=moved.clock, machines=leased)

    monkeypatch.setitem(registry._registered, "leased", made)
    with Desk("leased", {}, redis=fake_server.client(), instance=Instance(port=1, ip="192.0.2.5")) as desk:
        desk.found()
        strategy: Any = desk.serving.strategy
        assert strategy._ticks.tenure.until == moved.seconds + 30
        moved.seconds += 29.9
        assert strategy._ticks.turn() != OVER
        moved.seconds += 0.1
        assert strategy._ticks.turn() == OVER
