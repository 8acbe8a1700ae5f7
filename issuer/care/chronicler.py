"""Writes and reads the chronicle of an issuer, see chronicle.py.

An observer of the issuer's events keeps the rare ones in memory. The sweep, which runs every second, writes them in the
background. A draw does nothing for the chronicle.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from issuer import acting
from issuer.care import chronicle
from issuer.care.chronicle import BRIEF_MOST, TAGS_MOST, Act, Chronicle, Happening, Process, clipped, line_of
from issuer.clock import Deadline, monotonic
from issuer.core import events
from issuer.core.steps import pipeline, sleep
from issuer.core.supply.mode import Mode
from issuer.errors import IssuerError, RedisUnavailable
from issuer.forks import no_fork
from issuer.gateway.chronicle_commands import add_lines, remove_processes, set_process
from issuer.gateway.keys import chronicle_key
from issuer.instance import version
from issuer_persistence.records import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from issuer.core.events import Event
    from issuer.core.steps import Steps
    from issuer.core.supply.supply import Supply
    from issuer.drivers.running import Run
    from issuer.gateway.commands import RedisCall
    from issuer.operations.config import IssuerConfig
    from issuer.operations.registry import TagRegistry

log = logging.getLogger("issuer")

#: The kinds of events that the chronicle has.
KINDS = frozenset({
    *(events.ExtensionLate, events.LimitNear, events.LeaseDropped, events.WentDirect, events.Rejoined, events.Alarm),
    *(events.FenceTripped, events.NumbersLost, events.NotGivenBack, events.NumbersWasted, events.RedisSilent),
    *(events.RedisBack, events.StoreSilent, events.StoreBack, events.CallersWait, events.CallersServed),
})  # fmt: skip

#: After a line, further events of its kind and cause are collected for this many seconds, and then make one line.
QUIET = 60.0
#: How many lines, and how many kinds and causes, wait in memory. While Redis is down, the oldest lines are dropped.
WAITING_MOST = 64
#: A process writes its own line at this interval, in seconds.
PROCESS_EVERY = 10.0
#: How long an act, or the end of the issuer, waits for Redis, in seconds.
SHORT = 0.5
#: After an error, the next attempt is made after this many seconds: it doubles from 1 while Redis is down. After any
#: other error, such as a missing permission, it is SOON_AGAIN.
LATEST, SOON_AGAIN = 30.0, 60.0
#: A call that has changed more tags than this makes one line.
ACTS_MOST = 20
#: A tag counts as in use for this many seconds after its last use.
IN_USE = 900.0

Part = Literal["events", "acts"]
Line = tuple[Part, str]

_numbers = count(1)


@dataclass(slots=True)
class _Group:
    """Events of one kind and cause that wait for their line."""

    kind: str
    time: int
    text: str
    count: int = 0
    tags: list[str] = field(default_factory=list)


class Waiting:
    """The lines that wait to be written, and the rare events of which lines are made. An observer of events.

    Attributes:
        number: Distinguishes the issuers of a process.
    """

    def __init__(self, application: str) -> None:
        self.number = next(_numbers)
        self._application = application
        self.begin()

    def begin(self) -> None:
        """Drop everything. A forked child calls this: its parent writes the lines."""
        self._lock = threading.RLock()
        self._groups: dict[tuple[type[Event], str], _Group] = {}
        #: When the last line of a kind and cause was made, on the monotonic clock.
        self._told: dict[tuple[type[Event], str], float] = {}
        self._lines: deque[Line] = deque(maxlen=WAITING_MOST)

    def __call__(self, event: Event) -> None:
        """Note the event, if it is a rare one."""
        kind = type(event)
        if kind not in KINDS:
            return
        key = kind, _cause(event)
        with self._lock:
            group = self._groups.get(key)
            if group is None:
                if len(self._groups) >= WAITING_MOST:
                    return
                group = self._groups[key] = _Group(kind.__name__, now_ms(), events.told(event))
            group.count += 1
            if len(group.tags) < TAGS_MOST and event.tag not in group.tags:
                group.tags.append(event.tag)

    def add(self, part: Part, line: str) -> None:
        """Add a line."""
        with self._lock:
            self._lines.append((part, line))

    @property
    def due(self) -> bool:
        """Whether there are lines to write now."""
        return bool(self._lines) or any(self._ripe(key) for key in list(self._groups))

    def _ripe(self, key: tuple[type[Event], str]) -> bool:
        told = self._told.get(key)
        return told is None or monotonic() - told >= QUIET

    def take(self, *, all_groups: bool) -> list[Line]:
        """Remove the lines that are due, and return them, the oldest first. `all_groups`: no line comes later."""
        with self._lock:
            for key, group in list(self._groups.items()):
                if all_groups or self._ripe(key):
                    del self._groups[key]
                    self._told[key] = monotonic()
                    self._lines.append(("events", self._line(group)))
            taken = list(self._lines)
            self._lines.clear()
            return taken

    def _line(self, group: _Group) -> str:
        tags = tuple(map(clipped, group.tags))
        place = socket.gethostname(), os.getpid(), self._application
        return line_of(Happening(group.time, group.kind, tags, group.count, clipped(group.text, BRIEF_MOST), *place))

    def put_back(self, lines: list[Line]) -> None:
        """Put lines back that were not written, before those that were added since. The oldest ones are dropped."""
        with self._lock:
            self._lines = deque([*lines, *self._lines], WAITING_MOST)


def _cause(event: Any) -> str:
    """Return what distinguishes the causes of events of a kind. It has no name of a tag: 10 000 tags share a line."""
    error = getattr(event, "error", None)
    if error is not None:
        return type(error).__name__
    return str(event.cause) if isinstance(event, events.FenceTripped | events.NumbersLost) else ""


class Chronicler:
    """Writes and reads the chronicle. Without a Redis of its own, an issuer has none: all methods then do nothing.

    No error of Redis is raised by a method that writes. Lines that could not be written are kept, at most 64.

    Attributes:
        role: Role of the process, see `Process`. A server sets it.
    """

    def __init__(
        self,
        config: IssuerConfig,
        registry: TagRegistry[Any],
        waiting: Waiting,
        *,
        run: Run,
        deadline: Callable[[float | None], Deadline],
    ) -> None:
        """`run` runs steps. `deadline` returns the deadline of a call."""
        self.role = ""
        self._config = config
        self._registry = registry
        self._waiting = waiting
        self._run = run
        self._deadline = deadline
        self._on = config.redis is not None and config.relay is None
        self._began = now_ms()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._name = f"{self._host}:{self._pid}:{waiting.number}"
        self._version = ""
        #: Whether the line of this process is in Redis, or may be.
        self._listed = False
        #: Whether a job writes now.
        self._writing = False
        self._failures = 0
        #: When the next attempt may be made, and when the line of this process is due, on the monotonic clock.
        self._next = self._process_due = 0.0

    @property
    def due(self) -> bool:
        """Whether `write` has something to do now."""
        now = monotonic()
        return self._on and not self._writing and now >= self._next and (now >= self._process_due or self._waiting.due)

    async def write(self) -> None:
        """Write the lines that wait, and every 10 seconds the line of this process. A job of the background."""
        self._writing = True
        try:
            await self._run(self._written(), Deadline(self._config.settings.redis_timeout), None)
        except IssuerError as error:
            log.debug("the chronicle could not be written: %s", error)
        finally:
            self._writing = False

    async def act(self, what: str, changes: Mapping[str, str], within: float = SHORT) -> None:
        """Record an operator's call that has succeeded, and write it at once. Wait at most 0.5 seconds for Redis.

        Args:
            what: Name of the call: "create", "configure", "delete", "halt" or "recover".
            changes: For each tag, what has changed, as `Act.change`. If there are more than 20, they make one line.
            within: Seconds that are left of the call. If none is left, a sweep, or the end of the issuer, writes the
                lines.
        """
        if not self._on or not changes:
            return
        who, origin = map(clipped, acting.actor())
        if len(changes) > ACTS_MOST:
            changes = {f"{len(changes)} tags: {', '.join([*changes][:TAGS_MOST])}, ...": ""}
        for tag, change in changes.items():
            act = Act(now_ms(), what, clipped(tag), who, origin, clipped(change))
            self._waiting.add("acts", line_of(act))
        if monotonic() < self._next or not within:  # the last attempt has failed, or no time is left
            return
        try:
            await self._run(self._written(process=False), Deadline(min(SHORT, within)), None)
        except IssuerError as error:
            log.debug("the chronicle could not be written: %s", error)

    def ending(self) -> Steps[None]:
        """Write all lines that wait, and remove the line of this process. Call it when no events follow."""
        until = Deadline(SHORT / 2)
        while self._writing and until.left():
            yield from sleep(0.01)
        if self._on:
            yield from self._written(process=False, ends=True)

    def _written(self, *, process: bool = True, ends: bool = False) -> Steps[None]:
        now = monotonic()
        process = process and now >= self._process_due
        calls: list[tuple[RedisCall[Any], list[Line]]] = []
        if process:
            self._listed = True
            calls.append((set_process(self._key("processes"), self._name, line_of(self._process())), []))
        elif ends and self._listed:
            calls.append((remove_processes(self._key("processes"), [self._name]), []))
        lines = self._waiting.take(all_groups=ends)
        for part in ("events", "acts"):
            if own := [each for each in lines if each[0] == part]:
                push, cut = add_lines(self._key(part), [line for _, line in own])
                calls += (push, own), (cut, [])
        if not calls:
            return
        unwritten = lines
        try:
            replies = yield from pipeline([call for call, _ in calls], probe=False)
            errors = [each for each in replies if isinstance(each, IssuerError)]
            both = zip(calls, replies, strict=True)
            unwritten = [line for (_, own), reply in both if isinstance(reply, IssuerError) for line in own]
            if errors:
                raise errors[0]
        except IssuerError as error:
            self._failures += 1
            pause = min(LATEST, 2.0 ** (self._failures - 1)) if isinstance(error, RedisUnavailable) else SOON_AGAIN
            self._next = monotonic() + pause
            log.debug("the chronicle could not be written: %s", error)
        else:
            self._failures = 0
            self._process_due = now + PROCESS_EVERY if process else self._process_due
        finally:
            self._waiting.put_back(unwritten)

    def _key(self, part: Literal["events", "acts", "processes"]) -> str:
        return chronicle_key(self._config.settings.prefix, part)

    def _process(self) -> Process:
        """Return what the line of this process says."""
        if not self._version:
            with no_fork():
                self._version = version()
        combiners = list(self._registry.combiners.values())
        supplies = [each.supply for each in combiners]
        buffers = [each.state.buffer for each in supplies]
        trouble = next(filter(None, map(_trouble, supplies)), "")
        own = self._host, self._pid, self._config.instance.application, self._version, self._began
        return Process(
            *own,
            seen=now_ms(),
            tags=len(combiners),
            held=sum(each.left for each in buffers if each is not None),
            waiting=sum(each.waiting for each in combiners),
            direct=sum(each.origin.mode is Mode.DIRECT for each in supplies),
            trouble=clipped(trouble, BRIEF_MOST),
            role=self.role,
        )

    async def read(self, timeout: float | None = None) -> Chronicle:
        """Return the events, the acts of operators, and the processes. An issuer without Redis has none.

        `timeout`: longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises RedisUnavailable if Redis does not answer, and FenceError if the Redis user has no permission.
        """
        deadline = self._deadline(timeout)
        if not self._on:
            return Chronicle()
        return await self._run(chronicle.read(self._config.settings.prefix), deadline, None)


def _trouble(supply: Supply) -> str:
    """Return the error of the tag's last background work. "" if it succeeded, or if the tag is not in use."""
    if supply.used_at <= monotonic() - IN_USE:
        return ""
    error = supply.refill.segments.flights.trouble
    return "" if error is None else str(error)
