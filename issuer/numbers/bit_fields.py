"""Bit fields: several small numbers, such as sequence, shard and application, in the bits of one number."""

from __future__ import annotations

from collections.abc import Sequence

from issuer.errors import InvalidArgument, NotDecodable, SchemeError, brief
from issuer_persistence.records import is_number

#: Bits of a positive number in a signed 64-bit integer.
BITS = 63


class BitFields:
    """Named fields in the bits of one number, from the highest bits to the lowest. Together they have at most 63 bits.

    BitFields([("sequence", 49), ("shard", 6), ("app", 8)]) packs sequence << 14 | shard << 8 | app.

    `widths`: name and number of bits of each field. Raises SchemeError if they are not allowed. `setting`: the tag's
    setting from which the widths come, for this error.
    """

    __slots__ = ("_fields", "bits", "widths")

    def __init__(self, widths: Sequence[tuple[str, int]], *, setting: str = "layout") -> None:
        self.widths = tuple(widths)
        names = [name for name, _ in self.widths]
        if not names or len(set(names)) < len(names):
            raise SchemeError(f"the names of fields must differ, not {names}", setting=setting, value=names)
        for name, width in self.widths:
            if not is_number(width, 0, BITS):
                raise SchemeError(
                    f"{name} must be 0..{BITS} bits wide, not {brief(width)}", setting=setting, value=width
                )
        self.bits = sum(width for _, width in self.widths)
        if self.bits > BITS:
            parts = " + ".join(f"{width} {name}" for name, width in self.widths)
            raise SchemeError(f"{parts} are {self.bits} bits, more than {BITS}", setting=setting, value=self.bits)
        fields, shift = [], self.bits
        for name, width in self.widths:
            shift -= width
            fields.append((name, shift, (1 << width) - 1))
        self._fields = tuple(fields)

    def most(self, name: str) -> int:
        """Return the highest number that fits into the field. The lowest is 0."""
        return next(mask for each, _, mask in self._fields if each == name)

    def compose(self, **parts: int) -> int:
        """Return the packed number. `parts`: number of each field. Raises InvalidArgument if a field is wrong."""
        packed = 0
        for name, shift, mask in self._fields:
            part = parts.pop(name, None)
            if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part <= mask:
                raise InvalidArgument(f"{name} must be an integer in 0..{mask}, not {brief(part)}", value=part)
            packed |= part << shift
        if parts:
            raise InvalidArgument(f"the layout has no field {', '.join(parts)}", value=parts)
        return packed

    def decompose(self, number: int) -> dict[str, int]:
        """Return the number of each field by name. Raises NotDecodable if `number` has more bits than all fields."""
        if not is_number(number, 0, (1 << self.bits) - 1):
            raise NotDecodable(f"{brief(number)} is not a number of {self.bits} bits", value=number)
        return {name: number >> shift & mask for name, shift, mask in self._fields}
