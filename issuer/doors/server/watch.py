"""A keeper's look at tags and servers."""

from __future__ import annotations

from collections.abc import Callable

from issuer.advice import command_line
from issuer.api.blocking import Issuer
from issuer.errors import IssuerError
from issuer.terminal import numbered, plain

#: Seconds between two looks for new tags and at the servers.
EVERY = 2.0


class Watch:
    """Keeps every tag of the store, and tells what has changed since the last look."""

    def __init__(
        self, issuer: Issuer, tell: Callable[[str], object], warn: Callable[[str], object] | None = None
    ) -> None:
        """`tell`: called with what has changed; `warn`: with trouble, and when it is over; None: as `tell`."""
        self._issuer = issuer
        self._tell = tell
        self._warn = warn or tell
        self._tags: set[str] = set()
        self._trouble: str | None = None

    @property
    def counted(self) -> str:
        """How many tags there are, in words."""
        return numbered(len(self._tags), "tag")

    def look(self) -> list[str]:
        """Keep every tag of the store; return what has changed. Raises what keeps one of the servers from working."""
        before, self._tags = self._tags, {record.tag for record in self._issuer.keep()}
        # The sweep leaves unreachable servers to the callers' errors, and a keeper has no callers. Without a tag it
        # does not ask Redis at all.
        trouble = self._issuer.ready().redis
        if trouble is not None:
            raise trouble
        return [*(f"new tag {plain(tag)}" for tag in sorted(self._tags - before)),
                *(f"tag {plain(tag)} is gone" for tag in sorted(before - self._tags))]  # fmt: skip

    def again(self) -> None:
        """Look, and tell trouble once: when it begins, when it changes, and when it is over."""
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
        """Tell it, unless it is what was told last."""
        said = error.told(command_line)
        if said != self._trouble:
            self._trouble = said
            self._warn(f"{said}; trying again every {EVERY:g} s")
