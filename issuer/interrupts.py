"""Exceptions of a program's signal handlers. Python runs these in the main thread between any two bytecodes."""

from __future__ import annotations

import os
import sys
from inspect import CO_VARARGS
from itertools import islice, pairwise
from threading import get_native_id
from traceback import walk_tb
from types import FrameType


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception of a signal handler, if `error` is one, or was raised because of one.

    Call this first wherever an Exception is handled. A soft time limit, such as Celery's, is an Exception and may come
    out of any line. redis-py converts a TimeoutError to an error of its own.
    """
    if sys.platform == "linux" and get_native_id() != os.getpid():
        return  # handlers run only in the main thread, and the search takes at least 50 us
    while True:
        # The frames of the last raise come first. If a plugin raises one exception object again and again, it has the
        # frames of all raises: without this limit a test of 2400 such calls took 251 s.
        frames = [frame for frame, _ in islice(walk_tb(error.__traceback__), sys.getrecursionlimit())]
        if any(_interrupts(frame, below) for below, frame in pairwise(frames)):
            raise error
        before = error.__context__
        # The context may also be an exception that our caller is handling. It was not raised in these frames.
        if before is None or before.__traceback__ is None or before.__traceback__.tb_frame not in frames:
            return
        error = before


def _interrupts(frame: FrameType, below: FrameType) -> bool:
    """Whether the frame is a signal handler's: only a handler has the interrupted frame as an argument."""
    code = frame.f_code
    positional = code.co_varnames[: code.co_argcount]
    given = [frame.f_locals.get(name) for name in positional]
    if code.co_flags & CO_VARARGS:
        given.extend(frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()))
    return any(each is below for each in given)
