"""Errors that stores raise."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

#: Error numbers of the system for a full disk, or a user's full quota.
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

#: Error numbers of the system for a shortage that ends by itself: no file descriptor or no memory is left.
SHORTAGE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

#: Texts of lasting TLS errors: a certificate is rejected, its file is missing (in redis-py, or Python), no TLS.
_TLS = re.compile(
    r"certificate.verify.failed|certificate required|unknown ca|bad certificate|wrong.version.number|\[x509|pem lib|"
    r"^(\[errno|error) (2|13)(\]| connecting to \S+:\d)",
    re.IGNORECASE,
)


def tls_fails(text: str) -> bool:
    """Whether an error with this text is a TLS error that an operator must correct."""
    return _TLS.search(text) is not None


class StoreError(Exception):
    """Base class of all errors of stores.

    Attributes:
        reply: The reply of a server over HTTP with this error. {} for all other errors.
    """

    reply: Mapping[str, Any] = {}


class Unconfirmed(StoreError):
    """The store did not answer in time, or its answer is not reliable. The call may or may not have taken effect."""


class Full(Unconfirmed):
    """The disk is full.

    Attributes:
        path: Path of the file.
        problem: Consequence of the full disk, such as a line that was not written, or "".
    """

    def __init__(self, path: object, problem: str = "") -> None:
        super().__init__(f"{path}: No space left on its disk{problem and '; '}{problem}")
        self.path, self.problem = str(path), problem


class Misconfigured(StoreError):
    """The store cannot be used, because it is configured wrongly. The message describes what to change."""


class NotAllowed(StoreError):
    """The token of a remote store does not allow the call. Nothing was changed.

    Attributes:
        caller: Name of the token.
        scope: Scope that the call requires.
    """

    def __init__(self, message: str, caller: str, scope: str) -> None:
        super().__init__(message)
        self.caller, self.scope = caller, scope


class Corrupt(StoreError):
    """A record has content that no version of this program writes. The record was not changed.

    Attributes:
        tag: Name of the tag.
        problem: Description of the damage.
    """

    def __init__(self, tag: str, problem: str) -> None:
        super().__init__(f"tag {tag!r}: {problem}")
        self.tag, self.problem = tag, problem


class Damaged(StoreError):
    """A line of a journal was modified or damaged. The whole journal file was ignored.

    Attributes:
        path: Path of the file.
        line: Number of the line, counted from 1.
        problem: Description of the damage.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"journal {path}, line {line}: {problem}")
        self.path, self.line, self.problem = path, line, problem


class TagMissing(StoreError):
    """The tag was never created, or was deleted."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"no tag {tag!r}")
        self.tag = tag


class TagPresent(StoreError):
    """The tag to create exists already. The tag was not changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} exists")
        self.tag = tag


class LimitHit(StoreError):
    """Fewer numbers are left up to the limit of the tag than were requested. Nothing was reserved."""

    def __init__(self, tag: str, limit: int, maximum: int) -> None:
        super().__init__(f"tag {tag!r}: max {maximum} has reached the limit {limit}")
        self.tag, self.limit, self.max = tag, limit, maximum


class LimitTooLow(StoreError):
    """The requested limit is lower than the highest reserved number. Nothing was changed."""

    def __init__(self, tag: str, limit: int, maximum: int) -> None:
        super().__init__(f"limit {limit} is below {maximum}, the highest number reserved")
        self.tag, self.limit, self.max = tag, limit, maximum


class LeaseOnStrict(StoreError):
    """A lease was requested for a strict tag. Nothing was changed.

    A lease is a block of numbers that one process draws in advance. Leased numbers would be issued out of order.
    """

    def __init__(self, tag: str, lease: int) -> None:
        super().__init__(
            f"lease {lease}: tag {tag!r} is strict, and numbers drawn ahead come out of order; only a trend tag can "
            "have a lease"
        )
        self.tag, self.lease = tag, lease


class StepsCrossed(StoreError):
    """With the requested settings, `min_step` of the tag would be above `max_step`. Nothing was changed."""

    def __init__(self, tag: str, min_step: int, max_step: int) -> None:
        super().__init__(f"min_step {min_step} is above max_step {max_step}")
        self.tag, self.min_step, self.max_step = tag, min_step, max_step


class SchemeMismatch(StoreError):
    """A deleted tag cannot be created again with this scheme: numbers could be issued twice. Nothing was changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"tag {tag!r} existed before with another number scheme, so making it again could repeat numbers: use its "
            "old scheme, or another tag name"
        )
        self.tag = tag


class VersionMoved(StoreError):
    """The record has changed since the caller read it. This call changed nothing. Read the record again and retry."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} has changed meanwhile")
        self.tag = tag


class MaxBehind(StoreError):
    """The record's `max` is lower than a number that is known to be reserved. Nothing was reserved.

    Attributes:
        tag: Name of the tag.
        max: Highest reserved number in the store's record.
        at_least: Higher number that Redis, a process or a journal knows to be reserved.
        certain: True if a journal or the ledger confirms `at_least`.
    """

    def __init__(self, tag: str, maximum: int, at_least: int, *, certain: bool = False) -> None:
        super().__init__(f"tag {tag!r}: max {maximum} is below {at_least}, which is known to be taken")
        self.tag, self.max, self.at_least, self.certain = tag, maximum, at_least, certain


class Halted(StoreError):
    """Reservations of the tag are stopped until `recover`. Nothing was reserved."""

    def __init__(self, tag: str, maximum: int) -> None:
        super().__init__(f"tag {tag!r} is halted at max {maximum}")
        self.tag, self.max = tag, maximum
