"""The long run: python -m tests.proofs.soak [--seed N] [pytest arguments]

All that is marked `soak`, with a fresh seed, or one that an earlier run has printed; then every fault of
tests.proofs.chaos, the load, and two hours of the churn, unless arguments of pytest say what is wanted. The exit code
is 1 if anything failed.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.proofs.soak.report import Run
from tests.seeds import SEED

#: What is long and no test of pytest. tests.proofs.chaos says what it misses, and how often each fault struck.
COMMANDS = [
    "python -m tests.proofs.chaos --times 2 --out build/soak-chaos.json",
    "python -m tests.proofs.load --seconds 120",
    "python -m tests.proofs.soak.churn --seconds 7200",
]


class Recorder:
    """Hears of each test's outcome, whichever worker has run it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._outcomes: dict[str, set[str]] = {}
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._outcomes.setdefault(test, set()).add(report.outcome)
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        if report.when == "teardown":
            self._run.ended(test, self._outcomes.pop(test), self._seconds.pop(test))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._run.ended(report.nodeid, {"failed"}, 0.0)

    def pytest_sessionfinish(self) -> None:
        for test in [*self._outcomes]:  # its worker died
            self._run.ended(test, self._outcomes.pop(test) | {"failed"}, self._seconds.pop(test))


def tested(run: Run, arguments: Sequence[str]) -> int:
    return int(pytest.main(["-m", "soak", f"--hypothesis-seed={run.seed}", *arguments], plugins=[Recorder(run)]))


def commanded(run: Run, line: str) -> None:
    print(f"\n{line}", flush=True)
    began = time.monotonic()
    words = [sys.executable, *shlex.split(line)[1:]]
    run.commanded(line, subprocess.run(words, check=False).returncode, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="one that an earlier run has printed")
    parser.add_argument("--workers", default="5", help="how many tests run at a time; 5")
    given, arguments = parser.parse_known_args()
    run, began = Run(given.seed or random.SystemRandom().randrange(1, 2**31)), time.monotonic()
    os.environ[SEED] = str(run.seed)
    print(f"seed {run.seed}", flush=True)
    code = tested(run, ["-n", given.workers, "--dist", "worksteal", *arguments])
    for line in [] if arguments else COMMANDS:
        commanded(run, line)
    print("", *run.lines(time.monotonic() - began), sep="\n")
    return int(bool(code or run.failures or run.commands))


if __name__ == "__main__":
    sys.exit(main())
