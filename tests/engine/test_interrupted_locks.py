"""An interrupt at any line between a lock and its release: no lock stays held."""

import itertools
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import hiredis
import prometheus_client
import pytest

import issuer
import issuer.forks
import issuer.metrics
import issuer.metrics.book
import issuer_persistence.forks
from issuer.threads import finished
from issuer_persistence.holding import acquired
from issuer_persistence.memory import MemoryStore
from issuer_persistence.sqlite.store import SQLiteStore

#: Lines that release locks.
RELEASES = ("for each in locks:", "each.release()")


class Interrupt(BaseException):
    """What a soft time limit, or Ctrl-C, is to the code it hits."""


class Place(NamedTuple):
    """`take`: what takes the lock. `release`: what releases it later, if it is held."""

    take: Any
    release: Callable[[], object]
    lock: Any


def buffer(ids: issuer.Issuer, _folder: Path) -> Place:
    ids.create("a", order="trend", step=10)
    ids.next("a")
    held = ids.engine.registry.combiner("a").supply.state.buffer
    assert held is not None
    return Place(held.unpublish, lambda: None, held._lock.thread)


def fork(_ids: issuer.Issuer, _folder: Path) -> Place:
    forks = issuer_persistence.forks
    return Place(forks._take_turn, forks._go_on, forks._turn)


def imports(_ids: issuer.Issuer, _folder: Path) -> Place:
    return Place(issuer.forks._wait_for_imports, issuer.forks._go_on, issuer.forks.no_fork())


def store(_ids: issuer.Issuer, folder: Path) -> Place:
    opened = SQLiteStore(str(folder / "ids.db"))
    return Place(opened.before_fork, opened.after_fork_in_parent, opened._lock)


def metrics(ids: issuer.Issuer, _folder: Path) -> Place:
    book = issuer.metrics.install(ids, registry=prometheus_client.CollectorRegistry())._book
    return Place(issuer.metrics.book._before, issuer.metrics.book._in_parent, book.lock)


def interrupted(call: Any, at: int) -> bool:
    """Call it, and raise an exception before its line number `at`, counted as they run. False: it has fewer lines.

    Some lines do not count, as no signal handler can run before them: a line that runs again, which is the end of a
    `with`, and the lines that release the locks.
    """
    codes: set[CodeType] = {call.__code__, acquired.__code__}
    lines: set[tuple[CodeType, int]] = set()

    def local(frame: FrameType, event: str, _argument: object) -> Any:
        line = frame.f_code, frame.f_lineno
        releases = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() in RELEASES
        if event == "line" and line not in lines and not releases:
            lines.add(line)
            if len(lines) > at:
                raise Interrupt
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _argument: local if frame.f_code in codes else None)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def free(lock: Any) -> bool:
    """Whether another thread gets the lock."""
    found: list[bool] = []

    def look() -> None:
        found.append(lock.acquire(timeout=0))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    return found == [True]


@pytest.mark.parametrize("of", [buffer, fork, imports, store, metrics])
def test_an_interrupt_at_any_line_leaves_no_lock_held(
    of: Callable[[issuer.Issuer, Path], Place], tmp_path: Path
) -> None:
    with issuer.connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        place = of(ids, tmp_path)
        for line in itertools.count():
            hit = interrupted(place.take, line)
            place.release()
            assert free(place.lock), f"after an interrupt at line {line}"
            if not hit:
                break
        assert line > 1


@pytest.mark.live
def test_hiredis_packs_no_command(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes the interpreter if a signal handler raises an exception meanwhile."""

    def crash(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(hiredis, "pack_command", crash)
    with issuer.connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("a")
        finished(lambda: ids.engine.upkeep.keep(timeout=60))  # subscribes to reports
        assert ids.next("a") == 1
