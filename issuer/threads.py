"""The issuer's own threads. They start when needed, execute jobs, and end with the process.

The threads of concurrent.futures, which asyncio also uses, accept no jobs after the main thread has returned. But other
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

#: A job must not raise an error. It returns None, or a function that its thread calls after the thread counts as free
#: again.
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
        # `queue.SimpleQueue` is not imported by name: with `gunicorn --preload`, gevent replaces it after this module
        # was imported. Waiting on Python's own queue would block all greenlets.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        #: `idle` contains one entry for each free thread. `_owed` contains one entry for each job that was queued when
        #: no thread was free. A thread that becomes free removes an entry of `_owed`, or else adds an entry to `idle`.
        self.idle: deque[None] = deque()
        self._owed: deque[None] = deque()
        self._closed = False

    def put(self, job: Job) -> bool:
        """Queue the job. Return False if no thread exists or can start: then the caller must call `in_person`.

        If no thread is free, one starts, because calls to the store may block all other threads. It starts before the
        job is queued. If the caller is interrupted between the two, there is a thread without a job, which is better
        than a job without a thread.
        """
        grown = True
        try:
            self.idle.pop()
        except IndexError:
            grown = not self._closed and len(self.threads) < self._most and begun(self._work, self._name)
            if not grown:
                self._owed.append(None)
        self._jobs.put(job)
        return not self._closed and (grown or bool(self.threads))

    def _work(self) -> None:
        # The thread adds itself, so that the list is correct even if its starter is interrupted.
        self.threads.append(threading.current_thread())
        if len(self.threads) > self._most:  # several threads started at the same time
            self.threads.remove(threading.current_thread())
            self._owed.append(None)
            return
        if self._closed:  # started after `close`, which did not count it
            self.in_person()
            return
        while (job := self._jobs.get()) is not None:
            then = job()
            # First mark this thread as free: `then` reports the result, and the caller may queue its next job at once.
            try:
                self._owed.pop()
            except IndexError:
                self.idle.append(None)
            if then is not None:
                then()
            del job, then

    def in_person(self) -> None:
        """Execute the queued jobs in the caller's thread. After `close`, start a new thread for each if possible."""
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
        """End the threads. Each finishes its current job first."""
        self._closed = True
        for _ in range(len(self.threads)):
            self._jobs.put(None)


def _do(job: Job) -> None:
    then = job()
    if then is not None:
        then()


def begun(target: Callable[[], object], name: str) -> bool:
    """Start a thread that calls the target. Return False if no thread can start."""

    def run() -> None:
        leave_signals()
        target()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        # Either there are too many threads, or the interpreter is exiting. Since Python 3.12, no thread can start in
        # exit handlers, where unused numbers are returned.
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
