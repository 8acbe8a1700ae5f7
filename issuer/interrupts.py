"""Recognises exceptions that a signal handler of the program has raised.

Python runs signal handlers in the main thread, between any two bytecodes. So any line can raise such an exception.
"""

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

    Call this first in each `except Exception`, so that the block does not handle the exception of a signal handler. An
    example is the soft time limit of Celery: a signal handler raises it, so any line may raise it. If a handler raises
    TimeoutError inside redis-py, redis-py converts the TimeoutError to an error of its own.
    """
    if sys.platform == "linux" and get_native_id() != os.getpid():
        return  # signal handlers run only in the main thread; the search below takes 50 us or more
    while True:
        # The number of frames is limited. If a plugin raises the same exception object again and again, the traceback
        # contains the frames of all raises, the last raise first. Without the limit, a test of 2400 such calls took
        # 251 s.
        frames = [frame for frame, _ in islice(walk_tb(error.__traceback__), sys.getrecursionlimit())]
        if any(_interrupts(frame, below) for below, frame in pairwise(frames)):
            raise error
        before = error.__context__
        # `before` was being handled when `error` was raised. Stop if it was raised outside of these frames. Then it did
        # not lead to `error`: our caller was handling it before it called us.
        if before is None or before.__traceback__ is None or before.__traceback__.tb_frame not in frames:
            return
        error = before


def _interrupts(frame: FrameType, below: FrameType) -> bool:
    """Return whether `frame` is the call of a signal handler that interrupted the frame `below`.

    Python passes the interrupted frame to a signal handler. No other function has it as an argument.
    """
    code = frame.f_code
    positional = code.co_varnames[: code.co_argcount]
    given = [frame.f_locals.get(name) for name in positional]
    if code.co_flags & CO_VARARGS:
        given.extend(frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()))
    return any(each is below for each in given)
