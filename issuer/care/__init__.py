"""Looks at tags, ledger, store and Redis, repairs what went wrong there, and loads segments in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from issuer.errors import IssuerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """Result of an operation on several tags for one of them, or the error that came instead. `of`: how many tags."""

    tag: str
    of: int
    result: T | None
    error: IssuerError | None
