"""Work in a forked child."""

import os
import pickle
import signal
from collections.abc import Callable

#: Seconds after which a child that waits for ever is ended.
_LONGEST = 120


def in_child(work: Callable[[], object]) -> Callable[[], object]:
    """Fork, do the work in the child, and return a function that waits for what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST)
        try:
            result: object = work()
        except BaseException as error:  # noqa: BLE001 - the parent is told, and the child must end here
            result = repr(error)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(write)

    def result_of() -> object:
        with os.fdopen(read, "rb") as pipe:
            answer: object = pickle.load(pipe)  # noqa: S301 - from our own child
        os.waitpid(pid, 0)
        return answer

    return result_of
