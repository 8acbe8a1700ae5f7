"""Who is told that no number can be given, and how often."""

import logging
import threading
from typing import Any

import pytest

from issuer.core import sparing
from issuer.errors import ConfigurationError, InvalidArgument, LimitReached, UnknownTag
from issuer.plugins import Logged, Rejections
from tests.clocks import Clock
from tests.forks import in_child
from tests.unit.refusals import refused

LIMIT = LimitReached("a", limit=9, value=9)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [line.getMessage() for line in caplog.records]
    caplog.clear()
    return found


@pytest.mark.covers("3.40")
def test_the_default_one_logs_once_per_tag_and_cause_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = Logged(clock)
    for _ in range(5):
        logged("a", LIMIT)
    logged("b", LIMIT)
    logged("a", UnknownTag("a"))
    told = [line.split(": ")[0:3:2] for line in lines(caplog)]
    assert told == [["tag 'a'", "LimitReached"], ["tag 'b'", "LimitReached"], ["tag 'a'", "UnknownTag"]]
    clock.now += sparing.QUIET - 0.001
    logged("a", LIMIT)
    assert caplog.records == []
    clock.now += 0.001
    logged("a", LIMIT)
    logged("b", LIMIT)
    assert (caplog.records[0].name, caplog.records[0].levelno) == ("issuer.rejected", logging.WARNING)
    first, second = lines(caplog)
    assert first.endswith("(and 5 times since this was last logged)")
    assert "since" not in second
    clock.now += sparing.QUIET
    logged("a", LIMIT)
    assert "since" not in lines(caplog)[0]


def test_made_up_tags_fill_neither_the_memory_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = Logged(clock)
    for number in range(5000):
        logged(f"made-up-{number}", UnknownTag("made-up"))
        clock.now += 0.001
    assert len(lines(caplog)) == sparing.REMEMBERED + 1
    assert len(logged._sparing._said) == sparing.REMEMBERED + 1
    clock.now += sparing.QUIET
    bad: Any = ["no", "tag"]
    logged(bad, InvalidArgument("bad tag"))
    assert len(logged._sparing._said) == 1
    assert lines(caplog) == ["tag ['no', 'tag']: no number was given: InvalidArgument: bad tag"]


@pytest.mark.covers("3.40")
def test_ones_own_gets_tag_and_cause_instead_and_may_be_replaced_at_any_time(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, Exception]] = []
    rejections = Rejections(lambda tag, cause: told.append((tag, cause)))
    rejections.tell("a", LIMIT)
    assert lines(caplog) == []
    rejections.handler = Logged()
    rejections.tell("b", LIMIT)
    assert [line[:7] for line in lines(caplog)] == ["tag 'b'"]
    rejections.handler = lambda tag, cause: told.append((tag, cause))
    rejections.tell("c", LIMIT)
    assert told == [("a", LIMIT), ("c", LIMIT)]


def failing(tag: str, cause: Exception) -> None:
    raise OSError(tag, cause)


def test_one_that_raises_is_logged_and_one_that_ends_the_program_does(caplog: pytest.LogCaptureFixture) -> None:
    def ending(tag: str, cause: Exception) -> None:
        raise SystemExit(tag, cause)

    rejections = Rejections(failing)
    for _ in range(3):
        rejections.tell("a", LIMIT)
    [line] = caplog.records
    assert line.getMessage() == "tag 'a': the rejected handler failed"
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], OSError)
    refused(SystemExit, "", Rejections(ending).tell, "a", LIMIT)


class Awaited:
    async def __call__(self, tag: str, cause: Exception) -> None:
        raise NotImplementedError(tag, cause)


def test_what_cannot_be_called_is_refused_and_changes_nothing() -> None:
    rejections = Rejections()
    before = rejections.handler
    for handler in (7, "log", Awaited().__call__, Awaited()):
        refused(ConfigurationError, "a rejected handler must be a function of tag and error", Rejections, handler)
        refused(ConfigurationError, "", setattr, rejections, "handler", handler)
        assert rejections.handler is before


def test_a_signal_handler_that_logs_while_a_line_is_counted_waits_for_nothing() -> None:
    struck, told = list[bool](), list[int | None]()

    def clock() -> float:  # is asked under the lock, where a signal may strike
        if not struck:
            struck.append(True)
            told.append(said.due("b", "kind"))
        return 0.0

    said = sparing.Sparing(lambda: 0.0)
    said._clock = clock
    thread = threading.Thread(target=said.due, args=("a", "kind"), daemon=True)
    thread.start()
    thread.join(10)
    assert told == [0]


def test_a_child_that_is_forked_while_another_thread_logs_waits_for_nothing() -> None:
    said = sparing.Sparing()
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with said._lock:
            held.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    due = in_child(lambda: said.due("a", "kind"))()
    free.set()
    thread.join(60)
    assert due == 0
