"""The parts of an issuer that are the same for threads and for tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from apscheduler.schedulers.base import BaseScheduler

from issuer.care.chronicler import Chronicler, Waiting
from issuer.care.pruning import Pruning
from issuer.care.upkeep import Upkeep
from issuer.clock import Deadline
from issuer.core.events import Alarm
from issuer.core.scheme_record import strategy
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.runtime import Runtime
from issuer.engine.scheduler import Chosen, Scheduler
from issuer.errors import IssuerError
from issuer.forks import GENERATION, living, no_fork, refuse_inherited
from issuer.operations.numbers import Issuing
from issuer.operations.registry import AnyCombiner, TagRegistry
from issuer.settings import seconds

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from issuer.care.care import Care
    from issuer.core.steps import Steps
    from issuer.core.supply.source import TagSource
    from issuer.operations.config import IssuerConfig
    from issuer.plugins.chain import Plugins
    from issuer_persistence.records import Tag

L = TypeVar("L", bound=AnyCombiner)
T = TypeVar("T")


class BaseEngine(ABC, Generic[L]):
    """An issuer without its public methods. Other modules may use all names here that do not begin with an underscore.

    After a fork, and in a new event loop, the engine replaces its scheduler, runtime, registry, issuing, upkeep and
    chronicle. So each call must first call `enter` or `deadline`, and then read these attributes. It must not keep
    their values.
    """

    #: Name of the public class, for messages.
    face: ClassVar[str]
    #: Classes and functions that differ for threads and for asyncio tasks. Each subclass sets its own.
    _executor: ClassVar[Any]
    _flight: ClassVar[Any]
    _runner: ClassVar[Any]

    #: The plugins, or None without plugins.
    chain: Plugins[Any] | None
    runner: Any
    scheduler: Scheduler
    runtime: Runtime
    registry: TagRegistry[L]
    issuing: Issuing[L]
    upkeep: Upkeep
    chronicle: Chronicler

    def __init__(self, config: IssuerConfig, redis: object, chosen: Chosen) -> None:
        """`redis`: the connections to Redis, or None. `chosen`: the argument `scheduler` of `connect`, see Chosen."""
        self.config = config
        self.chain = self._chain(config.plugins) if config.plugins else None
        self._chosen = chosen
        #: Longest wait in seconds of a call that has no `timeout`.
        self.timeout = config.settings.timeout
        self.runner = self._runner(config.store, redis, config.settings.store_timeout, config.relay)
        self._pruning = Pruning(config.store.url)
        self._waiting_lines = Waiting(config.instance.application)
        if config.redis is not None and config.relay is None:
            config.events.add(self._waiting_lines)
        self.start()
        OPEN_ENGINES.add(self)

    @staticmethod
    @abstractmethod
    def _chain(plugins: Iterable[Any]) -> Any:
        """Return the chain of the plugins."""

    def start(self) -> None:
        """Create everything that belongs to one process and one event loop."""
        config, window = self.config, self.config.settings.window
        self.scheduler = Scheduler(self.sweep, self._executor, self._chosen)
        self.runtime = Runtime(
            settings=config.settings,
            window=window,
            makes=config.settings.embedded,
            redis=config.redis is not None and config.relay is None,
            store=config.store.url,
            background=partial(self.scheduler.background, self.runner.work, window),
            scheduled=self._chosen is not None,
            flight=self._flight,
            attend=self.scheduler.start,
            fast_path=FastPath(),
            scheme=config.texts,
            identity=config.identity,
            moving=set(),
            seen={},
            emit=config.events.emit,
            elsewhere=config.elsewhere,
            source=self._source,
            application=config.instance.application,
        )
        self.registry = TagRegistry(self.make_combiner, self.runtime)
        shared = self.registry, self.config, self.runtime
        lines = self._waiting_lines
        self.chronicle = Chronicler(config, self.registry, lines, run=self.run, deadline=self.deadline)
        self.issuing = Issuing(*shared)
        self.upkeep = Upkeep(
            *shared,
            self.runner.redis,
            pruning=self._pruning,
            run=self.run,
            deadline=self.deadline,
            background=self.background,
            chronicle=self.chronicle,
        )

    @property
    def care(self) -> Care:
        """Operations on many tags. Their code is loaded when one is called."""
        with no_fork():
            from issuer.care import care

        return care.Care(self.config, self._waiting, self.chronicle, run=self.run, deadline=self.deadline)

    def _waiting(self, tag: str) -> int | None:
        combiner = self.registry.combiners.get(tag)
        return None if combiner is None else combiner.waiting

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.registry.closed

    @abstractmethod
    def make_combiner(self, tag: str) -> L:
        """Create the combiner of a tag."""

    @abstractmethod
    def enter(self) -> None:
        """Detect a fork in C, for which Python calls no hook, and, for asyncio, a new event loop.

        Every call begins with `enter`.
        """

    def deadline(self, timeout: float | None) -> Deadline:
        """Call `enter`, and return the deadline of a call with this `timeout`. Raises InvalidArgument."""
        self.enter()
        return Deadline(self.timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    @contextmanager
    def attempt(self, tag: str) -> Iterator[None]:
        """Context manager around a call for numbers. If the call raises an IssuerError, the error is reported.

        If the process was forked during the call, the child's copy of the call raises Unavailable.
        """
        generation = GENERATION.now
        try:
            yield
        except IssuerError as error:
            self.issuing.failed(tag, error)
            raise
        finally:
            refuse_inherited(generation, tag)  # also after an error: `error.drawn` may contain numbers of the parent

    def part_way(self, tag: str, error: IssuerError, drawn: list[int]) -> None:
        """Note the numbers that a `take` had drawn before the error, and report the error."""
        error.drawn = drawn
        if self.chain is None:  # `attempt` reports those of a call with plugins
            self.issuing.failed(tag, error)

    def refused(self, tag: str, error: IssuerError) -> None:
        """Report that a caller got no number because of `error`."""
        self.issuing.failed(tag, error)

    @abstractmethod
    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps (calls to Redis and the store) to their end. Raises IssuerError if the issuer is closed."""

    @abstractmethod
    def background(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Run a coroutine function in the background; see Scheduler.background."""

    @abstractmethod
    def run_in_thread(self, steps: Steps[Any], deadline: Deadline, *, tag: str) -> Any:
        """Run steps for a strategy that blocks. It calls this in a thread, which waits for the result."""

    def _source(self) -> Callable[[Tag], TagSource]:
        with no_fork():
            from issuer.drivers.relay import RelaySource
            from issuer.strategies.contract import Context
            from issuer.strategies.serving import StrategyRunner

        def made(record: Tag) -> TagSource:
            if self.config.relay is not None and self.config.elsewhere(record):
                return RelaySource(self.config.relay, record.tag)
            context = Context(
                tag=record.tag,
                options=record.scheme.get("options", {}),
                prefix=self.config.settings.prefix,
                timeout=self.config.settings.timeout,
                instance=self.config.instance,
                alarm=lambda error: self.config.events.emit(Alarm(record.tag, error)),
                run=partial(self.run_in_thread, tag=record.tag),
                flight=self.runtime.flight,
                redis=self.config.redis is not None,
                background=self.runtime.background,
                window=self.config.settings.window,
            )
            return StrategyRunner(strategy(record.scheme), context)

        return made

    @abstractmethod
    def sweep(self) -> Any:
        """Do the background work of all tags in use. The scheduler calls this every second."""

    def after_fork(self) -> None:
        """Start again in a forked child."""
        if isinstance(self._chosen, BaseScheduler):
            # The caller's scheduler seems to run, but its thread or loop is in the parent. So the child uses no
            # scheduler: its callers load segments.
            self._chosen = None
        self._waiting_lines.begin()
        config = self.config
        self.runner = self._runner(config.store, self.runner.redis, config.settings.store_timeout, config.relay)
        self.begin_anew()
        config.store.after_fork()

    def begin_anew(self) -> None:
        """Replace all objects that belong to another process or event loop."""
        # This step must be first, because the parent issues the same numbers. If a later step raises an error in a
        # forked child, the child runs on: the error is only logged.
        self.registry.discard()
        if self.runner.redis is not None:
            self.runner.redis.begin()
        self.start()

    def unpublish(self) -> None:
        """Before a fork in C, as by uWSGI: hide the numbers that `next` takes from memory.

        In the child, `next` would take the parent's numbers, because it does not check for a fork.
        """
        self.registry.unpublish()

    def settle(self) -> None:
        """In the parent, after a fork in C: show `next` again the numbers that `unpublish` has hidden."""
        self.registry.settle()

    def __repr__(self) -> str:
        return self.config.described(self.face)


#: The open engines of this process. In a forked child they start again. At exit they are closed.
OPEN_ENGINES: weakref.WeakSet[BaseEngine[Any]] = living(
    lambda each: each.after_fork(),
    unseen=lambda each: each.unpublish(),
    unseen_over=lambda each: each.settle(),
)
