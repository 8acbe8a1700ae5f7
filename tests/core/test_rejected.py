"""Who is told that no number can be given, and how often."""

import logging
import threading
from typing import Any

import pytest

from issuer.core import sparing
from issuer.core.events import Rejected, RejectedLog
from issuer.errors import InvalidArgument, IssuerError, LimitReached, UnknownTag
from tests.clocks import Clock
from tests.forks import in_child

LIMIT = LimitReached("a", limit=9, value=9)


class Logged(RejectedLog):
    """Gets a tag and an error."""

    def tell(self, tag: str, error: IssuerError) -> None:
        self(Rejected(tag, error))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [line.getMessage() for line in caplog.records]
    caplog.clear()
    return found


@pytest.mark.covers("3.40")
def test_the_default_one_logs_once_per_tag_and_cause_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = Logged(clock)
    for _ in range(5):
        logged.tell("a", LIMIT)
    logged.tell("b", LIMIT)
    logged.tell("a", UnknownTag("a"))
    told = [line.split(": ")[0:3:2] for line in lines(caplog)]
    assert told == [["tag 'a'", "LimitReached"], ["tag 'b'", "LimitReached"], ["tag 'a'", "UnknownTag"]]
    clock.now += sparing.QUIET - 0.001
    logged.tell("a", LIMIT)
    assert caplog.records == []
    clock.now += 0.001
    logged.tell("a", LIMIT)
    logged.tell("b", LIMIT)
    assert (caplog.records[0].name, caplog.records[0].levelno) == ("issuer.rejected", logging.WARNING)
    first, second = lines(caplog)
    assert first.endswith("(and 5 times since this was last logged)")
    assert "since" not in second
    clock.now += sparing.QUIET
    logged.tell("a", LIMIT)
    assert "since" not in lines(caplog)[0]


def test_made_up_tags_fill_neither_the_memory_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = Logged(clock)
    for number in range(5000):
        logged.tell(f"made-up-{number}", UnknownTag("made-up"))
        clock.now += 0.001
    assert len(lines(caplog)) == sparing.REMEMBERED + 1
    assert len(logged._sparing._said) == sparing.REMEMBERED + 1
    clock.now += sparing.QUIET
    bad: Any = ["no", "tag"]
    logged.tell(bad, InvalidArgument("bad tag"))
    assert len(logged._sparing._said) == 1
    assert lines(caplog) == ["tag ['no', 'tag']: no number was given: InvalidArgument: bad tag"]


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
