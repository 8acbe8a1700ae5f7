"""Threads of an issuer's own, in which its store is asked."""

from __future__ import annotations

import contextvars
import os
import queue
from collections.abc import Callable
from functools import partial

from issuer.clock import Deadline
from issuer.errors import StoreUnavailable
from issuer.forks import in_uwsgi_master
from issuer.threads import Crew
from issuer_persistence.contract import Store

Question = Callable[[Store, float], object]
#: An answer, or the error that came instead.
Answer = tuple[object, BaseException | None]
Tell = Callable[[Answer], None]

#: Threads at most: as many calls of a store that is mute may be under way at once.
MOST = 16

#: A store may take this many seconds longer than it was given, before its caller goes on without it.
GRACE = 0.25


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
        self.store = store
        self._longest = longest
        #: By process: a forked child has none of its parent's threads.
        self._crews: dict[int, Crew] = {}

    def seconds(self, deadline: Deadline, tag: str | None) -> float:
        """Return how long a question may take. StoreUnavailable if no time is left for it."""
        timeout = min(self._longest, deadline.left())
        if timeout <= 0:
            raise StoreUnavailable(f"no time was left to query the store {self.store.url}", tag=tag)
        return timeout

    def late(self, timeout: float, tag: str | None) -> StoreUnavailable:
        """Return the error for a call that got no answer. It goes on in its thread, and what it reserves is a gap."""
        return StoreUnavailable(f"the store {self.store.url} gave no answer within {timeout:.3g} s", tag=tag)

    def ask(self, question: Question, deadline: Deadline, tag: str | None) -> object:
        """Return the answer, or raise what the question raises. StoreUnavailable if none comes in time."""
        timeout = self.seconds(deadline, tag)
        if in_uwsgi_master():  # a thread would be missing in its workers
            return question(self.store, timeout)
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
        crew = self._crews.get(pid) or self._crews.setdefault(pid, Crew("issuer-store", MOST))
        if not crew.put(partial(self.answer, question, Deadline(timeout), tell, contextvars.copy_context())):
            crew.in_person()

    def answer(
        self, question: Question, deadline: Deadline, tell: Tell, context: contextvars.Context
    ) -> Callable[[], object] | None:
        """Ask, and return what tells the answer or the error; None if no caller waits for it any more."""
        left = deadline.left()
        if left <= 0:
            return None
        try:
            found: Answer = context.run(question, self.store, left), None
        except BaseException as error:  # noqa: BLE001 - the caller's to judge
            found = None, error
        return partial(tell, found)

    def close(self) -> None:
        """Let the threads end, each after the call that it is in. A call that comes late, to give back, is answered."""
        self._crews.setdefault(os.getpid(), Crew("issuer-store", MOST)).close()
