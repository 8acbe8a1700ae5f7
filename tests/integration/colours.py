"""An issuer of either colour behind one face, so that a test is written once for threads and for tasks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import issuer
from issuer import AsyncIssuer, Issuer

T = TypeVar("T")

COLOURS = ("threads", "tasks")


class Awaited:
    """An AsyncIssuer in an event loop of its own thread; each call waits for its coroutine."""

    def __init__(self, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tasks", daemon=True)
        self._thread.start()

        async def made() -> AsyncIssuer:
            return issuer.aconnect(**settings)

        self.inner = self.wait(made())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **named: self.wait(found(*args, **named))
        return found

    def stream(self, tag: str, **named: Any) -> Iterator[int]:
        """Iterate over the tag's numbers."""
        numbers = self.inner.stream(tag, **named)
        while True:
            yield self.wait(anext(numbers))  # type: ignore[arg-type]  # an async generator's is a coroutine

    def run(self, tag: str, steps: Any, deadline: Any) -> Any:
        """Run steps of the core for that tag."""
        return self.wait(self.inner._roster.line(tag).run(steps, deadline))

    def end(self) -> None:
        """Close the issuer and its loop."""
        self.wait(self.inner.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Threaded:
    """An Issuer, with what Awaited adds."""

    def __init__(self, **settings: Any) -> None:
        self.inner: Issuer = issuer.connect(**settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, tag: str, steps: Any, deadline: Any) -> Any:
        """Run steps of the core for that tag."""
        return self.inner._roster.line(tag).run(steps, deadline)

    def end(self) -> None:
        """Close the issuer."""
        self.inner.close()


@contextmanager
def connected(colour: str, **settings: Any) -> Iterator[Any]:
    """Connect in that colour; whatever the test does with it, it is closed in the end."""
    ids: Awaited | Threaded = Awaited(**settings) if colour == "tasks" else Threaded(**settings)
    try:
        yield ids
    finally:
        ids.end()
