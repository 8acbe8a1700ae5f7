"""Names: which tags and descriptions are allowed, and the Redis key of a tag."""

from __future__ import annotations

import re

from issuer.errors import InvalidArgument, brief

#: Longest tag, in bytes of UTF-8.
TAG_BYTES = 200
#: Longest description, the same.
DESCRIPTION_BYTES = 1000

#: Control characters, and Unicode's ends of lines and paragraphs.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: The sign between a tag and the name of its part.
PART = "#"

#: Redis keys are `{prefix}:{<tag>}`: the braces make the tag the Cluster hash tag, so its own braces are encoded.
_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


def check_tag(tag: object) -> str:
    """Return the tag if it is a string of 1 to 200 bytes without control characters, and without blanks around it.

    Raises InvalidArgument otherwise.
    """
    name = _text(tag, "a tag", 1, TAG_BYTES)
    if name != name.strip():
        # People don't see the difference, and both would count from 1.
        raise InvalidArgument(f"a tag name must not begin or end with blanks, as {brief(name)} does", value=name)
    return name


def check_found(tag: object) -> str:
    """Return the name of a tag that may be there, to be looked at, halted, recovered or deleted.

    It may have blanks around it, as tags could once be made with them. Raises InvalidArgument as `check_tag` does.
    """
    return _text(tag, "a tag", 1, TAG_BYTES)


def has_blanks(tag: str) -> bool:
    """Whether there are blanks around the name, as no new tag has."""
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
    """Return a caller's key if it is a non-empty string of at most 200 bytes without control characters.

    Raises InvalidArgument otherwise.
    """
    return _text(key, "a key", 1, TAG_BYTES)


def part_tag(tag: str, part: str) -> str:
    """Return the tag that a part of a tag has: a shard, or the series of one restart key."""
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
    """Return where the number of a caller's key is kept, beside the tag's hash and in its slot.

    `owner`: the name of the token that the caller has, without a colon; "": none. So two owners never share a key, and
    no owner shares one with a caller that has none, whatever the keys are.
    """
    return f"{hash_key}:once-of:{owner}:{key}" if owner else f"{hash_key}:once:{key}"


def redis_key(prefix: str, tag: str) -> str:
    """Return the key of the tag's hash; different tags never share one."""
    return f"{prefix}:{{{tag.translate(_ENCODED)}}}"
