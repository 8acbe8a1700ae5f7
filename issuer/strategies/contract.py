"""Contract of strategies, and the context that a strategy receives.

    class Odd(Strategy):
        def prepare(self) -> None:
            self._numbers = count(own_range(self.context.tag), 2)

        def generate(self, n: int) -> list[int]:
            return list(islice(self._numbers, n))

    register("odd", Odd)

`own_range` is a function of yours: it returns the first number of a range that no other process uses.

Rules:

- A strategy object serves one tag of one issuer. The factory, here the class Odd, creates the object. It is called with
  a Context, and must not wait for anything.
- You must make sure that processes never produce the same number. `prepare` runs once per process. It runs again if it
  failed, and in each forked child on a new object. So use `prepare`, not `__init__`, to obtain what is unique to the
  process.
- `generate(n)` returns exactly n whole numbers, 1..2^63-1. Each is higher than all numbers that earlier calls returned.
- `prepare`, `generate` and `close` may block. Only one thread at a time calls them. Under asyncio this thread is a
  worker thread.
- A strategy that does not block can override `preparing`, `generating` and `closing` instead, and `sweep`, which the
  issuer calls about once a second. These methods are generators. They yield steps: requests to Redis and the store (see
  core/steps.py). They run in threads and in tasks, and several can run at once.
- If a class of issuer.errors fits, raise it. If a strategy raises any other error, the caller receives StrategyFailed,
  with this error as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from issuer.clock import Deadline
from issuer.core.steps import Flight, Steps, ask
from issuer.core.supply.runtime import Job
from issuer.errors import IssuerError
from issuer.instance import Instance
from issuer.strategies.options import Scalar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a strategy: its tag, and functions of the issuer that it can use.

    Attributes:
        tag: Name of the tag.
        options: Options from the tag's scheme.
        run: Function that runs steps (see core/steps.py) to their end, in a thread. A method that returns steps must
            not call it: use `yield from` there.
        flight: Function that returns a new Flight. If several callers need the same work, one does the work, and the
            others wait on the Flight for the result.
        prefix: Text with which the issuer's Redis keys begin.
        redis: True if the issuer has Redis.
        timeout: Default timeout of a call, in seconds.
        window: Longest duration of a background job, in seconds.
        alarm: Function to call with an error that an operator must handle. Observers get it as the event `Alarm`.
        background: Function that runs a job on the scheduler. It returns False if no scheduler is running.
        instance: Identity of this process.
    """

    tag: str
    options: Mapping[str, Scalar]
    run: Callable[[Steps[T], Deadline], T]
    flight: Callable[[], Flight]
    prefix: str = "issuer"
    redis: bool = True
    timeout: float = 5.0
    window: float = 5.0
    alarm: Callable[[IssuerError], None] = lambda _error: None
    background: Callable[[Job], bool] = lambda _job: False
    instance: Instance = field(default_factory=Instance)


class Strategy:
    """Base class of strategies. Override `prepare` and `generate`, or `preparing` and `generating`."""

    def __init__(self, context: Context) -> None:
        """Keep the context. This method must not contact a server."""
        self.context = context

    # ------------------------------------------------------------------ class methods

    @classmethod
    def check(cls, options: Mapping[str, Scalar]) -> None:
        """Check the options of a tag before it is created.

        Raises:
            ConfigurationError: A tag cannot have these options.
        """

    @classmethod
    def settled(cls, options: Mapping[str, Scalar], instance: Instance, *, redis: bool) -> Mapping[str, Scalar]:  # noqa: ARG003 - for overriding methods
        """Return the options to store with a new tag.

        A strategy can add options that must be the same in all processes, such as the source of machine numbers.
        """
        return options

    @classmethod
    def decode(cls, options: Mapping[str, Scalar], value: int) -> Mapping[str, int]:  # noqa: ARG003 - for overriding methods
        """Return the parts that are packed into a number, by name.

        Raises:
            InvalidArgument: A tag with these options cannot have issued this number.
        """
        return {}

    @classmethod
    def holder(cls, options: Mapping[str, Scalar], value: int, tag: str, prefix: str) -> Steps[str | None]:  # noqa: ARG003 - for overriding methods
        """Return a description of the process that made a number. None if the process is unknown."""
        return None
        yield

    # ------------------------------------------------------------------ methods that may block

    def prepare(self) -> None:
        """Do the work that is needed once per process."""

    def generate(self, n: int) -> Sequence[int]:
        """Return n numbers."""
        raise NotImplementedError(f"{type(self).__name__} has neither generate() nor generating()")

    def close(self) -> None:
        """Release the resources of the strategy. The issuer calls this once, after the last `generate`."""

    def after_fork(self) -> None:
        """Discard the parent's resources in a forked child, without closing connections.

        The child does not use this object: it creates a new one.
        """

    # ------------------------------------------------------------------ methods that return steps

    def preparing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - for overriding methods
        """Do the work of `prepare`, as a generator of steps."""
        yield from ask(lambda _store, _seconds: self.prepare())

    def generating(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:  # noqa: ARG002 - for overriding methods
        """Return n numbers, as a generator of steps."""
        return (yield from ask(lambda _store, _seconds: self.generate(n)))

    def closing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - for overriding methods
        """Do the work of `close`, as a generator of steps."""
        yield from ask(lambda _store, _seconds: self.close())

    def sweep(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - for overriding methods
        """Do periodic work, such as renewing a lease. The issuer calls this about once a second after `preparing`."""
        return
        yield

    def found(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - for overriding methods
        """Do the work for a new tag (to found, not to find). Example: claim the first machine number, which is free.

        Called only if this process has just created the tag, and no earlier, deleted tag had the same name. So no other
        process can have the first machine number.
        """
        return
        yield

    @property
    def ready(self) -> Iterator[int] | None:
        """Iterator over numbers that can be used without waiting, or None if the strategy has no such iterator.

        `Issuer.next` takes numbers from this iterator without calling `generating`. Several threads use it at once, and
        forked child processes use it too. When it has no more numbers, it must raise StopIteration. The issuer then
        calls `generating`.
        """
        return None

    @property
    def equipped(self) -> bool | None:
        """Whether this process holds the machine number that its numbers need, for metrics. None if they need none."""
        return None
