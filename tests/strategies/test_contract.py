"""What every strategy promises, under threads and under asyncio; how strategies are found, and processes named."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Steps, ask
from issuer.errors import ConfigurationError, IssuerError, SchemeError, StrategyFailed, Unavailable
from issuer.instance import own_ip
from issuer.strategies import Context, Instance, Snowflake, Strategy, register, registry, strategy_names
from issuer.strategies.snowflake.machines import Clock, LeasedMachines
from issuer_persistence.opening import open_store
from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.forks import in_child
from tests.refusals import refused
from tests.servers.fake import FencedFakeServer
from tests.strategies.hosts import DESKS, AwaitedDesk, Desk, MovedClock, Opening
from tests.waiting import until

# CPython warns that a fork in a process with threads may deadlock: those that a desk has don't keep locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

# CPython warns that a fork in a process with threads may deadlock: those that a desk has don't keep locks.
Open = Callable[..., Desk]
_LONGEST = 60.0
TAG = "orders"

#: Those whose machine number is given: a forked child has none.
GIVEN = ("snowflake-fixed", "snowflake-ordinal")

#: Those that lease it.
LEASED = ("snowflake-redis", "snowflake-file")
STORED = "snowflake-store"
KINDS = ("segment", *GIVEN, *LEASED, STORED, "own")


class Counted(Strategy):
    def prepare(self) -> None:
        self.path = Path(str(self.context.options["path"]))
        self.path.touch()

    def generate(self, n: int) -> list[int]:
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = int(file.read() or 0)
            file.seek(0)
            file.write(str(last + n))
        return list(range(last + 1, last + n + 1))


register("counted", Counted)


class Counter(Strategy):
    """The tag's counter, behind the interface of the other strategies."""

    def __init__(self, draw: Callable[[int, Deadline], Steps[Sequence[int]]], context: Context) -> None:
        super().__init__(context)
        self._draw = draw

    def generating(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        numbers: list[int] = []
        while len(numbers) < n:
            numbers += yield from self._draw(n - len(numbers), deadline)
        return numbers


def open_kind(kind: str, place: Path, redis: str, index: int, opening: Opening = Desk) -> Desk:
    """Open it for process `index` of those that share the place and the server."""
    opening = partial(opening, timeout=_LONGEST)  # on a machine busy with other things
    instance = Instance("tests", 8000 + index, "192.0.2.5", machine=None, directory=str(place))
    if kind == "segment":
        return _segment(place, opening)
    if kind == "own":
        return opening("counted", {"path": str(place / "counter")})
    options: dict[str, Any] = {"machine": kind.removeprefix("snowflake-")}
    if kind in LEASED or kind == STORED:
        place.mkdir(exist_ok=True)
        store = open_store(f"sqlite:///{place}/machines.db")
        leasing = redis if kind in LEASED else None
        return opening("snowflake", options, redis=leasing, instance=instance, store=store)
    if kind == "snowflake-ordinal":
        socket.gethostname = lambda: f"orders-{index}"
    else:
        instance = Instance("tests", 0, "192.0.2.5", machine=index, directory=str(place))
    return opening("snowflake", options, instance=instance)


def _segment(place: Path, opening: Opening) -> Desk:
    ids = issuer.connect(
        redis="none", store=f"sqlite:///{place}/store.db", scheduler=None, timeout=_LONGEST, store_timeout=_LONGEST
    )
    with suppress(issuer.TagExists):
        ids.create(TAG)

    def draw(n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        return (yield from ask(lambda _store, _seconds: ids.take(TAG, min(n, 1000), timeout=deadline.left())))

    register("counter", partial(Counter, draw))
    return opening("counter")


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.live] if kind in LEASED else []) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def colour(kind: str) -> str:
    """One for each strategy, by turns: they know nothing of it."""
    return list(DESKS)[KINDS.index(kind) % 2]


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
    assert all(0 < number <= HIGHEST for number in numbers)
    drawn: list[list[int]] = [numbers, *([] for _ in range(8))]

    def draw(mine: list[int]) -> None:
        for _ in range(15):
            mine += [desk.next(), *desk.take(5)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(draw, drawn[1:]))
    assert [len(mine) for mine in drawn[1:]] == [15 * 6] * 8
    assert not repeats([number for mine in drawn for number in mine])
    assert all(one < two for mine in drawn for one, two in pairwise(mine))
    desk.close()
    for call in (desk.next, lambda: desk.take(3)):
        refused(IssuerError, "closed", call)
    desk.close()


@pytest.mark.covers("3.34")
def test_processes_and_forked_children_never_get_the_same_number(
    opened: Open, kind: str, redis_of: str, tmp_path: Path
) -> None:
    desk = opened(1)
    numbers = desk.take(10)

    def forked() -> list[int]:
        desk.after_fork()
        return [desk.next(), *desk.take(499)]

    def another(index: int) -> list[int]:
        with open_kind(kind, tmp_path, redis_of, index) as own:
            return [own.next(), *own.take(499)]

    for work in (forked, partial(another, 2), partial(another, 3)):
        drawn = in_child(work)()
        if work is forked and kind in GIVEN:
            # The number is the parent's, and there is no other one to be had.
            assert str(drawn).startswith(ConfigurationError.__name__)
            drawn = []
        assert isinstance(drawn, list), drawn
        numbers += drawn + desk.take(500)
    assert len(numbers) == 10 + 3 * 1000 - 500 * (kind in GIVEN)
    assert not repeats(numbers)


def test_a_loop_goes_on_while_a_blocking_strategy_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    class Slow(Strategy):
        def generate(self, n: int) -> list[int]:
            assert go.wait(_LONGEST)
            return list(range(1, n + 1))

    monkeypatch.setitem(registry._registered, "slow", Slow)
    with AwaitedDesk("slow", timeout=_LONGEST) as desk:
        under_way = asyncio.run_coroutine_threadsafe(
            desk.runner.run(desk.serving.take(3, Deadline(_LONGEST)), Deadline(_LONGEST)), desk.loop
        )
        desk.loop.call_soon_threadsafe(go.set)  # by the loop: it isn't blocked
        assert under_way.result(_LONGEST) == [1, 2, 3]


class Scripted(Strategy):
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
def test_it_is_prepared_once_before_the_first_number_and_again_if_that_failed(scripted: type[Scripted]) -> None:
    with Desk("scripted", timeout=_LONGEST) as desk:
        assert scripted.prepared == 0
        scripted.trouble = OSError("no disk")
        caught = refused(StrategyFailed, "strategy 'scripted' failed: OSError: no disk", desk.next)
        assert isinstance(caught.__cause__, OSError)
        assert (caught.tag, caught.strategy) == ("orders", "scripted")
        scripted.trouble = Unavailable("later", retry_after=7)  # an error of ours comes out as it is
        ours = refused(Unavailable, "later", desk.next)
        assert (ours.retry_after, ours.tag) == (7, "orders")
        scripted.trouble = None
        assert (desk.next(), scripted.prepared) == (1000, 3)


def test_what_breaks_the_contract_issues_nothing(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "wrong", lambda context: context)
    refused(ConfigurationError, "which is not a Strategy", Desk, "wrong")
    for gives, problem in (
        ([], "0 numbers instead of 2"),
        ([1, 2, 3], "3 numbers instead of 2"),
        ([2, 1], "1 after 2"),
        ([5, 5], "5 after 5"),
        ([0, 1], "0, which is not a whole number"),
        ([1, 2**63], "9223372036854775808, which is not a whole number"),
        ([1, "2"], "'2', which is not a whole number"),
        ([True, 2], "True, which is not a whole number"),
        (None, "returned None, which is not a list"),
    ):
        scripted.gives = staticmethod(lambda _, gives=gives: gives)
        with Desk("scripted", timeout=_LONGEST) as desk, pytest.raises(StrategyFailed, match=problem):
            desk.take(2)
    scripted.gives = staticmethod(lambda _: [1000])
    with Desk("scripted", timeout=_LONGEST) as desk:
        assert desk.next() == 1000
        refused(StrategyFailed, "1000 after 1000; none of them was issued", desk.next)


@pytest.mark.parametrize("colour", DESKS)
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

    def ask(_: int) -> None:
        with counting:
            state["asking"] += 1
        found.extend(desk.take(3, _LONGEST))

    counting = threading.Lock()
    scripted.gives = staticmethod(careless)
    with DESKS[colour]("scripted", timeout=_LONGEST) as desk, ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(12)))
    assert sorted(found) == list(range(1, 37))


def test_a_lease_counts_from_before_the_request_was_sent(
    fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over here before it is over there, however long the reply took."""
    moved, asked = MovedClock(Clock().ms()), []

    def made(context: Context) -> Strategy:
        leased = LeasedMachines("issuer:machines:{orders}", context.instance.key, [5], clock=moved.clock, own=True)
        return Snowflake(context, clock=moved.clock, machines=leased)

    monkeypatch.setitem(registry._registered, "leased", made)
    instance = Instance(port=1, ip="192.0.2.5")
    with Desk("leased", {}, redis=fake_server.client(), instance=instance, timeout=_LONGEST) as desk:
        send = desk.runner.redis.do

        async def slow(*arguments: Any, **options: Any) -> Any:
            asked.append(moved.seconds)
            answer = await send(*arguments, **options)
            moved.seconds += 7
            return answer

        monkeypatch.setattr(desk.runner.redis, "do", slow)
        desk.found()
        strategy: Any = desk.serving.strategy
        assert strategy._ticks.tenure.until == asked[-1] + 30


@pytest.mark.covers("3.6")
def test_an_installed_package_brings_strategies_by_its_entry_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "brought.py").write_text(
        "from issuer.strategies import Strategy\n"
        "class Tens(Strategy):\n"
        "    def generate(self, n):\n"
        "        return [10 * each for each in range(1, n + 1)]\n"
    )
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[issuer.strategies]\ntens = brought:Tens\nlost = nowhere:Strategy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"tens", "lost"} <= set(strategy_names())
    with Desk("tens") as desk:
        assert desk.take(3) == [10, 20, 30]
    refused(ConfigurationError, "^strategy: the entry point of 'lost' can't be loaded", Desk, "lost")
    sys.modules.pop("brought", None)


def test_what_cannot_be_registered_is_refused() -> None:
    for name in ("segment", "snowflake"):
        refused(ConfigurationError, f"'{name}' is built in", register, name, Strategy)
    refused(ConfigurationError, "a strategy must have a name", register, "", Strategy)
    refused(ConfigurationError, "must be a function of a Context, not None", register, "evens", None)
    refused(SchemeError, r"^strategy: unknown strategy 'leaf'; the strategies are .*segment, snowflake", Desk, "leaf")


@pytest.mark.covers("3.35", "3.37")
def test_the_key_is_application_port_and_ip_as_one_number_and_the_file_is_named_by_it() -> None:
    wholes = {"192.168.0.94": 3232235614, "192.168.0.222": 3232235742, "10.0.0.1": 167772161, "::1": 1}
    for ip, whole in wholes.items():
        instance = Instance("sequence-client", 8112, ip)
        assert instance.key == f"sequence-client.8112.{whole}"
        assert instance.file == f"sequence-client:8112:{whole}.properties"


@pytest.mark.covers("3.50")
def test_what_a_registry_says_makes_the_same_key_as_what_is_found_here() -> None:
    from_registry = {"application": "orders-service", "port": 8080, "ip": own_ip()}
    assert Instance(**from_registry).key == Instance("orders-service", 8080).key  # type: ignore[arg-type]  # as it comes


def test_an_instance_that_makes_no_key_is_refused() -> None:
    wrong: list[tuple[str, str, list[Any]]] = [
        ("application", "application must consist of", ["", "a.b", "a/b"]),
        *((name, f"{name} must be a text, not ", [5]) for name in ("application", "ip", "directory")),
        ("port", "port must be a whole number, not ", ["x", True, 1.0, None]),
        ("machine", "machine must be a whole number, not ", ["7", True]),
        ("rack", "rack must be a whole number, not ", [1.0]),
        ("port", "port must be a whole number 0..65535, not ", [-1, 65_536]),
        ("ip", "ip must be an address such as 192.168.0.94, not ", ["192.168.0", "localhost"]),
    ]
    for name, problem, values in wrong:
        for value in values:
            assert repr(value) in str(refused(ConfigurationError, problem, Instance, **{name: value}))
