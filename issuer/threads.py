"""The issuer's own threads. They start when needed, execute jobs, and end with the process.

`finished` runs in any thread what is written for threads and for tasks.

Threads of concurrent.futures, which asyncio also uses, are not suitable: they accept no jobs after the main thread has
returned. But other threads of the program may continue to draw for days (seen: each load of a segment waited 0.25 s).
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from issuer_persistence.forks import leave_signals

T = TypeVar("T")

#: A function that a thread executes. It must not raise an error. It returns None, or a function: the thread first marks
#: itself as free, and then calls this function.
Job = Callable[[], Callable[[], object] | None]


class Crew:
    """A pool of threads of one process.

    All locks between a caller and the threads are written in C. The exception of a signal handler can interrupt the
    caller between any two bytecodes. A lock that is written in Python would then stay locked for ever (seen).
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.threads: list[threading.Thread] = []
        # `queue.SimpleQueue` is not imported by name: with `gunicorn --preload`, gevent replaces this class after this
        # module was imported. If a greenlet waited on Python's own class, it would block all greenlets.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        #: `idle` contains one entry for each free thread. `_owed` contains one entry for each job that was queued when
        #: no thread was free. A thread that becomes free removes an entry of `_owed`, or else adds an entry to `idle`.
        self.idle: deque[None] = deque()
        self._owed: deque[None] = deque()
        self._closed = False

    def put(self, job: Job) -> bool:
        """Queue the job. Return False if there is no thread for it: then the caller must call `in_person`.

        If no thread is free, a new thread starts, because calls to the store may block all other threads. The thread
        starts before the job is queued. A signal handler's exception can interrupt the caller between the two. This
        leaves a thread without a job, which is better than a job without a thread.
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
        # This thread adds itself to the list, so that the list is correct even if the starting thread is interrupted.
        self.threads.append(threading.current_thread())
        if len(self.threads) > self._most:  # several threads started at the same time: this one is too many, and ends
            self.threads.remove(threading.current_thread())
            self._owed.append(None)
            return
        if self._closed:  # `close` queues one end (None) for each thread in the list, perhaps not for this one
            self.in_person()
            return
        while (job := self._jobs.get()) is not None:
            then = job()
            # Mark this thread as free before it calls `then`. `then` reports the result to the caller, and the caller
            # may queue the next job at once. Then no new thread has to start for this job.
            try:
                self._owed.pop()
            except IndexError:
                self.idle.append(None)
            if then is not None:
                then()
            del job, then

    def in_person(self) -> None:
        """Execute the queued jobs in the caller's thread. After `close`, start a new thread for each, if possible."""
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
        """End the threads. A thread that is executing a job finishes the job first."""
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
        # Either there are too many threads, or the interpreter is exiting. Since Python 3.12, an exit handler cannot
        # start threads. The issuer returns unused numbers in such a handler, so then the caller does the work itself.
        return False
    except KeyError as error:
        # A signal handler has raised an exception in `start`, after the thread had begun. Python raises this instead.
        raise error.__context__ or error from None
    return True


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in a new thread and return its result.

    Unlike `asyncio.to_thread`, this also works while the interpreter exits. If no thread can start, the function is
    called in the thread of the event loop.
    """
    loop = asyncio.get_running_loop()
    called: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(settle: Callable[[Any], object], outcome: object) -> None:
        if not called.done():  # it is done if the caller was cancelled
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


def finished(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that never waits for an event loop, and return its result.

    `make` returns the coroutine. It must be a function written in Python that does nothing else, such as a lambda. Then
    Python runs no signal handler between the creation of the coroutine and its start. If a handler raised an exception
    there, Python would print "coroutine was never awaited". A coroutine as argument has this fault (seen), and so
    has a function written in C, such as `partial`.
    """
    try:
        make().send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("a blocking call waits for an event loop")
