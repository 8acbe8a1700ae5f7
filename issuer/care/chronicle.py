"""The chronicle: the rare events of an issuer, the acts of its operators, and the processes that use it.

Every process with the same Redis and prefix writes to it. It is bounded: two lists of lines and a hash in Redis. It is
for people: no part of the protocol reads it. Any program with access to Redis can write there, so a line may contain
any text.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from issuer.core.steps import Steps, pipeline, send
from issuer.errors import IssuerError, brief
from issuer.gateway import chronicle_commands
from issuer.gateway.keys import chronicle_key
from issuer_persistence.records import StoredSettings, TagSettings, is_number, now_ms

L = TypeVar("L")

#: Maximum number of names in a line.
TAGS_MOST = 5
#: Maximum length of a text in a line, in characters. `Happening.text` and `Process.trouble` have at most BRIEF_MOST.
TEXT_MOST = 500
BRIEF_MOST = 300
#: A longer line is not read, in bytes. The longest line of an issuer has 5 names of 200 bytes and some texts, and JSON
#: needs up to 6 bytes for each byte of them.
_LINE_MOST = 16_384
#: A process whose line was not written for this long has ended, in ms: one day.
GONE = 86_400_000


@dataclass(frozen=True, slots=True)
class Happening:
    """A rare event, or several events of the same kind and cause in one process.

    Attributes:
        time: When the first of the events happened, in ms since 1970, by the clock of the process.
        kind: Name of the event's class, such as "FenceTripped"; see `issuer.core.events`.
        tags: Names of tags, at most 5. There may be more tags.
        count: How many events the line stands for, 1 or more.
        text: What happened, at most 300 characters, in the words of the first event.
        host: Host name of the process.
        pid: Id of the process.
        application: Name of the service, from the settings of the process.
    """

    time: int
    kind: str
    tags: tuple[str, ...]
    count: int
    text: str
    host: str
    pid: int
    application: str


@dataclass(frozen=True, slots=True)
class Act:
    """A successful call that has changed tags.

    Attributes:
        time: When the call ended, in ms since 1970, by the clock of the process.
        what: "create", "configure", "delete", "halt" or "recover".
        tag: Name of the tag. If the call has changed many tags, the number of tags and their first names.
        who: Name of the caller's token, or user of the operating system. "" for a caller of a server without tokens.
        origin: Address of the client of a server, or host and pid of the process.
        change: The changed settings, such as "step 1000 -> 5000", at most 500 characters. No secrets. "" if unknown.
    """

    time: int
    what: str
    tag: str
    who: str
    origin: str
    change: str


@dataclass(frozen=True, slots=True)
class Process:
    """An issuer that is open in a process. If a process has several issuers, each has a line.

    Attributes:
        host: Host name of the process.
        pid: Id of the process.
        application: Name of the service, from the settings of the process.
        version: Version of the issuer's package, "unknown" if it is not installed.
        began: When the issuer was opened, in ms since 1970, by the clock of the process.
        seen: When this line was written, in ms since 1970. A process that runs writes it every 10 seconds.
        tags: How many tags are in use.
        held: How many numbers the process holds in memory.
        waiting: How many callers wait for a number.
        direct: How many tags are served in direct mode.
        trouble: Last error of the background work for tags in use, at most 300 characters. "" if there is none now.
        role: "worker" of `issuer serve`, "keeper" if the issuer loads the segments of all tags, "" otherwise.
    """

    host: str
    pid: int
    application: str
    version: str
    began: int
    seen: int
    tags: int
    held: int
    waiting: int
    direct: int
    trouble: str
    role: str


@dataclass(frozen=True, slots=True)
class Chronicle:
    """The content of the chronicle.

    Attributes:
        happenings: At most 1000, the newest first.
        acts: At most 1000, the newest first.
        processes: Sorted by application, host and pid.
    """

    happenings: list[Happening] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)


def clipped(text: str, most: int = TEXT_MOST) -> str:
    """Return the beginning of the text, at most `most` characters. Characters that UTF-8 does not have become "?"."""
    return text[:most].encode(errors="replace").decode()


def line_of(record: Happening | Act | Process) -> str:
    """Return the record as a line of JSON."""
    return json.dumps(asdict(record), separators=(",", ":"))


def difference(before: StoredSettings | None, after: StoredSettings) -> str:
    """Return the settings that differ, such as "step 1000 -> 5000", for `Act.change`. It contains no secrets.

    `before`: None for a new tag. Then the settings that are not the default are returned, such as "step 5000".
    """
    old, new = (_flat(TagSettings() if each is None else each) for each in (before, after))
    differs = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    begins = {name: "" if before is None else f"{_shown(old.get(name))} -> " for name in differs}
    return ", ".join(f"{name} {begins[name]}{_shown(new.get(name))}" for name in differs)


def _flat(settings: StoredSettings) -> dict[str, object]:
    own = settings.kept()
    scheme = own.pop("scheme")
    return {**own, **{name: scheme[name] for name in sorted(scheme.keys() - own.keys() - {"id"})}}


def _shown(value: object) -> str:
    """Return a value of a setting. What has an inner structure, such as a scramble, is only named."""
    if value is None or isinstance(value, int | float):
        return "none" if value is None else str(value).lower()
    return (value if value.isalnum() else brief(value)) if isinstance(value, str) else "..."


def parsed(kind: type[L], line: bytes) -> L | None:
    """Return the record of a line. None if the line is not JSON, or lacks a member, or a member has a wrong type."""
    try:
        found = json.loads(line) if len(line) <= _LINE_MOST else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    values = {each.name: found.get(each.name) for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if not all(_sound(values[each.name], each.type) for each in fields(kind)):  # type: ignore[arg-type]
        return None
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _sound(value: Any, kind: Any) -> bool:
    """Return whether the value has this type, which is a text."""
    if kind == "int":
        return is_number(value)
    if kind == "str":
        return isinstance(value, str) and len(value) <= TEXT_MOST and clipped(value) == value
    return isinstance(value, list) and len(value) <= TAGS_MOST and all(_sound(each, "str") for each in value)


def read(prefix: str) -> Steps[Chronicle]:
    """Read the chronicle, and remove the lines of processes that have not been seen for a day.

    A line that is written twice is returned once. A line that cannot be parsed is left out. Raises RedisUnavailable,
    and FenceError if the Redis user has no permission.
    """
    events, acts, processes = (chronicle_key(prefix, part) for part in ("events", "acts", "processes"))
    calls: list[Any] = [
        chronicle_commands.read_lines(events),
        chronicle_commands.read_lines(acts),
        chronicle_commands.read_processes(processes),
    ]
    replies: list[Any] = yield from pipeline(calls)
    for each in replies:
        if isinstance(each, IssuerError):
            raise each
    now, running, gone = now_ms(), list[Process](), list[str]()
    for name, line in replies[2].items():
        process = parsed(Process, line)
        if process is not None and abs(now - process.seen) > GONE:
            gone.append(name)
        elif process is not None:
            running.append(process)
    if gone:
        with suppress(IssuerError):  # the next reader removes them
            yield from send(chronicle_commands.remove_processes(processes, gone))
    return Chronicle(
        sorted(_records(Happening, replies[0]), key=lambda each: each.time, reverse=True),
        sorted(_records(Act, replies[1]), key=lambda each: each.time, reverse=True),
        sorted(running, key=lambda each: (each.application, each.host, each.pid)),
    )


def _records(kind: type[L], lines: list[bytes]) -> list[L]:
    return [each for line in dict.fromkeys(lines) if (each := parsed(kind, line)) is not None]
