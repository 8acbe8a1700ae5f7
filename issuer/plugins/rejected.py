"""The `rejected` handler: the function that is called when a call for numbers fails."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from issuer.core.events import Emit, Rejected, unobserved
from issuer.core.sparing import Sparing
from issuer.errors import ConfigurationError, brief
from issuer.interrupts import raise_interrupt

#: A function of the tag and the error. It runs in the caller's thread or task, before the caller receives the error.
Handler = Callable[[str, Exception], object]

log = logging.getLogger("issuer.rejected")


class Logged:
    """Default handler: logs errors, at most once a minute for each tag and each class of error."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: time in seconds that never goes back. None means the monotonic clock."""
        self._sparing = Sparing(clock)

    def __call__(self, tag: str, cause: Exception) -> None:
        """Log the error, and how often it occurred since it was last logged."""
        said = "tag %r: no number was given: %s: %s"
        self._sparing.say(log.warning, repr(tag)[:300], type(cause), said, tag, type(cause).__name__, cause)


class Rejections:
    """Calls the rejected handler. Threads can share it.

    The handler can be replaced at any time. If the handler raises an error, this error is logged. The caller receives
    the original error in any case.
    """

    def __init__(self, handler: Handler | None = None, emit: Emit = unobserved) -> None:
        """Set the handler. None means Logged(). `emit` delivers the event Rejected to observers, before the handler.

        Raises:
            ConfigurationError: The handler cannot be called, or is a coroutine function.
        """
        self._emit = emit
        self._trouble = Sparing()
        self.handler = Logged() if handler is None else handler

    @property
    def handler(self) -> Handler:
        """Handler that is called."""
        return self._handler

    @handler.setter
    def handler(self, handler: Handler) -> None:
        checked: Any = handler
        called = getattr(checked, "__call__", None)  # noqa: B004 - `__call__` of an object can be a coroutine function
        if not callable(checked) or inspect.iscoroutinefunction(checked) or inspect.iscoroutinefunction(called):
            raise ConfigurationError(
                f"a rejected handler must be a function of tag and error, and not a coroutine; not {brief(handler)}"
            )
        self._handler = handler

    def tell(self, tag: str, cause: Exception) -> None:
        """Call the handler with the tag and the error `cause`.

        Errors of the handler are logged, except those that end the program.
        """
        self._emit(Rejected(tag, cause))
        try:
            self._handler(tag, cause)
        except Exception as error:  # noqa: BLE001 - the caller must receive the original error
            raise_interrupt(error)
            self._trouble.say(log.error, "", type(error), "tag %r: the rejected handler failed", tag, error=error)
