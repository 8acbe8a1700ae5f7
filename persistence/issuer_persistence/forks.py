"""Forks: also those that Python doesn't see, as uWSGI's, which forks in C and calls none of Python's hooks.

A hook is registered once and runs around both kinds. Before a fork in C it is the C library that calls us, in the
parent (`pthread_atfork`). In the child nothing calls us: its first call that isn't answered out of memory asks
`notice`, which compares the process's id and makes good what the hooks would have done. So that nothing is answered out
of memory there before, the parent puts away what lies open (`unseen`) until the fork is over.

One thread forks at a time, the others wait for their turn: what a hook holds until its fork is over belongs to one
fork. With two at once an SQLite store stayed locked for ever.
"""

from __future__ import annotations

import atexit

# Its own hook takes a lock that a fork amid our hooks would take again, and wait for ever (seen). Registered before
# ours, it is called after them. And APScheduler imports both, which can't be done any more once the main thread has
# returned: a thread that goes on could not make its first issuer.
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
    """This process's id, and which threads fork it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        #: The thread that has its turn, once for each of its forks: a signal's handler may fork in the middle of one.
        self.turns: list[int] = []
        #: The threads in a fork that Python doesn't see.
        self.unseen: set[int] = set()
        #: The hooks of the present fork that are to be called before it yet.
        self.ahead: list[Hook | None] = []
        self.becoming = False


#: A thread waits this many seconds for its turn to fork. Hooks wait 10 s at most for a call of a store.
TURN = 15.0

_state = State()
_hooks: list[_Hooks] = []
#: Held from before a fork until it is over in the parent.
_turn = threading.RLock()
#: Held by the thread of a child that does what the hooks would have done.
_renewal = threading.RLock()


def register(
    *,
    before: Hook | None = None,
    in_parent: Hook | None = None,
    in_child: Hook | None = None,
    unseen: Hook | None = None,
    unseen_over: Hook | None = None,
) -> None:
    """Call these around each fork: `before` it, after it `in_parent` and `in_child`; none of them may import anything.

    `unseen`, `unseen_over`: in the parent, before and after a fork that Python doesn't see, to put away what could be
    used in the child without a look at its owner. `before` is called in the opposite order, as Python does.
    """
    _hooks.append(_Hooks(before, in_parent, in_child, unseen, unseen_over))


def in_uwsgi_master() -> bool:
    """Say whether this process is uWSGI's, before it forks its workers: a thread that begins here is missed there.

    Nothing tells a worker that the thread is its parent's; it would wait for its end, at its own, for ever.
    """
    worker_id = getattr(sys.modules.get("uwsgi"), "worker_id", None)
    return callable(worker_id) and worker_id() == 0


def leave_signals() -> None:
    """In a thread of ours: leave signals to the main thread, if uWSGI handles them.

    Its handlers are C's, and end the interpreter in the thread that they hit. One that is stopped just then isn't the
    main one, and a thread of a pool that waits for the pool's end, which is its own, raises RuntimeError (seen).
    """
    if "uwsgi" in sys.modules:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def under_way() -> bool:
    """Say whether the process is being forked unseen at this moment: then nothing may be laid open."""
    return bool(_state.unseen)


def notice() -> None:
    """Do what the hooks would have done, if this is the child of a fork that they didn't see. 70 ns if it isn't."""
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
            # Last: another thread of the child waits above until all is done.
            _state.process, _state.becoming = os.getpid(), False


def _run(hooks: list[Hook | None]) -> None:
    for hook in hooks:
        try:
            if hook is not None:
                hook()
        except BaseException:  # also an interrupt: Python loses it here, and the others must let go what they hold
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
    """As an attribute of a class, it calls the function when an object that has no such attribute is asked for it."""

    def __init__(self, function: Hook) -> None:
        self._function = function

    def __get__(self, _: object, __: object = None) -> None:
        self._function()


class _Calls(threading.local):
    """Calls of the C library around a fork of this thread: none in os.fork, whose own hooks have set both to None.

    From 3.13 on, os.fork holds a lock of the interpreter that threads take at their beginning and end. A function in
    Python could leave the GIL there to a thread that waits for that lock, and neither would ever go on. So in os.fork
    the C library must not run any: it gets an attribute.
    """

    before = _Call(_before_unseen)
    in_parent = _Call(_in_parent_unseen)


_calls = _Calls()
_FUNCTION = ctypes.CFUNCTYPE(None)
_HANDLE = ctypes.create_string_buffer(8)
#: Called by the C library, and kept as long as it may call them.
_CALLED: list[Any] = [_FUNCTION(partial(getattr, _calls, name)) for name in ("before", "in_parent")]


def _watch() -> bool:
    """Have the C library call us around each fork; False if it has no way for that."""
    try:
        libc = ctypes.CDLL(None)
        # glibc has no `pthread_atfork` to be found by name, but what that is made of.
        if (register_atfork := getattr(libc, "__register_atfork", None)) is not None:
            registered = register_atfork(*_CALLED, None, ctypes.byref(_HANDLE)) == 0
            if registered:
                # A fork after the interpreter's end would call what isn't there any more.
                atexit.register(getattr(libc, "__cxa_finalize"), ctypes.byref(_HANDLE))
        else:
            registered = libc.pthread_atfork(*_CALLED, None) == 0
            for function in _CALLED:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    except (OSError, AttributeError, ValueError) as error:
        log.debug("this system cannot detect forks in C code: %s", error)
        return False
    return bool(registered)


#: Whether forks in C are seen by the parent.
watched = _watch()
os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
