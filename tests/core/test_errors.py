"""What stores and scripts answer, as the errors that users see; who is told of them, and how often."""

import logging
import re
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

import issuer
from issuer.core import sparing
from issuer.core.error_mapping import refused as mapped
from issuer.core.error_mapping import store_error
from issuer.core.events import Rejected, RejectedLog
from issuer.errors import (
    ConfigurationError,
    CorruptState,
    FenceError,
    ForeignHash,
    InvalidArgument,
    LimitReached,
    StoreUnavailable,
    UnknownTag,
)
from issuer.gateway.tag_scripts import GivenBack, Loaded, Opened
from issuer_persistence import errors
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.clocks import Clock
from tests.refusals import refused
from tests.schemes import Make

KEY = "issuer:{orders}"
ANSWERS: list[tuple[Exception, type[Exception], str]] = [
    (store_error(errors.StepsCrossed("orders", 500, 5), None), InvalidArgument, "min_step 500 is above max_step 5"),
    (store_error(errors.LeaseOnStrict("orders", 500), None), InvalidArgument, "lease 500: .* strict"),
    (store_error(errors.SchemeMismatch("orders"), None), ConfigurationError, "use its old scheme, or another"),
    (store_error(errors.VersionMoved("orders"), None), StoreUnavailable, "read the tag again and repeat the change"),
    (mapped(GivenBack("notmaster"), "orders", KEY), FenceError, "configure the address of the master"),
    (mapped(Loaded("corrupt"), "orders", KEY), CorruptState, KEY),
    (mapped(Opened("otherstore", store="s9"), "orders", KEY, "s1"), ForeignHash, "s9.*s1"),
]


def test_each_answer_is_an_error_that_says_what_to_do() -> None:
    for error, kind, says in ANSWERS:
        assert (type(error), getattr(error, "tag", None)) == (kind, "orders")
        assert re.search(says, str(error)), error
        assert kind is not InvalidArgument or getattr(error, "value", None) == 500


LIMIT = LimitReached("a", limit=9, value=9)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [line.getMessage() for line in caplog.records]
    caplog.clear()
    return found


@pytest.mark.covers("3.40")
def test_the_default_one_logs_once_per_tag_and_cause_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = RejectedLog(clock)
    for _ in range(5):
        logged(Rejected("a", LIMIT))
    logged(Rejected("b", LIMIT))
    logged(Rejected("a", UnknownTag("a")))
    told = [line.split(": ")[0:3:2] for line in lines(caplog)]
    assert told == [["tag 'a'", "LimitReached"], ["tag 'b'", "LimitReached"], ["tag 'a'", "UnknownTag"]]
    clock.now += sparing.QUIET - 0.001
    logged(Rejected("a", LIMIT))
    assert caplog.records == []
    clock.now += 0.001
    logged(Rejected("a", LIMIT))
    logged(Rejected("b", LIMIT))
    assert (caplog.records[0].name, caplog.records[0].levelno) == ("issuer.rejected", logging.WARNING)
    first, second = lines(caplog)
    assert first.endswith("(and 5 times since this was last logged)")
    assert "since" not in second
    clock.now += sparing.QUIET
    logged(Rejected("a", LIMIT))
    assert "since" not in lines(caplog)[0]


def test_made_up_tags_fill_neither_the_memory_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logged = RejectedLog(clock)
    for number in range(5000):
        logged(Rejected(f"made-up-{number}", UnknownTag("made-up")))
        clock.now += 0.001
    assert len(lines(caplog)) == sparing.REMEMBERED + 1
    assert len(logged._sparing._said) == sparing.REMEMBERED + 1
    clock.now += sparing.QUIET
    bad: Any = ["no", "tag"]
    logged(Rejected(bad, InvalidArgument("bad tag")))
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
        refused(issuer.IssuerError, "", call, ids)


@pytest.mark.colours("blocking")
def test_a_tag_that_was_never_seen_leaves_nothing_behind_while_the_store_is_away(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "get", Mock(side_effect=Unconfirmed("away")))
    ids = make(timeout=0)
    for number in range(20):
        refused(issuer.StoreUnavailable, "", ids.next, f"made-up-{number}")
    assert ids.engine.registry.combiners == {}
