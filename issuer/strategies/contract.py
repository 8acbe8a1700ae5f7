"""The contract of strategies, and the context that each is given.

    class Odd(Strategy):
        def prepare(self) -> None:
            self._numbers = count(own_range(self.context.tag), 2)

        def generate(self, n: int) -> list[int]:
            return list(islice(self._numbers, n))

    register("odd", Odd)

Rules:
- A strategy belongs to one tag of one issuer. The factory is called with its Context, and must not wait for anything.
- `prepare` comes before the first `generate`, again if it failed, and again in each forked child, on a strategy that
  the factory makes there: what makes numbers unique belongs there, not into `__init__`.
- `generate(n)` returns exactly n whole numbers, 1..2^63-1, each one greater than all that it has returned before.
- `prepare`, `generate` and `close` may block: one thread at a time calls them, under asyncio one of a thread pool.
- A strategy that would rather not block overrides `preparing`, `generating`, `closing` and `sweep`, which are steps as
  in core/steps.py: they run as they are in threads and in tasks, and several may be under way at once.
- Raise what issuer.errors has where it fits; anything else reaches the caller as the cause of a StrategyFailed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TypeVar

from issuer.clock import Deadline
from issuer.core.steps import Flight, Steps, ask
from issuer.core.supply.runtime import Job
from issuer.errors import ConfigurationError, IssuerError, brief
from issuer.strategies.options import Scalar

T = TypeVar("T")

#: Draws n numbers of the tag's counter.
Draw = Callable[[int, Deadline], Steps[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity of this process among others: settings of a machine, not of a tag.

    `application`, `port` (0: none) and `ip` ("": that of this host) may come from a service registry. `machine`: its
    fixed machine number, or worker where the layout has racks; `rack`: where it stands. `directory`: for small files.
    Raises ConfigurationError.
    """

    application: str = "issuer"
    port: int = 0
    ip: str = ""
    machine: int | None = None
    rack: int | None = None
    directory: str = ""

    def __post_init__(self) -> None:
        """Check the types, and what goes into the names of keys and files."""
        for setting, kind in (("application", str), ("ip", str), ("directory", (str, os.PathLike))):
            text: object = getattr(self, setting)
            if not isinstance(text, kind):
                raise ConfigurationError(f"{setting} is a text, not {brief(text)}")
        for setting in ("port", "machine", "rack"):
            number: object = getattr(self, setting)
            missing = number is None and setting != "port"
            if not missing and (isinstance(number, bool) or not isinstance(number, int)):
                raise ConfigurationError(f"{setting} is a whole number, not {brief(number)}")
        name = self.application
        if not name or not name.isascii() or not all(letter.isalnum() or letter in "-_" for letter in name):
            raise ConfigurationError(f"application is made of a-z, 0-9, - and _, not {brief(name)}")
        if not 0 <= self.port < 1 << 16:
            raise ConfigurationError(f"port is a whole number 0..65535, not {brief(self.port)}")
        if self.ip:
            self.address()

    def address(self) -> int:
        """Return the ip as one whole number: 192.168.0.94 is 3232235614. Raises ConfigurationError."""
        try:
            return int(ip_address(self.ip or own_ip()))
        except ValueError as error:
            raise ConfigurationError(f"ip is an address like 192.168.0.94, not {brief(self.ip)}") from error

    @property
    def key(self) -> str:
        """The holder of the machine number: application.port.ip, the ip as one whole number."""
        return f"{self.application}.{self.port}.{self.address()}"

    @property
    def file(self) -> str:
        """The name of its file: the same with colons."""
        return f"{self.application}:{self.port}:{self.address()}.properties"


def own_ip() -> str:
    """Return the address that this host has towards others; 127.0.0.1 if it has no network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that no host has, by RFC 5737
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _no_background(job: Job) -> bool:  # noqa: ARG001 - there is no scheduler to give it to
    return False


def _no_alarm(error: IssuerError) -> None:
    """Do nothing: what is wrong is logged anyway."""


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a strategy, given to its factory.

    `tag`; `options`: from the tag's scheme. `run(steps, deadline)`: runs steps of the core to their end, in a thread;
    never from steps, which `yield from` them. `flight`: makes a flight for this driver. `prefix`: of Redis keys;
    `redis`: whether there is one. `timeout`: seconds that a call may wait if it doesn't say; `window`: that a job of
    the scheduler may take. `alarm`: to be called with an error that people should hear of. `background(job)`: runs a
    job on the scheduler, False if none is alive. `draw`: draws of the tag's counter, None if it has none. `instance`:
    this process.
    """

    tag: str
    options: Mapping[str, Scalar]
    run: Callable[[Steps[T], Deadline], T]
    flight: Callable[[], Flight]
    prefix: str = "issuer"
    redis: bool = True
    timeout: float = 5.0
    window: float = 5.0
    alarm: Callable[[IssuerError], None] = _no_alarm
    background: Callable[[Job], bool] = _no_background
    draw: Draw | None = None
    instance: Instance = field(default_factory=Instance)


class Strategy:
    """Makes the numbers of a tag. Override `prepare` and `generate`, or `preparing` and `generating`."""

    def __init__(self, context: Context) -> None:
        """Keep the context; nothing is contacted here."""
        self.context = context

    # ------------------------------------------------------------------ of a tag, without making its numbers

    @classmethod
    def check(cls, options: Mapping[str, Scalar]) -> None:
        """Raise ConfigurationError if a tag can't have these options: `create` asks before it makes one."""

    @classmethod
    def settled(cls, options: Mapping[str, Scalar], instance: Instance, *, redis: bool) -> Mapping[str, Scalar]:  # noqa: ARG003 - the same
        """Return the options that a tag is made with, by this instance: what all processes must take alike is said."""
        return options

    @classmethod
    def decode(cls, options: Mapping[str, Scalar], value: int) -> Mapping[str, int]:  # noqa: ARG003 - the same
        """Return what is packed into a number of such a tag, by name. InvalidArgument if it can't be one."""
        return {}

    @classmethod
    def holder(cls, options: Mapping[str, Scalar], value: int, tag: str, prefix: str) -> Steps[str | None]:  # noqa: ARG003 - the same
        """Tell people which process made that number, as far as it can be found out. `prefix`: of Redis keys."""
        return None
        yield

    # ------------------------------------------------------------------ for those that may block

    def prepare(self) -> None:
        """Get ready: do what has to be done once in each process."""

    def generate(self, n: int) -> Sequence[int]:
        """Return n numbers."""
        raise NotImplementedError(f"{type(self).__name__} has neither generate() nor generating()")

    def close(self) -> None:
        """Give back what was taken. Called once, after the last `generate`."""

    def after_fork(self) -> None:
        """In a forked child, where this strategy is used no more: forget what is the parent's; close no connection."""

    # ------------------------------------------------------------------ for those that would rather not

    def preparing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - for overriding methods
        """As `prepare`, in steps."""
        yield from ask(lambda _store, _seconds: self.prepare())

    def generating(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:  # noqa: ARG002 - the same
        """As `generate`, in steps."""
        return (yield from ask(lambda _store, _seconds: self.generate(n)))

    def closing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - the same
        """As `close`, in steps."""
        yield from ask(lambda _store, _seconds: self.close())

    def sweep(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - the same
        """Come round about every second, once prepared: heartbeats belong here."""
        return
        yield

    def found(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - the same
        """Take note that the tag was made just now, by this process, and never was there before."""
        return
        yield

    @property
    def ready(self) -> Iterator[int] | None:
        """Numbers that need no waiting, one by one; it ends with StopIteration when `generating` is needed. None: none.

        `Issuer.next` takes from it without any further ado: it has to be safe for threads, and after `after_fork`.
        """
        return None
