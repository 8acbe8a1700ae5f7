"""Threads of an issuer's own, in which its store is asked."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from issuer.clock import Deadline
from issuer.errors import StoreUnavailable
from issuer.forks import in_uwsgi_master, leave_signals
from issuer.persistence.contract import Store

Question = Callable[[Store, float], object]
#: An answer, or the error that came instead.
Answer = tuple[object, BaseException | None]
Tell = Callable[[Answer], None]

#: Threads at most: as many calls of a store that is mute may be under way at once.
MOST = 16

#: A store may take this many seconds longer than it was given, before its caller goes on without it.
GRACE = 0.25


class _Crew:
    """Threads of one process, and what passes to them."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        # Looked up only now: gevent may have put its own there since this module was imported.
        self.jobs: Any = queue.SimpleQueue()
        #: A token of each thread that will take another job: the next one may count on it. And one of each job that
        #: could count on no thread: the next that is free takes it.
        self.idle: deque[None] = deque()
        self.owed: deque[None] = deque()
        self.closed = False


class StorePool:
    """Asks a store, in threads that are started when they are needed and end with `close`.

    Not in the caller's thread: an exception that a signal's handler raises there (Celery's soft time limit, Ctrl-C)
    may come between any two bytecodes, also between a lock's acquire and its `try`, and left SQLite's connection or the
    journal's flock locked for ever (seen after 5 to 277 interrupts). And a disk that stands still would keep a caller
    far beyond its deadline. Not in an event loop's own threads: 30 tags on a mute MongoDB took all of them for 34 s.
    What passes between caller and thread is in C, where nothing can strike.
    """

    def __init__(self, store: Store, longest: float) -> None:
        """`longest`: seconds that one question may take at most."""
        self._store = store
        self._longest = longest
        #: By process: a forked child has none of its parent's threads.
        self._crews: dict[int, _Crew] = {}

    def seconds(self, deadline: Deadline, tag: str | None) -> float:
        """Return how long a question may take. StoreUnavailable if no time is left for it."""
        timeout = min(self._longest, deadline.left())
        if timeout <= 0:
            raise StoreUnavailable(f"no time was left to ask the store {self._store.url}", tag=tag)
        return timeout

    def late(self, timeout: float, tag: str | None) -> StoreUnavailable:
        """Return the error for a call that got no answer. It goes on in its thread, and what it reserves is a gap."""
        return StoreUnavailable(f"the store {self._store.url} gave no answer within {timeout:.3g} s", tag=tag)

    def ask(self, question: Question, deadline: Deadline, tag: str | None) -> object:
        """Return the answer, or raise what the question raises. StoreUnavailable if none comes in time."""
        timeout = self.seconds(deadline, tag)
        if in_uwsgi_master():  # a thread would be missing in its workers
            return question(self._store, timeout)
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.submit(question, timeout, answers.put)
        try:
            answer, error = answers.get(timeout=timeout + GRACE)
        except queue.Empty:
            raise self.late(timeout, tag) from None
        if error is not None:
            raise error
        return answer

    def submit(self, question: Question, timeout: float, tell: Tell) -> None:
        """Ask in a thread, unless the time is over by then; `tell` is called there with the answer or the error."""
        pid = os.getpid()
        crew = self._crews.get(pid) or self._crews.setdefault(pid, _Crew())
        grown = True
        try:
            crew.idle.pop()
        except IndexError:
            grown = self._grow(crew)
            if not grown:
                crew.owed.append(None)
        crew.jobs.put((self._store, question, Deadline(timeout), tell, contextvars.copy_context()))
        if crew.closed or not (grown or crew.threads):
            self._in_person(crew)

    def _grow(self, crew: _Crew) -> bool:
        """Begin a thread for the next job, which doesn't wait for one that may be in a call of a mute store.

        Before the job is put there: a caller that is interrupted in between leaves a thread without a job, where the
        other order would leave a job without a thread.
        """
        if crew.closed or len(crew.threads) >= MOST:
            return False
        return self._begun(self._begin, crew)

    @staticmethod
    def _begun(target: Callable[[Any], None], of: object) -> bool:
        try:
            threading.Thread(target=target, args=(of,), name="issuer-store", daemon=True).start()
        except RuntimeError:
            # The interpreter ends: from 3.12 on no thread begins in its exit handlers, which give numbers back. Or
            # there are too many threads. Those that there are go on; without any the caller asks in person.
            return False
        return True

    def _begin(self, crew: _Crew) -> None:
        # In the thread: an interrupt of its starter would leave one that is entered and never begins, or the reverse.
        crew.threads.append(threading.current_thread())
        if len(crew.threads) > MOST:  # several began at once
            crew.threads.remove(threading.current_thread())
            crew.owed.append(None)
            return
        leave_signals()
        if crew.closed:  # it comes too late to be told to end
            self._in_person(crew)
        else:
            self._work(crew)

    def _work(self, crew: _Crew) -> None:
        while (job := crew.jobs.get()) is not None:
            tell, found = job[3], self._answer(job)
            # First: a caller that asks again as soon as it has its answer shall find this thread.
            try:
                crew.owed.pop()
            except IndexError:
                crew.idle.append(None)
            if found is not None:
                tell(found)
            del job, tell, found

    def _in_person(self, crew: _Crew) -> None:
        """Do what waits there, as no thread will. Once it is closed, each in a thread of its own, if one may begin."""
        ends = 0
        with suppress(queue.Empty):
            while True:
                job = crew.jobs.get(timeout=0)
                if job is None:
                    ends += 1
                    continue
                with suppress(IndexError):
                    crew.owed.pop()
                if not (crew.closed and self._begun(self._alone, job)):
                    self._tell(job)
        for _ in range(ends):
            crew.jobs.put(None)

    def _alone(self, job: Any) -> None:
        leave_signals()
        self._tell(job)

    def _tell(self, job: Any) -> None:
        found = self._answer(job)
        if found is not None:
            job[3](found)

    @staticmethod
    def _answer(job: Any) -> Answer | None:
        """Ask, and return the answer or the error; None if no caller waits for it any more."""
        store, question, deadline, _, context = job
        left = deadline.left()
        if left <= 0:
            return None
        try:
            return context.run(question, store, left), None
        except BaseException as error:  # noqa: BLE001 - the caller's to judge
            return None, error

    def close(self) -> None:
        """Let the threads end, each after the call that it is in. A call that comes late, to give back, is answered."""
        crew = self._crews.setdefault(os.getpid(), _Crew())
        crew.closed = True
        for _ in range(len(crew.threads)):
            crew.jobs.put(None)
