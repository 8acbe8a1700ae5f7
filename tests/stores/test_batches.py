"""Several calls in one batch: each has its own result or error, on every store."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence import contract
from issuer_persistence.errors import Corrupt, StoreError, TagMissing, Unconfirmed
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import LedgerPage, Purpose
from issuer_persistence.reads import Read, ReadLedger, ReadSegments, ReadTag
from issuer_persistence.records import Tag, TagSettings
from issuer_persistence.sql.transaction import Conflict, SQLTransaction
from tests.stores.benches import TIMEOUT, SQLBench, SQLiteBench, create, get, ranges, reserve, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from issuer_persistence.contract import Store
    from tests.stores.benches import Bench

TAGS = [f"t{number}" for number in range(20)]


def recovered(tag: str, at_least: int = 50) -> Callable[[Store, float], object]:
    return lambda store, left: store.recover(tag, at_least=at_least, timeout=left)


def done(store: Store, calls: Sequence[Callable[[Store, float], object]]) -> list[object]:
    """Make all calls, in as many batches as the store needs."""
    answers: list[object] = []
    while len(answers) < len(calls):
        answers += store.batch(calls[len(answers) :], timeout=TIMEOUT)
    return answers


@pytest.mark.covers("U.19")
def test_each_call_of_a_batch_has_its_own_result_or_error(bench: Bench) -> None:
    for tag in TAGS:
        create(bench.store, tag)
    calls = [call for tag in TAGS for call in (recovered(tag), recovered(f"no {tag}"))]
    answers = done(bench.store, calls)
    assert [answer.max for answer in answers[::2] if isinstance(answer, Tag)] == [50] * len(TAGS)
    assert all(isinstance(answer, TagMissing) for answer in answers[1::2])
    assert {get(bench.open(), tag).max for tag in TAGS} == {50}
    reads = [lambda store, left, tag=tag: store.get(tag, timeout=left) for tag in TAGS]
    assert done(bench.open(), reads) == [get(bench.store, tag) for tag in TAGS]
    assert done(bench.store, [lambda store, left: store.store_id(timeout=left)]) == [
        bench.store.store_id(timeout=TIMEOUT)
    ]


def test_calls_of_a_batch_see_what_those_before_them_have_changed(bench: Bench) -> None:
    create(bench.store, "orders", step=10)
    take = partial(Purpose, "load")
    calls: list[Callable[[Store, float], object]] = [
        lambda store, left: store.get("orders", timeout=left),
        lambda store, left: store.reserve("orders", 10, purpose=take(), timeout=left),
        lambda store, left: store.reserve("orders", 10, purpose=take(), timeout=left),
        lambda store, left: store.ledger("orders", newest=5, timeout=left),
    ]
    before, first, second, ledger = done(bench.store, calls)
    assert before.max == 0  # type: ignore[attr-defined]  # a Tag
    assert [(got.low, got.high) for got in (first, second)] == [(0, 10), (10, 20)]  # type: ignore[attr-defined]
    assert [entry.high for entry in ledger] == [20, 10]  # type: ignore[attr-defined]
    assert reserve(bench.open()).low == 20
    assert ranges(bench.store)[:2] == [(0, 10), (10, 20)]


def test_a_batch_ends_after_a_while_and_its_other_calls_are_not_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "BATCH_TIME", 0.0)
    for tag in TAGS:
        create(bench.store, tag)
    assert len(bench.store.batch([recovered(tag) for tag in TAGS], timeout=TIMEOUT)) == 1
    assert [get(bench.store, tag).max for tag in TAGS] == [50] + [0] * (len(TAGS) - 1)
    assert len(done(bench.store, [recovered(tag) for tag in TAGS])) == len(TAGS)


def alone(store: Store, call: Callable[[Store, float], object]) -> object:
    try:
        return call(store, TIMEOUT)
    except StoreError as error:
        return error


def comparable(answer: object) -> object:
    return (type(answer), str(answer)) if isinstance(answer, StoreError) else answer


def made(bench: Bench) -> list[str]:
    """Make tags with ledgers of 0 to 4 entries, a deleted one, a lost one and damages. Return all names."""
    for number, tag in enumerate(TAGS):
        create(bench.store, tag, step=10)
        for _ in range(number % 5):
            reserve(bench.store, tag=tag)
    for spoil in (
        lambda: bench.store.delete("t4", timeout=TIMEOUT),
        lambda: bench.forge(tag="t7", low=60, high=50),
        lambda: bench.forge(tag="lost", low=60, high=70),
        lambda: bench.forge(tag="lost", low=60, high=50),
        lambda: bench.tamper("t9", step=0),
    ):
        with suppress(StoreError):  # an SQL database takes no such value, and Leaf's table no such deletion
            spoil()
    return [*TAGS, "lost", "never"]


@pytest.mark.covers("U.19")
def test_a_batch_reads_of_many_tags_what_is_read_of_each_alone(bench: Bench) -> None:
    names = made(bench)
    for tags in (sorted(names), [*reversed(names), "t1", "t1"]):
        for newest in (0, 3, 1000):
            reads: list[Read[Any]] = [ReadTag(tag) for tag in tags] + [ReadLedger(tag, newest) for tag in tags]
            expected = [comparable(alone(bench.store, each)) for each in reads]
            assert [comparable(each) for each in done(bench.store, reads)] == expected


@pytest.mark.covers("U.19")
def test_pages_of_a_batch_have_each_entry_once(bench: Bench) -> None:
    """Such a page can be shorter than it could be."""
    names = sorted(made(bench))
    whole = {tag: bench.store.segments(tag, count=1000, timeout=TIMEOUT) for tag in names}
    for size, tags in product((1, 3, 1000), (names, names[::-1])):
        entries: dict[str, list[object]] = {tag: [] for tag in tags}
        damaged: dict[str, list[object]] = {tag: [] for tag in tags}
        reads = [ReadSegments(tag, size) for tag in tags]
        while reads:
            following = []
            for read, page in zip(reads, done(bench.store, reads), strict=True):
                assert isinstance(page, LedgerPage)
                assert len(page.entries) + len(page.damaged) <= size
                entries[read.tag] += page.entries
                damaged[read.tag] += map(comparable, page.damaged)
                if page.last is not None:
                    following.append(ReadSegments(read.tag, size, page.last))
            reads = following
        assert entries == {tag: page.entries for tag, page in whole.items()}
        assert damaged == {tag: [*map(comparable, page.damaged)] for tag, page in whole.items()}


def test_a_batch_that_only_reads_changes_no_file(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store)
    before = {each.name: each.read_bytes() for each in sqlite_bench.path.parent.iterdir()}
    done(sqlite_bench.store, [lambda store, left: store.get("orders", timeout=left)] * 3)
    assert {each.name: each.read_bytes() for each in sqlite_bench.path.parent.iterdir()} == before


def test_a_call_of_a_batch_that_fails_after_it_has_written_has_changed_nothing(
    transactional_bench: SQLiteBench | SQLBench,
) -> None:
    store = transactional_bench.store
    create(store, "a")
    create(store, "b")

    def fails(within: Store, left: float) -> object:
        with within.transaction(left) as transaction:  # type: ignore[attr-defined]  # a store with transactions
            tag = transaction.live("a")
            transaction.write(tag.recovered(99))
            transaction.enter(Purpose("load").entry("a", 0, 99))
            raise Corrupt("a", "a test")

    failed, well = done(store, [fails, recovered("b")])
    assert isinstance(failed, StoreError)
    assert well == get(store, "b")
    assert (get(store, "a").max, ranges(store, "a")) == (0, [])
    assert reserve(store, tag="a").low == 0


def test_an_error_that_is_no_error_of_a_store_undoes_the_whole_batch(
    transactional_bench: SQLiteBench | SQLBench,
) -> None:
    create(transactional_bench.store, "a")
    with pytest.raises(ZeroDivisionError):
        transactional_bench.store.batch([recovered("a"), lambda *_: 1 / 0], timeout=TIMEOUT)
    assert get(transactional_bench.open(), "a").max == 0


def test_a_batch_on_a_store_that_is_in_use_ends_in_time(transactional_bench: SQLiteBench | SQLBench) -> None:
    create(transactional_bench.store, "a")
    other = transactional_bench.open()
    with other.transaction(TIMEOUT) as holding:  # type: ignore[attr-defined]  # a store with transactions
        holding.live("a")
        with pytest.raises(Unconfirmed):
            transactional_bench.store.batch([recovered("a")], timeout=0.1)
    assert get(transactional_bench.store, "a").max == 0


def test_a_batch_that_meets_a_conflict_is_made_again_as_a_whole(
    transactional_bench: SQLiteBench | SQLBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends a deadlock rolls the whole transaction back. SQLite has no such conflict."""
    store, met, read = transactional_bench.store, list[str](), SQLTransaction.read
    for tag in "ab":
        create(store, tag)

    def conflicting(transaction: SQLTransaction, tag: str) -> Tag | None:
        if tag == "b" and not met:
            met.append(tag)
            transaction.cursor.execute("ROLLBACK")
            raise Conflict
        return read(transaction, tag)

    monkeypatch.setattr(SQLTransaction, "read", conflicting)
    store.batch([recovered("a"), recovered("b")], timeout=TIMEOUT)
    assert [get(store, tag).max for tag in "ab"] == [50, 50]
    assert met == ["b"] * isinstance(transactional_bench, SQLBench)


def test_a_call_that_is_interrupted_once_it_has_written_keeps_nothing_locked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(bench.store, step=10)
    kind, name = bench.writes
    write = getattr(kind, name)

    def interrupted(*arguments: object, **options: object) -> None:
        write(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.store.recover("orders", at_least=50, timeout=TIMEOUT)
    soon = bench.open().reserve("orders", 10, purpose=Purpose("test"), timeout=10)  # servers end what rests for longer
    got = spans([soon, reserve(bench.store)])
    assert got in ([(0, 10), (10, 20)], [(50, 60), (60, 70)])  # undone, or done
    assert ranges(bench.store) == got


def test_what_a_batch_changes_is_in_the_journal(bench: Bench, tmp_path: Path) -> None:
    store = Journalled(bench.store, tmp_path / "further journal")
    for tag in TAGS:
        store.create(tag, TagSettings(), timeout=TIMEOUT)
    done(store, [recovered(tag, 70) for tag in TAGS])
    assert store.witnessed(timeout=TIMEOUT) == dict.fromkeys(TAGS, 70)
