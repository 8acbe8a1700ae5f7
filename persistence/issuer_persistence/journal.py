"""A journal: a file outside the store with all reservations, from which a lost or restored store is recovered.

A line is a JSON object that ends with the CRC-32 of the text before it. The first line of a file names the store. Every
other line concerns one tag and has its settings:

- `reserve`: the numbers low + 1 .. high were reserved. The line is on disk (fsync) before a number is used.
- `hand back`: unused numbers were returned: each segment, by id, now ends at that number, and is empty if it begins
  above.
- `tag`: the tag was created, changed, recovered or deleted, and its `max` is at least `floor`. A new file begins with
  one such line for each tag, from the store or the previous file.

The newline of a line is written after fsync has returned. A line without a newline is torn, for example by a kill or a
full disk. Its numbers were never used, and the next process that appends removes it. A line with a newline and a wrong
checksum is an error. All processes append to one file under its lock (flock), so the file must be on a local file
system with hard links.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import NO_SPACE, Corrupt, Damaged, Full, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.records import SETTINGS, Tag, is_number, now_ms
from issuer_persistence.scheme_json import SCHEME_MOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: A file is followed by the next one when it has grown by this many bytes: about 7 500 reservations. Reading it, for
#: what is to be carried over, takes 0.2 s.
ROTATE_AT = 2 * 1024 * 1024

#: How many segments of a tag are remembered one by one, the highest. A hand back is about the highest of one process,
#: which holds three at most; of those below it is enough to know where they end.
KEPT = 8

_FORMAT = 1
_HEAD = b'{"kind":"journal",'
#: The head is all that is read before an append; it is shorter than this.
_HEAD_MOST = 4096
#: About the longest line that there is, in bytes: a description of 1000 bytes can take six times as many, and then
#: there is the scheme.
_LINE_MOST = 8192 + SCHEME_MOST
_END = rb',"crc":"([0-9a-f]{8})"\}'
_LINE = re.compile(rb"(\{.*?)" + _END, re.DOTALL)
#: How long a reader waits, in seconds, for processes that append, before it says that a line is damaged.
_READ_LOCK = 2.0
#: What a line says of the tag's record.
_SETTINGS = (*SETTINGS, "deleted")
#: Of these, what lines of before say nothing of.
_LATER = ("scheme", "step_mode")


def encoded(fields: Mapping[str, object]) -> bytes:
    """Return the line without its newline. It is ASCII, so neither a newline nor a NUL is in it."""
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}' % (text, crc32(text))


def decoded(line: bytes) -> dict[str, Any] | None:
    """Return what the line says; None if it isn't exactly as it was written."""
    found = _LINE.fullmatch(line)
    if found is None or crc32(found[1]) != int(found[2], 16):
        return None
    try:
        fields: dict[str, Any] = json.loads(found[1] + b"}")
    except ValueError:
        return None
    return fields


def _whole(tail: bytes) -> bytes:
    """Return the whole line that the end of a file holds, b"" if it is torn.

    What comes behind a line is no part of it: the byte of a newline that a power cut kept from the disk.
    """
    # The first end that checks: an object in a scheme may have a `crc` of its own.
    lines = (tail[: each.end()] for each in re.finditer(_END, tail))
    return next((line for line in lines if decoded(line) is not None), b"")


@dataclass(slots=True)
class Known:
    """One tag as journals know it. `record` has the settings as they were last; its `max` means nothing."""

    record: Tag
    floor: int = 0
    segments: dict[str, int] = field(default_factory=dict)

    @property
    def top(self) -> int:
        """The highest number that was ever reserved and not handed back."""
        return max([self.floor, *self.segments.values()])

    def beneath(self, newest: int) -> int:
        """Return the highest number beneath the `newest` newest segments."""
        highs = sorted(self.segments.values(), reverse=True)
        return max([self.floor, *highs[newest:]])

    def ends(self, segment: str, high: int) -> None:
        """Take note of where a segment ends; of several ends, in any order, the lowest holds."""
        self.segments[segment] = min(high, self.segments.get(segment, high))
        if len(self.segments) > 2 * KEPT:
            by_end = sorted(self.segments.items(), key=lambda each: each[1])
            self.floor = max(self.floor, by_end[-KEPT - 1][1])
            self.segments = dict(by_end[-KEPT:])

    def joined(self, other: Known) -> Known:
        """Return what both know: the later settings, the higher numbers."""
        later = max(self, other, key=lambda each: each.record.timestamp)
        return Known(later.record, max(self.floor, other.floor), {**self.segments, **other.segments})

    def line(self) -> dict[str, object]:
        """Return all of it as one line of the kind `tag`."""
        return about(self.record, "tag", floor=self.floor, segments=self.segments)


def about(record: Tag, kind: str, **more: object) -> dict[str, object]:
    """Return the fields of a line about a tag: the process that writes it, the time, the tag's settings, and more."""
    settings = {name: getattr(record, name) for name in _SETTINGS}
    said = {"time": now_ms(), "host": socket.gethostname(), "pid": os.getpid()}
    return {"kind": kind, "tag": record.tag, **more, **settings, "changed": record.timestamp, **said}


class Journals:
    """Tags that were read from journals.

    Attributes:
        stores: Records by the id of the store, then by tag.
    """

    def __init__(self) -> None:
        self.stores: dict[str, dict[str, Known]] = {}

    def take(self, file: IO[bytes], name: str) -> None:
        """Read one file. Raises Damaged for a line that isn't as it was written, unless it is the last and torn."""
        tags: dict[str, Known] = {}
        for number, line in enumerate(file, 1):
            ended = line.endswith(b"\n")
            text = line[:-1] if ended else _whole(line)
            if not ended and not text and (number > 1 or _begins_a_journal(line)):
                break
            fields = decoded(text)
            if fields is None:
                beginning = "this is not a journal, or " if number == 1 else ""
                raise Damaged(name, number, f"{beginning}the line was changed after it was written")
            if (fields.get("kind") == "journal") is not (number == 1):
                raise Damaged(name, number, "only the first line of a journal must be a head")
            try:
                if number == 1:
                    tags = self.stores.setdefault(_store_of(fields, name), {})
                else:
                    _note(tags, fields)
            except (Corrupt, KeyError, TypeError, AttributeError) as error:
                raise Damaged(name, number, f"no version of this program writes such a line: {error}") from error
            if not ended:
                # What has come since begins with this line's newline, or is in the place of it.
                break


def _begins_a_journal(torn: bytes) -> bool:
    return len(torn) < _HEAD_MOST and torn[: len(_HEAD)] == _HEAD[: len(torn)]


def _store_of(head: Mapping[str, Any], name: str) -> str:
    if head.get("format") != _FORMAT:
        raise Misconfigured(
            f"{name} was written by a newer version (format {head.get('format')}): upgrade this program"
        )
    return str(head["store"])


def _end(tag: str, value: object) -> int:
    if not is_number(value):
        raise Corrupt(tag, f"a number of the store, not {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]  # `is_number` says so


def _note(tags: dict[str, Known], fields: Mapping[str, Any]) -> None:
    changed = fields["changed"]
    settings = {name: fields[name] for name in _SETTINGS if name in fields or name not in _LATER}
    # A program that knows of no scheme says nothing of it, and changes none. So with the step's mode.
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
            known.ends(fields["id"], _end(record.tag, fields["high"]))
        case "hand back":
            for segment, high in fields["segments"].items():
                known.ends(segment, _end(record.tag, high))
        case "tag":
            known.floor = max(known.floor, _end(record.tag, fields["floor"]))
            for segment, high in fields["segments"].items():
                known.ends(segment, _end(record.tag, high))
        case kind:
            raise Corrupt(record.tag, f"a line of the kind {kind!r}")


def read(paths: Iterable[str | os.PathLike[str]]) -> Journals:
    """Read journals, in any order. Other processes can append to them meanwhile.

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
                if not file.peek(1):  # not by its size: it may be a pipe
                    raise Misconfigured(
                        f"journal {os.fspath(path)} is empty, so it has no reservations: give the file that the "
                        "issuers wrote, or omit this one if there never was a journal"
                    )
                try:
                    journals.take(file, os.fspath(path))
                except Damaged as damaged:
                    # Or a torn line was cut off, and another one put in its place, between two reads of ours.
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
    """The journal at `path`, which many threads and processes append to. Its directory must be there.

    It is opened for each line: so a forked child shares no lock with its parent (10 us, beside the fsync). When it has
    grown by `rotate_at` bytes it is kept as `path.1`, `path.2` ..., and the new one begins with all that recovery needs
    of it, so that these may be deleted.
    """

    def __init__(self, path: str | os.PathLike[str], *, rotate_at: int = ROTATE_AT) -> None:
        # Absolute from the start: a later chdir must not lead to another file.
        self.path = Path(path).absolute()
        self._rotate_at = rotate_at
        #: Whether the last append failed. Then a reservation is not asked for before a line can be written again: else
        #: each attempt on a full disk, or while a stopped process has the lock, would cost a segment.
        self._has_failed = False
        #: The result of `tops` when it read last, with the file and its length then.
        self._tops: Mapping[str, int] = {}
        self._read_as: object = None

    def prepare(self, store_id: str, *, timeout: float) -> bool:
        """See that a line can be appended, as far as that can be seen, and rotate if it is time.

        False: there is no journal yet, so `begin` one. It is called before the store is asked: what fails here costs no
        number. `timeout`: for the lock, in seconds. Raises Misconfigured if the file can't be written to, is no journal
        or another store's, Damaged if it is to be rotated and a line of it isn't as it was written, and Unconfirmed.
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
        """Begin the journal with a line of the kind `tag` for each tag of the store; nothing if there is one by now.

        Raises what `prepare` raises.
        """
        with self._errors():
            descriptor = self._locked(CallDeadline(timeout))
            try:
                self._mend(descriptor)
                if self._head(descriptor, store_id) is None:
                    self._put(store_id, [encoded(fields) for fields in tags])
            finally:
                locks.close(descriptor)

    def tops(self, store_id: str) -> Mapping[str, int]:
        """Return, by tag, the highest number of the store that the journal knows to be reserved; {} if there is none.

        Read again when the file has changed: 0.2 s for 2 MB. Raises Damaged, and Misconfigured as `read` does.
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

    def append(self, store_id: str, fields: Mapping[str, object], *, timeout: float) -> bool:
        """Append a line; it is on the disk when this returns True. False: there is no journal any more, `begin` one.

        `timeout`: for the lock, in seconds; fsync has none. Raises Unconfirmed, and Misconfigured as `prepare` does.
        The line may have been written all the same.
        """
        try:
            with self._errors():
                descriptor = self._locked(CallDeadline(timeout))
                try:
                    self._mend(descriptor)
                    if self._head(descriptor, store_id) is None:
                        return False
                    _write(descriptor, [encoded(fields)])
                    return True
                finally:
                    locks.close(descriptor)
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

    def _locked(self, deadline: CallDeadline) -> int:
        return locks.locked(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, deadline)

    def _head(self, descriptor: int, store_id: str) -> dict[str, Any] | None:
        """Return the head, None of an empty file. Misconfigured if it isn't one, or names another store."""
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
        """End the last line if it is whole, cut it off if it is torn. The lock says that no process is writing it."""
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
        # Without what was carried over: with many tags that alone may be larger than a file should be.
        return head is not None and os.fstat(descriptor).st_size - head["carried"] >= self._rotate_at

    def _set_right(self, store_id: str, deadline: CallDeadline) -> None:
        """Under the lock: try whether there is room again, and rotate if it is still time to."""
        descriptor = self._locked(deadline)
        try:
            self._mend(descriptor)
            if self._has_failed:
                _try_to_write(descriptor)
                self._has_failed = False
            if self._is_due(descriptor, self._head(descriptor, store_id)):
                self._rotate(descriptor, store_id)
        finally:
            locks.close(descriptor)

    def _rotate(self, full: int, store_id: str) -> None:
        """Rename the file and put a new one in its place. Processes that wait for its lock look again."""
        journals = Journals()
        with os.fdopen(os.dup(full), "rb") as file:
            file.seek(0)
            journals.take(file, str(self.path))
        # A link, not a rename: at no moment is there no file at the path, which another process would then make.
        self._link()
        self._put(store_id, [encoded(known.line()) for known in journals.stores[store_id].values()])

    def _put(self, store_id: str, lines: Sequence[bytes]) -> None:
        """Put a new file with these lines in the place of the one whose lock is held: all of it, or nothing."""
        fresh = self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC, ".new")
        try:
            _write(fresh, [_new_head(store_id, sum(len(line) + 1 for line in lines)), *lines])
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


def _new_head(store_id: str, carried: int) -> bytes:
    return encoded({"kind": "journal", "format": _FORMAT, "store": store_id, "carried": carried, "time": now_ms()})


def _write(descriptor: int, lines: Iterable[bytes]) -> None:
    """Append the lines and wait until they are on the disk, then end the last one."""
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
    # If there is no room for it: the line is whole and on the disk, and the next process to append ends it.
    with suppress(OSError):
        os.write(descriptor, b"\n")


def _try_to_write(descriptor: int) -> None:
    """OSError if there is no room for a long line. A process that is killed here leaves a torn line."""
    before = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, b" " * _LINE_MOST) < _LINE_MOST:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.ftruncate(descriptor, before)
