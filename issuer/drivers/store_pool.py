"""Threads for calls to the store."""

from __future__ import annotations

import contextvars
import os
import queue
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from issuer.clock import Deadline
from issuer.errors import StoreUnavailable
from issuer.forks import in_uwsgi_master
from issuer.threads import Crew
from issuer_persistence.contract import Store

if TYPE_CHECKING:
    from issuer.core.steps import Ask

Question = Callable[[Store, float], object]
#: A result, or an error in its place.
Answer = tuple[object, BaseException | None]
Tell = Callable[[Answer], None]

#: Maximum number of threads. So at most this many calls to the store run at the same time, even if the store hangs.
MOST = 16

#: A caller stops waiting for the store this many seconds after the timeout of its call.
GRACE = 0.25


class StorePool:
    """Calls a store in threads that start when needed and end with `close`.

    The caller's own thread is not used: an exception of a signal handler (Celery's soft time limit, Ctrl-C) can occur
    between any two bytecodes, even between a lock's acquire and its `try`. Such an exception left SQLite's connection
    or the journal's flock locked for ever (seen after 5 to 277 interrupts). A disk that hangs would also block a caller
    far beyond its deadline. The default threads of an event loop are not used either: when a MongoDB hung, calls for 30
    tags occupied all of them for 34 s. The caller and the thread exchange data only through objects that are written in
    C. An exception of a signal handler cannot occur inside such an object.
    """

    def __init__(self, store: Store, longest: float) -> None:
        """`longest`: longest duration of one call, in seconds."""
        self.store = store
        self._longest = longest
        #: The threads, by process id: a forked child has no threads of its parent.
        self._crews: dict[int, Crew] = {}

    def late(self, timeout: float, tag: str | None) -> StoreUnavailable:
        """Return the error for a call that got no answer. The call continues, and the numbers it reserves are a gap."""
        return StoreUnavailable(f"the store {self.store.url} gave no answer within {timeout:.3g} s", tag=tag)

    def ask(self, step: Ask, deadline: Deadline, tag: str | None) -> object:
        """Call the store. Return its result, or raise its error. Raises StoreUnavailable after the deadline."""
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        timeout = self.submit(step, deadline, tag, answers.put)
        try:
            answer, error = answers.get(timeout=timeout + GRACE)
        except queue.Empty:
            raise self.late(timeout, tag) from None
        if error is not None:
            raise error
        return answer

    def submit(self, step: Ask, deadline: Deadline, tag: str | None, tell: Tell) -> float:
        """Call the store in a thread. The thread calls `tell` with the result or the error.

        If the deadline passes before a thread is free, neither the store nor `tell` is called.
        Returns the timeout of the call in seconds. Raises StoreUnavailable if no time is left.
        """
        timeout = min(self._longest, step.within, deadline.left())
        if timeout <= 0:
            raise StoreUnavailable(f"no time was left to query the store {self.store.url}", tag=tag)
        job = partial(self.answer, step.question, Deadline(timeout), tell, contextvars.copy_context())
        pid = os.getpid()
        crew = self._crews.get(pid) or self._crews.setdefault(pid, Crew("issuer-store", MOST))
        if in_uwsgi_master():  # its workers are forked from it, and would lack the thread
            if then := job():
                then()
        elif not crew.put(job):
            crew.in_person()
        return timeout

    def answer(
        self, question: Question, deadline: Deadline, tell: Tell, context: contextvars.Context
    ) -> Callable[[], object] | None:
        """Call `question` with the store. Return a function that calls `tell` with the result or the error.

        The thread first marks itself as free, and then calls this function. After the deadline no caller waits: then
        the store is not called, and the result is None.
        """
        left = deadline.left()
        if left <= 0:
            return None
        try:
            found: Answer = context.run(question, self.store, left), None
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            found = None, error
        return partial(tell, found)

    def close(self) -> None:
        """End the threads after their current calls. Later calls, which return unused numbers, are still executed."""
        self._crews.setdefault(os.getpid(), Crew("issuer-store", MOST)).close()
