"""The settings of a tag's scheme, as callers give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from issuer.core.periods import Restart


class SchemeOptions(TypedDict, total=False):
    """Settings of a tag's scheme: they turn the tag's counter into the numbers that users see. All are optional.

    Attributes:
        format: Text format, such as "BIZ{date:%y%m%d}-{seq:06d}{check}". "" means no format.
        restart: Period after which numbers begin at 1 again: "daily", "weekly", "monthly", "yearly" or "never".
        timezone: Time zone of dates and of period boundaries, an IANA name. Default: UTC.
        keyed: If True, the tag has a separate series for each `restart_key`.
        scramble: Name of the secret that scrambles the numbers, or a list of pairs (first number, name). Scrambled
            numbers do not show how many were issued.
        scramble_strict: If True, `scramble` is allowed for a strict tag, although scrambled numbers do not increase.
        stride: Distance between two numbers of a site, 1..2^32. With a stride, sites that share no server never issue
            the same number.
        offset: Position of this site among the sites, 1..stride.
        shards: A dict such as {"app": 17, "shard_bits": 6, "app_bits": 8}: the application number that the numbers
            contain, and the bits for the shard and for the application. True means app 0, 6 bits and 8 bits.
        strategy: Name of the strategy that makes the numbers. Default: "segment", the tag's counter.
        options: Options of the strategy by name.
    """

    format: str
    restart: Restart
    timezone: str
    keyed: bool
    scramble: str | Sequence[tuple[int, str]]
    scramble_strict: bool
    stride: int
    offset: int
    shards: bool | Mapping[str, int]
    strategy: str
    options: Mapping[str, Any]
