"""The settings of a tag: their definitions, and the conversion of arguments of calls to values for the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from issuer.core import scheme_record
from issuer.core.periods import Restart
from issuer.core.requests import above_of, flag, seconds, share, whole
from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer.gateway.keys import check_description, check_tag
from issuer.numbers.scheme_options import SchemeOptions
from issuer_persistence.records import (
    DEFAULT_MAX_STEP,
    DEFAULT_STEP,
    HIGHEST,
    LEASE_MOST,
    SETTINGS,
    Order,
    StepMode,
    TagChanges,
    TagSettings,
)
from issuer_persistence.scheme_json import PLAIN


@dataclass(frozen=True, slots=True)
class TagOption:
    """Definition of a setting of a tag or of its scheme. The command line, HTTP and their documentation use it.

    Attributes:
        kind: "whole" (an integer), "share", "duration" (in seconds), "number" (a number of the tag), "text", "flag" or
            "word" (one of `words`). Any other kind belongs to one setting only.
        help: Description for a new tag, in Markdown, without a period at the end.
        changed: Description for a change of an existing tag. "" if it is the same as `help`.
        section: Heading in the help of the command line.
        lowest: Lowest allowed number, or None.
        highest: Highest allowed number, or None.
        words: Allowed words.
    """

    kind: str
    help: str
    changed: str = ""
    section: str = "Options"
    lowest: float | None = None
    highest: float | None = None
    words: tuple[str, ...] = ()


def _stored(kind: str, name: str, help: str, changed: str = "") -> TagOption:
    """Return the definition of a setting that is stored unchanged. Its range and words are in the store's SETTINGS."""
    lowest, highest = SETTINGS[name].range or SETTINGS[name].share or (None, None)
    changed = changed or help.partition(". Default: ")[0]
    return TagOption(kind, help, changed, lowest=lowest, highest=highest, words=SETTINGS[name].words)


_TEXTS, _HIDING, _SHARING, _OTHERS = (
    "Texts and periods", "Scrambled numbers", "Sites and shards", "Strategies"
)  # fmt: skip

#: Definitions of all settings, by name, in the order of the documentation.
TAG_OPTIONS: Mapping[str, TagOption] = {
    "start": TagOption("number",
        "First number. Later it can only be raised, and the numbers below it are skipped. Default: 1",
        "Next number. The numbers below it are skipped"),
    "above": TagOption("number", "Number just below the first one, in place of `start`",
        "The numbers up to this one are skipped, in place of `start`"),
    "step": TagOption("step",
        "Size of a step in numbers, 1..2^63-1. With `auto` it begins with `min_step` and adapts to the rate of "
        "use: a step lasts about `target`. Default: `auto`",
        "Size of a step in numbers, 1..2^63-1, from the next segment on. With `auto` it begins with `min_step` and "
        "adapts to the rate of use"),
    "target": _stored("duration", "target",
        "How long an adapted step lasts, in seconds or as a text such as `10m`. Default: 10m"),
    "min_step": _stored("whole", "min_step", "Lowest adapted step. Default: 1000"),
    "max_step": _stored("whole", "max_step", "Highest adapted step. Default: 1000000"),
    "limit": TagOption("limit",
        "Last number, or a name: `int32` (2^31-1), `uint32` (2^32-1), `js` (2^53-1), `int64` (2^63-1, the default)",
        "Last number, or a name: `int32`, `uint32`, `js`, `int64`. Only a tag with periods can get a limit below its "
        "max"),
    "order": _stored("word", "order",
        "`strict`: numbers increase over all processes. `trend`: numbers increase within each process. Default: "
        "`trend` if there is no Redis or the strategy is not `segment`, else `strict`"),
    "lease": TagOption("lease",
        "Count of numbers of a trend tag that each process draws from Redis in advance, 0 (none)..1000000. `auto`: "
        "what the process uses in half a second. `process`: the setting `lease` of each process. Default: `auto`",
        "Count of numbers of a trend tag that each process draws from Redis in advance, 0 (none)..1000000, or `auto`: "
        "what the process uses in half a second"),
    "ahead": _stored("whole", "ahead",
        "Steps per segment. Larger segments cover a longer outage of the store. Default: 1"),
    "refill_at": _stored("share", "refill_at",
        "Share of a segment or lease that is used when the next one is fetched. Default: 0.2",
        "Share of a segment or lease that is used when the next one is fetched. It applies from the next one on"),
    "survive": _stored("duration", "survive",
        "Outage of the store that the numbers in Redis or in the process must outlast, in seconds or as a text such as "
        "`10m`: if necessary, the next segment is fetched earlier. Default: 0, none"),
    "drain": _stored("flag", "drain",
        "Return the unused numbers that a process holds in memory after nobody has used the tag for the time "
        "`idle_after`. If not, the process keeps them until it ends. Default: true"),
    "description": _stored("text", "description", "Text for operators, up to 1000 bytes"),
    "format": TagOption("text", "Format of the texts, such as `B{date:%y}-{seq:06d}{check}`", section=_TEXTS),
    "restart": TagOption("word",
        "Period after which the numbers start at 1 again: `daily`, `weekly`, `monthly` or `yearly`", section=_TEXTS,
        words=get_args(Restart)),
    "timezone": TagOption("text", "Time zone of dates and periods, such as Europe/Vienna. Default: UTC",
        section=_TEXTS),
    "keyed": TagOption("flag", "Keep a separate series of numbers for each restart key", section=_TEXTS),
    "scramble": TagOption("scramble",
        "Name of the secret key that scrambles the numbers, from the setting `keys`", section=_HIDING),
    "scramble_strict": TagOption("flag",
        "Allow scrambling for a strict tag, although scrambled numbers do not increase", section=_HIDING),
    "stride": TagOption("whole",
        "Issue only every n-th number, 1..2^32, so that n independent sites never issue the same number",
        "Issue only every n-th number, 1..2^32. The change applies to the numbers above `above`: give the same number "
        "at all sites, which no site has reached yet",
        section=_SHARING, lowest=1),
    "offset": TagOption("whole", "Number of this site, 1..stride. Each site needs a different one", section=_SHARING,
        lowest=1),
    "shards": TagOption("shards",
        "Keep a separate sequence for each shard. `app`: application number, a part of each number, 0 by default. "
        "`shard_bits`: bits for the shard, 6 by default. `app_bits`: bits for the application number, 8 by default",
        section=_SHARING),
    "strategy": TagOption("text",
        "Strategy that makes the numbers: `segment`, `snowflake`, or one of your own. Default: `segment`",
        section=_OTHERS),
    "options": TagOption("options", "Options of the strategy by name, such as epoch=2026-01-01", section=_OTHERS),
}  # fmt: skip

_OWN_KINDS = ("step", "step_mode", "limit", "order", "lease", "lease_mode", "scheme")

#: Names of settings that are stored as they were given, after a check.
AS_GIVEN = [name for name in SETTINGS if name not in _OWN_KINDS]


class ConfigureOptions(SchemeOptions, total=False):
    """Settings of a tag that `configure` changes. All are optional. None means that a setting is not given.

    The settings of the tag's scheme are described at SchemeOptions. `create` takes `order` as well, see CreateOptions.

    Attributes:
        start: First number of a new tag, 1..limit. Default: 1. For an existing tag: next number to issue. Numbers lower
            than `start` are skipped. A tag never goes back to lower numbers. Not for existing tags with periods.
        above: The number before the first or next one, 0..limit-1. Give `start` or `above`, not both.
        step: Size of a step in numbers, 1..2^63-1. With "auto", the default, the step begins with `min_step` and adapts
            to the tag's rate of use: a step lasts about `target`.
        target: How long an adapted step lasts: 1..2_592_000 seconds, or a text such as "10m". Default: 600.
        min_step: Lowest adapted step, 1..2^63-1. Default: 1000.
        max_step: Highest adapted step, `min_step`..2^63-1. Default: 1_000_000.
        limit: Last number, 1..2^63-1, or one of "int32", "uint32", "js", "int64", the default. Later it cannot be lower
            than a number that is reserved already, unless the tag has periods.
        lease: How many numbers of a trend tag each process draws ahead, 0 (none)..1 000 000. With "auto", the default,
            each process draws ahead what it uses in half a second, and nothing below 10 numbers a second. A process
            whose setting `lease` was given uses its setting. "process", for new tags only: the setting of each process.
        ahead: Steps per segment, 1..1000. A longer segment bridges a longer outage of the store. Default: 1.
        refill_at: Share of a segment or lease that is used when the next one is fetched, 0.01..0.9. It is rounded to
            0.001. Default: 0.2.
        survive: Duration of a store outage that the numbers in Redis or in the process must outlast, at the tag's rate
            of use: 0 (none, the default)..2_592_000 seconds, or a text such as "10m". If necessary, the next segment is
            fetched earlier than at `refill_at`. An adapted step lasts at least twice this duration.
        drain: Whether a process returns its unused numbers after nobody has used the tag for the time `idle_after`. If
            False, the process keeps them until it ends. Default: True.
        description: Text for operators, at most 1000 bytes.
    """

    start: int | None
    above: int | None
    step: int | Literal["auto"] | None
    target: int | str | None
    min_step: int | None
    max_step: int | None
    limit: int | str | None
    lease: int | Literal["auto", "process"] | None
    ahead: int | None
    refill_at: float | None
    survive: int | str | None
    drain: bool | None
    description: str | None


class CreateOptions(ConfigureOptions, total=False):
    """Settings of a new tag: those of ConfigureOptions and SchemeOptions, and the order. All are optional.

    Attributes:
        order: "strict" (needs Redis) or "trend". Default: "trend" if the issuer has no Redis or the strategy has no
            counter, else "strict".
    """

    order: Order | None


@dataclass(frozen=True, slots=True)
class TagOptions:
    """The arguments of `Issuer.create` or `Issuer.configure` that were given, by name.

    Attributes:
        own: The tag's settings, without None.
        given: The settings of the tag's scheme, see `SchemeOptions`, and unknown names.
    """

    own: Mapping[str, Any]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, said: Mapping[str, Any], *, new: bool = True) -> TagOptions:
        """Return the options for arguments by name. `new`: whether they are those of `create`, or of `configure`."""
        names = _NEW if new else _CHANGED
        own = {name: value for name, value in said.items() if name in names and value is not None}
        return cls(own, {name: value for name, value in said.items() if name not in names})

    def get(self, name: str) -> Any:
        return self.own.get(name)

    def above(self, tag: str, last: int) -> int | None:
        """Return the number before the first or next one, or None if neither `start` nor `above` is given."""
        return above_of(tag, self.get("start"), self.get("above"), last)

    def but(self, **own: object) -> TagOptions:
        """Return the options with these settings of the tag in place of the given ones."""
        return replace(self, own={**self.own, **own})

    def settings(self, tag: str, *, limit: int, redis: bool, scheme: Mapping[str, object] = PLAIN) -> TagSettings:
        """Return the settings of a new tag for `Store.create`. Raises InvalidArgument, ConfigurationError.

        `limit`: last counter value. `scheme`: the scheme that was made from `self.given`.
        """
        check_tag(tag)
        last = whole(limit, "limit", 1, HIGHEST)
        above = self.above(tag, last) or 0
        order: Order = self.own.get("order", "strict" if redis else "trend")
        if order not in ("strict", "trend"):
            raise InvalidArgument(f"order must be 'strict' or 'trend', not {brief(order)}", tag=tag, value=order)
        if order == "strict" and not redis:
            problem = f"tag {tag!r}: strict order needs Redis, but no Redis is configured"
            raise ConfigurationError(problem, tag=tag, advice="configuration.strict_without_redis")
        others = self.others()
        lowest, highest = others.get("min_step", DEFAULT_STEP), others.get("max_step", DEFAULT_MAX_STEP)
        if lowest > highest:
            raise InvalidArgument(f"min_step {lowest} is above max_step {highest}", tag=tag, value=lowest)
        step, mode = self._step(lowest)
        leased = order == "trend" and scheme_record.strategy(scheme) == scheme_record.SEGMENT
        return TagSettings(
            above=above,
            step=lowest if step is None else step,
            step_mode=mode or "auto",
            limit=last,
            order=order,
            scheme=scheme,
            **({"lease_mode": "auto"} if leased else {}) | self.lease(tag, order),
            **others,
        )

    def changes(
        self,
        tag: str,
        *,
        limit: int | None,
        min_step: int = DEFAULT_STEP,
        raise_to: int | None = None,
        scheme: Mapping[str, object] | None = None,
        seen: str | None = None,
    ) -> TagChanges:
        """Return the changes of an existing tag for `Store.configure`. Raises InvalidArgument, also without a setting.

        `limit`: new last counter value. `min_step`: that of the tag's record. `raise_to`: counter value after which the
        tag continues. `scheme`: new scheme, made from `self.given`. `seen`: version of the record from which it was
        made: if the record has changed, the store rejects the changes.
        """
        others = self.others() | self.lease(tag, None)
        if not others and all(value is None for value in (self.get("step"), limit, raise_to, scheme)):
            raise InvalidArgument(
                f"nothing to change: give step, limit, start, above, lease, {', '.join(AS_GIVEN)}; or of the number "
                "scheme format, timezone, scramble with scramble_strict, stride with offset",
                tag=tag,
            )
        step, mode = self._step(others.get("min_step", min_step))
        return TagChanges(
            step=step,
            step_mode=mode,
            limit=None if limit is None else whole(limit, "limit", 1, HIGHEST),
            raise_to=raise_to,
            scheme=scheme,
            seen=seen,
            **others,
        )

    def _step(self, lowest: int) -> tuple[int | None, StepMode | None]:
        step = self.get("step")
        if step is None or step == "auto":
            return (None, None) if step is None else (lowest, "auto")
        return whole(step, "step", 1, HIGHEST), "fixed"

    def lease(self, tag: str, order: Order | None) -> dict[str, Any]:
        """Check the given lease, and return it as the store has it, by name. Raises InvalidArgument.

        `order`: order of the tag. If it is "strict", only the lease 0 is valid. None: of a tag that is there.
        """
        lease = self.get("lease")
        if lease is None:
            return {}
        if order == "strict" and lease not in (0, "process"):
            raise InvalidArgument(f"tag {tag!r} is strict, and only trend tags can have a lease", tag=tag, value=lease)
        if lease == "process" and order is not None:
            return {"lease_mode": "set"}
        if lease == "auto":
            return {"lease_mode": "auto"}
        return {"lease_mode": "set", "lease": whole(lease, "lease", 0, LEASE_MOST)}

    def others(self) -> dict[str, Any]:
        """Check the given settings that are stored as they were given, see AS_GIVEN. Return them by name.

        If one is invalid, raise InvalidArgument.
        """
        found: dict[str, Any] = {}
        for name in AS_GIVEN:
            if name not in self.own:
                continue
            value, setting = self.own[name], SETTINGS[name]
            if TAG_OPTIONS[name].kind == "duration" and isinstance(value, str):
                value = seconds(value, name)
            if setting.range is not None:
                found[name] = whole(value, name, *setting.range)
            elif setting.share is not None:
                found[name] = share(value, name, *setting.share)
            elif setting.flag:
                found[name] = flag(value, name)
            else:
                found[name] = check_description(value)
        return found


#: The names of the arguments of `create` and of `configure` that do not belong to the scheme.
_NEW = TAG_OPTIONS.keys() - SchemeOptions.__annotations__.keys()
_CHANGED = _NEW - {name for name, setting in SETTINGS.items() if not setting.changes}
