"""Everything that the issuer raises on purpose.

    IssuerError
    ├── ConfigurationError    settings that contradict each other, or a backend that can't be used as it is set up
    ├── InvalidArgument       (also a ValueError) an argument out of range; nothing was changed
    ├── UnknownTag            (also a LookupError) no such tag
    ├── TagExists             `create` of a tag that is there
    ├── LimitReached          the tag has no numbers left below its limit
    ├── Unavailable
    │   ├── StoreUnavailable  the store did not answer in time
    │   └── RedisUnavailable  Redis did not answer in time
    ├── CorruptState          Redis or the store holds something that this program never writes
    ├── JournalDamaged        a line of a journal isn't as it was written
    ├── FenceError            this Redis can't be trusted to move forward only
    └── StoreBehind           the store went back in time: run `issuer recover`

Each carries the values it speaks of as attributes, None where there is none; what caused it is chained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class IssuerError(Exception):
    """Root of all errors of this package. `tag` is the tag concerned, or None.

    `drawn`: the numbers that `take` had drawn when it failed part-way: they are the caller's, nobody else gets them.
    """

    tag: str | None
    drawn: Sequence[int] = ()

    def __init__(self, message: str, *, tag: str | None = None) -> None:
        super().__init__(message)
        self.tag = tag

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as it stands: most are made from other arguments than their message."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class ConfigurationError(IssuerError):
    """The settings contradict each other, or a backend can't be used the way it is set up. Asking again won't help."""


class InvalidArgument(IssuerError, ValueError):
    """An argument is out of its range; nothing was changed. `value` is what was given."""

    def __init__(self, message: str, *, tag: str | None = None, value: object = None) -> None:
        super().__init__(message, tag=tag)
        self.value = value


class UnknownTag(IssuerError, LookupError):
    """The tag was never created, or was deleted."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"unknown tag {tag!r}: create it with `issuer create` or Issuer.create()", tag=tag)


class TagExists(IssuerError):
    """A tag of that name is there already; it was left as it is."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} exists: change it with `issuer set` or Issuer.configure()", tag=tag)


class LimitReached(IssuerError):
    """Too few numbers are left up to `limit`; `value` is the last number reserved. Numbers never wrap."""

    def __init__(self, tag: str, *, limit: int, value: int) -> None:
        super().__init__(
            f"tag {tag!r} has reached its limit: {value} of {limit} are reserved; raise it with `issuer set --limit`",
            tag=tag,
        )
        self.limit = limit
        self.value = value


class Unavailable(IssuerError):
    """A backend did not answer before the deadline.

    `retry_after`: seconds, above 0, after which asking again makes sense: the backend is left alone until then anyway.
    """

    def __init__(self, message: str, *, tag: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, tag=tag)
        self.retry_after = retry_after


class StoreUnavailable(Unavailable):
    """The store did not answer, or did not hand out a segment, before the deadline."""


class RedisUnavailable(Unavailable):
    """Redis did not answer before the deadline."""


class CorruptState(IssuerError):
    """Redis or the store holds a value that this program never writes. It was left as it is, and nothing was issued."""


class JournalDamaged(IssuerError):
    """A line of a journal isn't as it was written, and it isn't a torn last one. Nothing was taken from the file.

    `path`: the file; `line`: which one, counted from 1.
    """

    def __init__(self, message: str, *, tag: str | None = None, path: str, line: int) -> None:
        super().__init__(message, tag=tag)
        self.path = path
        self.line = line


class FenceError(IssuerError):
    """This Redis can't be trusted to move forward only: INFO is denied, it is no master, or it isn't supported."""


class StoreBehind(IssuerError):
    """The store's `max` is below numbers that are known to be taken: it was restored from a backup, or lost writes.

    `max` is what the store says, `taken` the highest number known to be taken. None: the tag is halted, since another
    process found out, or somebody ran `issuer halt`. Its reservations are stopped until `issuer recover` has run.
    """

    def __init__(self, tag: str, *, max: int, taken: int | None = None) -> None:
        found = (
            f"the store is behind: tag {tag!r} stands at max {max} although {taken} is taken"
            if taken is not None
            else f"tag {tag!r} is halted at max {max}, by `issuer halt` or as the store was found to be behind"
        )
        super().__init__(f"{found}. Its reservations are stopped until `issuer recover {tag}` has run", tag=tag)
        self.max = max
        self.taken = taken


def _rebuilt(kind: type[IssuerError], args: tuple[Any, ...], fields: dict[str, Any]) -> IssuerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error
