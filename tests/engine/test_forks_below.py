"""In a fork that Python sees, the C library calls no Python code: from 3.13 on, os.fork leaves no room for it."""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

import issuer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def called_by(fork: Callable[[], int]) -> set[str]:
    """Fork, and return the names of the functions that ran in the parent."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        pid = fork()
    finally:
        sys.setprofile(None)
    if pid == 0:
        os._exit(0)
    assert ended(pid) == 0
    return names


def test_a_fork_that_python_sees_runs_no_python_code_below_it() -> None:
    assert issuer.__version__
    for _ in range(2):
        called = called_by(os.fork)
        assert {"_before", "_in_parent"} <= called
        assert not {"_before_unseen", "_in_parent_unseen", "_Call.__get__"} & called


def test_a_child_of_such_a_fork_forks_in_the_same_way() -> None:
    pid = os.fork()
    if pid == 0:
        called = called_by(os.fork)
        os._exit(3 if "_before" in called and "_before_unseen" not in called else 4)
    assert ended(pid) == 3


@pytest.mark.soak
def test_forks_beside_threads_that_begin_and_end_come_back() -> None:
    stop = threading.Event()

    def bustle() -> None:
        while not stop.is_set():
            threading.Thread(target=sum, args=(range(100),)).start()

    threads = [threading.Thread(target=bustle) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert ended(pid) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
