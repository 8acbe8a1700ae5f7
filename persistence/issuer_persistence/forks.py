"""Hooks around forks, also around forks in C, which do not run Python's hooks. uWSGI forks its workers in C.

A hook is registered once, and runs around both kinds of forks. Before a fork in C, the C library calls this module in
the parent (`pthread_atfork`). In the child nothing calls it. There, the first call that needs Redis or the store calls
`notice`, which compares the process id and runs the hooks of the child. Calls that are answered from memory do not call
`notice`. So the parent removes the numbers in memory (`unseen`) until the fork is over.

Only one thread forks at a time, and the others wait for their turn, because what a hook holds until the end of its fork
belongs to one fork. With two forks at once, an SQLite store stayed locked for ever.
"""

from __future__ import annotations

import atexit

# The hook of concurrent.futures takes a lock. A fork within our hooks would take it again and hang (seen). It must be
# registered before ours, so that it is called after them. APScheduler also imports both modules. After the main thread
# has returned, they cannot be imported any more, and another thread could not create its first issuer.
import concurrent.futures.process
import concurrent.futures.thread  # noqa: F401
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

log = logging.getLogger("issuer")

Hook = Callable[[], None]


class _Hooks(NamedTuple):
    before: Hook | None
    in_parent: Hook | None
    in_child: Hook | None
    unseen: Hook | None
    unseen_over: Hook | None


class State:
    """Id of this process, and the threads that fork it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        #: The thread that has the turn, once for each of its forks: a signal handler may fork within a fork.
        self.turns: list[int] = []
        #: Threads in a fork in C.
        self.unseen: set[int] = set()
        #: Hooks of the current fork that must still be called before it.
        self.ahead: list[Hook | None] = []
        self.becoming = False


#: How long a thread waits for its turn to fork, in seconds. Hooks wait at most 10 s for a call of a store.
TURN = 15.0

_state = State()
_hooks: list[_Hooks] = []
#: Held from before a fork until it is over in the parent.
_turn = threading.RLock()
#: Held by the thread of a child that runs the hooks.
_renewal = threading.RLock()


def register(
    *,
    before: Hook | None = None,
    in_parent: Hook | None = None,
    in_child: Hook | None = None,
    unseen: Hook | None = None,
    unseen_over: Hook | None = None,
) -> None:
    """Register hooks for all forks. A hook must not import anything.

    Args:
        before: Called before a fork, in the opposite order of registration.
        in_parent: Called after a fork in the parent.
        in_child: Called after a fork in the child.
        unseen: Called in the parent before a fork in C, to remove what the child could use before it calls `notice`.
        unseen_over: Called in the parent after a fork in C.
    """
    _hooks.append(_Hooks(before, in_parent, in_child, unseen, unseen_over))


def in_uwsgi_master() -> bool:
    """Return True in the main process of uWSGI, before it forks its workers. No thread must be started there.

    A worker does not have the thread, but does not know this. At its end it would wait for the thread for ever.
    """
    worker_id = getattr(sys.modules.get("uwsgi"), "worker_id", None)
    return callable(worker_id) and worker_id() == 0


def leave_signals() -> None:
    """Block signals in the current thread if uWSGI handles them, so that the main thread gets them.

    uWSGI's handlers are written in C, and end the interpreter in the thread that gets the signal. If this is a thread
    of a pool, it waits for itself, and raises RuntimeError (seen).
    """
    if "uwsgi" in sys.modules:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def under_way() -> bool:
    """Return True during a fork in C. Then no number may be offered to callers in memory."""
    return bool(_state.unseen)


def notice() -> None:
    """Run the hooks of the child if this process was forked in C. In other processes this takes 70 ns."""
    if os.getpid() != _state.process:
        _become_child()


def _become_child() -> None:
    global _turn  # noqa: PLW0603 - the parent's is held by the thread that forked
    with _renewal:
        if os.getpid() == _state.process or _state.becoming:
            return
        _state.becoming = True
        try:
            _run([each.in_child for each in _hooks])
        finally:
            _turn = threading.RLock()
            _state.turns.clear()
            _state.unseen.clear()
            # Last, because another thread of the child waits above until everything is done.
            _state.process, _state.becoming = os.getpid(), False


def _run(hooks: list[Hook | None]) -> None:
    for hook in hooks:
        try:
            if hook is not None:
                hook()
        except BaseException:  # also an interrupt: the other hooks must still release what they hold
            log.exception("the fork handler %r failed", hook)


def _take_turn() -> None:
    notice()  # in the child of a fork that Python didn't see the turn is still its parent's
    if _turn.acquire(timeout=TURN):
        _state.turns.append(threading.get_ident())
    else:
        log.error("another thread's fork has not ended within %g s: this process is forked in the meantime", TURN)


def _prepare() -> None:
    own = threading.get_ident()
    if _state.turns == [own]:
        _state.ahead = [each.before for each in reversed(_hooks)]
    if own in _state.turns:
        # A fork amid these hooks, of a signal's handler, calls those that are left. What they hold they hold until the
        # outer fork is over.
        while _state.ahead:
            _run([_state.ahead.pop(0)])


def _go_on() -> None:
    own = threading.get_ident()
    if _state.turns == [own]:  # none in a child that was forked amid the hooks of another fork: it holds nothing
        _run([each.in_parent for each in _hooks])
    if own in _state.turns:
        _state.turns.pop()
        _turn.release()


def _before() -> None:
    _take_turn()
    _prepare()
    vars(_calls).update(dict.fromkeys(("before", "in_parent")))


def _in_parent() -> None:
    vars(_calls).clear()
    _go_on()


def _in_child() -> None:
    vars(_calls).clear()
    global _renewal  # noqa: PLW0603 - another thread of the parent may have held it
    _renewal = threading.RLock()
    _state.becoming = False
    _become_child()


def _before_unseen() -> None:
    _take_turn()
    _state.unseen.add(threading.get_ident())
    _run([each.unseen for each in _hooks])
    _prepare()


def _in_parent_unseen() -> None:
    _state.unseen.discard(threading.get_ident())
    if not _state.unseen:
        _run([each.unseen_over for each in _hooks])
    _go_on()


class _Call:
    """Class attribute that calls a function when it is read from an object that has no such attribute itself."""

    def __init__(self, function: Hook) -> None:
        self._function = function

    def __get__(self, _: object, __: object = None) -> None:
        self._function()


class _Calls(threading.local):
    """Calls of the C library around a fork of this thread. During os.fork, its hooks have set both to None.

    Since Python 3.13, os.fork holds a lock of the interpreter that threads take when they start and end. A Python
    function could give the GIL to a thread that waits for this lock, and both would hang. So during os.fork the C
    library must not call a function: it reads an attribute.
    """

    before = _Call(_before_unseen)
    in_parent = _Call(_in_parent_unseen)


_calls = _Calls()
_FUNCTION = ctypes.CFUNCTYPE(None)
_HANDLE = ctypes.create_string_buffer(8)
#: Functions for the C library. They must exist as long as it can call them.
_CALLED: list[Any] = [_FUNCTION(partial(getattr, _calls, name)) for name in ("before", "in_parent")]


def _watch() -> bool:
    """Register the calls with the C library. False if it offers no way."""
    try:
        libc = ctypes.CDLL(None)
        # glibc does not export `pthread_atfork`, but the function that it calls.
        if (register_atfork := getattr(libc, "__register_atfork", None)) is not None:
            registered = register_atfork(*_CALLED, None, ctypes.byref(_HANDLE)) == 0
            if registered:
                # A fork after the end of the interpreter would call functions that do not exist any more.
                atexit.register(getattr(libc, "__cxa_finalize"), ctypes.byref(_HANDLE))
        else:
            registered = libc.pthread_atfork(*_CALLED, None) == 0
            for function in _CALLED:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    except (OSError, AttributeError, ValueError) as error:
        log.debug("this system cannot detect forks in C code: %s", error)
        return False
    return bool(registered)


#: True if the parent notices forks in C.
watched = _watch()
os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
