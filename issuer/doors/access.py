"""Access to a server: authentication by token, scopes, and rate limits."""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import translate
from pathlib import Path
from typing import Final

from issuer.clock import monotonic
from issuer.core.sparing import Sparing
from issuer.doors.rates import Bucket, RateBuckets, nameless
from issuer.doors.tokens import SCOPES, Entry, Scope, digest_of, parsed
from issuer.errors import ConfigurationError, Forbidden, InvalidArgument, TooManyRequests, Unauthenticated
from issuer.tally import Tally

log = logging.getLogger("issuer.doors.access")
audit = logging.getLogger("issuer.audit")

#: Seconds between two checks of the tokens file. A change is applied only after two checks in a row found the same size
#: and times of the file: at the first check, an editor may not have written the whole file yet.
LOOK_EVERY: Final = 0.5

#: Bits of the file mode that allow other users to write.
_OTHERS: Final = 0o022

#: All processes of a server share a copy of the tokens file's content. This is the format of the header before the
#: copy: size and checksum of the content.
_HEADER: Final = struct.Struct("=QQ")


class Caller:
    """An authenticated caller.

    Attributes:
        name: Name of the caller's token; "" if the server requires no tokens.
    """

    __slots__ = ("_all", "_bucket", "_matches", "_scopes", "name")

    def __init__(self, name: str, scopes: Collection[Scope], tags: Sequence[str], bucket: Bucket | None = None) -> None:
        """Make a caller.

        `scopes`: what the caller may do; `admin` includes all scopes. `tags`: patterns as in `fnmatch.fnmatchcase`. A
        tag is allowed if a pattern matches its name or equals it. `bucket`: limits the rate of the token.
        """
        self.name = name
        self._scopes = frozenset(SCOPES if "admin" in scopes else scopes)
        self._all = any(pattern.strip("*") == "" for pattern in tags)
        literal = [f"{re.escape(pattern)}\\Z" for pattern in tags if "[" in pattern]
        self._matches = re.compile("|".join([*map(translate, tags), *literal])).match
        self._bucket = bucket

    def need(self, scope: Scope | Sequence[Scope], tag: str | None = None) -> None:
        """Count one request of the token, and check that the caller has the scope, or one of several scopes.

        `tag`: None means a request about all tags, which requires the pattern `*`. Raises TooManyRequests, or Forbidden
        if the token lacks the scope or is not valid for this tag.
        """
        if self._bucket is not None:
            self.count()
        self.check(scope, tag)

    def need_scope(self, scopes: Sequence[Scope]) -> None:
        """Count one request, and check that the caller has one of the scopes for some tag. Raises as `need`."""
        self.count()
        if self._scopes.isdisjoint(scopes):
            self.check(scopes)

    def count(self) -> None:
        """Count one request of the token, which needs no scope. Raises TooManyRequests."""
        if self._bucket is not None and (wait := self._bucket.take()):
            raise self._used_up(wait)

    def need_some(self, scope: Scope, tag: str, n: int) -> tuple[int, TooManyRequests | None]:
        """Count and check n requests, as `need` does. Return how many are allowed, and the error for the others."""
        granted, wait = (n, 0.0) if self._bucket is None else self._bucket.take_some(n)
        self.check(scope, tag)
        return granted, None if granted == n else self._used_up(wait)

    def spend(self, n: int, tag: str) -> None:
        """Count the n numbers of a request against the token's rate. Call `need` first, which counts one of them.

        Raises TooManyRequests, and InvalidArgument if the rate never allows n numbers at once.
        """
        bucket = self._bucket
        if bucket is None or n <= 1:
            return
        if n > bucket.most:
            problem = f"token {self.name!r} may draw up to {bucket.most} numbers at once by its rate, not {n}"
            raise InvalidArgument(problem, tag=tag, value=n, argument="n")
        if wait := bucket.take(n - 1):
            bucket.give_back()  # undo the count of `need`: else a client that retries too soon never gets n numbers
            raise self._used_up(wait)

    def _used_up(self, wait: float) -> TooManyRequests:
        return TooManyRequests(f"token {self.name!r} has used up its rate", retry_after=wait)

    def check(self, scope: Scope | Sequence[Scope], tag: str | None = None) -> None:
        """Check as `need` does. No request is counted."""
        if not self.may(scope, tag):
            raise Forbidden(
                self.name, scope=scope if isinstance(scope, str) else " or ".join(scope), tag=tag, scopes=self._scopes
            )

    def may(self, scope: Scope | Sequence[Scope], tag: str | None = None) -> bool:
        """Return whether the caller has the scope for the tag. No request is counted."""
        scopes = self._scopes
        if not (scope in scopes if isinstance(scope, str) else any(each in scopes for each in scope)):
            return False
        return self._all or (tag is not None and self._matches(tag) is not None)


@contextmanager
def _locked(file: int, *, wait: bool) -> Iterator[None]:
    """Lock a file during a `with` block.

    If another process has the lock, wait for it, or raise BlockingIOError or PermissionError.
    """
    fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def _headed(content: bytes) -> bytes:
    return _HEADER.pack(len(content), zlib.crc32(content))


class Access:
    """Authentication of a server's callers, by the tokens file.

    The server creates the object before it forks its processes, so all processes use the same tokens. When the file has
    changed, the first process that reads it applies the change for all processes. If the file is invalid, the previous
    tokens stay valid, also for processes that start later.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Read the tokens file. Raises ConfigurationError if it cannot be read, or contains a mistake.

        Args:
            path: The tokens file. If None, callers need no token and may do everything.
            clock: Monotonic clock for rates, in seconds.
            wall: Time in seconds since 1970, for tokens that expire.
        """
        self.rates, self.tally, self._wall = RateBuckets(clock), Tally(), wall
        self._path = None if path is None else Path(path)
        #: A file with the content of the tokens file, which all processes of the server share.
        self._published = nameless(self)
        self._content = b""
        self._entries: list[Entry] = []
        #: For each token: its digest, its entry in the file, and the caller, which is None if the token has expired.
        self._callers: list[tuple[bytes, Entry, Caller | None]] = []
        self._complaint = ""
        self._changed: tuple[int, ...] = ()
        self._state = () if self._path is None else self._read(self._path)

    @property
    def is_open(self) -> bool:
        """Whether callers need no token."""
        return self._path is None

    def identify(self, token: str | None) -> Caller:
        """Return the caller that has this token. Raises Unauthenticated if it is missing (None), unknown or expired.

        If a caller stays connected, the server identifies the caller again for each batch of requests, because the
        token may have been revoked.
        """
        if self._path is None:
            return _ANYBODY
        if not token:
            raise Unauthenticated("no token was sent" if token is None else "the token is empty")
        digest, found = digest_of(token), None
        # All entries are compared, also after a match, so that the duration does not show which entry matches.
        for known in self._callers:
            if hmac.compare_digest(known[0], digest):
                found = known
        if found is None:
            raise Unauthenticated("the token is unknown")
        if found[2] is None:
            raise Unauthenticated(f"token {found[1].name!r} has expired")
        return found[2]

    def named(self, name: str) -> list[tuple[bytes, Caller]]:
        """Return the digest and the caller of each valid token with this name."""
        return [(digest, caller) for digest, _, caller in self._callers if caller is not None and caller.name == name]

    def failed(self, protocol: str, address: str, request: str, error: Unauthenticated) -> None:
        """Count a request without a valid token, and log it at most once a minute for each `address`.

        `protocol`: "http" or "resp". `request`: text that identifies the request or the connection in the log.
        """
        self.tally.failures[protocol] += 1
        told = "authentication failed over %s, from %s, %s: %s"
        _sparing.say(audit.warning, address, protocol, told, protocol, address, request, error)

    def look(self, *, at_once: bool = False) -> None:
        """Apply changes of the tokens file. Each worker calls this method every LOOK_EVERY seconds.

        `at_once`: an operator reports that the whole file is written. Apply it now, and log a mistake again.
        """
        path = self._path
        if path is None:
            return
        if at_once:
            self._complaint = ""
        try:
            # The file's state includes inode and size, because editors and Kubernetes replace the file by a new one,
            # which may have the same times.
            state = _state(path.stat())
            settled, self._changed = state == self._changed, state
            if state != self._state and (settled or at_once):
                with suppress(BlockingIOError, PermissionError), _locked(self._published, wait=at_once):
                    self._state = self._read(path)
            if (content := self._shared()) is not None:
                self._take(content, parsed(content, path))
        except OSError as error:
            self._complain(f"tokens file {path}: {error.strerror}")
        except ConfigurationError as error:
            self._complain(str(error))
        now = self._wall()
        if any(caller and _over(entry, now) for _, entry, caller in self._callers):
            self._callers = self._admitted(self._entries)

    def _shared(self) -> bytes | None:
        """Return the content that a process of the server has read last. None if it is known here, or incomplete.

        The content is incomplete while a process writes it, and stays incomplete if the writing process is killed.
        """
        header = os.pread(self._published, _HEADER.size, 0)
        if len(header) < _HEADER.size or header == _headed(self._content):
            return None
        content = os.pread(self._published, _HEADER.unpack(header)[0], _HEADER.size)
        return content if _headed(content) == header else None

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            log.error("%s; the tokens that were read before stay valid", complaint)

    def _read(self, path: Path) -> tuple[int, ...]:
        """Read the tokens file and apply it. Return the file's state, or raise ConfigurationError."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
        except OSError as error:
            raise ConfigurationError(f"tokens file {path}: {error.strerror}") from error
        self._take(content, parsed(content, path))
        os.pwrite(self._published, _headed(content) + content, 0)
        self._complaint = ""
        if status.st_mode & _OTHERS:
            log.warning("tokens file %s is writable for other users: run chmod go-w on it", path)
        return _state(status)

    def _take(self, content: bytes, entries: list[Entry]) -> None:
        self._callers = self._admitted(entries)
        self._content, self._entries = content, entries

    def _admitted(self, entries: list[Entry]) -> list[tuple[bytes, Entry, Caller | None]]:
        now, admitted = self._wall(), []
        for entry in entries:
            bucket = None if entry.rate is None else self.rates.bucket(entry.name, entry.rate)
            caller = None if _over(entry, now) else Caller(entry.name, entry.scopes, entry.tags, bucket)
            admitted += [(digest, entry, caller) for digest in entry.digests]
        return admitted


_sparing = Sparing()
_ANYBODY: Final = Caller("", SCOPES, ["*"])


def _over(entry: Entry, now: float) -> bool:
    return entry.expires is not None and entry.expires <= now


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
