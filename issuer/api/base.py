"""The parts of an issuer that wait for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from issuer.core.events import Observer
    from issuer.engine.calls import EngineCalls


class AnyIssuer:
    """Base class of the issuers."""

    #: The internal object that does the work, for other modules of this package. It may change in any version.
    engine: EngineCalls[Any]

    def __init__(self, engine: EngineCalls[Any]) -> None:
        self.engine = engine

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self.engine.closed

    def observe(self, observer: Observer) -> None:
        """Call a function with each event of this issuer from now on. The classes of events are in `issuer.events`.

        The function runs in the thread or event loop in which the event happened. The function also receives events in
        forked child processes. It must return quickly and must not draw numbers. If the function raises an error, the
        error is logged.

        Args:
            observer: Function that takes the event.
        """
        self.engine.config.events.add(observer)

    def __repr__(self) -> str:
        return repr(self.engine)
