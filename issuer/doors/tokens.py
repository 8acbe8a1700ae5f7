"""Reads the tokens file, which lists the tokens of a server's callers, and creates lines for it.

The file is TOML. It contains one line per token, with a hash in place of the token:

    billing = { hash = "sha256:...", scopes = ["issue"], tags = ["orders", "invoice-*"], rate = 1000 }

SHA-256 without salt and stretching is enough. A token has 256 random bits, so it cannot be guessed like a password.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, get_args

from issuer.errors import ConfigurationError, InvalidArgument, brief

Scope = Literal["read", "issue", "reserve", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

#: Prefix of every token. Secret scanners can find tokens in a repository by this prefix.
PREFIX: Final = "issuer_"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_KEYS: Final = ("hash", "scopes", "tags", "rate", "expires")
#: Largest number of hashes in one entry.
_HASHES_MOST: Final = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the tokens file.

    Attributes:
        digests: SHA-256 digests of all tokens with this name.
        tags: Patterns of the tags that the token allows.
        rate: Requests and numbers per second, over all processes. None means no limit.
        expires: Time in seconds since 1970. None means never.
    """

    name: str
    digests: tuple[bytes, ...]
    scopes: frozenset[Scope]
    tags: tuple[str, ...]
    rate: float | None
    expires: float | None


def new_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def line_for(token: str, name: str, scopes: Sequence[Scope], tags: Sequence[str], rate: float | None = None) -> str:
    """Return the line of the tokens file for a token, in ASCII. Raises InvalidArgument if a value is invalid."""
    hash_ = f"sha256:{digest_of(token).hex()}"
    try:
        _entry(name, {"hash": hash_, "scopes": list(scopes), "tags": list(tags), "rate": rate})
        "".join(tags).encode()
    except ConfigurationError as error:
        raise InvalidArgument(str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidArgument("tags must be a list of patterns in UTF-8") from error
    lists = (f"{key} = [{', '.join(map(_quoted, values))}]" for key, values in (("scopes", scopes), ("tags", tags)))
    fields = [f"hash = {_quoted(hash_)}", *lists]
    if rate is not None:
        fields.append(f"rate = {int(rate) if rate == int(rate) else rate}")
    return f"{name} = {{ {', '.join(fields)} }}"


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return '"' + re.sub("[^ -~]", lambda each: f"\\U{ord(each[0]):08x}", escaped) + '"'


def digest_of(token: str) -> bytes:
    """Return the SHA-256 digest of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def parsed(content: bytes, path: Path) -> list[Entry]:
    """Return the entries of a tokens file. `path`: path of the file, for error messages.

    Raises ConfigurationError if the content is invalid. The message quotes no line, because it may contain a secret.
    """
    entries: dict[bytes, Entry] = {}
    at, text = 1, content.decode(errors="replace")
    try:
        for name, fields in tomllib.loads(content.decode()).items():
            at = _line_of(name, text)
            entry = _entry(name, fields)
            for digest in entry.digests:
                if (other := entries.setdefault(digest, entry)) is not entry:
                    raise ConfigurationError(f"token {other.name!r} has the same hash")  # noqa: TRY301 - handled below
    except UnicodeDecodeError as error:
        problem, at = "not valid UTF-8", content.count(b"\n", 0, error.start) + 1
    except tomllib.TOMLDecodeError as error:
        said = re.search(r"at line (\d+)", str(error))
        problem, at = "not valid TOML", int(said[1]) if said else text.count("\n") + 1
    except ConfigurationError as error:
        problem = str(error)
    else:
        return list(dict.fromkeys(entries.values()))
    raise ConfigurationError(f"tokens file {path}, line {at}: {problem}")


def _line_of(name: str, text: str) -> int:
    begins = re.search(rf"""^[ \t]*\[?[ \t]*["']?{re.escape(name)}["']?[ \t]*[=\].]""", text, re.MULTILINE)
    return text.count("\n", 0, begins.start()) + 1 if begins else 1


def _entry(name: str, fields: Any) -> Entry:
    """Return the entry for a line of the file: its key and value. An error contains no value that may be a secret."""
    if not _NAME.fullmatch(name) or name.startswith(PREFIX):
        raise ConfigurationError(
            f"a token's name has 1 to 64 letters, digits, - and _, and does not begin with {PREFIX}"
        )
    if not isinstance(fields, dict) or set(fields) - {*_KEYS} or not {"hash", "scopes", "tags"} <= set(fields):
        raise ConfigurationError(
            f"a token needs {', '.join(_KEYS[:3])}, may have {' and '.join(_KEYS[3:])}, and must have nothing else"
        )
    hash_, scopes, tags, rate, expires = map(fields.get, _KEYS)
    if not isinstance(scopes, list) or not scopes or not all(each in SCOPES for each in scopes):
        raise ConfigurationError(f"scopes must be a list with one or more of {', '.join(SCOPES)}")
    if not isinstance(tags, list) or not tags or not all(isinstance(each, str) and each for each in tags):
        raise ConfigurationError(
            'tags must be a list of patterns, such as ["orders", "invoice-*"]; ["*"] means all tags'
        )
    if rate is not None and not (type(rate) in (int, float) and 0 < rate < inf):
        raise ConfigurationError(f"rate (requests and numbers per second) must be a number above 0, not {brief(rate)}")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise ConfigurationError(
            "expires must be a date and time with a time zone, such as 2027-01-31T00:00:00Z, without quotes"
        )
    ends = None if expires is None else expires.timestamp()
    return Entry(name, _digests(hash_), frozenset(scopes), tuple(tags), rate, ends)


def _digests(given: Any) -> tuple[bytes, ...]:
    hashes = given if isinstance(given, list) else [given]
    found = [_HASH.fullmatch(each) if isinstance(each, str) else None for each in hashes]
    if not 1 <= len(found) <= _HASHES_MOST or len(set(map(str, hashes))) < len(hashes) or not all(found):
        raise ConfigurationError(
            f'hash must be "sha256:" and 64 hexadecimal digits, as `issuer token` prints it, or a list of up to '
            f"{_HASHES_MOST} different ones; never the token itself"
        )
    return tuple(bytes.fromhex(each[1]) for each in found if each)
