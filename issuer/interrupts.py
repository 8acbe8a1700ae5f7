"""Exceptions of a program's signal handlers, which Python runs in the main thread between any two bytecodes."""

from __future__ import annotations

import os
import sys
from inspect import CO_VARARGS
from itertools import islice, pairwise
from threading import get_native_id
from traceback import walk_tb
from types import FrameType


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception that a signal's handler has raised, if that is `error`, or if `error` came in its place.

    To be called where any Exception is handled, before that is done. A soft time limit, as Celery's, is an Exception
    and may come out of any line: of an observer's, or of redis-py's, which makes a timeout of its own of a
    TimeoutError.
    """
    if sys.platform == "linux" and get_native_id() != os.getpid():
        return  # no handler runs but in the main thread, and the search takes 50 us and more
    while True:
        # The frames of the newest raise come first. An exception that a plugin keeps and raises again has those of all
        # its raises: without this bound a test of 2400 such calls took 251 s.
        frames = [frame for frame, _ in islice(walk_tb(error.__traceback__), sys.getrecursionlimit())]
        if any(_interrupts(frame, below) for below, frame in pairwise(frames)):
            raise error
        before = error.__context__
        # What the caller is handling while it calls us is a context too, but was not raised in these frames.
        if before is None or before.__traceback__ is None or before.__traceback__.tb_frame not in frames:
            return
        error = before


def _interrupts(frame: FrameType, below: FrameType) -> bool:
    """Whether it is a signal handler's: one is called with the frame that it interrupts, which nothing else is."""
    code = frame.f_code
    positional = code.co_varnames[: code.co_argcount]
    given = [frame.f_locals.get(name) for name in positional]
    if code.co_flags & CO_VARARGS:
        given.extend(frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()))
    return any(each is below for each in given)
