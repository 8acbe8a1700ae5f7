"""Errors of the issuer. Each is an `IssuerError`.

Each class has a `code`, which programs can compare. The attributes of an error contain the details, such as the limit
that was reached. `values` returns these attributes by name. `str()` returns what is wrong and what to do, in terms of
Python. If another error was the cause, `__cause__` contains it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from issuer.advice import ADVICE, Words, filled, python


class IssuerError(Exception):
    """Base class of all errors of this package. It is raised directly only if no other class fits.

    Attributes:
        code: Name of the error for programs. The code stays the same in later versions.
        tag: Name of the tag concerned, or None.
        drawn: Numbers that `take` had drawn before it failed. These numbers belong to the caller.
    """

    code: ClassVar[str] = "failed"
    tag: str | None
    drawn: Sequence[int] = ()
    _advice: str | None = None
    #: The whole text of an error that a server has raised.
    _said: str | None = None

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(self, message: str, *, tag: str | None = None, advice: str | None = None) -> None:
        """Keep the message and the advice.

        Args:
            message: What is wrong.
            tag: Name of the tag concerned, or None.
            advice: Key of `issuer.advice.ADVICE`: what to do. "" means no advice. Default: the error's `code`.
        """
        super().__init__(message)
        self.tag, self._advice = tag, advice

    @property
    def values(self) -> dict[str, object]:
        """Attributes of the error by name, except `drawn`."""
        return {name: value for name, value in vars(self).items() if name != "drawn" and name[0] != "_"}

    def told(self, words: Words) -> str:
        """Return what is wrong and what to do, as text for one interface: Python, the command line or HTTP.

        `words`: function of `issuer.advice` that writes a call for this interface.
        """
        if self._said is not None:
            return self._said
        do = filled(ADVICE.get(self.code if self._advice is None else self._advice, ""), words, self.tag)
        return f"{self._wrong(words)}; {do}" if do else self._wrong(words)

    def _wrong(self, words: Words) -> str:  # noqa: ARG002 - for subclasses
        return super().__str__()

    def __str__(self) -> str:
        return self.told(python)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle.

        The default would call the constructor with the message alone, but most classes need other arguments.
        """
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigurationError(IssuerError, code="configuration"):
    """Settings contradict each other, or a server cannot be used as it is configured. A retry does not help.

    Correct the settings. `issuer config` shows each value and its source.
    """


class InvalidArgument(IssuerError, ValueError, code="invalid_argument"):
    """An argument is out of its range. Nothing was changed. The error is also a ValueError.

    Attributes:
        value: Value that was given.
        argument: Name of the argument. "" if the message does not begin with the name of an argument.
    """

    argument: str = ""

    def __init__(self, message: str, *, tag: str | None = None, value: object = None, argument: str = "") -> None:
        super().__init__(message, tag=tag)
        self.value, self.argument = value, argument

    def _wrong(self, words: Words) -> str:
        return f"{words([self.argument])} {super()._wrong(words)}" if self.argument else super()._wrong(words)


class SchemeError(ConfigurationError, code="scheme"):
    """A setting of a tag's scheme is wrong, contradicts another setting, or cannot be changed any more.

    The scheme of a tag defines how its numbers and texts are made, for example its format or stride.

    Attributes:
        setting: Name of the setting, as in `create`, `configure` and `connect`.
        value: Value that was given.
    """

    def __init__(
        self, message: str, *, setting: str, value: object = None, tag: str | None = None, advice: str | None = None
    ) -> None:
        super().__init__(message, tag=tag, advice=advice)
        self.setting, self.value = setting, value

    def _wrong(self, words: Words) -> str:
        return f"{words([self.setting])}: {super()._wrong(words)}"


class ForeignHash(ConfigurationError, code="foreign_hash"):
    """The tag's Redis hash, with its numbers, belongs to another store. Nothing was changed.

    Configure another `prefix` for each store.

    Attributes:
        key: Key of the hash.
        owner: Id of the store that the hash belongs to.
        store: Id of this store. "" if this store is empty.
        taken: Highest number in the hash. None if the hash was not read.
    """

    def __init__(self, tag: str, *, key: str, owner: str, store: str, taken: int | None = None) -> None:
        numbers = "its numbers" if taken is None else f"its numbers, up to {taken},"
        found = f"Redis key {key} belongs to another store (id {owner}, this store is {store or 'empty'})"
        super().__init__(f"{found}, and {numbers} are that store's", tag=tag)
        self.key, self.owner, self.store, self.taken = key, owner, store, taken


class NotDecodable(InvalidArgument, code="not_decodable"):
    """The tag cannot have issued this number or text with its present settings. `value` is the number or text."""


class FormatOverflow(IssuerError, code="format_overflow"):
    """A number has more digits than its field in the tag's format. No text is returned.

    The number was drawn but nobody receives it: it becomes a gap. Each further call raises this error and uses up
    another number. Configure a wider format.

    Attributes:
        value: The number.
        width: How many digits the field has.
    """

    def __init__(self, value: int, *, width: int, field: str, tag: str | None = None) -> None:
        super().__init__(
            f"{value} has more digits than the {width} places of {{{field}}}: configure a wider format", tag=tag
        )
        self.value, self.width = value, width


class UnknownTag(IssuerError, LookupError, code="unknown_tag"):
    """The tag was never created, or was deleted. The error is also a LookupError.

    Attributes:
        store: Address of the store that was queried, without secrets. None if unknown.
    """

    store: str | None = None

    def __init__(self, tag: str, *, store: str | None = None, advice: str | None = None) -> None:
        super().__init__(tag, tag=tag, advice=advice)
        self.store = store

    def _wrong(self, words: Words) -> str:  # noqa: ARG002 - signature of the base class
        return f"unknown tag {self.tag!r}" + ("" if self.store is None else f" in {self.store}")


class TagExists(IssuerError, code="tag_exists"):
    """`create` was called for a tag that exists. The tag was not changed."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} exists", tag=tag)


class TagDiffers(TagExists, code="tag_differs"):
    """`create` was called with `exist_ok=True` for a tag with other settings. The tag was not changed.

    Attributes:
        differences: For each setting that differs, a pair: the value that was requested, and the value of the tag.
    """

    def __init__(self, tag: str, differences: Mapping[str, tuple[object, object]]) -> None:
        super().__init__(tag)
        self.differences = dict(differences)

    def _wrong(self, words: Words) -> str:
        each = (f"{name} is {brief(found)}, not {brief(asked)}" for name, (asked, found) in self.differences.items())
        return f"{super()._wrong(words)}: {', '.join(each)}"


class LimitReached(IssuerError, code="limit_reached"):
    """The call requested more numbers than remain below the tag's limit.

    Attributes:
        limit: Last number that the tag may issue.
        value: Last number that was reserved.
    """

    def __init__(self, tag: str, *, limit: int, value: int, advice: str = "") -> None:
        """`advice`: what to do, as text, if the limit cannot be raised. Default: raise the limit."""
        wrong = "has reached its limit" if value >= limit else "has too few numbers left up to its limit"
        super().__init__(
            f"tag {tag!r} {wrong}: {value} of {limit} are reserved{advice and '; '}{advice}",
            tag=tag,
            advice="" if advice else None,
        )
        self.limit, self.value = limit, value


class Refused(IssuerError, code="refused"):
    """A plugin rejected the call before a number was drawn. A plugin can raise this error to give a reason.

    Attributes:
        plugin: Class name of the plugin. A plugin that raises the error can omit this name: the issuer adds it.
        reason: Text from the plugin.
    """

    def __init__(self, tag: str, *, plugin: str = "", reason: str = "") -> None:
        super().__init__(
            f"tag {tag!r}: the call was rejected by {plugin or 'a plugin'}{reason and ': '}{reason}", tag=tag
        )
        self.plugin, self.reason = plugin, reason


class TransformFailed(IssuerError, code="transform_failed"):
    """A plugin that changes numbers failed. The numbers that were drawn but not yet changed become gaps.

    The caller does not get these numbers unchanged, because a changed number of another call could have the same value.

    Attributes:
        plugin: Names of the plugins that failed.
        numbers: Numbers that become gaps. The numbers that the plugins had changed before the failure are in `drawn`.
    """

    def __init__(self, tag: str, *, plugin: str, numbers: Sequence[int]) -> None:
        super().__init__(
            f"tag {tag!r}: {plugin} could not change {len(numbers)} of the numbers drawn, which are gaps; the log "
            "issuer.plugins has the cause",
            tag=tag,
        )
        self.plugin, self.numbers = plugin, numbers


class Unauthenticated(IssuerError, code="unauthenticated"):
    """The server requires a token, but the request had no token or an unknown token. Nothing was changed."""


class Forbidden(IssuerError, code="forbidden"):
    """The token lacks the scope that this call requires, or is not valid for the tag. Nothing was changed.

    `tag` is None if the call concerns all tags.

    Attributes:
        caller: Name of the token.
        scope: Scope that the call requires.
    """

    def __init__(self, caller: str, *, scope: str, scopes: Collection[str], tag: str | None = None) -> None:
        """`caller`: name of the token. `scope`: scope that the call requires. `scopes`: scopes of the token."""
        if {*scope.split(" or ")}.isdisjoint(scopes):
            wrong = f"token {caller!r} has no scope {scope}"
        elif tag is None:
            wrong = f"token {caller!r} is not valid for all tags, which this call concerns"
        else:
            wrong = f"token {caller!r} is not valid for tag {brief(tag)}"
        super().__init__(wrong, tag=tag)
        self.caller, self.scope = caller, scope


class Unavailable(IssuerError, code="unavailable"):
    """A server did not answer in time, or cannot serve the call now. A retry helps.

    Attributes:
        retry_after: Recommended wait before a retry, in seconds, above 0. The wait grows up to 30 s while the store is
            down.
    """

    retry_after: float = 1.0

    def __init__(
        self, message: str, *, tag: str | None = None, retry_after: float = 1.0, advice: str | None = None
    ) -> None:
        super().__init__(message, tag=tag, advice=advice)
        self.retry_after = retry_after


class TooManyRequests(Unavailable, code="too_many_requests"):
    """The token has used up the requests that it may send in this second. Nothing was changed."""


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """The store did not answer, or did not reserve numbers, before the deadline."""


class StoreFull(StoreUnavailable, code="store_full"):
    """The disk of the store's file or of its journal is full, so no numbers are reserved.

    Attributes:
        path: Path of the file.
    """

    def __init__(
        self, message: str, *, tag: str | None = None, retry_after: float = 1.0, advice: str | None = None, path: str
    ) -> None:
        super().__init__(message, tag=tag, retry_after=retry_after, advice=advice)
        self.path = path


class RedisUnavailable(Unavailable, code="redis_unavailable"):
    """Redis did not answer before the deadline."""


class CalledWithin(Unavailable, code="called_within"):
    """The call was made inside another call of the issuer on the same thread, and would have waited for ever.

    Finalizers, weakref callbacks, log handlers, observers and signal handlers can run inside another call. Draw numbers
    in a thread of your own instead.
    """

    def __init__(self, *, tag: str | None = None) -> None:
        wrong = "this call was made inside another call of the issuer on the same thread, and would wait for it forever"
        super().__init__(wrong, tag=tag)


class ClockBehind(Unavailable, code="clock_behind"):
    """The clock of this machine shows an earlier time than the timestamp in numbers that were issued before.

    No numbers are issued until the clock has reached this timestamp.

    Attributes:
        behind: How far the clock is behind the timestamp, in ms. `retry_after` is the same time in seconds.
    """

    def __init__(self, message: str, *, tag: str | None = None, behind: int) -> None:
        super().__init__(message, tag=tag, retry_after=max(0.001, behind / 1000))
        self.behind = behind


class NoMachineNumber(Unavailable, code="no_machine_number"):
    """No machine number is available now.

    There are two reasons. Either all machine numbers are in use. Or another server has replaced Redis, and it is not
    yet certain which machine numbers are in use.
    """


class StrategyFailed(IssuerError, code="strategy_failed"):
    """A strategy raised an error that is not an IssuerError, or returned invalid numbers. The caller got no number.

    Attributes:
        strategy: Name of the strategy. The error that it raised is in `__cause__`.
    """

    def __init__(self, message: str, *, tag: str | None = None, strategy: str) -> None:
        super().__init__(message, tag=tag)
        self.strategy = strategy


class CorruptState(IssuerError, code="corrupt_state"):
    """Redis or the store holds a value that this program never writes. The value is unchanged; no number was issued."""


class JournalDamaged(IssuerError, code="journal_damaged"):
    """A line in a journal was modified or damaged. No line of the file was used.

    An incomplete last line is not an error.

    Attributes:
        path: Path of the file.
        line: Number of the line, counted from 1.
    """

    def __init__(self, message: str, *, tag: str | None = None, path: str, line: int) -> None:
        super().__init__(message, tag=tag)
        self.path, self.line = path, line


class FenceError(IssuerError, code="fence"):
    """The fence, the check that Redis has lost no data, cannot work with this Redis.

    The reason is one of these: INFO is denied, the server is not a master, or the server is not supported.
    """


class StoreBehind(IssuerError, code="store_behind"):
    """The store has lost reservations, for example because a backup was restored, or the tag is halted.

    Run `recover`. Until then, reservations are stopped.

    Attributes:
        max: Highest reserved number in the store's record.
        taken: Highest number that is known to be reserved; it is above `max`. None if the store has lost a scheme, or
            if the tag was halted before this call: by `halt`, or because a process found the store behind.
        scheme: Id of the newer scheme that the store has lost. None if the store has not lost a scheme.
    """

    def __init__(self, tag: str, *, max: int, taken: int | None = None, scheme: str | None = None) -> None:
        if scheme is not None:
            wrong = f"had a later scheme ({scheme}) than the store has, so values would be issued twice"
        elif taken is not None:
            wrong = f"has max {max}, but {taken} is taken"
        else:
            wrong = f"is halted at max {max}, by `halt` or because the store was found to be behind"
        behind = "" if taken is None and scheme is None else "the store is behind: "
        super().__init__(f"{behind}tag {tag!r} {wrong}", tag=tag, advice=scheme and "store_behind.scheme")
        self.max, self.taken, self.scheme = max, taken, scheme


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlevel = 1

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002 - signature of the base class
        # `repr` raises an error for an integer with more than 4300 digits.
        bits = value.bit_length()
        return repr(value) if bits <= _BITS_SHOWN else f"an integer of {bits} bits"


_BITS_SHOWN = 256
_BRIEF = _Brief()


def brief(value: object) -> str:
    """Return the `repr` of a value, shortened to about 80 characters, for an error message.

    An attribute of the error contains the full value.
    """
    return _BRIEF.repr(value)


def restored(code: str, message: str, values: Mapping[str, object]) -> IssuerError:
    """Return the error that a server has raised. If its code is not known here, it is an IssuerError.

    `message`: what is wrong and what to do. `values`: the attributes of the error, by name.
    """
    kinds = [IssuerError]
    for each in kinds:  # a class before its subclasses, which can have the same code
        kinds += each.__subclasses__()
    kind = next((each for each in kinds if each.code == code), IssuerError)
    error = kind.__new__(kind, message)
    known = {
        name: each for name, each in values.items() if name[:1].isalpha() and not callable(getattr(kind, name, None))
    }
    for name, form in (("drawn", list), ("retry_after", int | float)):
        if not isinstance(known.get(name), form):  # from another version
            known.pop(name, None)
    vars(error).update({"tag": None, **known, "_said": message})
    return error
