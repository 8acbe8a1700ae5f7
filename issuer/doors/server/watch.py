"""The regular check by a keeper: a process that loads segments (ranges of numbers) for all tags of the store."""

from __future__ import annotations

from collections.abc import Callable

from issuer.advice import command_line
from issuer.api.blocking import Issuer
from issuer.errors import IssuerError

#: Seconds between two checks.
EVERY = 2.0


class Watch:
    """Loads segments for every tag of the store, and reports errors of Redis and of the store."""

    def __init__(self, issuer: Issuer, warn: Callable[[str], object]) -> None:
        """`warn`: called with a message when an error begins, changes or ends."""
        self._issuer = issuer
        self._warn = warn
        self._trouble: str | None = None

    def look(self) -> None:
        """Load segments for every tag of the store. Raises an error if Redis or the store does not answer."""
        self._issuer.keep()

    def again(self) -> None:
        """Check once. Report an error when it begins, when it changes, and when it ends."""
        try:
            self.look()
        except IssuerError as error:
            self.trouble(error)
            return
        if self._trouble is not None:
            self._trouble = None
            self._warn("all is well, keeping all tags")

    def trouble(self, error: IssuerError) -> None:
        """Report an error, unless it equals the last error that was reported."""
        said = error.told(command_line)
        if said != self._trouble:
            self._trouble = said
            self._warn(f"{said}; trying again every {EVERY:g} s")
