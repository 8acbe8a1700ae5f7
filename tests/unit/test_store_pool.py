"""The store is asked also where no thread can begin any more, as in the exit handlers of Python 3.12 and later."""

import threading

import pytest

import issuer
from issuer.persistence.memory import MemoryStore


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_where_no_thread_can_begin_the_caller_asks_in_person(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("b", step=1)
        monkeypatch.setattr(threading.Thread, "start", refused)
        assert ids.take("b", 50) == list(range(1, 51))  # threads that there are go on
        ids.create("a", step=10)
        assert ids.take("a", 3) == [1, 2, 3]
        with pytest.raises(issuer.UnknownTag):
            ids.next("c")
    record = store.get("a", timeout=1)
    assert record is not None
    assert record.max == 3, "what was left is given back"
