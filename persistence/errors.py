"""Errors of stores.

StoreError
├── Unavailable      no answer, or an answer that can't be trusted: what was asked may have happened
├── Misconfigured    this store can't be used as it is set up; asking again won't help
├── Corrupt          what lies there isn't ours, or isn't an int64
├── Damaged          a line of a journal isn't as it was written
├── TagMissing       no such tag, or it was deleted
├── TagPresent       the tag exists already
├── LimitHit         the tag's limit leaves too few numbers
├── LimitTooLow      a new limit below the numbers already reserved
├── LeaseOnStrict    a lease for a tag whose numbers come in strict order
├── SchemeMismatch   a tag made again was to make its values in another way
├── VersionMoved     the record has changed since the caller read it
├── MaxBehind        `max` is lower than a number the caller has proof of: the store went back in time
└── Halted           reservations are stopped until `recover` has run
"""

from __future__ import annotations


class StoreError(Exception):
    """Root of everything that a store raises on purpose."""


class Unavailable(StoreError):
    """The store gave no answer that can be relied on; the request may or may not have taken effect."""


class Misconfigured(StoreError):
    """The store can't be used as it is set up; the message says what to change."""


class Corrupt(StoreError):
    """A record has a shape or a type that this program never writes; it was left as it is."""

    def __init__(self, tag: str, problem: str) -> None:
        super().__init__(f"tag {tag!r}: {problem}")
        self.tag = tag
        self.problem = problem


class Damaged(StoreError):
    """A line of a journal, counted from 1, isn't as it was written; nothing was taken from the file."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"journal {path}, line {line}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class TagMissing(StoreError):
    """There is no live tag of that name."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"no tag {tag!r}")
        self.tag = tag


class TagPresent(StoreError):
    """A live tag of that name exists already; nothing was changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} exists")
        self.tag = tag


class LimitHit(StoreError):
    """Fewer numbers are left below the tag's limit than were asked for; nothing was reserved."""

    def __init__(self, tag: str, limit: int, maximum: int) -> None:
        super().__init__(f"tag {tag!r}: max {maximum} has reached the limit {limit}")
        self.tag = tag
        self.limit = limit
        self.max = maximum


class LimitTooLow(StoreError):
    """The limit asked for lies below numbers that are reserved already; nothing was changed."""

    def __init__(self, tag: str, limit: int, maximum: int) -> None:
        super().__init__(f"tag {tag!r}: limit {limit} is below max {maximum}")
        self.tag = tag
        self.limit = limit
        self.max = maximum


class LeaseOnStrict(StoreError):
    """A strict tag was to have a lease, which would hand out its numbers out of order; nothing was changed."""

    def __init__(self, tag: str, lease: int) -> None:
        super().__init__(f"tag {tag!r} is strict: it can't have a lease of {lease}")
        self.tag = tag
        self.lease = lease


class SchemeMismatch(StoreError):
    """A deleted tag was to be made again, with another way from counter to value; nothing was changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} existed before with another number scheme")
        self.tag = tag


class VersionMoved(StoreError):
    """The record has changed since the caller read it; nothing was changed. Read it again, and retry."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} has changed meanwhile")
        self.tag = tag


class MaxBehind(StoreError):
    """The record's `max` is below `at_least`; nothing was reserved. `certain`: a journal says so, asked twice."""

    def __init__(self, tag: str, maximum: int, at_least: int, *, certain: bool = False) -> None:
        super().__init__(f"tag {tag!r}: max {maximum} is below {at_least}, which is known to be taken")
        self.tag = tag
        self.max = maximum
        self.at_least = at_least
        self.certain = certain


class Halted(StoreError):
    """Reservations of this tag are stopped until it is recovered; nothing was reserved."""

    def __init__(self, tag: str, maximum: int) -> None:
        super().__init__(f"tag {tag!r} is halted at max {maximum}")
        self.tag = tag
        self.max = maximum
