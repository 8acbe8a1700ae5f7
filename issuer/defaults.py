"""The default issuers of a process: one for blocking calls, and one for each event loop."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from issuer.errors import ConfigurationError, brief
from issuer.forks import no_fork, register
from issuer.reentry import CallLock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer

T = TypeVar("T")


class _Slot(Generic[T]):
    """A function that makes a default issuer, and the issuer that it has made."""

    __slots__ = ("made", "make")

    def __init__(self, make: Callable[[], T]) -> None:
        self.make = make
        self.made: T | None = None


class _Loops:
    """The default issuers of the event loops. `make` makes the issuer of a loop that has none."""

    __slots__ = ("make", "slots")

    def __init__(self, make: Callable[[], AsyncIssuer]) -> None:
        self.make = make
        self.slots: dict[AbstractEventLoop, _Slot[AsyncIssuer]] = {}


class EarlierDefault:
    """Result of `set_default` and `set_adefault`. As a context manager, it restores the earlier default at its end."""

    def __init__(self, restore: Callable[[], object]) -> None:
        self._restore = restore

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()


def _from_settings(name: str) -> Callable[[], Any]:
    def make() -> Any:
        with no_fork():
            wiring = import_module("issuer.wiring")
        return getattr(wiring, name)()

    return make


_slot: _Slot[Issuer] = _Slot(_from_settings("connect"))
_loops = _Loops(_from_settings("aconnect"))
_lock = CallLock()


def default() -> Issuer:
    """Return the default issuer of this process, which functions such as `issuer.next` use.

    The first call creates the issuer: from the settings, or with the function that `set_default` was given. The issuer
    is closed when the program ends.

    Raises:
        ConfigurationError: A setting is invalid, or the function of `set_default` has returned something else.
    """
    slot = _slot
    if slot.made is None or slot.made.closed:
        with _lock.thread, _lock.call():
            if slot.made is None or slot.made.closed:
                slot.made = _checked(slot.make(), "api.blocking", "Issuer", "set_default")
    return slot.made


def adefault() -> AsyncIssuer:
    """Return the default AsyncIssuer of the running event loop.

    The first call in a loop creates the issuer: from the settings, or with the function that `set_adefault` was given.
    Close it before the loop ends, with `await issuer.close_adefault()`: this returns its unused numbers.

    Raises:
        ConfigurationError: A setting is invalid, or the function of `set_adefault` has returned something else.
        RuntimeError: No event loop is running in this thread.
    """
    loop, loops = _running_loop(), _loops
    slot = loops.slots.get(loop)
    if slot is None:
        for ended in [each for each in list(loops.slots) if each.is_closed()]:
            loops.slots.pop(ended, None)
        slot = loops.slots[loop] = _Slot(loops.make)
    if slot.made is None or slot.made.closed:
        slot.made = _checked(slot.make(), "api.aio", "AsyncIssuer", "set_adefault")
    return slot.made


def close_default() -> None:
    """Close the default issuer of this process, and return its unused numbers. If it was never used, do nothing.

    Python does this when the program ends. Processes that skip Python's exit functions, such as Celery's workers, call
    `close_default` themselves. The next use of the default issuer creates a new one, unless `set_default` was given an
    Issuer.
    """
    if (made := _slot.made) is not None:
        made.close()


async def close_adefault() -> None:
    """Close the default AsyncIssuer of the running event loop, and return its unused numbers.

    If the loop has never used it, do nothing. The next use creates a new one, unless `set_adefault` was given an
    AsyncIssuer.
    """
    slot = _loops.slots.get(_running_loop())
    if slot is not None and slot.made is not None:
        await slot.made.close()


def set_default(ids: Issuer | Callable[[], Issuer] | None) -> EarlierDefault:
    """Set the default issuer of this process, for all threads.

    The change takes effect immediately. To restore the earlier default after a block, write
    `with issuer.set_default(ids):`. An issuer that is replaced is not closed.

    Args:
        ids: The issuer; or a function without parameters that creates it, which is called at the first use, also after
            a fork or after the issuer was closed; or None: the first use creates it from the settings.

    Raises:
        ConfigurationError: `ids` is something else.
    """
    global _slot
    before, _slot = _slot, _Slot(_maker(ids, "connect", "api.blocking", "Issuer", "set_default"))

    def restore() -> None:
        global _slot  # noqa: PLW0603 - the same
        _slot = before

    return EarlierDefault(restore)


def set_adefault(ids: AsyncIssuer | Callable[[], AsyncIssuer] | None) -> EarlierDefault:
    """Set the default AsyncIssuer: an issuer for the running event loop, or a function for all loops.

    The change takes effect immediately. To restore the earlier default after a block, write
    `with issuer.set_adefault(ids):`. An issuer that is replaced is not closed.

    Args:
        ids: The issuer of the running loop; or a function without parameters that creates an issuer, which is called at
            the first use in each loop; or None: the first use in each loop creates it from the settings.

    Raises:
        ConfigurationError: `ids` is something else.
        RuntimeError: `ids` is an AsyncIssuer, and no event loop is running in this thread.
    """
    global _loops  # noqa: PLW0603 - a process has one default for all loops
    make, loops = _maker(ids, "aconnect", "api.aio", "AsyncIssuer", "set_adefault"), _loops
    if ids is None or callable(ids):
        _loops = _Loops(make)

        def restore() -> None:
            global _loops  # noqa: PLW0603 - the same
            _loops = loops

        return EarlierDefault(restore)
    loop = _running_loop()
    before = loops.slots.get(loop)
    loops.slots[loop] = _Slot(make)

    def restore_loop() -> None:
        if before is None:
            loops.slots.pop(loop, None)
        else:
            loops.slots[loop] = before

    return EarlierDefault(restore_loop)


def _running_loop() -> AbstractEventLoop:
    # Imported here, as asyncio takes as long to import as a third of `issuer`.
    with no_fork():
        from asyncio import get_running_loop
    return get_running_loop()


def _maker(ids: Any, connect: str, module: str, kind: str, caller: str) -> Callable[[], Any]:
    if ids is None:
        return _from_settings(connect)
    if callable(ids):
        return ids  # type: ignore[no-any-return]  # what it returns is checked at its first use
    checked = _checked(ids, module, kind, caller)
    return lambda: checked


def _checked(ids: T, module: str, kind: str, caller: str) -> T:
    with no_fork():
        expected = getattr(import_module(f"issuer.{module}"), kind)
    if not isinstance(ids, expected):
        raise ConfigurationError(f"{caller} takes an {kind}, a function that returns one, or None; not {brief(ids)}")
    return ids


def _fresh_lock() -> None:
    global _lock  # noqa: PLW0603 - in a child, a thread that exists only in the parent may hold it
    _lock = CallLock()


register(in_child=_fresh_lock)
