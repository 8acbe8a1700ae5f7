"""Converts counter values into the numbers and texts that users see, and back.

    counter -> number within the period -> stride -> scramble -> value -> shard, text

A tag's scheme has the settings of these conversions. If the scheme changes, counter values that are already reserved
keep their numbers. So a process that still has the old scheme converts these values correctly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timezone, tzinfo
from functools import cached_property
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from issuer.core import scheme_record
from issuer.core.periods import PERIOD_BITS, SEQ_MOST, Periods
from issuer.errors import InvalidArgument, LimitReached, NotDecodable, brief
from issuer.gateway.keys import part_tag
from issuer.numbers.dates import moment
from issuer.numbers.scrambling import KeySpan, Scrambling
from issuer.numbers.sharding import ShardLayout
from issuer.numbers.stride import Strides, StrideSpan
from issuer.numbers.template import PACKED, Parsed, Template
from issuer_persistence.records import HIGHEST, Tag

#: Maximum number of digits in a text that is read as a number.
DIGITS_MOST = 100


@dataclass(frozen=True, slots=True)
class Decoded:
    """The parts of a number or of its text. A part that the tag does not have, or that is unknown, is None.

    Attributes:
        tag: Name of the tag.
        value: The number that users see.
        counter: Value of the tag's counter. If the tag has periods and a number was decoded, not a text, this is None:
            only the text shows the period.
        period: Name of the period, such as "2026-11-21".
        shard: Number of the shard, 0 or more.
        app: Application number. Only tags with shards have one.
        key: Restart key. Only keyed tags have one.
        date: Date that the text contains.
        part: Name of the shard or keyed series that issued the number, such as "orders#7". None for other tags.
        fields: Components that the tag's strategy packed into the number, by name.
        holder: Process that issued the number, or that holds its machine number. It is set only if `decode` was called
            with `holder=True`.
    """

    tag: str
    value: int
    counter: int | None = None
    period: str | None = None
    shard: int | None = None
    app: int | None = None
    key: str | None = None
    date: date | None = None
    part: str | None = None
    fields: Mapping[str, int] | None = None
    holder: str | None = None


class Packing(Protocol):
    """The layout of snowflake numbers. If a part is out of its range, a method raises InvalidArgument."""

    def compose(self, timestamp: int, machine: int, sequence: int) -> int:
        """Return the number for its parts. `timestamp`: time in ms since 1970."""

    def decompose(self, value: int) -> Any:
        """Return the parts of a number as attributes."""


class Scheme:
    """Converts counter values of one tag into numbers and texts, and back. Threads can share it."""

    def __init__(
        self, tag: Tag, keys: Mapping[str, bytes], *, reading: bool = False, packing: Packing | None = None
    ) -> None:
        """`keys`: this process's secrets by name. Raises SchemeError if a secret is missing, or differs from the tag's.

        `reading`: True if numbers are only decoded. Then a missing secret raises an error only when a number needs this
        secret. `packing`: layout of a snowflake tag.
        """
        scheme = tag.scheme
        self._packing = packing
        self.tag = tag.tag
        self.strategy = scheme_record.strategy(scheme)
        self.periods: Periods | None = scheme_record.periods(tag)
        self._limit = int(scheme.get("limit", HIGHEST))
        self._advice = scheme_record.without_raising(scheme, self._limit)
        #: The first number of the tag. 1 if unknown.
        self._start = int(scheme.get("start", 1))
        self._strides = strides(scheme) if "stride" in scheme else None
        self._scrambling = Scrambling(scrambled(scheme), keys, reading=reading) if "scramble" in scheme else None
        self._text = scheme.get("format")
        self._zone_name = str(scheme.get("timezone", "UTC"))
        self._shards = ShardLayout(scheme["shards"]) if "shards" in scheme else None
        self._app = int(scheme["shards"]["app"]) if "shards" in scheme else 0
        self._keyed = bool(scheme.get("keyed"))

    # ------------------------------------------------------------------ numbers

    def value(self, counter: int) -> int:
        """Return the number that users see for a counter value. Raises LimitReached."""
        number = counter if self.periods is None else counter & SEQ_MOST
        if self._strides is not None:
            number = self._strides.value(number)
        if number > self._limit:
            raise LimitReached(self.tag, limit=self._limit, value=self._limit, advice=self._advice)
        return number if self._scrambling is None else self._scrambling.scramble(number)

    def sharded(self, sequence: int, shard: int) -> int:
        """Return the number that users see. `sequence`: number within the shard. `shard`: number of the shard."""
        if self._shards is None:
            raise InvalidArgument(f"tag {self.tag!r} has no shards", tag=self.tag)
        return self._shards.compose(sequence=sequence, shard=shard, app=self._app)

    def decode(self, value: int) -> Decoded:
        """Return the parts of a number, given as users see it. Raises NotDecodable."""
        self._check_range(value)
        if self._shards is not None:
            sequence, shard, app = self._shards.decompose(value)
            if not sequence:
                raise NotDecodable(f"{value} is not a number of tag {self.tag!r}", tag=self.tag, value=value)
            if app != self._app:
                problem = f"{value} belongs to application {app}, but tag {self.tag!r} to application {self._app}"
                raise NotDecodable(problem, tag=self.tag, value=value)
            return Decoded(self.tag, value, sequence, shard=shard, app=app, part=part_tag(self.tag, str(shard)))
        if self.strategy != scheme_record.SEGMENT or self._keyed:
            return Decoded(self.tag, value)
        number = self._number(value)
        # If the tag has periods, a number without its text does not show its period. So its counter value is unknown.
        counter = number if self.periods is None else None
        return Decoded(self.tag, value, counter)

    def _check_range(self, value: int) -> None:
        if isinstance(value, bool) or not 0 < value <= HIGHEST:
            why = "not a whole number" if isinstance(value, bool) else "below 1" if value < 1 else "above 2^63-1"
            raise NotDecodable(
                f"{brief(value)} is {why}, so it is not a number of tag {self.tag!r}", tag=self.tag, value=value
            )

    def _number(self, value: int) -> int:
        """Undo the scrambling and the stride: return the counter's number for a value. Raises NotDecodable."""
        self._check_range(value)
        # Scrambled numbers are between start and limit, too. So the value can be compared before it is unscrambled.
        if value > self._limit:
            problem = f"{value} is above {self._limit}, the limit of tag {self.tag!r}"
            raise NotDecodable(problem, tag=self.tag, value=value)
        if value < self._start:
            problem = f"{value} is below {self._start}, the start of tag {self.tag!r}"
            raise NotDecodable(problem, tag=self.tag, value=value)
        number = value if self._scrambling is None else self._scrambling.unscramble(value)
        return number if self._strides is None else self._strides.counter(number)

    # ------------------------------------------------------------------ texts

    def text(self, counter: int, *, today: date, shard: int | None = None, key: str | None = None) -> str:
        """Return the text for a counter value in the tag's format. If the tag has no format, return decimal digits.

        If the tag has periods, the text shows the first day of the counter's period in place of `today`. `shard`,
        `key`: the shard, or the series with this restart key, to which the counter belongs. Raises FormatOverflow,
        LimitReached.
        """
        value = self.value(counter)
        template = self._template
        if template is None:
            return str(value if shard is None else self.sharded(value, shard))
        if shard is not None and "shard" not in template.fields:
            value = self.sharded(value, shard)
        day = today if self.periods is None else self.periods.begin(counter >> PERIOD_BITS)
        return template.format(seq=value, date=day, shard=shard, key=key)

    def text_of(self, value: int, *, today: date) -> str:
        """Return the text of a number from a strategy without a counter.

        The text of a snowflake number shows its own time in place of `today`.
        """
        template = self._template
        if template is None:
            return str(value)
        if self._packing is None:
            return template.format(seq=value, date=today)
        parts = self._packing.decompose(value)
        at = parts.time.astimezone(self._zone)
        # In one time zone, both moments of an hour that comes twice are equal, and `format` would show the earlier one.
        at = at.replace(tzinfo=timezone(at.utcoffset()))
        return template.format(seq=value, date=at, packed={name: getattr(parts, name) for name in PACKED})

    def parse(self, text: str) -> Decoded:
        """Return the parts of a text. This is the inverse of `text`. Raises NotDecodable."""
        template = self._template
        if template is None:
            digits = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MOST
            if not digits or (text[0] == "0" and text != "0"):
                raise NotDecodable(f"{brief(text)} is not a number, and tag {self.tag!r} has no format", value=text)
            return self.decode(int(text))
        found = template.parse(text)
        if self._shards is not None:
            if found.shard is None:
                return replace(self.decode(found.seq), date=found.date)
            if found.shard > self._shards.most["shard"] or found.seq > self._shards.most["sequence"]:
                raise NotDecodable(
                    f"{brief(text)}: tag {self.tag!r} has no such shard or number", tag=self.tag, value=text
                )
            return replace(self.decode(self.sharded(found.seq, found.shard)), date=found.date)
        if self.strategy != scheme_record.SEGMENT:
            value = found.seq if "seq" in template.fields else self._packed(found, text)
            return replace(self.decode(value), date=found.date)
        number = self._number(found.seq)
        part = None if found.key is None else part_tag(self.tag, found.key)
        if self.periods is None or found.date is None:
            return Decoded(self.tag, found.seq, number, key=found.key, date=found.date, part=part)
        index = self.periods.of(found.date)
        if self.periods.begin(index) != found.date:
            problem = f"{brief(text)}: texts contain the first day of their period, {self.periods.begin(index)}"
            raise NotDecodable(problem, tag=self.tag, value=text)
        counter = index << PERIOD_BITS | number
        name = self.period_name(counter)
        return Decoded(self.tag, found.seq, counter, name, key=found.key, date=found.date, part=part)

    def _packed(self, found: Parsed, text: str) -> int:
        """Return the snowflake number that consists of the parts of a text. Raises NotDecodable."""
        assert self._packing is not None  # noqa: S101 - only formats of snowflake tags lack {seq}
        try:
            return self._packing.compose(round(moment(found.codes).timestamp() * 1000), **found.packed)
        except ValueError as error:
            raise NotDecodable(f"{brief(text)} is not a text of tag {self.tag!r}: {error}", value=text) from error

    def period_name(self, counter: int) -> str | None:
        """Return the name of the period that a counter value belongs to, or None if the tag has no periods.

        Examples of names: "2026-11-21", "2026-W47", "2026-11", "2026".
        """
        return None if self.periods is None else self.periods.name(counter >> PERIOD_BITS)

    def day(self, ms: int) -> date:
        """Return the date of a moment, in the tag's time zone. `ms`: the moment, in ms since 1970."""
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone(self._zone).date()

    @cached_property
    def _template(self) -> Template | None:
        return None if self._text is None else Template(str(self._text))

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self._zone_name == "UTC" else ZoneInfo(self._zone_name)


def strides(scheme: Mapping[str, Any]) -> Strides:
    """Return the strides of a scheme. Raises SchemeError."""
    return Strides([StrideSpan(int(one["from"]), int(one["first"]), int(one["stride"])) for one in scheme["stride"]])


def scrambled(scheme: Mapping[str, Any]) -> list[KeySpan]:
    """Return the ranges of numbers that a scheme scrambles, each with the name of its key."""
    return [
        KeySpan(int(one["from"]), str(one["key"]), str(one["fingerprint"]), int(one["limit"]))
        for one in scheme["scramble"]
    ]
