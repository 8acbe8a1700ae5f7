"""Care for tags: check the store, its ledger and Redis, repair tags, and load segments in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from issuer.errors import IssuerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result for one tag of an operation on several tags, or its error. `of`: number of tags in the operation."""

    tag: str
    of: int
    result: T | None
    error: IssuerError | None
