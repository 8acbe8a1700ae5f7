"""A drawing process: it draws until its stdin ends, and records the result of each call.

Usage: python -m issuer.chaos.worker SETUP. SETUP is a JSON object with the fields of `Setup`.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from issuer.api.aio import AsyncIssuer
from issuer.chaos.call_files import CallFile, runs
from issuer.clock import monotonic_ns as now
from issuer.core.events import Event, SegmentLoaded
from issuer.core.steps import Steps
from issuer.core.supply import extend
from issuer.errors import IssuerError
from issuer.gateway import tag_scripts
from issuer.gateway.commands import RedisCall
from issuer.wiring import aconnect, connect

#: Seconds that a caller waits after an error.
AFTER_ERROR = 0.01
#: Several calls that return consecutive numbers are recorded as one call, if each takes less than this time in ns.
LONG = 20_000_000
#: On this signal a process prints the stack of each of its threads and tasks.
STACKS = signal.SIGUSR2
#: The last line that a process prints after its stacks.
STACKS_END = "These were all threads and tasks."
#: How many numbers a forked child draws of each tag.
FORKED_DRAWS = 200

Manner = Literal["next", "take", "run", "stream", "once"]
Colour = Literal["threads", "tasks"]


@dataclass(frozen=True, slots=True)
class Job:
    """Work for a process: to draw numbers of one tag. `at`: index of the tag in the run.

    `callers`: how many threads or tasks draw. `most`: maximum count of numbers of a call.

    `manner`: the method to call. "run" calls `next` up to `most` times in a row. "once" calls `next` with the
    idempotency keys `key`, `key` + 1 and so on. If a call fails, it is repeated with the same key.
    """

    at: int
    tag: str
    manner: Manner
    callers: int = 1
    most: int = 1
    key: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a worker. Times are in seconds. `pace`: pause between two calls.

    `colour`: whether the worker draws in threads or in asyncio tasks. `loads`: whether the
    worker records the segments that it loads, in the folder LOADS.
    """

    name: str
    folder: str
    redis: str | None
    store: str
    config: str
    jobs: list[Job]
    colour: Colour = "threads"
    pace: float = 0.005
    timeout: float = 4.0
    redis_timeout: float = 0.5
    store_timeout: float = 0.6
    journal: str = ""
    loads: bool = False

    #: The module that the process runs.
    program: ClassVar[str] = "issuer.chaos.worker"

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parsed(cls, text: str) -> Self:
        content = json.loads(text)
        return cls(**{**content, "jobs": [Job(**job) for job in content["jobs"]]})

    def settings(self) -> dict[str, Any]:
        names = ("redis", "store", "config", "timeout", "redis_timeout", "store_timeout", "journal")
        return {name: getattr(self, name) for name in names}


#: Steps of the load of a segment: prepare the hash, reserve, load. A trap sends its signal after one of them.
POINTS = ("open", "reserve", "load")


def trap_file(folder: Path, name: str) -> Path:
    return folder / f"trap.{name}"


def lay_traps(setup: Setup) -> None:
    """Let this process obey its trap file. The file names a step of a load (one of POINTS), and a signal.

    After this step, the process removes the file and sends itself the signal.
    """
    path = trap_file(Path(setup.folder), setup.name)
    load, reserve_and_load = tag_scripts.load, extend.reserve_and_load

    own = os.getpid()

    def spring(point: str) -> None:
        if os.getpid() != own:  # in a forked child: the trap is for its parent
            return
        with suppress(OSError, ValueError):
            where, number = path.read_text().split()
            if where == point:
                path.unlink()
                os.kill(os.getpid(), int(number))

    def trapped_load(*args: Any, **options: Any) -> RedisCall[tag_scripts.Loaded]:
        spring("reserve")
        return load(*args, **options)

    def trapped(*args: Any, **options: Any) -> Steps[extend.Extension]:
        spring("open")
        extension = yield from reserve_and_load(*args, **options)
        spring("load")
        return extension

    tag_scripts.load = trapped_load
    vars(extend)["reserve_and_load"] = trapped


#: Name of the folder, inside the folder of the run, in which `Loads` records segments.
LOADS = "loads"


class Loads:
    """Records each segment that this process loads, as a call for the first tag.

    A record contains the first and last number of the segment, the last number issued before (as `began`), and the time
    of the load (as `ended`).
    """

    def __init__(self, setup: Setup) -> None:
        folder = Path(setup.folder) / LOADS
        folder.mkdir(exist_ok=True)
        self._record = CallFile(folder, 0, setup.name, 0)

    def __call__(self, event: Event) -> None:
        if isinstance(event, SegmentLoaded):
            self._record.note(event.low + 1, event.high, event.cur, now())


class NumberSource(Protocol):
    """Source of numbers for threads: an issuer, or a client of a server. Raises IssuerError."""

    def next(self, tag: str, *, key: str | None = None) -> int: ...

    def take(self, tag: str, n: int) -> list[int]: ...

    def stream(self, tag: str) -> Iterator[int]: ...


class DrawLoop:
    """One caller of a worker. The caller makes one call after another, and records the results."""

    def __init__(self, setup: Setup, job: Job, number: int, worker: str = "") -> None:
        self.record = CallFile(Path(setup.folder), job.at, worker or setup.name, number)
        self.job = job
        self._key = job.key

    def wanted(self) -> int:
        return random.randint(1, self.job.most)  # noqa: S311 - load needs no secrets

    def note(self, numbers: list[int], began: int, ended: int) -> None:
        for first, last in runs(numbers):
            self.record.note(first, last, began, ended)

    def call(self, ids: NumberSource, stream: Iterator[int]) -> bool:
        """Make one call, or several for "run" and "stream". Return False after an error."""
        tag, wanted = self.job.tag, self.wanted()
        began = now()
        try:
            if self.job.manner in ("run", "stream"):
                return self._row((lambda: ids.next(tag)) if self.job.manner == "run" else stream.__next__, wanted)
            if self.job.manner == "take":
                self.note(ids.take(tag, wanted), began, now())
            elif self.job.manner == "once":
                self._note_key(ids.next(tag, key=str(self._key)), began)
            else:
                self.note([ids.next(tag)], began, now())
        except IssuerError as error:
            self.record.failed(wanted, error, began, now())
            return False
        return True

    def _note_key(self, number: int, began: int) -> None:
        self.record.note(self._key, number, began, now())
        self._key += 1

    def _row(self, draw: Callable[[], int], times: int) -> bool:
        """Draw `times` numbers. Record consecutive numbers as one call. Return False after an error."""
        first = last = since = until = 0
        try:
            for _ in range(times):
                began = now()
                try:
                    number = draw()
                except IssuerError as error:
                    self.record.failed(1, error, began, now())
                    return False
                ended = now()
                if last and number == last + 1 and ended - began < LONG:
                    last, until = number, ended
                    continue
                if last:
                    self.record.note(first, last, since, until)
                first = last = number
                since, until = began, ended
        finally:
            if last:
                self.record.note(first, last, since, until)
        return True

    async def acall(self, ids: AsyncIssuer) -> bool:
        tag, wanted = self.job.tag, self.wanted()
        began = now()
        try:
            if self.job.manner == "once":
                self._note_key(await ids.next(tag, key=str(self._key)), began)
                return True
            numbers = [await ids.next(tag)] if self.job.manner == "next" else await ids.take(tag, wanted)
            self.note(numbers, began, now())
        except IssuerError as error:
            self.record.failed(wanted, error, began, now())
            return False
        return True


def _fork(setup: Setup, ids: NumberSource, numbers: Iterator[int]) -> None:
    """Fork a child that draws some numbers of each tag. `numbers`: part of the name of each new caller's call file."""
    if os.fork():
        return
    name = f"{setup.name}f{os.getpid()}"
    try:
        # Start with the tags whose numbers the parent holds in memory: the child has a copy of these numbers, and must
        # not issue them. The strict tag comes last, because its draws may have to wait for Redis.
        for job in sorted(setup.jobs, key=lambda job: (job.manner != "run", -job.at)):
            caller = DrawLoop(setup, job, next(numbers), name)
            stream = ids.stream(job.tag)
            for _ in range(FORKED_DRAWS):
                caller.call(ids, stream)
    finally:
        os._exit(0)


def draw(setup: Setup, ids: NumberSource, stop: threading.Event) -> None:
    numbers = count()
    forks = threading.Semaphore(0)
    signal.signal(signal.SIGUSR1, lambda *_: forks.release())
    # Nobody waits for forked children, so the kernel must remove them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(STACKS, _stacks)

    def drawing(caller: DrawLoop) -> None:
        stream = ids.stream(caller.job.tag)
        while not stop.is_set():
            fine = caller.call(ids, stream)
            if not fine:
                stream = ids.stream(caller.job.tag)
            if not fine or setup.pace:
                stop.wait(setup.pace if fine else AFTER_ERROR)
            if caller.job.manner == "run" and forks.acquire(blocking=False):
                _fork(setup, ids, numbers)

    callers = [DrawLoop(setup, job, next(numbers)) for job in setup.jobs for _ in range(job.callers)]
    running = [threading.Thread(target=drawing, args=(caller,)) for caller in callers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _stacks(*_: object) -> None:
    """Print the stack of each thread and task.

    faulthandler is not used: it reads the frames of running threads, and crashed the process after 99 and 252 uses.
    `sys.stderr` is not used, because this signal handler may interrupt a write to it in the middle of a line.
    """
    told = io.StringIO()
    for thread, frame in sys._current_frames().items():
        told.write(f"Thread {thread}:\n")
        traceback.print_stack(frame, file=told)
    with suppress(RuntimeError):  # no loop runs
        for task in asyncio.all_tasks():
            task.print_stack(file=told)
    told.write(f"{STACKS_END}\n")
    os.write(2, told.getvalue().encode(errors="replace"))


async def tasks(setup: Setup, stop: threading.Event) -> None:
    numbers = count()
    async with aconnect(**setup.settings()) as ids:
        if setup.loads:
            ids.observe(Loads(setup))

        async def draw(caller: DrawLoop) -> None:
            while not stop.is_set():
                fine = await caller.acall(ids)
                await asyncio.sleep(setup.pace if fine else AFTER_ERROR)

        signal.signal(STACKS, _stacks)
        callers = [DrawLoop(setup, job, next(numbers)) for job in setup.jobs for _ in range(job.callers)]
        await asyncio.gather(*map(draw, callers))


def told_to_stop(take: Callable[[bytes], object] = len) -> threading.Event:
    """Return an event that is set when stdin ends. `take`: called with each piece of stdin."""
    stop = threading.Event()

    def until_stdin_ends() -> None:
        # os.read is used instead of sys.stdin. A buffered read would hold a lock while it waits, and the interpreter
        # needs this lock when it exits.
        while read := os.read(0, 100):
            take(read)
        stop.set()

    threading.Thread(target=until_stdin_ends, daemon=True).start()
    return stop


def work(setup: Setup, stop: threading.Event) -> None:
    lay_traps(setup)
    if setup.colour == "tasks":
        asyncio.run(tasks(setup, stop))
        return
    with connect(**setup.settings()) as ids:
        if setup.loads:
            ids.observe(Loads(setup))
        draw(setup, ids, stop)


if __name__ == "__main__":
    work(Setup.parsed(sys.argv[1]), told_to_stop())
