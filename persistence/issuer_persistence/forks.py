"""Hooks that run before and after a fork, also if C code forks. uWSGI forks its workers in C, without Python's hooks.

A hook is registered once, and runs for both kinds of forks. Before a fork in C, the C library calls this module in the
parent (`pthread_atfork`). In the child, nothing calls this module. Instead, the first call that needs Redis or the
store calls `notice`, which sees that the process id has changed, and runs the hooks of the child. A call that takes a
number from memory does not call `notice`. So before a fork in C, the hook `unseen` removes the parent's numbers from
memory.

Only one thread forks at a time. Other threads wait for their turn, until this fork is over. The reason: a hook can
hold a lock until the end of a fork, and such a lock must belong to one fork only. With two forks at once, an SQLite
store stayed locked for ever.
"""

from __future__ import annotations

import atexit

# These modules register a fork hook of their own when they are imported. Import them before our hooks are registered,
# so that their hook runs after ours. Their hook takes a lock, and a fork within our hooks would wait for this lock for
# ever (seen). A later import, for example by APScheduler, would also fail in a thread after the main thread has
# returned.
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

from issuer_persistence.holding import acquired

log = logging.getLogger("issuer")

Hook = Callable[[], None]


class _Hooks(NamedTuple):
    before: Hook | None
    in_parent: Hook | None
    in_child: Hook | None
    unseen: Hook | None
    unseen_over: Hook | None


class State:
    """State of the forks of this process.

    `process`: id of the process. In a forked child it is the parent's id, until the hooks of the child have run.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        #: One item for each fork in progress: the id of the thread that forks. There can be several items of one
        #: thread, because a signal handler can fork during a fork.
        self.turns: list[int] = []
        #: Ids of the threads that are in a fork in C.
        self.unseen: set[int] = set()
        #: Hooks `before` that the current fork must still call. At its beginning a fork copies them from `_hooks`.
        self.ahead: list[Hook | None] = []
        self.becoming = False


class Generation:
    """The generation of this process. `now`: how many forks lie between this process and the first one.

    An object keeps the value of its creation. If `now` differs, the object belongs to the parent, and so do its
    numbers.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


GENERATION = Generation()


#: Only one thread forks at a time. The others wait at most this many seconds. It is longer than the longest wait of a
#: hook: 10 s for a store.
TURN = 15.0

_state = State()
_hooks: list[_Hooks] = []
#: Lock that a thread holds from before its fork until the fork is over in the parent.
_turn = threading.RLock()
#: In a child, a thread holds this lock while it runs the hooks. The child's other threads wait for it.
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

    A hook can be registered while another thread forks, for example if this fork waits for an import that registers
    the hook. Then the hook is called for this fork, too.

    Args:
        before: Called before a fork. The hook that was registered last is called first.
        in_parent: Called in the parent after a fork.
        in_child: Called in the child after a fork.
        unseen: Called in the parent before a fork in C. It removes numbers that the child could use before the child
            calls `notice`.
        unseen_over: Called in the parent after a fork in C.
    """
    if _state.turns:
        _state.ahead.append(before)
    # Change `ahead` first, then `_hooks`. If the hook were in `_hooks` first, a fork that begins in between would copy
    # it from there to `ahead`. Then the lines above would add it to `ahead` again, and it would be called twice.
    _hooks.append(_Hooks(before, in_parent, in_child, unseen, unseen_over))


def in_uwsgi_master() -> bool:
    """Return True in the main process of uWSGI, which forks the workers. No thread must be started in this process.

    A fork does not copy threads, but Python in the worker still lists the thread of the main process. So at its end,
    the worker would wait for this thread for ever.
    """
    worker_id = getattr(sys.modules.get("uwsgi"), "worker_id", None)
    return callable(worker_id) and worker_id() == 0


def leave_signals() -> None:
    """Under uWSGI, block all signals in the current thread, so that the main thread gets them.

    uWSGI's signal handlers are written in C. These handlers end the interpreter in the thread that gets the signal. A
    thread of a pool would then wait for its own end, and raise RuntimeError (seen).
    """
    if "uwsgi" in sys.modules:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def under_way() -> bool:
    """Return True during a fork in C. During this time, no number may be kept in memory for callers."""
    return bool(_state.unseen)


def notice() -> None:
    """If this process was forked in C, run the hooks of the child. Otherwise this call takes 70 ns."""
    if os.getpid() != _state.process:
        _become_child()


def _become_child() -> None:
    global _turn  # noqa: PLW0603 - the thread that forked holds the parent's lock
    with _renewal:
        if os.getpid() == _state.process or _state.becoming:
            return
        _state.becoming = True
        GENERATION.now += 1  # first of all: calls that a hook lets continue must see it
        try:
            _run([each.in_child for each in _hooks])
        finally:
            _turn = threading.RLock()
            _state.turns.clear()
            _state.unseen.clear()
            # Set the process id last. While it is the parent's id, `notice` makes other threads of the child wait for
            # `_renewal`. So they use no object of the parent before the hooks have run.
            _state.process, _state.becoming = os.getpid(), False


def _run(hooks: list[Hook | None]) -> None:
    for hook in hooks:
        try:
            if hook is not None:
                hook()
        except BaseException:  # even after an interrupt, the other hooks must run, to release their locks
            log.exception("the fork handler %r failed", hook)


def _take_turn() -> None:
    """Wait until no other thread forks. A process that was forked in C first gets a new lock, from `notice`."""
    notice()  # if this process was forked in C, the lock still belongs to its parent
    if not acquired(_turn, TURN, _state.turns, threading.get_ident()):
        log.error("another thread's fork has not ended within %g s: this process is forked in the meantime", TURN)


def _prepare() -> None:
    own = threading.get_ident()
    if _state.turns == [own]:
        _state.ahead = [each.before for each in reversed(_hooks)]
    if own in _state.turns:
        # A signal handler can fork while these hooks run. This inner fork then calls the hooks that are left in
        # `ahead`, so that each hook is called once. The locks that hooks take are held until the outer fork is over.
        while _state.ahead:
            _run([_state.ahead.pop(0)])


def _go_on() -> None:
    own = threading.get_ident()
    # Only after the outermost fork of this thread. A hook may have forked, or a signal handler that has interrupted the
    # hooks. The child of that fork also comes to this line. In the child `turns` is empty, so nothing runs.
    if _state.turns == [own]:
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
    global _renewal  # noqa: PLW0603 - another thread of the parent may have held this lock
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
    """A class attribute that calls a function when it is read from an instance.

    While the instance has an attribute of the same name itself, that one is read, and the function is not called.
    """

    def __init__(self, function: Hook) -> None:
        self._function = function

    def __get__(self, _: object, __: object = None) -> None:
        self._function()


class _Calls(threading.local):
    """Two attributes that the C library's callbacks read before and after a fork.

    In a fork in C, reading one of them calls a function of this module, which runs the hooks; see `_Call`. During
    os.fork both are None, and the hooks are called by Python.

    Since Python 3.13, os.fork holds a lock of the interpreter that threads take when they start and end. A Python
    function could release the GIL to a thread that waits for this lock, and both would hang. So during os.fork the C
    library must call no Python function. Its callback only reads an attribute.
    """

    before = _Call(_before_unseen)
    in_parent = _Call(_in_parent_unseen)


_calls = _Calls()
_FUNCTION = ctypes.CFUNCTYPE(None)
_HANDLE = ctypes.create_string_buffer(8)
#: Callbacks for the C library. This list keeps them alive as long as the C library can call them.
_CALLED: list[Any] = [_FUNCTION(partial(getattr, _calls, name)) for name in ("before", "in_parent")]


def _watch() -> bool:
    """Register the callbacks with the C library. Return False if this system has no such function."""
    try:
        libc = ctypes.CDLL(None)
        # glibc does not export `pthread_atfork`. It exports the function that `pthread_atfork` calls.
        if (register_atfork := getattr(libc, "__register_atfork", None)) is not None:
            registered = register_atfork(*_CALLED, None, ctypes.byref(_HANDLE)) == 0
            if registered:
                # Remove the callbacks at exit: a later fork would call functions that do not exist any more.
                atexit.register(getattr(libc, "__cxa_finalize"), ctypes.byref(_HANDLE))
        else:
            registered = libc.pthread_atfork(*_CALLED, None) == 0
            for function in _CALLED:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    except (OSError, AttributeError, ValueError) as error:
        log.debug("this system cannot detect forks in C code: %s", error)
        return False
    return bool(registered)


#: True if forks in C can be detected in the parent, so that hooks run before them.
watched = False
if hasattr(os, "register_at_fork"):  # Windows has no forks
    watched = _watch()
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
