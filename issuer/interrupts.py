"""Exceptions that a program's signal handlers raise. Python runs handlers in the main thread, between two bytecodes."""

from __future__ import annotations

import os
import sys
from inspect import CO_VARARGS
from itertools import islice, pairwise
from threading import get_native_id
from traceback import walk_tb
from types import FrameType


def raise_interrupt(error: BaseException) -> None:
    """If a signal handler raised `error`, or an exception that led to `error`, raise the handler's exception.

    Call this first in each `except Exception`. A soft time limit, such as Celery's, is an Exception that a signal
    handler raises, so any line may raise it. If this exception is a TimeoutError, redis-py converts it to an error of
    its own.
    """
    if sys.platform == "linux" and get_native_id() != os.getpid():
        return  # signal handlers run only in the main thread; the search below takes 50 us or more
    while True:
        # If a plugin raises the same exception object again and again, its traceback contains the frames of all raises,
        # the last raise first. Without this limit, a test of 2400 such calls took 251 s.
        frames = [frame for frame, _ in islice(walk_tb(error.__traceback__), sys.getrecursionlimit())]
        if any(_interrupts(frame, below) for below, frame in pairwise(frames)):
            raise error
        before = error.__context__
        # Stop at an exception that our caller is handling: it was raised outside of these frames.
        if before is None or before.__traceback__ is None or before.__traceback__.tb_frame not in frames:
            return
        error = before


def _interrupts(frame: FrameType, below: FrameType) -> bool:
    """Return whether the frame is a signal handler: only a handler has the interrupted frame as an argument."""
    code = frame.f_code
    positional = code.co_varnames[: code.co_argcount]
    given = [frame.f_locals.get(name) for name in positional]
    if code.co_flags & CO_VARARGS:
        given.extend(frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()))
    return any(each is below for each in given)
