"""The rows of requirements.toml, held against the tests that ran.

A test names what it shows: `@pytest.mark.covers("0.13", "3.4")`. With `--rows` a run of `make all` is red if a claimed
row was shown by no test that ran and passed. A test that was left out because `make test` runs it counts as well: if it
does not pass, `make test` is red. Skipped and failed tests, and those of `make soak`, show nothing.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).with_name("requirements.toml")
_COVERS = "covers"


@dataclass(frozen=True)
class Requirements:
    """Rows by id; those that `make test` and `make all` show; those that only `make soak` shows."""

    rows: Mapping[str, str]
    claimed: Sequence[str]
    soak: Sequence[str] = ()

    @classmethod
    def load(cls, text: str) -> Requirements:
        data = tomllib.loads(text)
        return cls(data["rows"], data["claimed"], data["soak"])

    def complaints(self, covered: Mapping[str, str], shown: set[str]) -> list[str]:
        """Return what is wrong between the rows, those that tests name (and a test that does) and those shown."""
        return [
            *(f"{test} covers {row}, which is no row" for row, test in covered.items() if row not in self.rows),
            *(f"row {row} is claimed, but no test that passed covers it" for row in self.claimed if row not in shown),
            *(
                f"row {row} stands among those that only make soak shows, but {covered[row]} shows it in make test"
                for row in self.soak
                if row in shown
            ),
        ]


def rows_of(item: pytest.Item) -> list[str]:
    """Return the rows that a test names, itself or through its class, module or parameters."""
    return [row for mark in item.iter_markers(_COVERS) for row in mark.args]


class RowsShown:
    """Collects which rows were shown, also from the processes of xdist, and fails the run that lacks some."""

    def __init__(self) -> None:
        self.covered: dict[str, str] = {}
        self.shown: set[str] = set()
        self.skipped = 0
        self.complaints: list[str] = []
        self.left: list[tuple[str, str]] = []

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note what this run leaves to `make test`."""
        for item in items:
            if not any(item.get_closest_marker(mark) for mark in ("slow", "matrix", "soak")):
                self.left.extend((row, item.nodeid) for row in rows_of(item))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of xdist has left: this one collects no tests."""
        self.left.extend(getattr(node, "workeroutput", {}).get(_COVERS, ()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [str(row) for name, row in report.user_properties if name == _COVERS]
        self.skipped += report.skipped
        if report.when == "call":
            self.covered |= dict.fromkeys(rows, report.nodeid)
            if report.passed:
                self.shown |= set(rows)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_COVERS] = self.left
            return
        self.covered |= dict(self.left)
        self.shown |= dict(self.left).keys()
        if self.skipped and not os.environ.get("CI"):
            return  # a laptop without some server; CI fails such tests
        self.complaints = Requirements.load(_PATH.read_text(encoding="utf-8")).complaints(self.covered, self.shown)
        if self.complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.complaints:
            terminalreporter.section("rows of requirements.toml", red=True)
            for complaint in self.complaints:
                terminalreporter.write_line(complaint)
