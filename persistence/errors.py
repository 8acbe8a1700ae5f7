"""Errors that stores raise on purpose."""

from __future__ import annotations

import errno

#: What the system says if a disk, or what a user may have of it, is full.
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class StoreError(Exception):
    """Root of everything that a store raises on purpose."""


class Unavailable(StoreError):
    """The store gave no answer that can be relied on; the request may or may not have taken effect."""


class Full(Unavailable):
    """No space is left on the disk of the file at `path`."""

    def __init__(self, path: object, problem: str = "") -> None:
        super().__init__(f"{path}: No space left on its disk{problem and '; '}{problem}")
        self.path, self.problem = str(path), problem


class Misconfigured(StoreError):
    """The store can't be used as it is set up; the message says what to change."""


class Corrupt(StoreError):
    """A record has a shape or a type that this program never writes; it was left as it is."""

    def __init__(self, tag: str, problem: str) -> None:
        super().__init__(f"tag {tag!r}: {problem}")
        self.tag, self.problem = tag, problem


class Damaged(StoreError):
    """A line of a journal, counted from 1, isn't as it was written; nothing was taken from the file."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"journal {path}, line {line}: {problem}")
        self.path, self.line, self.problem = path, line, problem


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
        self.tag, self.limit, self.max = tag, limit, maximum


class LimitTooLow(StoreError):
    """The limit asked for lies below numbers that are reserved already; nothing was changed."""

    def __init__(self, tag: str, limit: int, maximum: int) -> None:
        super().__init__(f"limit {limit} is below {maximum}, the highest number reserved")
        self.tag, self.limit, self.max = tag, limit, maximum


class LeaseOnStrict(StoreError):
    """A strict tag was to have a lease, which would hand out its numbers out of order; nothing was changed."""

    def __init__(self, tag: str, lease: int) -> None:
        super().__init__(
            f"lease {lease}: tag {tag!r} is strict, and numbers drawn ahead come out of order; only a trend tag can "
            "have a lease"
        )
        self.tag, self.lease = tag, lease


class SchemeMismatch(StoreError):
    """A deleted tag was to be made again, with another way from counter to value; nothing was changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"tag {tag!r} existed before with another number scheme, so making it again could repeat numbers: use its "
            "old scheme, or another tag name"
        )
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
        self.tag, self.max, self.at_least, self.certain = tag, maximum, at_least, certain


class Halted(StoreError):
    """Reservations of this tag are stopped until it is recovered; nothing was reserved."""

    def __init__(self, tag: str, maximum: int) -> None:
        super().__init__(f"tag {tag!r} is halted at max {maximum}")
        self.tag, self.max = tag, maximum
