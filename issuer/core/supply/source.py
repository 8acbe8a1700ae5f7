"""Contract of what makes numbers in place of a tag's counter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from issuer.clock import Deadline
from issuer.core.steps import Steps


class TagSource(Protocol):
    """Makes the numbers of a tag whose strategy has no counter; see issuer/strategies/serving.py."""

    #: Whether its resources were released, or are being released.
    left: bool
    #: Whether callers that call at the same time share one `take`. Such a source has no periodic work.
    shared: bool

    @property
    def ready(self) -> Iterator[int] | None:
        """The iterator over numbers that `next` can use without waiting. None if there is none."""

    @property
    def equipped(self) -> bool | None:
        """Whether it holds the machine number that its numbers need. None if they need none."""

    def take(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        """Return up to n numbers, at least one, in increasing order."""

    def warm(self, deadline: Deadline) -> Steps[None]:
        """Wait until `take` can return numbers."""

    def found(self, deadline: Deadline) -> Steps[None]:
        """Prepare a new tag. This process has just created it, and no tag had its name before."""

    def sweep(self, deadline: Deadline) -> Steps[None]:
        """Do its periodic work, about once a second."""

    def end(self) -> None:
        """Make no more numbers. `close` or a sweep then releases the resources."""

    def close(self, deadline: Deadline) -> Steps[None]:
        """End, and release the resources. A second call does nothing."""
