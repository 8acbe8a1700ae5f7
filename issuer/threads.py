"""The issuer's own threads. They start when needed, execute jobs, and end with the process.

Threads of concurrent.futures, which asyncio also uses, accept no jobs after the main thread has returned. But other
threads of the program may continue to draw for days (seen: each load of a segment waited 0.25 s).
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from issuer_persistence.forks import leave_signals

T = TypeVar("T")

#: Returns a function to call after its thread counts as free again, or None. Must not raise.
Job = Callable[[], Callable[[], object] | None]


class Crew:
    """A pool of threads of one process.

    Everything between caller and thread uses locks written in C. An exception of a signal handler can interrupt the
    caller between any two bytecodes, and would leave a lock written in Python locked for ever (seen).
    """

    def __init__(self, name: str, most: int) -> None:
        """`name`: name of each thread. `most`: maximum number of threads."""
        self._name = name
        self._most = most
        self.threads: list[threading.Thread] = []
        # Not imported by name: with `gunicorn --preload`, gevent replaces it after this module was imported, and
        # waiting on Python's own queue would block all greenlets.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        #: `idle` has one entry for each thread that is free for a job. `_owed` has one for each job that was queued
        #: without a free thread; the next free thread takes it.
        self.idle: deque[None] = deque()
        self._owed: deque[None] = deque()
        self._closed = False

    def put(self, job: Job) -> bool:
        """Queue the job. False if no thread exists or can start: then the caller must call `in_person`."""
        grown = True
        try:
            self.idle.pop()
        except IndexError:
            grown = self._grow()
            if not grown:
                self._owed.append(None)
        self._jobs.put(job)
        return not self._closed and (grown or bool(self.threads))

    def _grow(self) -> bool:
        """Start a thread for the next job, as all others may be blocked in a call to the store.

        It starts before the job is queued: if the caller is interrupted in between, there is a thread without a job,
        which is better than a job without a thread.
        """
        if self._closed or len(self.threads) >= self._most:
            return False
        return begun(self._begin, self._name)

    def _begin(self) -> None:
        # Done in the thread itself: if its starter is interrupted, the list stays correct.
        self.threads.append(threading.current_thread())
        if len(self.threads) > self._most:  # several started at the same time
            self.threads.remove(threading.current_thread())
            self._owed.append(None)
        elif self._closed:  # started after `close`, which did not count it
            self.in_person()
        else:
            self._work()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            then = job()
            # First mark this thread as free: a caller may queue the next job as soon as it has its result.
            try:
                self._owed.pop()
            except IndexError:
                self.idle.append(None)
            if then is not None:
                then()
            del job, then

    def in_person(self) -> None:
        """Execute queued jobs, as no thread will. After `close`, each in a new thread if one can start."""
        ends = 0
        with suppress(queue.Empty):
            while True:
                job = self._jobs.get(timeout=0)
                if job is None:
                    ends += 1
                    continue
                with suppress(IndexError):
                    self._owed.pop()
                if not (self._closed and begun(partial(_do, job), self._name)):
                    _do(job)
        for _ in range(ends):
            self._jobs.put(None)

    def close(self) -> None:
        """End the threads, each after its current job."""
        self._closed = True
        for _ in range(len(self.threads)):
            self._jobs.put(None)


def _do(job: Job) -> None:
    then = job()
    if then is not None:
        then()


def begun(target: Callable[[], object], name: str) -> bool:
    """Start a thread that calls the target. False if none can start."""

    def run() -> None:
        leave_signals()
        target()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        # Either the interpreter is exiting: since Python 3.12 no thread starts in its exit handlers, where unused
        # numbers are returned. Or there are too many threads.
        return False
    return True


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in a new thread and return its result, like `asyncio.to_thread`, but also at exit."""
    loop = asyncio.get_running_loop()
    called: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(settle: Callable[[Any], object], outcome: object) -> None:
        if not called.done():  # otherwise the caller was cancelled
            settle(outcome)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], object], object] = called.set_result, context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            outcome = called.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *outcome)

    if not begun(run, "issuer-call"):
        run()
    return await called
