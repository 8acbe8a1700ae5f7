"""What a program pays before its first number: processor time of `import issuer`, and of what `connect` imports."""

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.bench.figures import Bound, Figure
from tests.bench.rounds import Contender, Effort, alternate

#: Programs a round: one alone is measured to 10 ms.
PROGRAMS = 5


def start(effort: Effort) -> Iterator[Figure]:
    """import issuer, beside redis-py, in programs of their own: processor time."""
    contenders = {
        "import issuer": _program("import issuer"),
        "import issuer, connect": _program(
            "import issuer; issuer.connect(redis='redis://127.0.0.1:1', store='memory://', scheduler=None).close()"
        ),
        "import redis": _program("import redis"),
    }
    rounds = alternate(contenders, effort.rounds, "s")
    yield rounds.figure("import issuer", Bound(0.25))
    yield rounds.figure("import issuer, connect")
    yield rounds.figure("import redis")


def _program(code: str) -> Contender:
    def run() -> float:
        before = os.times()
        for _ in range(PROGRAMS):
            subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        return spent / PROGRAMS

    return run
