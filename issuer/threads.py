"""Threads of our own: they begin when they are needed, do the jobs that are handed over, and end with the process.

Not those of concurrent.futures, which asyncio's executor are, too: they take no job any more once the main thread has
returned, though the program's other threads may go on, and draw, for days (seen: every border waited 0.25 s).
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

#: Returns what is to be called once its thread counts as free again, or None. Must raise nothing.
Job = Callable[[], Callable[[], object] | None]


class Crew:
    """Threads of one process, and what passes to them.

    What passes between caller and thread is in C: an exception of a signal's handler may strike the caller between any
    two bytecodes, and in the middle of a lock that is Python it leaves it locked for ever (seen).
    """

    def __init__(self, name: str, most: int) -> None:
        """`name`: of each of the threads; `most`: how many there may be."""
        self._name = name
        self._most = most
        self.threads: list[threading.Thread] = []
        # Looked up only now: gevent may have put its own there since this module was imported, as `gunicorn --preload`
        # has it, and what waits for Python's own would hold all greenlets up.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        #: A token of each thread that will take another job: the next one may count on it. And one of each job that
        #: could count on no thread: the next that is free takes it.
        self.idle: deque[None] = deque()
        self._owed: deque[None] = deque()
        self._closed = False

    def put(self, job: Job) -> bool:
        """Have the job done in a thread. False if none is there, nor begins: then it waits for `in_person`."""
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
        """Begin a thread for the next job, which doesn't wait for one that may be in a call of a mute store.

        Before the job is put there: a caller that is interrupted in between leaves a thread without a job, where the
        other order would leave a job without a thread.
        """
        if self._closed or len(self.threads) >= self._most:
            return False
        return begun(self._begin, self._name)

    def _begin(self) -> None:
        # In the thread: an interrupt of its starter would leave one that is entered and never begins, or the reverse.
        self.threads.append(threading.current_thread())
        if len(self.threads) > self._most:  # several began at once
            self.threads.remove(threading.current_thread())
            self._owed.append(None)
        elif self._closed:  # it comes too late to be told to end
            self.in_person()
        else:
            self._work()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            then = job()
            # First: a caller that asks again as soon as it has its answer shall find this thread.
            try:
                self._owed.pop()
            except IndexError:
                self.idle.append(None)
            if then is not None:
                then()
            del job, then

    def in_person(self) -> None:
        """Do what waits there, as no thread will. Once it is closed, each in a thread of its own, if one may begin."""
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
        """Let the threads end, each after the job that it is in."""
        self._closed = True
        for _ in range(len(self.threads)):
            self._jobs.put(None)


def _do(job: Job) -> None:
    then = job()
    if then is not None:
        then()


def begun(target: Callable[[], object], name: str) -> bool:
    """Begin a thread that calls the target; False if none can begin."""

    def run() -> None:
        leave_signals()
        target()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        # The interpreter ends: from 3.12 on no thread begins in its exit handlers, which give numbers back. Or there
        # are too many threads. Those that there are go on.
        return False
    return True


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call it in a thread of its own and return what it returns, as `asyncio.to_thread` does as long as it can."""
    loop = asyncio.get_running_loop()
    called: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(settle: Callable[[Any], object], outcome: object) -> None:
        if not called.done():  # else the caller was cancelled
            settle(outcome)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], object], object] = called.set_result, context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - the caller's to judge
            outcome = called.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *outcome)

    if not begun(run, "issuer-call"):
        run()
    return await called
