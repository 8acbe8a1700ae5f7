"""The record of a tag, its settings, and the changes of a record.

Each change is a method of `Tag`. The method returns the changed record, or raises an error. The method does no I/O: the
store must write the changed record atomically.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping  # when it runs too: the server reads the types of the fields
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, cast, get_args

from issuer_persistence.errors import (
    Corrupt,
    Halted,
    LeaseOnStrict,
    LimitHit,
    LimitTooLow,
    MaxBehind,
    SchemeMismatch,
    StepsCrossed,
    TagMissing,
    TagPresent,
    VersionMoved,
)
from issuer_persistence.scheme_json import PLAIN, FrozenObject, continued, frozen, problem

Order = Literal["strict", "trend"]

#: "fixed": an operator or a program has set the step. "auto": the issuer adapts the step to the tag's rate of use.
StepMode = Literal["fixed", "auto"]
LeaseMode = Literal["set", "auto"]

#: Highest number: 2^63-1, the largest signed 64-bit integer.
HIGHEST = 2**63 - 1

#: Length of an id or a version, in random bytes.
_ID_BYTES = 12

#: Largest lease, in numbers that a process draws in advance. If the process is killed, these numbers are lost.
LEASE_MOST = 1_000_000

#: Highest value of `ahead`, the number of steps in a segment.
AHEAD_MOST = 1000

#: Default of `step`, and of `min_step`, the lowest step that the issuer sets in the step mode "auto".
DEFAULT_STEP = 1000

#: Default of `max_step`, the highest step that the issuer sets in the step mode "auto".
DEFAULT_MAX_STEP = 1_000_000

#: Default of `target`, the time for which an adapted step lasts, in seconds: 10 minutes. Leaf, another issuer, and
#: articles about such issuers advise this time.
DEFAULT_TARGET = 600

#: Highest value of `target` and `survive`, in seconds: 30 days.
DURATION_MOST = 30 * 86_400

#: Default of `refill_at`.
DEFAULT_REFILL_AT = 0.2


def now_ms() -> int:
    """Return the time in ms since 1970, for `timestamp` and the ledger.

    Numbers do not depend on this time. Only the step of a tag with the step mode "auto" depends on it.
    """
    return time.time_ns() // 1_000_000


def fresh_version() -> str:
    """Return a new random value for the version of a record.

    Do not use a counter: after a backup is restored, a counter would repeat values.
    """
    return os.urandom(_ID_BYTES).hex()


def is_id(text: str) -> bool:
    """Return True if the text has 24 hexadecimal digits, like the values of `fresh_version`."""
    return len(text) == 2 * _ID_BYTES and not set(text) - set("0123456789abcdef")


_T = TypeVar("_T")


def is_number(value: object, lowest: int = 0, highest: int = HIGHEST) -> bool:
    """Return True if the value is an int (not a bool, not a float) in lowest..highest."""
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _between(lowest: int, highest: int) -> str:
    return f"an integer in {lowest}..{'2^63-1' if highest == HIGHEST else highest}"


def check_argument(name: str, value: object, lowest: int = 0, highest: int = HIGHEST) -> None:
    """Raise ValueError unless the argument is an int in lowest..highest."""
    if not is_number(value, lowest, highest):
        raise ValueError(f"{name} must be {_between(lowest, highest)}, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Definition of a setting of a tag. Values are numbers in a range, words, bools, texts, or what `check` accepts.

    Attributes:
        default: Value for a new tag. If it is None, None is allowed, and means "use the process's setting".
        range: Lowest and highest integer. None if the setting is not an integer.
        share: Lowest and highest share, as floats. None if the setting is not a share.
        words: Allowed words.
        check: Function that returns what is wrong with a value, or "" if the value is valid. None if there is no such
            function.
        required: True if every record has the setting. If False, records of older versions lack it, and the default
            applies.
        changes: True if the setting can be changed after creation.
    """

    default: object = ""
    range: tuple[int, int] | None = None
    share: tuple[float, float] | None = None
    words: tuple[str, ...] = ()
    check: Callable[[object], str] | None = None
    required: bool = False
    changes: bool = True

    @property
    def flag(self) -> bool:
        """True if the values are True and False."""
        return isinstance(self.default, bool)

    def problem(self, value: object) -> str:
        """Return what is wrong with a value, for an error message, or "" if the value is valid."""
        if self.range is not None:
            return "" if is_number(value, *self.range) else f"must be {_between(*self.range)}, not {value!r}"
        if self.share is not None:
            lowest, highest = self.share
            fits = isinstance(value, float) and lowest <= value <= highest
            return "" if fits else f"must be a share in {lowest}..{highest}, not {value!r}"
        if self.words:
            return "" if value in self.words else f"must be one of {', '.join(self.words)}, not {value!r}"
        if self.flag:
            return "" if isinstance(value, bool) else f"must be true or false, not {value!r}"
        if self.check is not None:
            return self.check(value)
        return "" if isinstance(value, str) else f"must be a text, not {value!r}"


def _setting(default: Any, **more: Any) -> Any:
    """Return the dataclass field of a setting. `more`: see `Setting`."""
    metadata = {"setting": Setting(default=default, **more)}
    if default is PLAIN:  # a dict has no hash, so it is left out of the hash of a record
        return field(default_factory=lambda: default, hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSettings:
    """The settings of a tag that are stored in its record. This class is their only list.

    Attributes:
        step: Size of a step in numbers, 1..2^63-1.
        step_mode: "fixed" if the step was set, "auto" if the issuer adapts it.
        target: How long the numbers of an adapted step last, in seconds, 1..2_592_000.
        min_step: Lowest adapted step, 1..2^63-1.
        max_step: Highest adapted step, `min_step`..2^63-1.
        limit: Last number of the tag, 1..2^63-1.
        order: "strict" or "trend".
        lease: How many numbers each process draws in advance, 0 (none)..1_000_000. None if each process uses its own
            setting. A strict tag has 0 or None.
        lease_mode: "set" if `lease` applies, "auto" if each process adapts the number to its rate of use.
        ahead: Steps per segment, 1..1000.
        refill_at: Share of a segment or lease that is used when the next one is fetched, 0.01..0.9.
        survive: Outage of the store that numbers in Redis or in a process must outlast, 0 (none)..2_592_000 seconds.
        drain: True if a process returns its unused numbers after a long time without a draw. False if it keeps them.
        description: Text for operators.
        scheme: Settings of the scheme. {} if numbers are counter values. The scheme is a JSON object of at most 16 KiB
            and 20 levels, with 64-bit integers and no floats.
    """

    step: int = _setting(DEFAULT_STEP, range=(1, HIGHEST), required=True)
    step_mode: StepMode = _setting("fixed", words=get_args(StepMode))
    target: int = _setting(DEFAULT_TARGET, range=(1, DURATION_MOST))
    min_step: int = _setting(DEFAULT_STEP, range=(1, HIGHEST))
    max_step: int = _setting(DEFAULT_MAX_STEP, range=(1, HIGHEST))
    limit: int = _setting(HIGHEST, range=(1, HIGHEST), required=True)
    order: Order = _setting("strict", words=get_args(Order), required=True, changes=False)
    lease: int | None = _setting(None, range=(0, LEASE_MOST))
    lease_mode: LeaseMode = _setting("set", words=get_args(LeaseMode))
    ahead: int = _setting(1, range=(1, AHEAD_MOST))
    refill_at: float = _setting(DEFAULT_REFILL_AT, share=(0.01, 0.9))
    survive: int = _setting(0, range=(0, DURATION_MOST))
    drain: bool = _setting(default=True)
    description: str = _setting("", required=True)
    scheme: Mapping[str, Any] = _setting(PLAIN, check=problem)

    def kept(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {name: getattr(self, name) for name in SETTINGS}


#: The settings of a tag, by name, in the order in which they are documented.
SETTINGS: Mapping[str, Setting] = {each.name: each.metadata["setting"] for each in fields(StoredSettings)}

#: Columns of a record in SQL that contain True or False.
FLAGS = ("halted", "deleted", *(name for name, each in SETTINGS.items() if each.flag))

#: Settings that decide the size of a tag's segments, when the next segment is fetched, and whether unused numbers are
#: returned. The parts of a tag, its shards or series, get the same values as the tag.
PACING = ("target", "min_step", "max_step", "ahead", "refill_at", "survive", "drain")

#: Values beside the settings.
_ABOVE = Setting(default=0, range=(0, HIGHEST))
_RAISE_TO, _SEEN = Setting(default=None, range=(0, HIGHEST)), Setting(default=None)


def _checked(name: str, value: object, setting: Setting) -> Any:
    """Return the value of a setting, a scheme as a copy. If it is invalid, raise ValueError."""
    # The defaults, such as the plain scheme, are valid. So they are not checked.
    if value is not setting.default and (wrong := setting.problem(value)):
        raise ValueError(f"{name} {wrong}")
    # Copy the scheme, because the caller may change its own object later.
    return frozen(cast("Any", value)) if name == "scheme" and value is not PLAIN else value


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSettings(StoredSettings):
    """Settings for a new tag. A value out of its range raises ValueError.

    Attributes:
        above: Number after which the tag starts, 0..2^63-1. The first number of the tag is `above` + 1.
    """

    above: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        _checked("above", self.above, _ABOVE)
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), setting))


@dataclass(frozen=True, slots=True, init=False)
class TagChanges:
    """Changes of a tag's settings.

    Attributes:
        settings: New values by name, see `StoredSettings`. A new scheme replaces the whole old scheme.
        raise_to: Number to which `max` is raised, 0..2^63-1. If `max` is already higher, it does not change.
        seen: Version that the record must still have. Each change and reservation sets a new one. None: not checked.
    """

    settings: Mapping[str, Any] = field(hash=False)
    raise_to: int | None
    seen: str | None

    def __init__(self, *, raise_to: int | None = None, seen: str | None = None, **settings: Any) -> None:
        """Check the values. None leaves a setting unchanged. A value out of its range raises ValueError.

        `settings`: by name. A name that is not a setting, or one that cannot be changed, raises TypeError.
        """
        if unknown := settings.keys() - {name for name, each in SETTINGS.items() if each.changes}:
            raise TypeError(f"{', '.join(sorted(unknown))} cannot be changed: no such setting of an existing tag")
        _checked("raise_to", raise_to, _RAISE_TO)
        _checked("seen", seen, _SEEN)
        new = {name: _checked(name, each, SETTINGS[name]) for name, each in settings.items() if each is not None}
        for name, value in (("settings", new), ("raise_to", raise_to), ("seen", seen)):
            object.__setattr__(self, name, value)


def tried(read: Callable[[Any], _T], row: Any) -> _T | Corrupt:
    """Return what `read` finds in a row, or its error: a new one, because one that was raised holds frames."""
    try:
        return read(row)
    except Corrupt as error:
        return Corrupt(error.tag, error.problem)


def number(tag: str, fields: Mapping[str, object], name: str, lowest: int = 0, highest: int = HIGHEST) -> int:
    """Return the field `name` of a record. Raise Corrupt if the value is not an integer in lowest..highest."""
    value = fields.get(name)
    if not is_number(value, lowest, highest):
        raise Corrupt(tag, f"{name} must be {_between(lowest, highest)}, not {value!r} ({type(value).__name__})")
    return int(cast("int", value))


def settings_of(tag: str, fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings in a store's record or a journal's line, by name. If a setting is damaged, raise Corrupt."""
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        value = fields.get(name)
        plain = name == "scheme" and value == PLAIN
        if plain or (value is None and not setting.required):
            found[name] = setting.default
        elif wrong := setting.problem(value):
            raise Corrupt(tag, f"{name} {wrong}" + ("" if name == "scheme" else f" ({type(value).__name__})"))
        else:
            # Int64 of MongoDB and bool are subclasses of int.
            found[name] = int(value) if isinstance(value, int) and not setting.flag else value
    if found["order"] == "strict":
        # A strict tag must have no lease, so its lease is ignored. Such a record exists if the order was changed by
        # hand, or if an older program created the tag again as a strict tag and kept the old lease.
        found["lease_mode"] = "set"
        found["lease"] = found["lease"] and None
    return found


def typed(tag: str, fields: Mapping[str, object], name: str, kind: type[_T]) -> _T:
    """Return the field `name` of a record. Raise Corrupt if the value is not of the type `kind`."""
    value = fields.get(name)
    if not isinstance(value, kind):
        raise Corrupt(tag, f"{name} must be a {kind.__name__}, not {value!r} ({type(value).__name__})")
    return value


@dataclass(frozen=True, kw_only=True)
class _Named:
    """The first fields of a record. Without slots of its own, a class can be the second base of `Tag`."""

    __slots__ = ()

    tag: str
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag(StoredSettings, _Named):
    """The record of a tag in the store, with its settings, see `StoredSettings`. It cannot be modified in place.

    Attributes:
        tag: Name of the tag.
        max: Highest number reserved so far, 0..2^63-1. For a new tag with `start=100`, `max` is 99.
        created: Time of creation, in ms since 1970.
        timestamp: Time of the last change, in ms since 1970.
        version: Random value. Every change of the record sets a new version.
        halted: True if reservations are stopped until `recover`.
        deleted: True if the tag was deleted. The store keeps the record, so that a new tag of the same name starts
            after the old numbers.
    """

    created: int
    timestamp: int
    version: str
    halted: bool = False
    deleted: bool = False

    def __post_init__(self) -> None:
        """Copy the scheme, because the caller may change its own object later."""
        if type(self.scheme) is not FrozenObject:
            object.__setattr__(self, "scheme", frozen(self.scheme))

    @classmethod
    def checked(cls, tag: str, fields: Mapping[str, object], settings: Mapping[str, Any] | None = None) -> Tag:
        """Build a record from the fields that a store has read. If a field is missing or invalid, raise Corrupt.

        `settings`: those of the record, if they were checked before.
        """
        return cls(
            tag=tag,
            max=number(tag, fields, "max"),
            created=number(tag, fields, "created"),
            timestamp=number(tag, fields, "timestamp"),
            version=typed(tag, fields, "version", str),
            halted=typed(tag, fields, "halted", bool),
            deleted=typed(tag, fields, "deleted", bool),
            **(settings_of(tag, fields) if settings is None else settings),
        )

    @classmethod
    def made(cls, tag: str, found: Tag | None, settings: TagSettings) -> Tag:
        """Return the record of a new tag. If a tag of this name was deleted, the new tag starts after the old numbers.

        If the deleted tag was halted, its `max` may be too low, so the new tag is halted too. The new tag also gets the
        id of the old scheme.

        Args:
            tag: Name of the tag.
            found: Existing record with this name, or None.
            settings: Settings of the tag.

        Raises:
            TagPresent: The tag exists.
            LimitHit: No number is left up to the limit.
            LeaseOnStrict: The order is strict and `lease` is above 0.
            StepsCrossed: `min_step` is above `max_step`.
            SchemeMismatch: The scheme of the deleted tag produces other numbers from the same counter values.
        """
        if settings.order == "strict" and settings.lease:
            raise LeaseOnStrict(tag, settings.lease)
        if settings.min_step > settings.max_step:
            raise StepsCrossed(tag, settings.min_step, settings.max_step)
        if found is not None and not found.deleted:
            raise TagPresent(tag)
        values = settings.scheme if found is None else continued(found.scheme, settings.scheme)
        if values is None:
            raise SchemeMismatch(tag)
        maximum = settings.above if found is None else max(settings.above, found.max)
        if maximum >= settings.limit:
            raise LimitHit(tag, settings.limit, maximum)
        now = now_ms()
        return cls(
            tag=tag,
            max=maximum,
            created=now,
            timestamp=now,
            version=fresh_version(),
            halted=found is not None and found.halted,
            **{**settings.kept(), "scheme": values},
        )

    @property
    def settings(self) -> TagSettings:
        """Settings with which the tag can be created again. The new tag starts after the numbers of this tag."""
        return TagSettings(above=self.max, **self.kept())

    @property
    def scheme_id(self) -> str:
        """Id of the scheme, the settings that turn counter values into numbers. "" if numbers are counter values.

        If a change of the scheme leads to other numbers for the same counter values, the scheme gets a new id.
        """
        return str(self.scheme.get("id", ""))

    @property
    def segment(self) -> int:
        """Size of the next segment: `ahead` x `step`. It can be more than the numbers left up to the limit."""
        return self.step * self.ahead

    def live(self) -> Tag:
        """Return the record itself. If the tag is deleted, raise TagMissing."""
        if self.deleted:
            raise TagMissing(self.tag)
        return self

    def changed(self, **fields: Any) -> Tag:
        """Return the record with the given fields, a new version and the current time."""
        return replace(self, version=fresh_version(), timestamp=now_ms(), **fields)

    def reserved(self, n: int | None, *, at_least: int, exact: bool) -> Tag:
        """Return the record after a reservation of n numbers. If fewer are left and `exact` is False, reserve fewer.

        Arguments and errors are those of `Store.reserve`.
        """
        self.live()
        if self.halted:
            raise Halted(self.tag, self.max)
        if self.max < at_least:
            raise MaxBehind(self.tag, self.max, at_least)
        wanted = self.segment if n is None else n
        left = self.limit - self.max
        if left <= 0 or (exact and left < wanted):
            raise LimitHit(self.tag, self.limit, self.max)
        return self.changed(max=self.max + min(wanted, left))

    def configured(self, changes: TagChanges) -> Tag:
        """Return the record after the changes. The errors are those of `Store.configure`."""
        self.live()
        if changes.seen is not None and changes.seen != self.version:
            raise VersionMoved(self.tag)
        if self.order == "strict" and changes.settings.get("lease"):
            raise LeaseOnStrict(self.tag, changes.settings["lease"])
        raised = self.max if changes.raise_to is None else max(self.max, changes.raise_to)
        after = self.changed(max=raised, **changes.settings)
        if after.min_step > after.max_step:
            raise StepsCrossed(self.tag, after.min_step, after.max_step)
        # After `recover`, `max` may be above the limit. Then other settings, such as the step, can still be changed.
        if after.limit < after.max and ("limit" in changes.settings or changes.raise_to is not None):
            raise LimitTooLow(self.tag, after.limit, after.max)
        return after

    def recovered(self, at_least: int) -> Tag:
        """Return the record after a recovery: `max` is at least `at_least`, and the tag is not halted."""
        self.live()
        return self.changed(max=max(self.max, at_least), halted=False)

    def stopped(self, below: int | None) -> Tag:
        """Return a halted copy of the record. If `below` is given and `max` has reached it, change nothing."""
        self.live()
        in_time = below is None or self.max < below
        return self.changed(halted=True) if in_time and not self.halted else self

    def buried(self) -> Tag:
        """Return the record, marked as deleted."""
        return self if self.deleted else self.changed(deleted=True)
