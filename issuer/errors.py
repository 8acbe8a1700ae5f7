"""Everything that the issuer raises on purpose.

Each has a `code`, which names it to programs, and carries the values it speaks of as attributes, None where there is
none: `values` has them by name. What caused it is chained. `str()` says what is wrong, then what to do in Python.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from issuer.advice import ADVICE, Words, filled, python


class IssuerError(Exception):
    """Root of all errors of this package. `tag` is the tag concerned, or None.

    `code`: the same for ever, also if the class gets another name. `drawn`: the numbers that `take` had drawn when it
    failed part-way. They are the caller's alone.
    """

    code: ClassVar[str] = "failed"
    tag: str | None
    drawn: Sequence[int] = ()
    _advice: str | None = None

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(self, message: str, *, tag: str | None = None, advice: str | None = None) -> None:
        """`message`: what is wrong. `advice`: its name in issuer.advice, "" for none; None: that of the code."""
        super().__init__(message)
        self.tag, self._advice = tag, advice

    @property
    def values(self) -> dict[str, object]:
        """The values that it speaks of, by the names of its attributes."""
        return {name: value for name, value in vars(self).items() if name != "drawn" and name[0] != "_"}

    def told(self, words: Words) -> str:
        """Return what is wrong, and what to do, in the words of an edge."""
        do = filled(ADVICE.get(self.code if self._advice is None else self._advice, ""), words, self.tag)
        return f"{self._wrong(words)}; {do}" if do else self._wrong(words)

    def _wrong(self, words: Words) -> str:  # noqa: ARG002 - only where a message names an argument
        return super().__str__()

    def __str__(self) -> str:
        return self.told(python)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as it stands: most are made from other arguments than their message."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigurationError(IssuerError, code="configuration"):
    """The settings contradict each other, or a backend can't be used the way it is set up. Asking again won't help."""


class InvalidArgument(IssuerError, ValueError, code="invalid_argument"):
    """An argument is out of its range; nothing was changed. `value` is what was given.

    `argument`: its name, "" if the message names it otherwise.
    """

    def __init__(self, message: str, *, tag: str | None = None, value: object = None, argument: str = "") -> None:
        super().__init__(message, tag=tag)
        self.value, self.argument = value, argument

    def _wrong(self, words: Words) -> str:
        return f"{words([self.argument])} {super()._wrong(words)}" if self.argument else super()._wrong(words)


class SchemeError(ConfigurationError, code="scheme"):
    """A setting of a tag's number scheme is wrong, contradicts another one, or can't be changed any more.

    `setting`: its name, as `create`, `configure` and `connect` call it; `value`: what was given.
    """

    def __init__(
        self, message: str, *, setting: str, value: object = None, tag: str | None = None, advice: str | None = None
    ) -> None:
        super().__init__(message, tag=tag, advice=advice)
        self.setting, self.value = setting, value

    def _wrong(self, words: Words) -> str:
        return f"{words([self.setting])}: {super()._wrong(words)}"


class ForeignHash(ConfigurationError, code="foreign_hash"):
    """The tag's hash in Redis was armed for another store, and its numbers are that store's. Nothing was changed.

    `key`: of the hash; `owner`: the id of the store that it belongs to; `store`: the id of this one, "" if it is empty;
    `taken`: the highest number in the hash, None if that wasn't looked at.
    """

    def __init__(self, tag: str, *, key: str, owner: str, store: str, taken: int | None = None) -> None:
        numbers = "its numbers" if taken is None else f"its numbers, up to {taken},"
        found = f"Redis key {key} belongs to another store (id {owner}, this one is {store or 'empty'})"
        super().__init__(f"{found}, and {numbers} are that store's", tag=tag)
        self.key, self.owner, self.store, self.taken = key, owner, store, taken


class NotDecodable(InvalidArgument, code="not_decodable"):
    """A number or text that the tag, as it is set up, can't have given. `value` is what was given."""


class FormatOverflow(IssuerError, code="format_overflow"):
    """A number has more digits than the tag's format has places. It was not cut, and the text not made longer.

    The number was drawn, and no caller gets it: it is a gap, and so is that of each further try.

    `value`: the number; `width`: how many places there are.
    """

    def __init__(self, value: int, *, width: int, field: str, tag: str | None = None) -> None:
        super().__init__(
            f"{value} doesn't fit into the {width} places of {{{field}}}: widen them with a new format", tag=tag
        )
        self.value, self.width = value, width


class UnknownTag(IssuerError, LookupError, code="unknown_tag"):
    """The tag was never created, or was deleted. `store`: where it was looked for, without secrets."""

    def __init__(self, tag: str, *, store: str | None = None) -> None:
        super().__init__(tag, tag=tag)
        self.store = store

    def _wrong(self, words: Words) -> str:  # noqa: ARG002 - as of its root
        return f"unknown tag {self.tag!r}" + ("" if self.store is None else f" in {self.store}")


class TagExists(IssuerError, code="tag_exists"):
    """A tag of that name is there already; it was left as it is."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag {tag!r} exists", tag=tag)


class TagDiffers(TagExists, code="tag_differs"):
    """A tag of that name is there already, with other settings than those asked for; it was left as it is.

    `differences`: by the name of each setting that differs, what was asked for, and what the tag has.
    """

    def __init__(self, tag: str, differences: Mapping[str, tuple[object, object]]) -> None:
        super().__init__(tag)
        self.differences = dict(differences)

    def _wrong(self, words: Words) -> str:
        each = (f"{name} is {brief(found)}, not {brief(asked)}" for name, (asked, found) in self.differences.items())
        return f"{super()._wrong(words)}: {', '.join(each)}"


class LimitReached(IssuerError, code="limit_reached"):
    """Too few numbers are left up to `limit`; `value` is the last number reserved. Numbers never wrap.

    `advice`: what can be done, where the limit can't be raised.
    """

    def __init__(self, tag: str, *, limit: int, value: int, advice: str = "") -> None:
        super().__init__(
            f"tag {tag!r} has reached its limit: {value} of {limit} are reserved{advice and '; '}{advice}",
            tag=tag,
            advice="" if advice else None,
        )
        self.limit, self.value = limit, value


class Refused(IssuerError, code="refused"):
    """A plugin refused the call before anything was drawn. A plugin may raise it itself, to say why.

    `plugin`: the name of its class, "" as long as the chain hasn't filled it in; `reason`: the plugin's own words.
    """

    def __init__(self, tag: str, *, plugin: str = "", reason: str = "") -> None:
        super().__init__(
            f"tag {tag!r}: the call was refused by {plugin or 'a plugin'}{reason and ': '}{reason}", tag=tag
        )
        self.plugin, self.reason = plugin, reason


class TransformFailed(IssuerError, code="transform_failed"):
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
        self.plugin, self.numbers = plugin, numbers


class Unauthenticated(IssuerError, code="unauthenticated"):
    """A server asks for a token, and none was sent, or none that it knows. Nothing was done."""


class Forbidden(IssuerError, code="forbidden"):
    """A token may not do this, or not with this tag. Nothing was done.

    `caller`: the name of the token; `scope`: what the call takes. `tag` None: it is about all tags.
    """

    def __init__(self, caller: str, *, scope: str, scopes: Collection[str], tag: str | None = None) -> None:
        """`scopes`: those that the token has."""
        if {*scope.split(" or ")}.isdisjoint(scopes):
            wrong = f"token {caller!r} has no scope {scope}"
        elif tag is None:
            wrong = f"token {caller!r} isn't for all tags, as this call is"
        else:
            wrong = f"token {caller!r} isn't for tag {brief(tag)}"
        super().__init__(wrong, tag=tag)
        self.caller, self.scope = caller, scope


class Unavailable(IssuerError, code="unavailable"):
    """A backend did not answer before the deadline.

    `retry_after`: seconds, above 0, after which asking again makes sense. Of a store it grows with the outage, to 30 s.
    """

    def __init__(
        self, message: str, *, tag: str | None = None, retry_after: float = 1.0, advice: str | None = None
    ) -> None:
        super().__init__(message, tag=tag, advice=advice)
        self.retry_after = retry_after


class TooManyRequests(Unavailable, code="too_many_requests"):
    """A token's requests of this second are used up; nothing was done."""


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """The store did not answer, or did not hand out a segment, before the deadline."""


class StoreFull(StoreUnavailable, code="store_full"):
    """No space is left for the store's file, or for its journal, so nothing is reserved. `path`: of that file."""

    def __init__(
        self, message: str, *, tag: str | None = None, retry_after: float = 1.0, advice: str | None = None, path: str
    ) -> None:
        super().__init__(message, tag=tag, retry_after=retry_after, advice=advice)
        self.path = path


class RedisUnavailable(Unavailable, code="redis_unavailable"):
    """Redis did not answer before the deadline."""


class CalledWithin(Unavailable, code="called_within"):
    """The call runs in the middle of another one of the same thread, which holds what it needs; it did not wait.

    As from a finalizer, a weakref's callback, a log handler, an observer or a signal handler.
    """

    def __init__(self, *, tag: str | None = None) -> None:
        wrong = "this call runs inside another call of the issuer on the same thread, and would wait for it for ever"
        super().__init__(wrong, tag=tag)


class ClockBehind(Unavailable, code="clock_behind"):
    """This machine's clock stands below a time that numbers were made of: none is made until it has caught up.

    `behind`: how far, in ms. `retry_after`: when it will have caught up, if it runs as it should.
    """

    def __init__(self, message: str, *, tag: str | None = None, behind: int) -> None:
        super().__init__(message, tag=tag, retry_after=max(0.001, behind / 1000))
        self.behind = behind


class NoMachineNumber(Unavailable, code="no_machine_number"):
    """No machine number can be had now: all are held, or it isn't sure yet which are, as Redis is another one."""


class StrategyFailed(IssuerError, code="strategy_failed"):
    """A strategy raised an error that isn't one of these, or gave other numbers than it was asked for.

    `strategy`: its name. What it raised is chained. No number reached the caller.
    """

    def __init__(self, message: str, *, tag: str | None = None, strategy: str) -> None:
        super().__init__(message, tag=tag)
        self.strategy = strategy


class CorruptState(IssuerError, code="corrupt_state"):
    """Redis or the store holds a value that this program never writes. It was left as it is, and nothing was issued."""


class JournalDamaged(IssuerError, code="journal_damaged"):
    """A line of a journal isn't as it was written, and it isn't a torn last one. Nothing was taken from the file.

    `path`: the file; `line`: which one, counted from 1.
    """

    def __init__(self, message: str, *, tag: str | None = None, path: str, line: int) -> None:
        super().__init__(message, tag=tag)
        self.path, self.line = path, line


class FenceError(IssuerError, code="fence"):
    """This Redis can't be trusted to move forward only: INFO is denied, it is no master, or it isn't supported."""


class StoreBehind(IssuerError, code="store_behind"):
    """The store's `max` is below numbers that are known to be taken: it was restored from a backup, or lost writes.

    `max` is what the store says, `taken` the highest number known to be taken. None: the tag is halted, since another
    process found out, or an operator ran `halt`. Its reservations are stopped until `recover` has run.
    `scheme`: the id of a later scheme than the store knows, None if that isn't why.
    """

    def __init__(self, tag: str, *, max: int, taken: int | None = None, scheme: str | None = None) -> None:
        if scheme is not None:
            wrong = f"had a later scheme ({scheme}) than the store knows, and values would come again"
        elif taken is not None:
            wrong = f"stands at max {max} although {taken} is taken"
        else:
            wrong = f"is halted at max {max}, by `halt` or as the store was found to be behind"
        behind = "" if taken is None and scheme is None else "the store is behind: "
        super().__init__(f"{behind}tag {tag!r} {wrong}", tag=tag, advice=scheme and "store_behind.scheme")
        self.max, self.taken, self.scheme = max, taken, scheme


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
