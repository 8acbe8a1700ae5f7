"""A forked child starts with nothing of its parent's: no segment, connection, thread or lock."""

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer, facade
from persistence.sqlite import SQLiteStore
from tests.audit import repeats
from tests.servers.redis import RedisServer

# CPython warns that a fork in a process with threads may deadlock: that it does not is what is shown here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(work: Callable[[], object]) -> Callable[[], object]:
    """Fork, do the work in the child, and return a function that waits for what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result: object = work()
        except BaseException as error:  # noqa: BLE001 - the parent is told, and the child must end here
            result = repr(error)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(write)

    def result_of() -> object:
        with os.fdopen(read, "rb") as pipe:
            answer: object = pickle.load(pipe)  # noqa: S301 - from our own child
        os.waitpid(pid, 0)
        return answer

    return result_of


def parent_and_children(ids: Issuer, tag: str, children: int = 8, each: int = 200) -> list[int]:
    """Draw in the parent, fork, draw in all at once; return all numbers."""
    numbers = ids.take(tag, 50)
    results = [in_child(lambda: [ids.next(tag, timeout=20) for _ in range(each)]) for _ in range(children)]
    numbers += [ids.next(tag) for _ in range(each)]
    for result in results:
        answer = result()
        assert isinstance(answer, list), answer
        assert len(answer) == each
        numbers += answer
    return numbers


@pytest.mark.live
@pytest.mark.covers("U.14")
def test_eight_children_of_a_direct_issuer_repeat_nothing(tmp_path: Path) -> None:
    with issuer.connect(redis=None, store=f"sqlite:///{tmp_path / 'a.db'}", timeout=20) as ids:
        ids.create("a", step=70)
        assert repeats(parent_and_children(ids, "a")) == []


@pytest.mark.live
def test_children_that_keep_their_parents_segments_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade.Issuer, "_after_fork", lambda self: self._terms.store.after_fork())
    with issuer.connect(redis=None, store=f"sqlite:///{tmp_path / 'a.db'}", timeout=20, scheduler=None) as ids:
        ids.create("a", step=1000)
        assert repeats(parent_and_children(ids, "a", children=2)) != []


@pytest.mark.covers("U.14")
def test_eight_children_of_an_issuer_on_redis_repeat_nothing(
    redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    assert redis_server.running
    with issuer.connect(redis=redis_url, store=f"sqlite:///{tmp_path / 'a.db'}", timeout=20) as ids:
        ids.create("a", step=200)
        assert repeats(parent_and_children(ids, "a")) == []


@pytest.mark.live
def test_a_child_is_not_stopped_by_locks_that_threads_of_the_parent_hold(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    with issuer.connect(redis=None, store=store, timeout=20) as ids:
        ids.create("a", step=10)
        stop = threading.Event()
        busy = [threading.Thread(target=lambda: [ids.next("a") for _ in iter(stop.is_set, True)]) for _ in range(4)]
        for thread in busy:
            thread.start()
        try:
            answers = [in_child(lambda: ids.next("a", timeout=20))() for _ in range(10)]
        finally:
            stop.set()
            for thread in busy:
                thread.join()
        assert all(isinstance(answer, int) for answer in answers), answers
        assert repeats(answers) == []  # type: ignore[arg-type]  # integers, as was just checked
    store.close()


@pytest.mark.live
def test_a_child_does_not_wait_for_a_scheduler_of_its_parents(tmp_path: Path) -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    try:
        with issuer.connect(redis=None, store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=theirs) as ids:
            ids.create("a", step=10)
            assert ids.next("a") == 1
            answer = in_child(lambda: ids.take("a", 50))()
            assert isinstance(answer, list), answer
            assert len(answer) == 50
    finally:
        theirs.shutdown()


def test_a_memory_store_refuses_to_serve_a_child() -> None:
    with issuer.connect(redis=None, store="memory://", scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        answer = in_child(lambda: ids.next("a"))()
        assert "ConfigurationError" in str(answer)
        assert ids.next("a") == 2
