"""Computes the shard of a key: CRC-32 of its UTF-8 bytes, modulo the number of shards.

Other languages compute the same result. CRC-32 is the checksum of zlib, PNG and Ethernet (IEEE 802.3: reflected,
polynomial 0x04C11DB7). Example: `crc32("123456789")` is 0xCBF43926.
"""

from __future__ import annotations

from zlib import crc32

from issuer.errors import InvalidArgument, brief
from issuer_persistence.records import is_number

#: Maximum number of shards. With more shards, a CRC of 32 bits would distribute keys unevenly.
SHARDS_MOST = 1 << 16


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
