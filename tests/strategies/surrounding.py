"""Chains of every colour behind one blocking face, and plugins that tell what happened to them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from issuer.plugins import AsyncChain, AsyncPlugin, Call, Chain, Plugin
from tests.waiting import run

T = TypeVar("T")

Draw = Callable[[], list[int]]

CALL = Call("a")


class Telling(Plugin):
    """Writes each hook that is run into `told`, as (name, hook, number or error)."""

    def __init__(self, name: str, told: list[tuple[str, str, Any]], **options: Any) -> None:
        super().__init__(**options)
        self.name = name
        self.told = told

    def before(self, call: Call) -> bool | None:
        self.told.append((self.name, "before", call.n))
        return None

    def after(self, _call: Call, number: int) -> int | None:
        self.told.append((self.name, "after", number))
        return None

    def on_error(self, _call: Call, error: Exception) -> None:
        self.told.append((self.name, "on_error", error))


class Recording(Plugin):
    """Keeps each number, with its tag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.numbers: list[tuple[str, int]] = []

    def after(self, call: Call, number: int) -> None:
        self.numbers.append((call.tag, number))


class Raising(Plugin):
    """Raises in each hook that it is told, whatever it is told."""

    def __init__(self, error: BaseException, *where: str, **options: Any) -> None:
        super().__init__(**options)
        self.error = error
        self.where = where
        self.seen: list[Exception] = []

    def _act(self, where: str) -> None:
        if where in self.where:
            raise self.error

    def before(self, _call: Call) -> bool | None:
        self._act("before")
        return True

    def after(self, _call: Call, _number: int) -> int | None:
        self._act("after")
        return None

    def on_error(self, call: Call, error: Exception) -> None:
        assert call.tag == "a"
        self.seen.append(error)
        self._act("on_error")


class Changing(Plugin):
    """Adds to a number, and raises or returns whatever it is told at some."""

    transforms = True

    def __init__(self, at: dict[int, Any] | None = None, add: int = 1000, **options: Any) -> None:
        super().__init__(**options)
        self.at = at or {}
        self.add = add
        self.seen: list[Exception] = []

    def after(self, _call: Call, number: int) -> int | None:
        answer: Any = self.at.get(number, number + self.add)
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]  # what a plugin returns is what is tried here

    def on_error(self, _call: Call, error: Exception) -> None:
        self.seen.append(error)


class Refusing(Plugin):
    """Answers `before` as it is told."""

    def __init__(self, answer: Any, **options: Any) -> None:
        super().__init__(**options)
        self.answer = answer

    def before(self, _call: Call) -> bool | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]  # as above


class Awaited(AsyncPlugin):
    """A blocking plugin as one whose hooks wait for a turn of the loop before and after."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(order=plugin.order, strategies=plugin.strategies)
        self.plugin = plugin
        self.transforms = plugin.transforms

    async def before(self, call: Call) -> bool | None:
        return await self._turned(lambda: self.plugin.before(call))

    async def after(self, call: Call, number: int) -> int | None:
        return await self._turned(lambda: self.plugin.after(call, number))

    async def on_error(self, call: Call, error: Exception) -> None:
        await self._turned(lambda: self.plugin.on_error(call, error))

    async def _turned(self, hook: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        answer = hook()
        await asyncio.sleep(0)
        return answer


class Face:
    """A chain of one colour: "threads", "tasks", or "awaited" with the plugins as coroutines."""

    def __init__(self, colour: str, plugins: Sequence[Plugin]) -> None:
        self._chain = Chain(plugins) if colour == "threads" else None
        self._tasks = AsyncChain([Awaited(each) if colour == "awaited" else each for each in plugins])

    def around(self, call: Call, draw: Draw) -> list[int]:
        if self._chain is not None:
            return self._chain.around(call, draw)

        async def drawn() -> list[int]:
            await asyncio.sleep(0)
            return draw()

        return run(self._tasks.around(call, drawn))


COLOURS = ("threads", "tasks", "awaited")


def drawing(numbers: Sequence[int] = (7,)) -> Callable[[], list[int]]:
    return lambda: list(numbers)


def never() -> list[int]:
    raise AssertionError("a number was drawn")


#: What makes a face of the plugins that it is given.
Faced = Callable[..., Face]
