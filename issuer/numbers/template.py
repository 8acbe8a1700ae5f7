"""Templates convert numbers into texts for documents, such as invoice numbers, and these texts back into numbers.

    BIZ{date:%y%m%d}-{seq:06d}{check}     BIZ261121-0047116

`{seq}` is the number. `{seq:06d}` has six digits, `{seq:6b36}` six digits of base 36. Other bases are `b62`, `c32`
(Crockford) and `X`. `{date:...}` can contain %Y %y %m %d %j %G %V %u and text. `{shard}` has the same forms as `{seq}`.
`{key}` is the restart key. `{check}` (Luhn), `{check:damm}` and `{check:mod97}` are check digits over everything before
them. `{{` and `}}` are braces. For snowflake numbers, `{date:...}` can contain %H %M %S %L %z, too, and `{machine}` and
`{sequence}` have the same forms as `{seq}`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from string import Formatter
from types import MappingProxyType
from typing import Final

from issuer.errors import FormatOverflow, InvalidArgument, NotDecodable, SchemeError, brief
from issuer.numbers import digits
from issuer.numbers.dates import EVERY, TIMES, day
from issuer_persistence.records import HIGHEST, is_number

#: Maximum number of characters of a format, of a text to parse, and of a restart key.
TEMPLATE_MOST = 200
TEXT_MOST = 1000
KEY_MOST = 256

#: Maximum number of digits in a field.
PLACES_MOST = 64
_SPEC = re.compile(r"0?(?P<width>[1-9]\d?)?(?P<base>d|X|b36|b62|c32)?")
_BASES: Final = {
    "d": digits.DECIMAL,
    "X": digits.HEXADECIMAL,
    "b36": digits.BASE36,
    "b62": digits.BASE62,
    "c32": digits.CROCKFORD32,
}


#: Parts of snowflake numbers, with and without date codes, and all fields that are numbers.
PACKED: Final = ("machine", "sequence")
OF_SNOWFLAKE: Final = {*PACKED, *TIMES}
NUMBERS: Final = ("seq", "shard", *PACKED)

Check = Callable[[str], str]


@dataclass(frozen=True)
class Part:
    """A part of a template. `kind`: "text", "key", "check", one of NUMBERS, or a date code such as "%y".

    `text`: the literal text, or the name of the check. `width`: number of characters, 0 if it is not fixed. `base`:
    numeral system of a number.
    """

    kind: str
    text: str = ""
    width: int = 0
    base: digits.Base = digits.DECIMAL

    @property
    def signs(self) -> str:
        """All characters that this part of a text can contain. Not for keys, which can contain any character."""
        return self.text if self.kind == "text" else self.base.readable

    @property
    def check(self) -> Check:
        """Function that computes the check digits."""
        return digits.CHECKS[self.text]

    @cached_property
    def most(self) -> int:
        """The highest number that fits."""
        return min(HIGHEST, self.base.size**self.width - 1) if self.width else HIGHEST

    def pattern(self, date: dt.date | None) -> str:
        """Return a pattern for Python's operator %, such as "%(seq)06d". For a date code: the digits of the date."""
        if self.kind == "text":
            return self.text.replace("%", "%%")
        if date is not None and self.kind in EVERY:
            return EVERY[self.kind].show(date)
        return f"%({self.kind})0{self.width}d" if self._is_decimal else f"%({self.kind})s"

    @cached_property
    def _is_decimal(self) -> bool:
        return self.kind in NUMBERS and self.base is digits.DECIMAL

    def shown(self, number: int | None) -> int | str:
        """Return the value to insert into `pattern`: a number if the base is 10, else a text. Raises FormatOverflow."""
        if number is None or not is_number(number):
            raise InvalidArgument(f"{self.kind} must be an integer in 0..2^63-1, not {brief(number)}", value=number)
        if number > self.most:
            raise FormatOverflow(number, width=self.width, field=self.kind)
        return number if self._is_decimal else self.base.encode(number, self.width)

    def write(self, number: int) -> str:
        """Return the number as text. Raises FormatOverflow if the number has too many digits."""
        return self.pattern(None) % {self.kind: self.shown(number)}

    def read(self, piece: str, text: str) -> int:
        """Return the number in a text. Raises NotDecodable if `write` would return another text."""
        number = self.base.decode(piece)
        if number > self.most or len(self.write(number)) != len(piece):
            raise NotDecodable(f"{brief(piece)} in {brief(text)} is not a valid {{{self.kind}}}", value=text)
        return number


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of a text. `codes`: number of each date code. `date`: first day that matches. None without a year.

    `seq`: 0 if the format has no {seq}. `packed`: machine and sequence of a snowflake number, if the format has them.
    """

    seq: int
    date: dt.date | None = None
    codes: Mapping[str, int] = field(default_factory=dict)
    shard: int | None = None
    key: str | None = None
    packed: Mapping[str, int] = field(default_factory=dict)


class Template:
    """A parsed format. Raises SchemeError if the format is invalid, or if its texts could not be converted back."""

    __slots__ = ("_chunks", "_parts", "_pattern", "_ready", "_stop", "_written", "codes", "fields", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = tuple(_parts(text))
        self.fields = frozenset(part.kind for part in self._parts if part.kind != "text")
        self.codes = frozenset(kind for kind in self.fields if kind in EVERY)
        _check(text, self._parts)
        self._stop = _stops(text, self._parts)
        self._pattern = re.compile("".join(f"({_regex(part, self._stop)})" for part in self._parts))
        self._written = [(part.kind, part) for part in self._parts if part.kind in NUMBERS]
        self._chunks = tuple(_chunks(self._parts))
        # Cached patterns for the date of the last text. Usually the next text has the same date.
        self._ready: tuple[dt.date | None, list[tuple[str, Check | None]]] | None = None

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def format(
        self,
        *,
        seq: int,
        date: dt.date | None = None,
        shard: int | None = None,
        key: str | None = None,
        packed: Mapping[str, int] = MappingProxyType({}),
    ) -> str:
        """Return the text. Only the values that the template contains are needed.

        Raises FormatOverflow if a number has too many digits, InvalidArgument if a value is missing or invalid.
        """
        ready = self._ready
        if ready is None or ready[0] != date:
            self._ready = ready = (date, self._on(date))
        values: dict[str, int | str] = {}
        for name, part in self._written:
            values[name] = part.shown(seq if name == "seq" else shard if name == "shard" else packed.get(name))
        if self._stop is not None:
            values["key"] = self._shown_key(key)
        text = ""
        for pattern, check in ready[1]:
            text += pattern % values
            if check is not None:
                text += check(text)
        return text

    def parse(self, text: str) -> Parsed:
        """Return the parts of a text. This is the inverse of `format`. Raises NotDecodable for every other text.

        Crockford digits may be in lower case, with I or L for 1 and O for 0.
        """
        found = self._pattern.fullmatch(text) if len(text) <= TEXT_MOST else None
        if found is None:
            raise NotDecodable(f"{brief(text)} does not match the format {self.text}", value=text)
        canonical = ""
        key: str | None = None
        numbers: dict[str, int] = {}
        codes: dict[str, int] = {}
        for part, piece in zip(self._parts, found.groups(), strict=True):
            shown = piece
            if part.kind in NUMBERS:
                numbers[part.kind] = part.read(piece, text)
                shown = part.write(numbers[part.kind])
            elif part.kind == "check" and part.check(canonical) != piece:
                raise NotDecodable(f"{brief(text)} has a wrong check digit, so it contains a mistake", value=text)
            elif part.kind == "key":
                key = piece
                if not _is_key(key):
                    raise NotDecodable(f"{brief(text)} has no valid key", value=text)
            elif part.kind in EVERY and codes.setdefault(part.kind, int(piece)) != int(piece):
                raise NotDecodable(f"{brief(text)} has two different dates", value=text)
            canonical += shown
        try:
            packed = {name: number for name, number in numbers.items() if name in PACKED}
            return Parsed(numbers.get("seq", 0), day(codes), codes, numbers.get("shard"), key, packed)
        except ValueError as error:
            raise NotDecodable(f"{brief(text)} has no valid date: {error}", value=text) from None

    def _on(self, date: dt.date | None) -> list[tuple[str, Check | None]]:
        if date is None and self.codes:
            raise InvalidArgument(f"the format {self.text} needs a date", value=date)
        try:
            return [("".join(part.pattern(date) for part in parts), check) for parts, check in self._chunks]
        except ValueError:
            raise InvalidArgument(
                f"the format {self.text} cannot represent {date}: %y is for 2000 to 2099", value=date
            ) from None

    def _shown_key(self, key: str | None) -> str:
        if key is None or not _is_key(key):
            problem = f"the format {self.text} needs a key of 1 to {KEY_MOST} printable characters, not {brief(key)}"
            raise InvalidArgument(problem, value=key)
        if self._stop and self._stop in key:
            raise InvalidArgument(
                f"the key {brief(key)} must not contain {self._stop!r}, which follows it in the format", value=key
            )
        return key


def _is_key(key: str) -> bool:
    return 0 < len(key) <= KEY_MOST and key.isprintable()


def _parts(text: str) -> Iterator[Part]:
    if not 0 < len(text) <= TEMPLATE_MOST or not text.isprintable():
        raise _refused(f"a format must have 1 to {TEMPLATE_MOST} printable characters", text)
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise _refused(f"the format {text!r} is invalid: {error}; write {{{{ and }}}} for braces", text) from None
    for literal, name, spec, conversion in pieces:
        if literal:
            yield Part("text", literal, len(literal))
        if name is None:
            continue
        if conversion:
            raise _refused(f"{{{name}}} takes no !{conversion}", text)
        yield from _field(name, spec or "", text)


def _field(name: str, spec: str, text: str) -> Iterator[Part]:
    match name:
        case "seq" | "shard" | "machine" | "sequence":
            found = _SPEC.fullmatch(spec)
            width = int(found["width"] or 0) if found else 0
            if not found or width > PLACES_MOST:
                raise _refused(
                    f"{{{name}:{spec}}} isn't understood: give at most {PLACES_MOST} places and one of "
                    f"{', '.join(_BASES)}, like {{{name}:06d}} or {{{name}:6b36}}",
                    text,
                )
            yield Part(name, spec, width, _BASES[found["base"] or "d"])
        case "date":
            yield from _date(spec, text)
        case "key":
            if spec:
                raise _refused(f"{{key:{spec}}}: a key cannot be formatted: write {{key}}", text)
            yield Part("key")
        case "check":
            kind = spec or "luhn"
            if kind not in digits.CHECKS:
                raise _refused(f"{{check:{spec}}} is unknown: use one of {', '.join(digits.CHECKS)}", text)
            yield Part("check", kind, digits.CHECK_WIDTHS[kind])
        case _:
            known = "seq, date, shard, key, machine, sequence and check"
            raise _refused(f"unknown field {{{name}}}: the fields are {known}", text)


def _date(spec: str, text: str) -> Iterator[Part]:
    codes = re.findall(r"%.?|[^%]+", spec)
    if not any(code in EVERY for code in codes):
        raise _refused(f"{{date:{spec}}} contains no part of a date: use one or more of {' '.join(EVERY)}", text)
    for code in codes:
        if not code.startswith("%"):
            yield Part("text", code, len(code))
        elif code in EVERY:
            yield Part(code, width=EVERY[code].width)
        else:
            raise _refused(f"{{date:{spec}}}: {code} isn't one of {' '.join(EVERY)}", text)


def _check(text: str, parts: Sequence[Part]) -> None:
    """Raise SchemeError if a field is missing, occurs twice, or is in the wrong place."""
    kinds = [part.kind for part in parts]
    before = {"seq"} if "seq" in kinds else {*PACKED}
    if "seq" not in kinds and not OF_SNOWFLAKE & {*kinds}:
        raise _refused(f"{text!r} has no {{seq}}, so all numbers would have the same text", text)
    for name in (*NUMBERS, "key"):
        if kinds.count(name) > 1:
            raise _refused(f"{text!r} has {{{name}}} twice", text)
    for place, part in enumerate(parts):
        if part.kind == "check" and not before <= {*kinds[:place]}:
            wanted = " and ".join(f"{{{name}}}" for name in sorted(before))
            raise _refused(f"{{check}} must come after {wanted}, because it checks what is before it in {text!r}", text)
        if part.kind == "check" and part.text != "mod97":
            blind = [each.kind for each in parts[:place] if each.base is not digits.DECIMAL]
            if blind:
                raise _refused(
                    f"{{check:{part.text}}} is for digits only, but {{{blind[0]}}} has letters: use {{check:mod97}}",
                    text,
                )


def _stops(text: str, parts: Sequence[Part]) -> str | None:
    """Return the character that ends a key, "" if no character is needed, None if there is no key.

    Two fields without a fixed width need a character between them that the first field cannot contain. Otherwise it is
    unclear where the first field ends: raises SchemeError.
    """
    stop: str | None = "" if any(part.kind == "key" for part in parts) else None
    varying = [place for place, part in enumerate(parts) if not part.width]
    for place, following in pairwise(varying):
        left = parts[place]
        taken = set() if left.kind == "key" else set(left.signs)
        ends = _end(parts[place + 1 : following], taken)
        if ends is None:
            raise _refused(
                f"in {text!r} the border between {{{left.kind}}} and {{{parts[following].kind}}} is ambiguous: put a "
                "character between them that cannot be in either, or give one of them a width",
                text,
            )
        if left.kind == "key":
            stop = ends
    return stop


def _end(between: Sequence[Part], taken: set[str]) -> str | None:
    for part in between:
        if part.kind == "text":
            for sign in part.text:
                if sign not in taken:
                    return sign
        taken |= set(part.signs)
    return None


def _regex(part: Part, stop: str | None) -> str:
    match part.kind:
        case "text":
            return re.escape(part.text)
        case "key":
            return f"[^{re.escape(stop)}]+" if stop else ".+"
        case "%z":
            return "(?!-0000)[-+][0-9]{4}"
        case _:
            return f"[{part.base.readable}]{{{part.width}}}" if part.width else f"[{part.base.readable}]+"


def _chunks(parts: Sequence[Part]) -> Iterator[tuple[list[Part], Check | None]]:
    """Split the parts at the check fields: yield the parts before each check field, and the check.

    Check digits are computed from the text before them. The parts after the last check field have the check None.
    """
    chunk: list[Part] = []
    for part in parts:
        if part.kind == "check":
            yield chunk, part.check
            chunk = []
        else:
            chunk.append(part)
    if chunk:
        yield chunk, None


def _refused(message: str, text: object) -> SchemeError:
    return SchemeError(message, setting="format", value=text)
