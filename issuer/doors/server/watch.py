"""The regular check by a keeper, a process that loads segments for all tags of the store."""

from __future__ import annotations

from collections.abc import Callable

from issuer.advice import command_line
from issuer.api.blocking import Issuer
from issuer.errors import IssuerError
from issuer.terminal import numbered, plain

#: Seconds between two checks.
EVERY = 2.0


class Watch:
    """Keeps every tag of the store loaded, and reports changes since the last check."""

    def __init__(
        self, issuer: Issuer, tell: Callable[[str], object], warn: Callable[[str], object] | None = None
    ) -> None:
        """`tell`: called with each change. `warn`: called when an error begins or ends; None means `tell`."""
        self._issuer = issuer
        self._tell = tell
        self._warn = warn or tell
        self._tags: set[str] = set()
        self._trouble: str | None = None

    @property
    def counted(self) -> str:
        """The number of tags as text."""
        return numbered(len(self._tags), "tag")

    def look(self) -> list[str]:
        """Load segments for every tag of the store, and return the changes of the list of tags.

        Raises an error if Redis or the store does not answer.
        """
        before, self._tags = self._tags, {record.tag for record in self._issuer.keep()}
        # `keep` reports no outage of Redis, because callers get an error. A keeper has no callers, so it checks Redis
        # here. If there are no tags, `keep` sends no command to Redis at all.
        trouble = self._issuer.ready().redis
        if trouble is not None:
            raise trouble
        return [*(f"new tag {plain(tag)}" for tag in sorted(self._tags - before)),
                *(f"tag {plain(tag)} is gone" for tag in sorted(before - self._tags))]  # fmt: skip

    def again(self) -> None:
        """Check once. Report an error when it begins, when it changes, and when it ends."""
        try:
            changes = self.look()
        except IssuerError as error:
            self.trouble(error)
            return
        if self._trouble is not None:
            self._trouble = None
            self._warn(f"all is well, keeping {self.counted}")
        for change in changes:
            self._tell(change)

    def trouble(self, error: IssuerError) -> None:
        """Report an error, unless it equals the last error that was reported."""
        said = error.told(command_line)
        if said != self._trouble:
            self._trouble = said
            self._warn(f"{said}; trying again every {EVERY:g} s")
