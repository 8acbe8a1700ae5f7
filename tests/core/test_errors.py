"""What stores and scripts answer, as the errors that users see; who is told of them, and how often."""

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.core import sparing
from issuer.core.error_mapping import refused, store_error
from issuer.core.events import Rejected, RejectedLog
from issuer.errors import (
    ConfigurationError,
    CorruptState,
    FenceError,
    ForeignHash,
    InvalidArgument,
    IssuerError,
    LimitReached,
    StoreUnavailable,
    UnknownTag,
)
from issuer.gateway.tag_scripts import GivenBack, Loaded, Opened
from issuer_persistence import errors
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.clocks import Clock
from tests.forks import in_child
from tests.schemes import Make

KEY = "issuer:{orders}"


ANSWERS: list[tuple[Exception, type[Exception], str]] = [
    (store_error(errors.StepsCrossed("orders", 500, 5), None), InvalidArgument, "min_step 500 is above max_step 5"),
    (store_error(errors.LeaseOnStrict("orders", 500), None), InvalidArgument, "lease 500: .* strict"),
    (store_error(errors.SchemeMismatch("orders"), None), ConfigurationError, "use its old scheme, or another"),
    (store_error(errors.VersionMoved("orders"), None), StoreUnavailable, "read the tag again and repeat the change"),
    (refused(GivenBack("notmaster"), "orders", KEY), FenceError, "configure the address of the master"),
    (refused(Loaded("corrupt"), "orders", KEY), CorruptState, KEY),
    (refused(Opened("otherstore", store="s9"), "orders", KEY, "s1"), ForeignHash, "s9.*s1"),
]


def test_each_answer_is_an_error_that_says_what_to_do() -> None:
    for error, kind, says in ANSWERS:
        assert (type(error), getattr(error, "tag", None)) == (kind, "orders")
        assert re.search(says, str(error)), error
        assert kind is not InvalidArgument or getattr(error, "value", None) == 500


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


@pytest.mark.parametrize(
    "call",
    [
        lambda ids: ids.next("a", timeout=1e10),
        lambda ids: ids.next("a", timeout=10**400),
        lambda _: issuer.connect(redis="redis://127.0.0.1:1/0?protocol=9", store="memory://"),
        lambda _: issuer.connect(redis="redis://a..b:1", store="memory://", scheduler=None).warm("a"),
        lambda _: issuer.connect(redis="none", store="mongodb://h/x?tls=true&tlsCAFile=/nope").tags(),
    ],
)
def test_no_foreign_error_comes_out(call: Callable[[issuer.Issuer], object]) -> None:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a")
        with pytest.raises(issuer.IssuerError):
            call(ids)


@pytest.mark.colours("blocking")
def test_a_tag_that_was_never_seen_leaves_nothing_behind_while_the_store_is_away(make: Make) -> None:
    class Away(MemoryStore):
        def get(self, *_args: object, **_options: object) -> None:
            raise Unconfirmed("away")

    ids = make(store=Away(), timeout=0)
    for number in range(20):
        with pytest.raises(issuer.StoreUnavailable):
            ids.next(f"made-up-{number}")
    assert ids.engine.registry.combiners == {}
