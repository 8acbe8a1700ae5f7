"""Strategies at work, for tests: under both drivers behind one face, with clocks that a test can move."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pytest

from issuer.clock import Deadline
from issuer.core.steps import Steps
from issuer.drivers.aio.connections import AsyncConnections
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.aio.runner import new_flight as new_async_flight
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.drivers.servers import from_client, from_url
from issuer.errors import Unavailable
from issuer.strategies import Context, Instance, Snowflake, Strategy, StrategyRunner, registry
from issuer.strategies.snowflake.machines import Clock
from issuer.strategies.snowflake.stored import Stored
from issuer_persistence.contract import Store
from issuer_persistence.opening import open_store
from tests.colours import Looped
from tests.servers.fake import FencedFakeServer

T = TypeVar("T")

#: 2024-01-01, in ms since 1970.
NEW_YEAR = 1_704_067_200_000

#: Of desks that don't name one: those that lease from one Redis have to have one store.
_STORE = open_store("memory://")


class MovedClock:
    """A wall clock and an elapsed one that stand still until they are moved. `sleep` moves both."""

    def __init__(self, ms: int = NEW_YEAR) -> None:
        self.ns = ms * 1_000_000
        self.seconds = 1000.0
        self.clock = Clock(lambda: self.ns, lambda: self.seconds)
        self.slept = 0.0

    @property
    def ms(self) -> int:
        return self.ns // 1_000_000

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.ns += round(seconds * 1e9)
        self.seconds += seconds

    def step(self, ms: int) -> None:
        """Somebody sets the wall clock; time goes on as it did."""
        self.ns += ms * 1_000_000


class Desk:
    """Hands out numbers of one strategy, for threads: what a facade does, in short."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        redis: Any = None,
        store: Store | None = None,
        tag: str = "orders",
        timeout: float = 5.0,
        instance: Instance | None = None,
        **more: Any,
    ) -> None:
        connections = self._connections(redis, timeout)
        self.runner: Any = self._runner(store or _STORE, connections, timeout)
        self.timeout = timeout
        self.alarms: list[Exception] = []
        context = Context(
            tag=tag,
            options=options or {},
            run=self.run,
            flight=self._flight,
            redis=connections is not None,
            alarm=self.alarms.append,
            instance=instance or Instance(application="tests", ip="192.0.2.5"),
            timeout=timeout,
        )
        self.serving = StrategyRunner(name, replace(context, **more))

    _runner: Any = Runner
    _flight = staticmethod(new_flight)

    @staticmethod
    def _connections(redis: Any, timeout: float) -> Any:
        if redis is None:
            return None
        url = isinstance(redis, str)
        return Connections(from_url(redis, redis, Connections.pool_class) if url else from_client(redis), timeout)

    def run(self, steps: Steps[T], deadline: Deadline) -> T:
        done: T = self.runner.run(steps, deadline)
        return done

    def next(self) -> int:
        for number in self.serving.ready or ():
            return number
        return self.take(1)[0]

    def take(self, n: int, timeout: float | None = None) -> list[int]:
        deadline = Deadline(self.timeout if timeout is None else timeout)
        return self.run(self.serving.take(n, deadline), deadline)

    def found(self) -> None:
        self._do(self.serving.found)

    def sweep(self) -> None:
        self._do(self.serving.sweep)

    def close(self) -> None:
        self._do(self.serving.close)

    def _do(self, steps: Callable[[Deadline], Steps[Any]]) -> None:
        deadline = Deadline(self.timeout)
        self.run(steps(deadline), deadline)

    def after_fork(self) -> None:
        """What the facade does in a forked child."""
        redis, store = self.runner.redis, self.runner.store
        if redis is not None:
            redis.begin()
        self.runner = self._runner(store, redis, self.timeout)
        store.after_fork()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AwaitedDesk(Looped, Desk):
    """The same for tasks: everything runs in a loop that has a thread of its own."""

    _runner = AsyncRunner
    _flight = staticmethod(new_async_flight)

    def __init__(self, *args: Any, **options: Any) -> None:
        async def begun() -> None:
            Desk.__init__(self, *args, **options)

        self._begin_loop()
        self.loop = self._loop
        try:
            self.wait(begun())
        except BaseException:
            self._end_loop()
            raise

    @staticmethod
    def _connections(redis: Any, timeout: float) -> Any:
        return None if redis is None else AsyncConnections(from_url(redis, redis, AsyncConnections.pool_class), timeout)

    def run(self, steps: Steps[T], deadline: Deadline) -> T:
        done: T = self.wait(self.runner.run(steps, deadline))
        return done

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
            if self.runner.redis is not None:
                self.wait(self.runner.redis.close())
        finally:
            self._end_loop()


class Host:
    """A host whose processes keep a copy of their machine number, and a server that can go away."""

    def __init__(self, server: FencedFakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.folder = folder
        self.moved = MovedClock(Clock().ms())
        monkeypatch.setattr("issuer.clock.sleep", self.moved.sleep)
        monkeypatch.setitem(registry._registered, "moved", lambda given: Snowflake(given, clock=self.moved.clock))
        self.opened: list[Desk] = []

    def start(self, port: int = 8112, *, found: bool = False, **options: Any) -> Desk:
        instance = Instance("sequence-client", port, "192.168.0.222", directory=str(self.folder))
        options = {"machine": "file", **options}
        desk = Desk("moved", options, redis=self.server.client(), instance=instance)
        self.opened.append(desk)
        if found:
            desk.found()
        return desk

    def machine(self, desk: Desk) -> int:
        desk.next()
        strategy = desk.serving.strategy
        assert isinstance(strategy, Snowflake)
        assert strategy.machine is not None
        return strategy.machine

    def crash(self, desk: Desk) -> None:
        """What a kill leaves: the file, the lease in Redis, and no lock."""
        strategy: Any = desk.serving.strategy
        strategy._machines._file.unlock()
        self.opened.remove(desk)

    def pass_time(self, seconds: float) -> None:
        self.moved.sleep(seconds)
        self.server.time_offset += seconds

    @property
    def file(self) -> Path:
        (found,) = self.folder.glob("*/*.properties")
        return found


def from_store(monkeypatch: pytest.MonkeyPatch, numbers: list[int], clock: Callable[[Context], MovedClock]) -> None:
    """Register a strategy "stored", which takes its machine number from the store, with the clock of its process."""

    def made(context: Context) -> Strategy:
        ticking = clock(context).clock
        machines = Stored("orders", context.instance.key, numbers, clock=ticking)
        return Snowflake(context, clock=ticking, machines=machines)

    monkeypatch.setitem(registry._registered, "stored", made)


class Opener:
    """Opens snowflake desks on one host, with the moved clock."""

    def __init__(self, moved: MovedClock, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved = moved
        self.directory = directory
        self.opened: list[Desk] = []
        monkeypatch.setitem(registry._registered, "moved", lambda context: Snowflake(context, clock=moved.clock))

    def __call__(self, machine: int = 1, **options: Any) -> Desk:
        instance = Instance(application="tests", ip="192.0.2.5", machine=machine, directory=str(self.directory))
        opened = Desk("moved", options, instance=instance)
        self.opened.append(opened)
        return opened


def each_ms(desk: Desk, pass_time: Callable[[float], object]) -> list[int]:
    """Draw a number in each of some thousand milliseconds; where none is to be had, wait."""
    numbers: list[int] = []
    for _ in range(4000):
        try:
            numbers.append(desk.next())
        except Unavailable:
            pass_time(0.25)
        pass_time(0.001)
    return numbers


class Opening(Protocol):
    def __call__(self, name: str, options: Mapping[str, Any] | None = None, **more: Any) -> Desk: ...


DESKS: Mapping[str, Opening] = {"blocking": Desk, "asyncio": AwaitedDesk}
