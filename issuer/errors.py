"""Everything that the issuer raises on purpose.

    IssuerError
    ├── ConfigurationError    settings that contradict each other, or a backend that can't be used as it is set up
    │   ├── SchemeError       a setting of a tag's number scheme is wrong, or can't be changed any more
    │   └── ForeignHash       the tag's hash in Redis belongs to another store: two stores share a prefix
    ├── InvalidArgument       (also a ValueError) an argument out of range; nothing was changed
    │   └── NotDecodable      a number or text that the tag can't have given
    ├── FormatOverflow        a number is too wide for the tag's format
    ├── UnknownTag            (also a LookupError) no such tag
    ├── TagExists             `create` of a tag that is there
    │   └── TagDiffers        `create(..., exist_ok=True)` of one that is there with other settings
    ├── LimitReached          the tag has no numbers left below its limit
    ├── Refused               a plugin refused the call; nothing was drawn
    ├── TransformFailed       a plugin could not turn a number into what users see: the number is a gap
    ├── Unavailable
    │   ├── StoreUnavailable  the store did not answer in time
    │   ├── RedisUnavailable  Redis did not answer in time
    │   ├── ClockBehind       this machine's clock stands below numbers that were issued
    │   └── NoMachineNumber   no machine number can be had now
    ├── StrategyFailed        a strategy of the user's own raised something else, or broke its contract
    ├── CorruptState          Redis or the store holds something that this program never writes
    ├── JournalDamaged        a line of a journal isn't as it was written
    ├── FenceError            this Redis can't be trusted to move forward only
    └── StoreBehind           the store went back in time: run `issuer recover`

Each carries the values it speaks of as attributes, None where there is none; what caused it is chained.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any


class IssuerError(Exception):
    """Root of all errors of this package. `tag` is the tag concerned, or None.

    `drawn`: the numbers that `take` had drawn when it failed part-way. They are the caller's alone.
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


class SchemeError(ConfigurationError):
    """A setting of a tag's number scheme is wrong, contradicts another one, or can't be changed any more.

    `setting`: its name, as `create`, `configure` and `connect` call it; `value`: what was given.
    """

    def __init__(self, message: str, *, setting: str, value: object = None, tag: str | None = None) -> None:
        super().__init__(f"{setting}: {message}", tag=tag)
        self.setting = setting
        self.value = value


class ForeignHash(ConfigurationError):
    """The tag's hash in Redis was armed for another store, and its numbers are that store's. Nothing was changed.

    `key`: of the hash; `owner`: the id of the store that it belongs to; `store`: the id of this one; `taken`: the
    highest number in the hash, None if that wasn't looked at.
    """

    def __init__(self, tag: str, *, key: str, owner: str, store: str, taken: int | None = None) -> None:
        at_least = "the other store's max" if taken is None else f"at least {taken}, which is in that hash"
        name = quote(tag)
        super().__init__(
            f"Redis key {key} belongs to another store (id {owner}, this one is {store}), and its numbers are that "
            "store's: give each store its own prefix. If numbers were drawn from this hash for this store's users, "
            f"raise the tag above them first, under the new prefix: `issuer recover {name} --at-least N`, or `issuer "
            f"create {name} --above N` if this store doesn't know it; N is {at_least}",
            tag=tag,
        )
        self.key = key
        self.owner = owner
        self.store = store
        self.taken = taken


class NotDecodable(InvalidArgument):
    """A number or text that the tag, as it is set up, can't have given. `value` is what was given."""


class FormatOverflow(IssuerError):
    """A number has more digits than the tag's format has places. It was not cut, and the text not made longer.

    The number was drawn, and no caller gets it: it is a gap, and so is that of each further try.

    `value`: the number; `width`: how many places there are.
    """

    def __init__(self, value: int, *, width: int, field: str, tag: str | None = None) -> None:
        super().__init__(
            f"{value} doesn't fit into the {width} places of {{{field}}}: widen them with a new format", tag=tag
        )
        self.value = value
        self.width = width


class UnknownTag(IssuerError, LookupError):
    """The tag was never created, or was deleted. `store`: where it was looked for, without secrets."""

    def __init__(self, tag: str, *, store: str | None = None) -> None:
        super().__init__(tag, tag=tag)
        self.store = store

    def __str__(self) -> str:
        where = "" if self.store is None else f" in {self.store}"
        return f"unknown tag {self.tag!r}{where}: create it with `issuer create` or Issuer.create()"


class TagExists(IssuerError):
    """A tag of that name is there already; it was left as it is."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"tag {tag!r} exists: {self._told()}change it with `issuer set` or Issuer.configure()", tag=tag
        )

    def _told(self) -> str:
        return ""


class TagDiffers(TagExists):
    """A tag of that name is there already, with other settings than those asked for; it was left as it is.

    `differences`: by the name of each setting that differs, what was asked for, and what the tag has.
    """

    def __init__(self, tag: str, differences: Mapping[str, tuple[object, object]]) -> None:
        self.differences = dict(differences)
        super().__init__(tag)

    def _told(self) -> str:
        each = (f"{name} is {brief(found)}, not {brief(asked)}" for name, (asked, found) in self.differences.items())
        return f"{', '.join(each)}; "


class LimitReached(IssuerError):
    """Too few numbers are left up to `limit`; `value` is the last number reserved. Numbers never wrap.

    `advice`: what can be done, where the limit can't be raised.
    """

    def __init__(self, tag: str, *, limit: int, value: int, advice: str = "") -> None:
        super().__init__(
            f"tag {tag!r} has reached its limit: {value} of {limit} are reserved; "
            f"{advice or 'raise it with `issuer set --limit`'}",
            tag=tag,
        )
        self.limit = limit
        self.value = value


class Refused(IssuerError):
    """A plugin refused the call before anything was drawn. A plugin may raise it itself, to say why.

    `plugin`: the name of its class, "" as long as the chain hasn't filled it in; `reason`: the plugin's own words.
    """

    def __init__(self, tag: str, *, plugin: str = "", reason: str = "") -> None:
        super().__init__(
            f"tag {tag!r}: the call was refused by {plugin or 'a plugin'}{reason and ': '}{reason}", tag=tag
        )
        self.plugin = plugin
        self.reason = reason


class TransformFailed(IssuerError):
    """A plugin that changes numbers failed on some. They were drawn, and no caller gets them: they are gaps.

    Unchanged, they could be what the plugin makes of other numbers. `plugin`: the names of the plugins in question;
    `numbers`: those that were drawn in vain; those that went well are in `drawn`.
    """

    def __init__(self, tag: str, *, plugin: str, numbers: Sequence[int]) -> None:
        super().__init__(
            f"tag {tag!r}: {plugin} could not change {len(numbers)} of the numbers drawn: they are gaps; the log "
            "issuer.plugins says why",
            tag=tag,
        )
        self.plugin = plugin
        self.numbers = numbers


class Unavailable(IssuerError):
    """A backend did not answer before the deadline.

    `retry_after`: seconds, above 0, after which asking again makes sense. Of a store it grows with the outage, to 30 s.
    """

    def __init__(self, message: str, *, tag: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, tag=tag)
        self.retry_after = retry_after


class StoreUnavailable(Unavailable):
    """The store did not answer, or did not hand out a segment, before the deadline."""


class RedisUnavailable(Unavailable):
    """Redis did not answer before the deadline."""


class ClockBehind(Unavailable):
    """This machine's clock stands below a time that numbers were made of: none is made until it has caught up.

    `behind`: how far, in ms. `retry_after`: when it will have caught up, if it runs as it should.
    """

    def __init__(self, message: str, *, tag: str | None = None, behind: int) -> None:
        super().__init__(message, tag=tag, retry_after=max(0.001, behind / 1000))
        self.behind = behind


class NoMachineNumber(Unavailable):
    """No machine number can be had now: all are held, or it isn't sure yet which are, as Redis is another one."""


class StrategyFailed(IssuerError):
    """A strategy raised an error that isn't one of these, or gave other numbers than it was asked for.

    `strategy`: its name. What it raised is chained. No number reached the caller.
    """

    def __init__(self, message: str, *, tag: str | None = None, strategy: str) -> None:
        super().__init__(message, tag=tag)
        self.strategy = strategy


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
    process found out, or an operator ran `issuer halt`. Its reservations are stopped until `issuer recover` has run.
    `scheme`: the id of a later scheme than the store knows, None if that isn't why.
    """

    def __init__(self, tag: str, *, max: int, taken: int | None = None, scheme: str | None = None) -> None:
        self.max = max
        self.taken = taken
        self.scheme = scheme
        if scheme is not None:
            super().__init__(
                f"the store is behind: tag {tag!r} has had a later scheme ({scheme}) than the store knows, and values "
                f"would come again. Its reservations are stopped: run `issuer recover {tag}` with the journals; "
                "without them, set its scheme again, above all values that were given (stride_above, or where each "
                "scramble key begins), and recover",
                tag=tag,
            )
            return
        found = (
            f"the store is behind: tag {tag!r} stands at max {max} although {taken} is taken"
            if taken is not None
            else f"tag {tag!r} is halted at max {max}, by `issuer halt` or as the store was found to be behind"
        )
        super().__init__(f"{found}. Its reservations are stopped until `issuer recover {tag}` has run", tag=tag)


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlevel = 1

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002 - reprlib's
        # Python refuses to write out more than 4300 digits.
        bits = value.bit_length()
        return repr(value) if bits <= _BITS_SHOWN else f"an integer of {bits} bits"


_BITS_SHOWN = 256
_BRIEF = _Brief()


def brief(value: object) -> str:
    """Return the `repr` of a value for a message: 80 characters at most of what was passed by mistake.

    An error carries the value itself as an attribute.
    """
    return _BRIEF.repr(value)


def _rebuilt(kind: type[IssuerError], args: tuple[Any, ...], fields: dict[str, Any]) -> IssuerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error
