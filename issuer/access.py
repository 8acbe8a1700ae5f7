"""Access to a server: tokens, what each may do, and how often.

The file of tokens is TOML, one line a token, and holds hashes only:

    billing = { hash = "sha256:...", scopes = ["issue"], tags = ["orders", "invoice-*"], rate = 1000 }

SHA-256 without salt and stretching is enough: a token is 256 random bits, which nobody can try out, unlike a password.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import translate
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, get_args

from issuer.clock import monotonic
from issuer.errors import ConfigurationError, Forbidden, InvalidArgument, TooManyRequests, Unauthenticated, brief

log = logging.getLogger("issuer.access")

Scope = Literal["read", "issue", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

#: What a token begins with, so that scanners for secrets find one that was left in a repository.
PREFIX: Final = "issuer_"

#: Seconds between two looks whether the file has changed.
LOOK_EVERY: Final = 1.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_KEYS: Final = ("hash", "scopes", "tags", "rate")
#: Bits of a file's mode that let others than its owner read it.
_OTHERS: Final = 0o044


class _Bucket:
    """Requests that are left to a token now. They grow by `rate` a second, up to those of one second."""

    __slots__ = ("_at", "_clock", "_left", "_most", "_rate")

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._most = self._left = max(1.0, rate)
        self._at = clock()

    def take(self) -> float:
        """Take one; return 0.0, or if there is none the seconds until there will be."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._rate
        self._left -= 1.0
        return 0.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the file. `rate`: requests a second of all workers together, None: as many as come."""

    name: str
    digest: bytes
    scopes: frozenset[Scope]
    tags: tuple[str, ...]
    rate: float | None


class Caller:
    """A caller that was identified. `name`: of its token; "" where the server asks for none."""

    __slots__ = ("_all", "_bucket", "_matches", "_scopes", "name")

    def __init__(
        self, name: str, scopes: Collection[Scope], tags: Sequence[str], bucket: _Bucket | None = None
    ) -> None:
        """`scopes`: admin includes the others. `tags`: patterns as of fnmatchcase; one of them has to fit."""
        self.name = name
        self._scopes = frozenset(SCOPES if "admin" in scopes else scopes)
        self._all = any(pattern.strip("*") == "" for pattern in tags)
        self._matches = re.compile("|".join(map(translate, tags))).match
        self._bucket = bucket

    def need(self, scope: Scope | Sequence[Scope], tag: str | None = None) -> None:
        """Return if the caller may do what takes this scope, and count it as one request of the token.

        `scope`: of several, one is enough. `tag`: None if the call is about all tags, which takes the pattern `*`.
        Raises TooManyRequests beyond the rate of the token, Forbidden if it may not.
        """
        if self._bucket is not None and (wait := self._bucket.take()):
            raise TooManyRequests(f"token {self.name!r} has used up its requests", retry_after=wait)
        if not self.may(scope, tag):
            raise Forbidden(
                self.name, scope=scope if isinstance(scope, str) else " or ".join(scope), tag=tag, scopes=self._scopes
            )

    def may(self, scope: Scope | Sequence[Scope], tag: str | None = None) -> bool:
        """Return whether the caller may do what takes this scope; no request is counted."""
        scopes = self._scopes
        if not (scope in scopes if isinstance(scope, str) else any(each in scopes for each in scope)):
            return False
        return self._all or (tag is not None and self._matches(tag) is not None)

    def __repr__(self) -> str:
        return f"Caller({self.name!r})"


class Access:
    """The doorkeeper of one event loop: says who a caller is.

    It reads its file again when that has changed. A file that can't be used leaves the last good one in force.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, workers: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        """`workers`: processes that serve by this file: each grants its part of a rate. Raises ConfigurationError."""
        self._clock, self._workers = clock, workers
        self._path: Path | None = Path(path)
        self._callers: dict[_Entry, Caller] = {}
        self._state: object = None
        self._complaint = ""
        self._read(self._path)
        self._next_look = clock() + LOOK_EVERY

    @classmethod
    def open(cls) -> Access:
        """Return one that admits all callers to everything."""
        access = cls.__new__(cls)
        access._path = None  # noqa: SLF001 - its own
        return access

    @property
    def is_open(self) -> bool:
        """Whether callers need no token."""
        return self._path is None

    def identify(self, token: str | None) -> Caller:
        """Return the caller whose token it is; None: no token was sent. Raises Unauthenticated.

        A caller that stays connected is identified again for each batch of its requests: its token may be revoked.
        """
        if self._path is None:
            return _ANYBODY
        if self._clock() >= self._next_look:
            self._look(self._path)
        if not token:
            raise Unauthenticated("no token was sent" if token is None else "the token is empty")
        digest = _digest(token)
        found = None
        # Each entry is looked at, also after the right one: the time taken says nothing of which one it is.
        for entry, caller in self._callers.items():
            if hmac.compare_digest(entry.digest, digest):
                found = caller
        if found is None:
            raise Unauthenticated("the token isn't known")
        return found

    def __repr__(self) -> str:
        return "Access.open()" if self._path is None else f"Access({str(self._path)!r})"

    def _look(self, path: Path) -> None:
        """Read the file again if it has changed."""
        self._next_look = self._clock() + LOOK_EVERY
        try:
            # Its place and size as well: an editor, or Kubernetes, puts another file there.
            if _state(path.stat()) == self._state:
                return
            self._read(path)
        except OSError as error:
            self._complain(f"tokens file {path}: {error.strerror}")
        except ConfigurationError as error:
            self._complain(str(error))

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            log.error("%s; the tokens read before stay in force", complaint)

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
        except OSError as error:
            raise ConfigurationError(f"tokens file {path}: {error.strerror}") from error
        self._state = _state(status)
        entries = _parsed(content, path)
        # A token whose line is the same keeps what it has used of its rate.
        self._callers = {each: self._callers.get(each) or self._caller(each) for each in entries}
        self._complaint = ""
        if status.st_mode & _OTHERS:
            log.warning("tokens file %s can be read by others than its owner: chmod 600 it", path)

    def _caller(self, entry: _Entry) -> Caller:
        bucket = None if entry.rate is None else _Bucket(entry.rate / self._workers, self._clock)
        return Caller(entry.name, entry.scopes, entry.tags, bucket)


_ANYBODY: Final = Caller("", SCOPES, ["*"])


def new_token() -> str:
    """Return a token that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


def line_for(token: str, name: str, scopes: Sequence[Scope], tags: Sequence[str], rate: float | None = None) -> str:
    """Return the token's line for the file, in ASCII. Raises InvalidArgument."""
    hash_ = f"sha256:{_digest(token).hex()}"
    try:
        _entry(name, {"hash": hash_, "scopes": list(scopes), "tags": list(tags), "rate": rate})
        "".join(tags).encode()
    except ConfigurationError as error:
        raise InvalidArgument(str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidArgument("tags is a list of patterns in UTF-8") from error
    lists = (f"{key} = [{', '.join(map(_quoted, values))}]" for key, values in (("scopes", scopes), ("tags", tags)))
    fields = [f"hash = {_quoted(hash_)}", *lists]
    if rate is not None:
        fields.append(f"rate = {int(rate) if rate == int(rate) else rate}")
    return f"{name} = {{ {', '.join(fields)} }}"


def _quoted(text: str) -> str:
    """Return a text as TOML's, in ASCII."""
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if " " <= letter <= "~" else f"\\U{ord(letter):08x}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def _parsed(content: bytes, path: Path) -> list[_Entry]:
    """Return the entries of a file. ConfigurationError has the line at fault, and never what stands there."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"tokens file {path}, line {at}: this is no UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = re.search(r"at line (\d+)", str(error))
        at = int(said[1]) if said else text.count("\n") + 1
        raise ConfigurationError(f"tokens file {path}, line {at}: this is no TOML") from None
    entries: dict[bytes, _Entry] = {}
    for name, fields in table.items():
        try:
            entry = _entry(name, fields)
        except ConfigurationError as error:
            raise ConfigurationError(f"tokens file {path}, line {_line_of(name, text)}: {error}") from None
        if entry.digest in entries:
            raise ConfigurationError(
                f"tokens file {path}, line {_line_of(name, text)}: token {entries[entry.digest].name!r} is this one"
            )
        entries[entry.digest] = entry
    return [*entries.values()]


def _line_of(name: str, text: str) -> int:
    """Return the number of the line in which an entry begins."""
    begins = re.search(rf"""^[ \t]*\[?[ \t]*["']?{re.escape(name)}["']?[ \t]*[=\].]""", text, re.MULTILINE)
    return text.count("\n", 0, begins.start()) + 1 if begins else 1


def _entry(name: str, fields: Any) -> _Entry:
    """Return a line's entry; ConfigurationError says what is wrong with it, without what may be a secret."""
    if not _NAME.fullmatch(name) or name.startswith(PREFIX):
        raise ConfigurationError(f"a name has 1..64 letters, digits, - and _, and doesn't begin with {PREFIX}")
    if not isinstance(fields, dict) or set(fields) - {*_KEYS} or not {"hash", "scopes", "tags"} <= set(fields):
        raise ConfigurationError(f"a token has {', '.join(_KEYS[:-1])}, a rate if you like, and nothing else")
    hash_, scopes, tags, rate = (fields.get(key) for key in _KEYS)
    digest = _HASH.fullmatch(hash_) if isinstance(hash_, str) else None
    if digest is None:
        raise ConfigurationError('hash is "sha256:" and 64 digits, as `issuer token` prints it; never the token itself')
    if not isinstance(scopes, list) or not scopes or not all(each in SCOPES for each in scopes):
        raise ConfigurationError(f"scopes is a list of one or more of {', '.join(SCOPES)}")
    if not isinstance(tags, list) or not tags or not all(isinstance(each, str) and each for each in tags):
        raise ConfigurationError('tags is a list of patterns, as in ["orders", "invoice-*"]; ["*"] is all tags')
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not isfinite(rate) or rate <= 0
    ):
        raise ConfigurationError(f"rate is a number of requests a second, above 0, not {brief(rate)}")
    return _Entry(name, bytes.fromhex(digest[1]), frozenset(scopes), tuple(tags), rate)
