"""Care for tags: check the store, its ledger and Redis, repair tags, and load segments in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from issuer.errors import IssuerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of an operation for one tag, if the operation handles several tags.

    Attributes:
        tag: Name of the tag.
        of: How many tags the operation handles.
        result: Result for this tag. None if there is none.
        error: Error for this tag, or None.
    """

    tag: str
    of: int
    result: T | None
    error: IssuerError | None
