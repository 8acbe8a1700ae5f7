"""Both colours of the issuer behind one blocking face, so that a test is written once and tries both."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import issuer
from issuer import Issuer

T = TypeVar("T")

Connect = Callable[..., Issuer]

# Far above every deadline that a test gives: it ends a test whose call never returns.
_LONGEST = 60.0


class Awaited:
    """An AsyncIssuer whose methods any thread may call: they run in an event loop, which has a thread of its own."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncio-issuer", daemon=True)
        self._thread.start()
        try:
            self._ids: Any = self._wait(self._open(settings))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of that name, which waits for its answer."""
        method = getattr(self._ids, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await method(*args, **options)

        return lambda *args, **options: self._wait(call(*args, **options))

    def close(self) -> None:
        """Close the issuer, which must leave no task behind, then its loop. Twice is harmless."""
        if self._loop.is_closed():
            return
        try:
            self._wait(self._ids.close())
            left = self._wait(_cancelled())
        finally:
            self._end_loop()
        assert not left, f"close() left tasks behind: {left}"

    async def _open(self, settings: Mapping[str, Any]) -> Any:
        face: Any = issuer
        return await face.aconnect(**settings).__aenter__()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LONGEST)

    def _end_loop(self) -> None:
        self._wait(self._loop.shutdown_asyncgens())
        self._wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONGEST)
        self._loop.close()


async def _cancelled() -> set[asyncio.Task[Any]]:
    """Cancel what still runs in the loop, as asyncio.run does at its end, and return it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return left


def connect_awaited(**settings: Any) -> Issuer:
    """Make an AsyncIssuer that looks like an Issuer."""
    return cast("Issuer", Awaited(settings))


#: By name, what makes an issuer. The arguments are those of `issuer.connect`.
COLOURS: Mapping[str, Connect] = {"blocking": issuer.connect, "asyncio": connect_awaited}
