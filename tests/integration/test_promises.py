"""Promises that users of such systems ask for first, each shown on its own."""

import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import issuer
from issuer import Issuer
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.servers.fake import FencedFakeServer


@pytest.fixture
def ids(fake_server: FencedFakeServer) -> Iterator[Issuer]:
    with issuer.connect(redis=fake_server.client(), store="memory://", scheduler=None) as made:
        yield made


@pytest.mark.covers("0.1")
def test_a_million_draws_repeat_nothing_where_date_and_random_digits_do() -> None:
    with issuer.connect(redis=None, store="memory://", scheduler=None) as ids:
        ids.create("a", step=50_000)
        assert len(set(ids.take("a", 1_000_000))) == 1_000_000
    chance = random.Random(1)
    dated = [f"261120{chance.randrange(10**9):09}" for _ in range(1_000_000)]
    assert len(set(dated)) < 1_000_000


@pytest.mark.covers("0.3")
def test_numbers_are_integers_of_19_digits_at_most_and_increase(ids: Issuer) -> None:
    ids.create("a", step=7)
    ids.create("high", above=2**63 - 20)
    numbers = ids.take("a", 100)
    assert all(type(number) is int for number in numbers)
    assert numbers == sorted(set(numbers))
    assert len(str(ids.take("high", 19)[-1])) == 19


@pytest.mark.covers("0.11", "1.2")
def test_without_redis_numbers_increase_within_a_process_and_by_segments_across() -> None:
    store = MemoryStore()
    with (
        issuer.connect(redis=None, store=store, scheduler=None) as one,
        issuer.connect(redis=None, store=store, scheduler=None) as two,
    ):
        one.create("a", step=10)
        runs: list[list[int]] = [[], []]
        for _ in range(100):
            runs[0].append(one.next("a"))
            runs[1].append(two.next("a"))
    assert repeats(runs[0] + runs[1]) == []
    for run in runs:
        assert run == sorted(run)
        whole = [run[start : start + 10] for start in range(0, 100, 10)]
        assert all(part == list(range(part[0], part[0] + 10)) for part in whole)


@pytest.mark.covers("2.6", "2.7", "2.14")
def test_a_number_drawn_in_a_transaction_that_is_rolled_back_never_comes_again(tmp_path: Path) -> None:
    shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with issuer.connect(redis=None, store=f"sqlite:///{tmp_path / 'issuer.db'}", scheduler=None) as ids:
        ids.create("a", step=3)
        numbers = []
        for _ in range(10):
            shop.execute("BEGIN")
            numbers.append(ids.next("a"))
            shop.execute("INSERT INTO orders VALUES (?)", (numbers[-1],))
            shop.execute("ROLLBACK")
    assert numbers == list(range(1, 11))
    assert shop.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    shop.close()


@pytest.mark.covers("2.8", "2.10")
def test_a_block_of_ten_gives_exactly_ten_numbers_both_ends_included() -> None:
    store = MemoryStore()
    with issuer.connect(redis=None, store=store, scheduler=None) as ids:
        ids.create("a", start=11, step=10)
        assert ids.take("a", 10) == list(range(11, 21))
        record = store.get("a", timeout=1)
        assert record is not None
        assert record.max == 20
        assert ids.next("a") == 21


@pytest.mark.covers("2.9")
def test_a_restart_goes_on_above_what_is_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    last = 0
    for run in range(5):
        with issuer.connect(redis=None, store=url, scheduler=None) as ids:
            if run == 0:
                ids.create("a", step=10)
            first, *_, end = ids.take("a", 7)
            assert first > last
            last = end


@pytest.mark.covers("4.19", "2.11")
def test_a_tag_made_by_many_at_once_is_made_once() -> None:
    store = MemoryStore()
    outcomes: list[str] = []

    def make() -> None:
        with issuer.connect(redis=None, store=store, scheduler=None) as ids:
            try:
                ids.create("a", step=10)
                outcomes.append("made")
            except issuer.TagExists:
                outcomes.append("exists")

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["exists"] * 15 + ["made"]


def test_inspect_tells_rate_and_runway(ids: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000_000_000
    monkeypatch.setattr("persistence.records.time", SimpleNamespace(time_ns=lambda: now * 1_000_000))
    ids.create("a", step=1000)
    for _ in range(5):  # a segment every 10 s: 100 numbers a second
        ids.take("a", 1000)
        now += 10_000
    seen = ids.inspect("a")
    assert seen.rate is not None
    assert 50 <= seen.rate <= 200
    ids.take("a", 200)
    seen = ids.inspect("a")
    assert seen.runway is not None
    assert seen.rate is not None
    assert seen.remaining == 800
    assert seen.runway == pytest.approx(800 / seen.rate)


@pytest.mark.covers("0.6")
def test_a_tag_that_moves_to_another_store_goes_on_above(fake_server: FencedFakeServer) -> None:
    with issuer.connect(redis=None, store="memory://", scheduler=None) as old:
        old.create("a", step=10)
        last = old.take("a", 25)[-1]
    with issuer.connect(redis=fake_server.client(), store="memory://", scheduler=None) as new:
        new.create("a", above=last)
        assert new.next("a") == last + 1
