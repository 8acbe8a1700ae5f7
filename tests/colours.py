"""Both colours of the issuer behind one blocking face, so that a test is written once and tries both."""

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import pytest

import issuer
from issuer import AsyncIssuer, Issuer
from issuer.clock import Deadline
from issuer.core.steps import Steps
from issuer.threads import finished

T = TypeVar("T")

Connect = Callable[..., Issuer]

# Far above every deadline that a test gives: it ends a test whose call never returns.
_LONGEST = 180.0


class Looped:
    """What has an event loop, which has a thread of its own."""

    def _begin_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncio-issuer", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LONGEST)

    def _end_loop(self) -> None:
        self.wait(self._loop.shutdown_asyncgens())
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONGEST)
        self._loop.close()


class Awaited(Looped):
    """An AsyncIssuer whose methods any thread may call."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._begin_loop()
        try:
            self._ids = self.wait(_opened(settings))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the issuer, which must leave no task behind, then its loop."""
        try:
            self.wait(self._ids.close())
            left = self.wait(_cancelled())
        finally:
            self._end_loop()
        assert not left, f"close() left tasks behind: {left}"

    def __getattr__(self, name: str) -> Any:
        """Return the method of that name, which waits for its answer; or whatever else is called so."""
        found = getattr(self._ids, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **options: self.wait(found(*args, **options))
        return found

    def stream(self, tag: str, **options: Any) -> Iterator[int]:
        numbers = self._ids.stream(tag, **options)
        while True:
            yield self.wait(anext(numbers))  # type: ignore[arg-type]  # an async generator's is a coroutine


async def _opened(settings: Mapping[str, Any]) -> AsyncIssuer:
    return await issuer.aconnect(**settings).__aenter__()


async def _cancelled() -> set[asyncio.Task[Any]]:
    """Cancel what still runs in the loop, as asyncio.run does at its end, and return it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return left


def connect_awaited(**settings: Any) -> Issuer:
    return cast("Issuer", Awaited(settings))


def run(ids: Issuer, tag: str, steps: Steps[T], deadline: Deadline) -> T:
    """Run steps of the core for that tag, as the issuer's own calls do."""
    combiner = ids.engine.registry.combiner(tag)
    if isinstance(ids, Awaited):
        return ids.wait(combiner.run(steps, deadline))
    return finished(lambda: combiner.run(steps, deadline))


#: By name, what makes an issuer. The arguments are those of `issuer.connect`.
COLOURS: Mapping[str, Connect] = {"blocking": issuer.connect, "asyncio": connect_awaited}

#: For what each driver does by itself, in a module that is marked with one colour.
BOTH = pytest.mark.colours(*COLOURS)

#: Fixtures that take the value of a combination.
_INDIRECT = {"connect", "mode"}


def covering(names: str, chosen: Sequence[tuple[object, ...]], *values: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize by each combination of these values: the chosen ones in `make test`, the others in `make soak`."""
    split = names.replace(" ", "").split(",")
    combinations = [
        each if each in chosen else pytest.param(*each, marks=pytest.mark.soak) for each in itertools.product(*values)
    ]
    return pytest.mark.parametrize(split, combinations, indirect=[name for name in split if name in _INDIRECT])
