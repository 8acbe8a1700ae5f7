"""Threads of an issuer's own, in which its store is asked."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
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
        #: A token of each thread that will take another job: the next one may count on it. Where a job found none, and
        #: no thread could begin for it, there is one too many.
        self.idle: deque[None] = deque(maxlen=MOST)


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
        try:
            crew.idle.pop()
        except IndexError:
            self._grow(crew)
        crew.jobs.put((self._store, question, Deadline(timeout), tell, contextvars.copy_context()))
        if not crew.threads:
            crew.jobs.put(None)
            self._work(crew)

    def _grow(self, crew: _Crew) -> None:
        """Begin a thread for the next job, which doesn't wait for one that may be in a call of a mute store.

        Before the job is put there: a caller that is interrupted in between leaves a thread without a job, where the
        other order would leave a job without a thread.
        """
        if len(crew.threads) >= MOST:
            return
        thread = threading.Thread(target=self._begin, args=(crew,), name="issuer-store", daemon=True)
        crew.threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter ends: from 3.12 on no thread begins in its exit handlers, which give numbers back. Those
            # that there are go on; without any the caller asks in person.
            crew.threads.remove(thread)

    def _begin(self, crew: _Crew) -> None:
        leave_signals()
        self._work(crew)

    def _work(self, crew: _Crew) -> None:
        while (job := crew.jobs.get()) is not None:
            store, question, deadline, tell, context = job
            left = deadline.left()
            found: Answer | None = None
            if left > 0:
                try:
                    found = context.run(question, store, left), None
                except BaseException as error:  # noqa: BLE001 - the caller's to judge
                    found = None, error
            # First: a caller that asks again as soon as it has its answer shall find this thread.
            crew.idle.append(None)
            if found is not None:  # else no caller waits for it any more
                tell(found)
            del job, store, question, tell, context, found

    def close(self) -> None:
        """Let the threads end, each after the call that it is in."""
        crew = self._crews.pop(os.getpid(), None)
        if crew is not None:
            for _ in crew.threads:
                crew.jobs.put(None)
