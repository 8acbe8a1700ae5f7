"""The end of a command that a signal stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program like Ctrl-C does, with 128 + the signal as exit code.

    Ignored signals stay ignored, as SIGHUP under nohup. In another thread than the main one, which signals never reach,
    nothing is changed.
    """

    def ended(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        handled = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, ended) for number in handled}
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
