"""Promises that users of such systems ask for first, each shown on its own."""

import random
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import issuer
from issuer.persistence.memory import MemoryStore
from issuer.persistence.mongodb import MongoStore
from tests.audit import repeats
from tests.integration.days import Make
from tests.servers.fake import FencedFakeServer
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]


@pytest.mark.covers("0.1")
def test_a_million_draws_repeat_nothing_where_date_and_random_digits_do() -> None:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a", step=50_000)
        assert len(set(ids.take("a", 1_000_000))) == 1_000_000
    chance = random.Random(1)
    assert len({chance.randrange(10**9) for _ in range(1_000_000)}) < 1_000_000, "on one day"


@pytest.mark.covers("0.3")
def test_numbers_are_exact_integers_that_increase_up_to_2_to_63_minus_1(make: Make) -> None:
    ids = make()
    for last in (107, 2**53 + 4, 2**63 - 1):
        ids.create(f"to {last}", above=last - 100, limit=last, step=7)
        numbers = ids.take(f"to {last}", 100)
        assert numbers == list(range(last - 99, last + 1))
        assert {type(number) for number in numbers} == {int}
        with pytest.raises(issuer.LimitReached):
            ids.next(f"to {last}")


@pytest.mark.covers("0.11", "1.2")
def test_without_redis_numbers_increase_within_a_process_and_by_segments_across() -> None:
    store = MemoryStore()
    with (
        issuer.connect(redis="none", store=store, scheduler=None) as one,
        issuer.connect(redis="none", store=store, scheduler=None) as two,
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
def test_a_transaction_of_the_caller_in_the_same_sqlite_file_neither_takes_a_reservation_in_nor_rolls_it_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "both.db"
    with (
        issuer.connect(redis="none", store=f"sqlite:///{path}", scheduler=None) as ids,
        closing(sqlite3.connect(path, isolation_level=None)) as shop,
        closing(sqlite3.connect(path, isolation_level=None)) as outside,
    ):
        ids.create("a", step=3)
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        reserved = "SELECT max FROM tags"
        numbers: list[int] = []
        for _ in range(3):
            # It has read: what is reserved meanwhile is there for others at once, and not for it.
            shop.execute("BEGIN")
            before = shop.execute(reserved).fetchone()
            numbers += ids.take("a", 4)
            assert outside.execute(reserved).fetchone() > shop.execute(reserved).fetchone() == before
            shop.execute("ROLLBACK")
            assert shop.execute(reserved).fetchone() == outside.execute(reserved).fetchone()
            # It has written: SQLite has one writer, so a reservation that doesn't join it has to wait.
            shop.execute("BEGIN")
            shop.execute("INSERT INTO orders VALUES (?)", numbers[-1:])
            for _ in range(ids.inspect("a").store.max - numbers[-1]):
                numbers.append(ids.next("a"))  # in hand
            with pytest.raises(issuer.StoreUnavailable, match="locked"):
                ids.next("a", timeout=0.1)
            shop.execute("ROLLBACK")
            numbers.append(ids.next("a"))
        assert numbers == list(range(1, len(numbers) + 1))
        assert shop.execute("SELECT count(*) FROM orders").fetchone() == (0,)


class Commands(CommandListener):
    """Notes what is sent to MongoDB."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(event.command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        del event

    def failed(self, event: CommandFailedEvent) -> None:
        del event


@pytest.mark.parametrize("store_url", ["mongodb"], indirect=True)
@pytest.mark.covers("2.6", "2.7", "2.14")
def test_a_transaction_of_the_caller_on_the_same_mongodb_client_is_not_joined(store_url: str) -> None:
    commands = Commands()
    with pymongo.MongoClient[dict[str, Any]](store_url, event_listeners=[commands]) as client:
        shop = client.get_default_database()
        shop.create_collection("orders")
        with issuer.connect(redis="none", store=MongoStore(shop), scheduler=None) as ids, ThreadPoolExecutor(1) as pool:
            ids.create("a", step=3)
            numbers = ids.take("a", 4)
            for _ in range(3):
                with client.start_session() as session:
                    session.start_transaction()
                    shop["orders"].insert_one({"number": numbers[-1]}, session=session)
                    commands.sent.clear()
                    # The wire server of the tests keeps others out of its database as long as a transaction is open.
                    drawing = pool.submit(ids.take, "a", 5)
                    until(lambda: [each for each in commands.sent if "findAndModify" in each], 60)
                    for each in list(commands.sent):
                        assert each.get("lsid") != session.session_id
                        assert "autocommit" not in each
                    session.abort_transaction()
                numbers += drawing.result()
        assert numbers == sorted(set(numbers))
        with issuer.connect(redis="none", store=MongoStore(shop), scheduler=None) as again:
            assert again.next("a") > numbers[-1]
            assert again.verify("a") == []
        assert shop["orders"].count_documents({}) == 0


@pytest.mark.covers("2.8", "2.10")
def test_a_block_of_ten_gives_exactly_ten_numbers_both_ends_included() -> None:
    store = MemoryStore()
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
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
        with issuer.connect(redis="none", store=url, scheduler=None) as ids:
            if run == 0:
                ids.create("a", step=10)
            first, *_, end = ids.take("a", 7)
            assert first > last
            last = end


@pytest.mark.covers("4.19", "2.11")
def test_a_tag_made_by_many_at_once_is_made_once() -> None:
    store = MemoryStore()

    def make(number: int) -> str:
        with issuer.connect(redis="none", store=store, scheduler=None) as ids:
            try:
                return str(ids.create("a", step=10, description=str(number)).description)
            except issuer.TagExists:
                return ""

    with ThreadPoolExecutor(16) as pool:
        made = [each for each in pool.map(make, range(16)) if each]
    assert [made] == [[tag.description] for tag in store.tags(timeout=1)]


@pytest.mark.covers("0.10")
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_each_process_more_adds_as_many_numbers_at_the_same_cost_and_no_two_ranges_overlap(nodes: int) -> None:
    """What that is in numbers a second: `make bench`."""
    store = MemoryStore()
    with ExitStack() as ends:
        made = [ends.enter_context(issuer.connect(redis="none", store=store, scheduler=None)) for _ in range(nodes)]
        made[0].create("a", step=50)
        with ThreadPoolExecutor(nodes) as pool:
            drawn = list(pool.map(lambda ids: [ids.next("a") for _ in range(1000)], made))
        numbers = [number for each in drawn for number in each]
        assert len(numbers) == len(set(numbers)) == nodes * 1000
        ranges = sorted((entry.low, entry.high) for entry in store.ledger("a", newest=1000, timeout=1))
        assert len(ranges) == nodes * 1000 / 50, "reservations, as many for each process"
        assert all(one[1] <= other[0] for one, other in pairwise(ranges))


def test_inspect_tells_rate_and_runway(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = make()
    now = 1_000_000_000_000
    monkeypatch.setattr("issuer.persistence.records.time", SimpleNamespace(time_ns=lambda: now * 1_000_000))
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
def test_tags_live_in_two_stores_side_by_side_and_one_that_moves_goes_on_above(
    fake_server: FencedFakeServer, tmp_path: Path
) -> None:
    with (
        issuer.connect(redis=fake_server.client(), store=MemoryStore(), prefix="one", scheduler=None) as one,
        issuer.connect(redis=fake_server.client(), store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=None) as other,
    ):
        for ids, tag in ((one, "orders"), (other, "users")):
            ids.create(tag, step=10)
        assert [(one.next("orders"), other.next("users")) for _ in range(25)] == [(n, n) for n in range(1, 26)]
        for ids, unknown in ((one, "users"), (other, "orders")):
            with pytest.raises(issuer.UnknownTag):
                ids.next(unknown)
        last = one.take("orders", 5)[-1]
        one.delete("orders")
        other.create("orders", above=last)
        assert [(other.next("orders"), other.next("users")) for _ in range(3)] == [(31, 26), (32, 27), (33, 28)]
        with pytest.raises(issuer.UnknownTag):
            one.next("orders")
