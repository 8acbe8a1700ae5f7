"""Names of limits."""

from __future__ import annotations

from typing import Final

from issuer.errors import InvalidArgument, brief
from issuer_persistence.records import HIGHEST

#: The highest integers of common types. "js" is JavaScript's Number.MAX_SAFE_INTEGER.
NAMES: Final = {"int32": 2**31 - 1, "uint32": 2**32 - 1, "js": 2**53 - 1, "int64": HIGHEST}


def number(limit: int | str) -> int:
    """Return the limit as a number. `limit`: a number 1..2^63-1, its digits, or int32, uint32, js, int64.

    Raises InvalidArgument.
    """
    if isinstance(limit, str):
        text = limit.strip()
        found = NAMES.get(text.lower())
        if found is None and text.isascii() and text.isdigit() and len(text) <= len(str(HIGHEST)):
            found = int(text)
    else:
        found = None if isinstance(limit, bool) or not isinstance(limit, int) else limit
    if found is None or not 1 <= found <= HIGHEST:
        raise InvalidArgument(
            f"limit must be an integer in 1..2^63-1, or {', '.join(NAMES)}; not {brief(limit)}", value=limit
        )
    return found
