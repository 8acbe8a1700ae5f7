"""The engine of an Issuer. It serves all threads of a process."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from issuer.care.chronicler import SHORT
from issuer.clock import Deadline
from issuer.drivers.blocking.combiner import Combiner
from issuer.drivers.blocking.runner import Runner, new_flight, run_in_thread
from issuer.engine.base import OPEN_ENGINES
from issuer.engine.calls import EngineCalls
from issuer.engine.scheduler import Chosen, Threads
from issuer.errors import IssuerError
from issuer.forks import GENERATION, no_fork, notice, refuse_inherited
from issuer.operations.config import CLOSING, IssuerConfig
from issuer.operations.numbers import PLAIN
from issuer.threads import finished

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from issuer.core.steps import Steps
    from issuer.drivers.blocking.connections import Connections
    from issuer.plugins.chain import Chain

T = TypeVar("T")


class Engine(EngineCalls[Combiner]):
    """An Issuer without its public methods; see BaseEngine."""

    face = "Issuer"
    _executor = Threads
    _flight = staticmethod(new_flight)
    _runner = Runner
    runner: Runner

    def __init__(
        self,
        config: IssuerConfig,
        redis: Connections | None,
        chosen: Chosen,
        publish: Callable[[dict[str, Iterator[int]]], object],
    ) -> None:
        """`publish`: function that receives a dict with the iterator for each tag, from which `next` takes numbers.

        It is called once here, and again in a forked child, which has a new dict.
        """
        self._publish = publish
        super().__init__(config, redis, chosen)

    def start(self) -> None:
        """Create everything that belongs to one process."""
        super().start()
        # With plugins the dict is empty, because plugins must see each call.
        self._publish(self.runtime.fast_path.numbers if self.chain is None else {})

    @staticmethod
    def _chain(plugins: Iterable[Any]) -> Chain:
        with no_fork():
            from issuer.plugins.chain import Chain

        return Chain(plugins)

    def make_combiner(self, tag: str) -> Combiner:
        """Create the combiner of a tag."""
        return Combiner(tag, self.config.key(tag), self.runtime, self.runner, self.timeout)

    enter = staticmethod(notice)

    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps (calls to Redis and the store) to their end, and return their result."""
        if self.registry.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return self.runner.run(steps, deadline, tag)

    run_draw = run

    def run_in_thread(self, steps: Steps[T], deadline: Deadline, *, tag: str) -> T:
        """Run steps for a strategy that blocks. It calls this in a thread of the store pool."""
        return run_in_thread(self.runner, steps, deadline, tag)

    def take(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        """Draw exactly n numbers. Plugins are called before and after the draw."""
        return self._taken(tag, n, deadline) if self.chain is None else self._around(tag, n, deadline)

    def _around(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        async def draw() -> list[int]:
            return self._taken(tag, n, deadline)

        with self.attempt(tag):
            return finished(lambda: self.around(tag, n, PLAIN, deadline, draw))

    # `_drawn` in aio.py does the same for asyncio. Code for both would need a generator, which takes 2 to 6 us more for
    # each draw.
    def _taken(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        numbers: list[int] = []
        generation = GENERATION.now
        try:
            combiner = self.registry.combiner(tag)
            while (left := n - len(numbers)) > 0:
                if combiner.state.lacks(left):
                    self.runner.run(combiner.supply.check_left(left), deadline, tag)
                drawn = combiner.draw(left, deadline)
                combiner.state.bulk += len(drawn) - 1
                numbers += drawn if combiner.state.scheme is None else map(combiner.state.value, drawn)
        except IssuerError as error:
            self.part_way(tag, error, numbers)
            raise
        finally:
            refuse_inherited(generation, tag)  # also after an error: the numbers in `error.drawn` are the parent's
        return numbers

    # ------------------------------------------------------------------ background work

    def background(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Run a coroutine function in the background; see Scheduler.background."""
        return self.scheduler.background(finished, work)

    def sweep(self) -> None:
        """Do the background work of all tags in use. The scheduler calls this every second."""
        finished(self.upkeep.sweep)

    # ------------------------------------------------------------------ end and forks

    def close(self) -> None:
        """End background work, return unused numbers, and close the connections. A second call does nothing."""
        notice()  # at the end of a child, numbers of the parent must not be returned
        self.config.events.call_periodic(at_once=True)
        combiners = self.registry.close()
        if combiners is None:
            return
        deadline = Deadline(CLOSING)
        with ExitStack() as ends:
            # At the end of this block, these calls run in reverse order. Each call runs even if others fail.
            ends.callback(self.config.events.call_periodic, at_once=True)
            ends.callback(OPEN_ENGINES.discard, self)
            ends.callback(self.runner.pool.close)
            if self.config.own_store:
                ends.callback(self.config.store.close)
            if self.runner.redis is not None:
                ends.callback(self.runner.redis.close)
                ends.callback(lambda: self.runner.run(self.chronicle.ending(), Deadline(SHORT), None))
            ends.callback(finished, self.upkeep.end)
            for combiner in combiners:
                ends.callback(self.runner.run, combiner.supply.close(deadline), deadline, combiner.tag)
            ends.callback(self.scheduler.stop)


def close_all() -> None:
    """Close all open issuers at exit, so that they return their unused numbers."""
    for engine in list(OPEN_ENGINES):
        if isinstance(engine, Engine):
            engine.close()


atexit.register(close_all)
