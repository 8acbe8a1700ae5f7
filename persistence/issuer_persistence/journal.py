"""A journal: a file outside the store that lists all reservations. With it, a lost or restored store can be recovered.

A line is a JSON object that ends with the CRC-32 of the text before it. The first line of a file, its head, contains
the id of the store. Every other line contains the name and settings of one tag, and one of these kinds:

- `reserve`: the numbers low + 1 .. high were reserved. The line is on disk (fsync) before a number is used.
- `hand back`: unused numbers were returned. For the id of each segment, the line contains the new last number of the
  segment. If the segment begins after this number, the segment is empty now.
- `tag`: the tag was created, changed, recovered or deleted. The tag's `max` is at least the number `floor` in the line.
  A new file begins with one such line for each tag. These lines come from the store or from the previous file.

The newline of a line is written after fsync has returned. If a line has no newline, its writing was interrupted, for
example by a kill or a full disk. If this line is complete, the next process that appends adds the newline. If it is
incomplete, that process removes the line: the numbers in the line were never used. If a line with a newline has a wrong
checksum, this is an error. All processes append to one file under its lock (flock), so the file must be on a local file
system with hard links.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import NO_SPACE, Corrupt, Damaged, Full, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.records import SETTINGS, Tag, now_ms, number
from issuer_persistence.scheme_json import SCHEME_MOST

#: Size in bytes after which a new file is begun: about 7 500 reservations. The rotation of such a file takes 0.2 s.
ROTATE_AT = 2 * 1024 * 1024

#: At least this many segments of a tag are remembered one by one: the highest ones. Numbers are returned only from the
#: highest segments, by a process that holds at most three. So numbers of lower segments cannot be returned any more. Of
#: all lower segments, only the highest number is remembered.
KEPT = 8

_FORMAT = 1
_HEAD = b'{"kind":"journal",'
#: Maximum length of a head in bytes. Before an append, only this much of the file is read.
_HEAD_MOST = 4096
#: Approximate length of the longest line, in bytes. As JSON, a description of 1000 bytes can take 6000.
_LINE_MOST = 8192 + SCHEME_MOST
_END = rb',"crc":"([0-9a-f]{8})"\}'
_LINE = re.compile(rb"(\{.*?)" + _END, re.DOTALL)
#: How long a reader waits for the lock, in seconds, to read a damaged line a second time.
_READ_LOCK = 2.0
#: Fields of the tag's record that each line contains.
_SETTINGS = (*SETTINGS, "deleted")
#: Fields of the record that are missing in lines of older versions.
_LATER = tuple(name for name, each in SETTINGS.items() if not each.required)


def encoded(fields: Mapping[str, object]) -> bytes:
    """Return the fields as a line of a journal, in ASCII, without the newline at the end."""
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}' % (text, crc32(text))


def decoded(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line, or None if the line was modified or damaged."""
    found = _LINE.fullmatch(line)
    if found is None or crc32(found[1]) != int(found[2], 16):
        return None
    try:
        fields: dict[str, Any] = json.loads(found[1] + b"}")
    except ValueError:
        return None
    return fields


def _whole(tail: bytes) -> bytes:
    """Return the last line of a file if only its newline is missing. Return b"" if more is missing.

    `tail`: the bytes after the last newline of the file. After a power cut, the line can be followed by a wrong byte in
    place of its newline. This byte is left out.
    """
    # A scheme may have a field `crc`, too. So try each possible end of the line until a checksum is right.
    lines = (tail[: each.end()] for each in re.finditer(_END, tail))
    return next((line for line in lines if decoded(line) is not None), b"")


@dataclass(slots=True)
class Known:
    """The state of one tag, as read from journals: its newest settings, and its highest numbers.

    Attributes:
        record: Record with the newest settings. Its `max` is always 0: use `top`.
        floor: Number that the tag's `max` is never below.
        segments: Last number of each of the segments with the highest numbers, by the id of the segment.
    """

    record: Tag
    floor: int = 0
    segments: dict[str, int] = field(default_factory=dict)

    @property
    def top(self) -> int:
        """Highest number that was reserved and not returned."""
        return max([self.floor, *self.segments.values()])

    def beneath(self, newest: int) -> int:
        """Return the last reserved number below the `newest` highest segments.

        Numbers of those segments may still be unissued in Redis. So `recover` counts only the lower numbers as issued.
        """
        highs = sorted(self.segments.values(), reverse=True)
        return max([self.floor, *highs[newest:]])

    def ends(self, segment: str, high: int) -> None:
        """Record the last number of a segment. If numbers were returned, it is lower: so the lowest value is kept."""
        self.segments[segment] = min(high, self.segments.get(segment, high))
        if len(self.segments) > 2 * KEPT:
            by_end = sorted(self.segments.items(), key=lambda each: each[1])
            self.floor = max(self.floor, by_end[-KEPT - 1][1])
            self.segments = dict(by_end[-KEPT:])

    def joined(self, other: Known) -> Known:
        """Combine the state of one tag from two journals: the newer settings, and the numbers of both."""
        later = max(self, other, key=lambda each: each.record.timestamp)
        return Known(later.record, max(self.floor, other.floor), {**self.segments, **other.segments})

    def line(self) -> dict[str, object]:
        """Return a line of the kind `tag` with this state of the tag."""
        return about(self.record, "tag", floor=self.floor, segments=self.segments)


def about(record: Tag, kind: str, **more: object) -> dict[str, object]:
    """Return the fields of a line about a tag: its kind, `more`, the tag's settings, the time and the process."""
    settings = {**record.kept(), "deleted": record.deleted}
    said = {"time": now_ms(), "host": socket.gethostname(), "pid": os.getpid()}
    return {"kind": kind, "tag": record.tag, **more, **settings, "changed": record.timestamp, **said}


class Journals:
    """The content of journals. `stores` contains the state of each tag, by the store's id, then by the tag's name."""

    def __init__(self) -> None:
        self.stores: dict[str, dict[str, Known]] = {}

    def take(self, file: IO[bytes], name: str) -> None:
        """Read one file. Skip an incomplete last line. Raise Damaged if another line is damaged."""
        tags: dict[str, Known] = {}
        for at, line in enumerate(file, 1):
            ended = line.endswith(b"\n")
            text = line[:-1] if ended else _whole(line)
            if not ended and not text and (at > 1 or _begins_a_journal(line)):
                break
            fields = decoded(text)
            if fields is None:
                beginning = "this is not a journal, or " if at == 1 else ""
                raise Damaged(name, at, f"{beginning}the line was changed after it was written")
            if (fields.get("kind") == "journal") is not (at == 1):
                raise Damaged(name, at, "only the first line of a journal must be a head")
            try:
                if at == 1:
                    tags = self.stores.setdefault(_store_of(fields, name), {})
                else:
                    _note(tags, fields)
            except (Corrupt, KeyError, TypeError, AttributeError) as error:
                raise Damaged(name, at, f"no version of this program writes such a line: {error}") from error
            if not ended:
                # The newline is missing: another process may be appending now. It will complete this line, or replace
                # it. So stop here.
                break


def _begins_a_journal(torn: bytes) -> bool:
    return len(torn) < _HEAD_MOST and torn[: len(_HEAD)] == _HEAD[: len(torn)]


def _store_of(head: Mapping[str, Any], name: str) -> str:
    if head.get("format") != _FORMAT:
        raise Misconfigured(
            f"{name} was written by a newer version (format {head.get('format')}): upgrade this program"
        )
    return str(head["store"])


def _note(tags: dict[str, Known], fields: Mapping[str, Any]) -> None:
    changed = fields["changed"]
    settings = {name: fields[name] for name in _SETTINGS if name in fields or name not in _LATER}
    # A line of an older program lacks the newer settings. That program did not change them, so keep the known values.
    before = tags.get(fields["tag"])
    if before is not None:
        settings = {**{name: getattr(before.record, name) for name in _LATER}, **settings}
    made = {"max": 0, "created": changed, "timestamp": changed, "version": "", "halted": False}
    record = Tag.checked(fields["tag"], {**settings, **made})
    known = tags.setdefault(record.tag, Known(record))
    if record.timestamp >= known.record.timestamp:
        known.record = record
    match fields["kind"]:
        case "reserve":
            known.ends(fields["id"], number(record.tag, fields, "high"))
        case "hand back" | "tag" as kind:
            if kind == "tag":
                known.floor = max(known.floor, number(record.tag, fields, "floor"))
            for segment in fields["segments"]:
                known.ends(segment, number(record.tag, fields["segments"], segment))
        case kind:
            raise Corrupt(record.tag, f"a line of the kind {kind!r}")


def read(paths: Iterable[str | os.PathLike[str]]) -> Journals:
    """Read journal files, in any order. At the same time, other processes can append to them.

    Args:
        paths: Paths of the files.

    Raises:
        Damaged: A line was modified or damaged.
        Misconfigured: A file cannot be read, is empty, or was written by a newer version.
    """
    journals = Journals()
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                if not file.peek(1):  # do not use the size: the file may be a pipe
                    raise Misconfigured(
                        f"journal {os.fspath(path)} is empty, so it has no reservations: give the file that the "
                        "issuers wrote, or omit this one if there never was a journal"
                    )
                try:
                    journals.take(file, os.fspath(path))
                except Damaged as damaged:
                    # Perhaps another process replaced an incomplete line during this read. Read again, under the lock.
                    try:
                        locks.lock(file.fileno(), CallDeadline(_READ_LOCK))
                    except (OSError, Unconfirmed):
                        raise damaged from None
                    file.seek(0)
                    journals.take(file, os.fspath(path))
        except OSError as error:
            raise Misconfigured(f"journal {os.fspath(path)} can't be read: {error}") from error
    return journals


class Journal:
    """The journal at `path`. Many threads and processes may append to it. Its directory must exist.

    The file is opened for each line, so that a forked child shares no lock with its parent. Opening the file takes 10
    us. After `rotate_at` bytes the file is renamed to `path.1`, `path.2` and so on, and a new file is begun. The new
    file starts with all data of the old file that `recover` needs, so old files can be deleted.
    """

    def __init__(self, path: str | os.PathLike[str], *, rotate_at: int = ROTATE_AT) -> None:
        # Make the path absolute, so that a later chdir does not lead to another file.
        self.path = Path(path).absolute()
        self._rotate_at = rotate_at
        #: True if the last append failed. Then `prepare` raises an error until a line can be written again. Otherwise
        #: each attempt on a full disk, or while a stopped process holds the lock, would waste a segment.
        self._has_failed = False
        #: Last result of `tops`. `_read_as`: the store, the file and the file's length at that time.
        self._tops: Mapping[str, int] = {}
        self._read_as: object = None

    def prepare(self, store_id: str, *, timeout: float) -> bool:
        """Check that a line can be appended. Call this before the store is changed. If the file is full, rotate it.

        Args:
            store_id: Id of the store.
            timeout: Longest wait for the lock, in seconds.

        Returns:
            False if there is no journal yet. Then the caller must call `begin`.

        Raises:
            Misconfigured: The file cannot be written, is not a journal, or belongs to another store.
            Damaged: The file is full, but cannot be rotated, because one of its lines was modified.
            Unconfirmed: The lock was not free in time, or no line can be written.
        """
        with self._errors():
            try:
                descriptor = self._open(os.O_RDWR)
            except FileNotFoundError:
                if self.path.parent.is_dir() and os.access(self.path.parent, os.W_OK | os.X_OK):
                    return False
                raise
            try:
                head = self._head(descriptor, store_id)
                due = self._is_due(descriptor, head)
            finally:
                locks.close(descriptor)
            if due or self._has_failed:
                self._set_right(store_id, CallDeadline(timeout))
            return head is not None

    def begin(self, store_id: str, tags: Iterable[Mapping[str, object]], *, timeout: float) -> None:
        """Create the journal with a line of the kind `tag` for each tag. If the journal exists, do nothing.

        Errors are those of `prepare`.
        """
        with self._errors(), self._locked(CallDeadline(timeout)) as descriptor:
            self._mend(descriptor)
            if self._head(descriptor, store_id) is None:
                self._put(store_id, [encoded(fields) for fields in tags])

    def tops(self, store_id: str) -> Mapping[str, int]:
        """Return the highest reserved number of each tag, or {} if there is no journal.

        If the file has changed since the last call, it is read again, which takes 0.2 s for 2 MB. Errors are those of
        `read`.
        """
        try:
            found = self.path.stat()
        except OSError:
            return {}
        state = (store_id, found.st_dev, found.st_ino, found.st_size)
        if found.st_size and state != self._read_as:
            known = read([self.path]).stores.get(store_id, {})
            self._tops, self._read_as = {tag: each.top for tag, each in known.items()}, state
        return self._tops if found.st_size else {}

    def append(self, store_id: str, lines: Sequence[Mapping[str, object]], *, timeout: float) -> bool:
        """Append lines, wait until they are on the disk, and return True.

        If the journal no longer exists, return False. Then the caller must call `begin`. If the call raises an error,
        all lines or some of the lines may have been written. Errors are those of `prepare`. `timeout` limits the wait
        for the lock, in seconds. The time of fsync is not limited.
        """
        try:
            with self._errors(), self._locked(CallDeadline(timeout)) as descriptor:
                self._mend(descriptor)
                if self._head(descriptor, store_id) is None:
                    return False
                _write(descriptor, list(map(encoded, lines)))
                return True
        except StoreError:
            self._has_failed = True
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise Misconfigured(f"journal {self.path}: cannot append to it: {error}") from error
        except OSError as error:
            if error.errno in NO_SPACE:
                raise Full(self.path) from error
            raise Unconfirmed(f"journal {self.path}: {error}") from error

    def _open(self, flags: int, suffix: str = "") -> int:
        return locks.open_file(f"{self.path}{suffix}", flags | os.O_APPEND)

    def _locked(self, deadline: CallDeadline) -> AbstractContextManager[int]:
        return locks.locked(self.path, partial(self._open, os.O_RDWR | os.O_CREAT), deadline)

    def _head(self, descriptor: int, store_id: str) -> dict[str, Any] | None:
        """Return the head of the file. None if it is not complete. If it names another store, raise Misconfigured."""
        beginning = os.pread(descriptor, _HEAD_MOST, 0)
        line, ended, _ = beginning.partition(b"\n")
        if not ended and _begins_a_journal(beginning):
            return None
        head = decoded(line)
        if head is None or head.get("kind") != "journal":
            raise Misconfigured(f"{self.path} is not a journal, or its first line is damaged: use another file")
        store = _store_of(head, str(self.path))
        if store != store_id:
            raise Misconfigured(
                f"journal {self.path} belongs to another store (id {store}, this store is {store_id}): rename it, so "
                "that a new one is started. If the other store is lost, give its journal to `recover`"
            )
        return head

    def _mend(self, descriptor: int) -> None:
        """Repair the last line, under the lock: add the newline to a complete line, or remove an incomplete line."""
        size = os.fstat(descriptor).st_size
        if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
            return
        content = os.pread(descriptor, size, 0)
        begins = content.rfind(b"\n") + 1
        whole = _whole(content[begins:])
        if begins == 0 and not whole and not _begins_a_journal(content):
            raise Misconfigured(f"{self.path} is not a journal: use another file")
        os.ftruncate(descriptor, begins + len(whole))
        if whole:
            os.write(descriptor, b"\n")

    def _is_due(self, descriptor: int, head: dict[str, Any] | None) -> bool:
        # The lines copied from the old file (`carried`, in bytes) do not count: with many tags, these lines alone could
        # exceed the limit.
        return head is not None and os.fstat(descriptor).st_size - head["carried"] >= self._rotate_at

    def _set_right(self, store_id: str, deadline: CallDeadline) -> None:
        """Take the lock. After a failed append, check that there is space again. If the file is full, rotate it."""
        with self._locked(deadline) as descriptor:
            self._mend(descriptor)
            if self._has_failed:
                _try_to_write(descriptor)
                self._has_failed = False
            if self._is_due(descriptor, self._head(descriptor, store_id)):
                self._rotate(descriptor, store_id)

    def _rotate(self, full: int, store_id: str) -> None:
        """Keep the full file under another name. Processes that wait for its lock notice it and open the new file."""
        journals = Journals()
        with os.fdopen(os.dup(full), "rb") as file:
            file.seek(0)
            journals.take(file, str(self.path))
        # Make a link instead of a rename: after a rename, the path is free for a moment, and another process could
        # create a file there.
        self._link()
        self._put(store_id, [encoded(known.line()) for known in journals.stores[store_id].values()])

    def _put(self, store_id: str, lines: Sequence[bytes]) -> None:
        """Put a new file with these lines in place of the journal, which the caller has locked, in one atomic step."""
        carried = sum(len(line) + 1 for line in lines)
        head = {"kind": "journal", "format": _FORMAT, "store": store_id, "carried": carried, "time": now_ms()}
        fresh = self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC, ".new")
        try:
            _write(fresh, [encoded(head), *lines])
        finally:
            locks.close(fresh)
        Path(f"{self.path}.new").replace(self.path)
        self._sync_directory()

    def _link(self) -> None:
        beside = (each.name.removeprefix(f"{self.path.name}.") for each in self.path.parent.iterdir())
        last = max((int(name) for name in beside if name.isdecimal()), default=0)
        os.link(self.path, f"{self.path}.{last + 1}")

    def _sync_directory(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _write(descriptor: int, lines: Iterable[bytes]) -> None:
    """Append the lines, and wait until they are on the disk. Then write the newline of the last line."""
    before = os.fstat(descriptor).st_size
    rest = b"\n".join(lines)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(descriptor, before)
        raise
    # If the disk is full, there may be no space for the newline. The line is still valid: the next append adds
    # the newline.
    with suppress(OSError):
        os.write(descriptor, b"\n")


def _try_to_write(descriptor: int) -> None:
    """Check by a trial that there is space for a long line. Otherwise raise OSError.

    If the process is killed here, blanks are left in the file as an incomplete line. This does no harm: the next
    process that appends removes the line.
    """
    before = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, b" " * _LINE_MOST) < _LINE_MOST:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.ftruncate(descriptor, before)
