"""Checks the names of tags, descriptions and keys, and builds Redis keys."""

from __future__ import annotations

import re
from typing import Literal

from issuer.errors import InvalidArgument, brief

#: Maximum length of a tag, in bytes of UTF-8.
TAG_BYTES = 200
#: Maximum length of a description, in bytes of UTF-8.
DESCRIPTION_BYTES = 1000

#: Control characters, and Unicode's line and paragraph separators.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: Separates a tag from the name of its part, as in "orders#7". A part counts for one shard or one restart key.
PART = "#"

#: Redis keys are `{prefix}:{<tag>}`. The braces mark the tag as the Cluster hash tag, so braces in a tag are encoded.
_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


def check_tag(tag: object) -> str:
    """Return the tag if it is a string of 1 to 200 bytes without control characters, and without blanks around it.

    Raises InvalidArgument otherwise.
    """
    name = _text(tag, "a tag", 1, TAG_BYTES)
    if name != name.strip():
        # People would not see the difference between "a" and "a ". Each of the two tags would count from 1.
        raise InvalidArgument(f"a tag name must not begin or end with blanks, as {brief(name)} does", value=name)
    return name


def check_found(tag: object) -> str:
    """Check the name of an existing tag as `check_tag` does, but allow blanks around it. Return the name.

    Older versions created tags with such names. They can still be inspected, halted, recovered and deleted.
    """
    return _text(tag, "a tag", 1, TAG_BYTES)


def has_blanks(tag: str) -> bool:
    """Whether the name begins or ends with blanks. New tags must not have such a name."""
    return tag != tag.strip()


def check_description(description: object) -> str:
    """Return the description if it is a string of at most 1000 bytes without control characters.

    Raises InvalidArgument otherwise.
    """
    return _text(description, "a description", 0, DESCRIPTION_BYTES)


def _text(value: object, what: str, fewest: int, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {type(value).__name__}", value=value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} must be valid Unicode text, not {brief(value)}", value=value) from error
    if not fewest <= size <= most:
        raise InvalidArgument(f"{what} must have {fewest} to {most} bytes, not {size}", value=value)
    if _CONTROL.search(value):
        raise InvalidArgument(f"{what} must not have control characters, as {brief(value)} does", value=value)
    return value


def check_key(key: object) -> str:
    """Return an idempotency or restart key if it is a string of 1 to 200 bytes without control characters.

    Raises InvalidArgument otherwise.
    """
    return _text(key, "a key", 1, TAG_BYTES)


def part_tag(tag: str, part: str) -> str:
    """Return the name of a tag's part, which counts for one shard or one restart key: for shard 7, "orders#7"."""
    name = f"{tag}{PART}{part}"
    size = len(name.encode(errors="surrogatepass"))
    if size > TAG_BYTES:
        problem = (
            f"tag {tag!r} and its part or restart key {part!r} must have at most {TAG_BYTES} bytes together, not {size}"
        )
        raise InvalidArgument(problem, tag=tag, value=part)
    if has_blanks(part):
        raise InvalidArgument(
            f"a part or restart key must not begin or end with blanks, as {brief(part)} does", tag=tag, value=part
        )
    return check_found(name)


def kept_key(hash_key: str, key: str, owner: str = "") -> str:
    """Return the Redis key that keeps the number for the idempotency key `key`.

    `hash_key`: Redis key of the tag's hash. The returned key is in the same slot of a Cluster.
    `owner`: name of the caller's token, without a colon, or "". Callers with different tokens get different Redis keys,
    even if they use the same idempotency key.
    """
    return f"{hash_key}:once-of:{owner}:{key}" if owner else f"{hash_key}:once:{key}"


def tag_of(prefix: str, key: str) -> str | None:
    """Return the tag whose hash has this Redis key. None if it is not the key of a tag. The reverse of `redis_key`."""
    head, tail = f"{prefix}:{{", "}"
    name = key.removeprefix(head).removesuffix(tail)
    for encoded, plain in (("%7B", "{"), ("%7D", "}"), ("%25", "%")):
        name = name.replace(encoded, plain)
    return name if redis_key(prefix, name) == key else None


def due_channel(prefix: str) -> str:
    """Return the channel on which scripts publish the keys of tags that need a segment, see lua/include/report.lua."""
    return f"{prefix}:due"


def chronicle_key(prefix: str, part: Literal["events", "acts", "processes"]) -> str:
    """Return the Redis key of a part of the chronicle. It has no braces, so it is the key of no tag."""
    return f"{prefix}:{part}"


def login_key(prefix: str) -> str:
    """Return the Redis key of the secret that signs logins to the console. Without braces, it is the key of no tag."""
    return f"{prefix}:console"


def redis_key(prefix: str, tag: str) -> str:
    """Return the Redis key of a tag's hash. Different tags have different keys."""
    return f"{prefix}:{{{tag.translate(_ENCODED)}}}"
