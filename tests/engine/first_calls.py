"""A program that prints in its last line the functions of ours that a call enters: its first one in this process.

python -m tests.engine.first_calls REDIS STORE CALL
"""

import inspect
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import issuer
from issuer.cli import main
from issuer.core.events import SegmentLoaded
from issuer.engine import scheduler

ROOT = Path(issuer.__file__).resolve().parent.parent
OURS = (f"{ROOT}/issuer/", f"{ROOT}/persistence/")
#: Python 3.12 has no functions for comprehensions any more. `<module>` is an import.
NO_FUNCTIONS = ("comp>", "genexpr>", "<module>")


class Entered:
    """The functions that are entered while it is on, in any thread that was started since it was made."""

    def __init__(self) -> None:
        self.on = False
        self.functions: set[CodeType] = set()
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if (
            self.on
            and event == "call"
            and code.co_filename.startswith(OURS)
            and not code.co_name.endswith(NO_FUNCTIONS)
            and code.co_flags & inspect.CO_OPTIMIZED  # no body of a class that is loaded on the way
        ):
            self.functions.add(code)


def call(name: str, redis: str, store: str) -> Callable[[], object]:
    """Return the call, ready to be made. The tag `orders` is there, with segments of 100."""
    if name == "issuer recover":
        arguments = ["--redis", redis, "--store", store, "recover", "orders", "--yes"]
        return lambda: main(arguments, standalone_mode=False)
    ids = issuer.connect(redis=redis, store=store)
    if name == "create":
        return lambda: ids.create("invoices")
    if name == "next":
        return lambda: ids.next("orders")
    # The draw that reaches the threshold, and the segment that is loaded then.
    ids.take("orders", 19)
    loaded = threading.Event()
    ids.observe(lambda event: loaded.set() if isinstance(event, SegmentLoaded) else None)

    def next_and_segment() -> None:
        ids.next("orders")
        if not loaded.wait(60):
            raise TimeoutError("no segment was loaded")

    return next_and_segment


if __name__ == "__main__":
    scheduler.SWEEP_EVERY = 3600
    entered = Entered()
    made = call(sys.argv[3], sys.argv[1], sys.argv[2])
    entered.on = True
    made()
    entered.on = False
    found: dict[str, list[str]] = {}
    for code in entered.functions:
        found.setdefault(str(Path(code.co_filename).relative_to(ROOT)), []).append(code.co_qualname)
    print(json.dumps(found))
