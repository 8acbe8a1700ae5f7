"""A world in virtual time: processes of either colour, the wire to their Redis, and their store."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from greenlet import GreenletExit

import issuer
from issuer import Issuer
from issuer.engine.base import OPEN_ENGINES
from tests.colours import COLOURS, Awaited, _opened
from tests.hanging import HangingStore
from tests.proofs.virtual.turns import Turns, virtual
from tests.proofs.virtual.wire import Wire

T = TypeVar("T")


class Tasks(Awaited):
    """An AsyncIssuer whose methods any virtual thread may call."""

    def __init__(self, turns: Turns, settings: dict[str, Any]) -> None:
        self._turns, self._loop = turns, turns.new_loop()
        self._ids = self.wait(_opened(settings))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._turns.run(coroutine, cast("Any", self._loop))

    def _end_loop(self) -> None:
        self.wait(self._loop.shutdown_asyncgens())


class Call:
    """A virtual thread that calls once: when it began and ended, and with which answer or error."""

    def __init__(self, turns: Turns, work: Callable[[], object]) -> None:
        self._turns, self._work = turns, work
        self.answer: Any = None
        self.began = turns.now
        self.ended: float | None = None
        turns.spawn(self._run)

    def _run(self) -> None:
        self.began = self._turns.now
        try:
            self.answer = self._work()
        except GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.answer = error
        self.ended = self._turns.now

    @property
    def done(self) -> "Call":
        assert self.took >= 0
        return self

    @property
    def took(self) -> float:
        """How long it took, once it has ended."""
        self._turns.until(lambda: self.ended is not None, 600)
        assert self.ended is not None
        return self.ended - self.began

    @property
    def number(self) -> int:
        assert self.took >= 0
        assert isinstance(self.answer, int), self.answer
        return self.answer

    @property
    def error(self) -> issuer.IssuerError:
        assert self.took >= 0
        assert isinstance(self.answer, issuer.IssuerError), self.answer
        return self.answer


class World:
    """One clock, one Redis, one store."""

    def __init__(self, turns: Turns, colour: str) -> None:
        self.turns, self.colour = turns, colour
        self.wire = Wire(turns)
        self.store = HangingStore()

    @property
    def now(self) -> float:
        return self.turns.now

    def connect(self, **settings: Any) -> Issuer:
        """Make a process: an issuer of this world's colour with connections of its own."""
        tasks = self.colour == "asyncio"
        redis = self.wire.async_client() if tasks else self.wire.client()
        settings = {"redis": redis, "store": self.store, **settings}
        return cast("Issuer", Tasks(self.turns, settings)) if tasks else issuer.connect(**settings)

    def call(self, work: Callable[[], object]) -> Call:
        return Call(self.turns, work)

    def draws(self, ids: Issuer, tag: str, timeout: float | None = None) -> Call:
        """Draw a number in a thread of its own."""
        return self.call(lambda: ids.next(tag, timeout=timeout))


@contextmanager
def world(colour: str, seed: int = 0) -> Iterator[World]:
    """Make a world of that colour; the seed names the order of events."""
    assert colour in COLOURS
    living = set(OPEN_ENGINES)
    try:
        with virtual(seed) as turns:
            yield World(turns, colour)
    finally:
        for ids in set(OPEN_ENGINES) - living:  # of a test that failed: nothing of it works any more
            OPEN_ENGINES.discard(ids)
