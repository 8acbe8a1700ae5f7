"""Computes the shard of a key, and the numbers of a tag with shards.

The shard is the CRC-32 of the key's UTF-8 bytes, modulo the number of shards. Other languages compute the same result:
CRC-32 is the checksum of zlib, PNG and Ethernet (IEEE 802.3: reflected, polynomial 0x04C11DB7). Example:
`crc32("123456789")` is 0xCBF43926.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from issuer.errors import InvalidArgument, SchemeError, brief
from issuer_persistence.records import is_number

#: Maximum number of shards. With more shards, a CRC of 32 bits would distribute keys unevenly.
SHARDS_MOST = 1 << 16

#: Bits of a positive number in a signed 64-bit integer.
BITS = 63


class ShardLayout:
    """The bits of a number: sequence, then shard, then application. The sequence gets the bits that both leave.

    `most`: highest number of each of the three. The lowest is 0.
    """

    __slots__ = ("_app_bits", "_shard_bits", "most")

    def __init__(self, shards: Mapping[str, Any]) -> None:
        """`shards`: the setting of a scheme. Raises SchemeError if its widths are not allowed."""
        self._shard_bits, self._app_bits = shard, app = int(shards["shard_bits"]), int(shards["app_bits"])
        if min(shard, app, BITS - shard - app) < 0:
            raise SchemeError(f"{shard} + {app} bits do not fit into {BITS}", setting="shards", value=dict(shards))
        widths = {"sequence": BITS - shard - app, "shard": shard, "app": app}
        self.most = {name: (1 << width) - 1 for name, width in widths.items()}

    def compose(self, *, sequence: int, shard: int, app: int) -> int:
        """Return the packed number. Raises InvalidArgument if a part is wrong."""
        for (name, most), part in zip(self.most.items(), (sequence, shard, app), strict=True):
            if not is_number(part, 0, most):
                raise InvalidArgument(f"{name} must be an integer in 0..{most}, not {brief(part)}", value=part)
        return (sequence << self._shard_bits | shard) << self._app_bits | app

    def decompose(self, number: int) -> tuple[int, int, int]:
        """Return sequence, shard and application of a number, 0..2^63-1."""
        rest = number >> self._app_bits
        return rest >> self._shard_bits, rest & self.most["shard"], number & self.most["app"]


def shard_of(key: str | bytes, shards: int) -> int:
    """Return the shard of the key, 0..shards-1. `shards`: 1..65536. Raises InvalidArgument."""
    if not is_number(shards, 1, SHARDS_MOST):
        raise InvalidArgument(f"shards must be an integer in 1..{SHARDS_MOST}, not {brief(shards)}", value=shards)
    if not isinstance(key, str | bytes):
        raise InvalidArgument(f"shard_key must be a text or bytes, not {type(key).__name__}", value=key)
    try:
        return crc32(key.encode() if isinstance(key, str) else key) % shards
    except UnicodeEncodeError:
        raise InvalidArgument(f"shard_key {brief(key)} is not valid Unicode text", value=key) from None
