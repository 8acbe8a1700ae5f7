"""Processor time of each test, with that of its children, held against the mark `slow`.

A test of more than a second is to be marked: it stands in tests/slow.txt. The run names the tests whose line is missing
or needless, with tolerance, as processor time too depends on the machine. With SLOW=strict they fail the run.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.marks import listed, names

_SPENT = "processor time"
#: Seconds. A test that takes more than MOST must be marked. A line whose tests all take less than LEAST must go.
MOST, LEAST = 3.0, 0.3


def spent() -> float:
    """Return the seconds of processor time of this process and of its children: those that have ended, and servers."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(each.ru_utime + each.ru_stime for each in found)
    for of_thread in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            for pid in of_thread.read_text().split():
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


class Times:
    """Measures each test without the fixtures that it shares with others, and collects what the processes of xdist
    have measured.
    """

    def __init__(self) -> None:
        self.began = self.shared = 0.0
        self.measured: dict[str, float] = {}
        self.passed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self.began, self.shared = spent(), 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        began, shared = spent(), self.shared
        try:
            return (yield)
        finally:
            self.shared = shared + spent() - began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        if call.when == "teardown":
            item.user_properties.append((_SPENT, spent() - self.began - self.shared))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        for name, seconds in report.user_properties:
            if name == _SPENT and report.nodeid in self.passed:
                self.measured[report.nodeid] = float(str(seconds))

    def complaints(self) -> list[str]:
        """Return what is wrong between the tests that were measured and the list."""
        lines, found = {*listed()}, defaultdict(list)
        wrong = []
        for test, seconds in self.measured.items():
            for line in names(test) & lines:
                found[line].append(seconds)
            if seconds > MOST and not names(test) & lines:
                wrong.append(f"{test} took {seconds:.1f} s of processor time: add it to tests/slow.txt")
        return wrong + [
            f"tests/slow.txt: {line} took {max(measured):.1f} s of processor time at most: remove the line"
            for line, measured in found.items()
            if max(measured) < LEAST
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        of_xdist = hasattr(session.config, "workerinput")
        if (
            os.environ.get("SLOW") == "strict"
            and not of_xdist
            and session.exitstatus == pytest.ExitCode.OK
            and self.complaints()
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if complaints := self.complaints():
            terminalreporter.section("processor time")
            for complaint in complaints:
                terminalreporter.write_line(complaint)
