"""Names: which tags are allowed, and the Redis key of a tag."""

from __future__ import annotations

import unicodedata

from issuer.errors import InvalidArgument

#: Longest tag, in bytes of UTF-8.
TAG_BYTES = 200

#: Redis keys are `{prefix}:{<tag>}`: the braces make the tag the Cluster hash tag, so its own braces are encoded.
_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


def check_tag(tag: object) -> str:
    """Return the tag if it is a non-empty string of at most 200 bytes without control characters.

    Raises InvalidArgument otherwise.
    """
    if not isinstance(tag, str):
        raise InvalidArgument(f"a tag is a string, not {type(tag).__name__}", value=tag)
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tag {tag!r} is no valid text", value=tag) from error
    if not 0 < size <= TAG_BYTES:
        raise InvalidArgument(f"a tag has 1 to {TAG_BYTES} bytes, this one {size}", value=tag)
    if any(unicodedata.category(letter) in {"Cc", "Zl", "Zp"} for letter in tag):
        raise InvalidArgument(f"tag {tag!r} has control characters", value=tag)
    return tag


def redis_key(prefix: str, tag: str) -> str:
    """Return the key of the tag's hash; different tags never share one."""
    return f"{prefix}:{{{tag.translate(_ENCODED)}}}"
