"""A store on the table of Leaf, its Go port or tinyid, which draw from it by their own statements."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from issuer_persistence import contract, records
from issuer_persistence.errors import (
    Corrupt,
    Halted,
    LimitHit,
    MaxBehind,
    Misconfigured,
    TagMissing,
    Unconfirmed,
)
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.opening import open_store
from issuer_persistence.records import HIGHEST, TagChanges, TagSettings
from issuer_persistence.sql.shared_row import SharedRowTransaction
from tests.stores.benches import TIMEOUT, before, create, get, ranges, reserve, spans
from tests.stores.shared_rows import SharedRowBench
from tests.stores.theirs import Steps, connected
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.mariadb import MariaDBServer


def low_high(numbers: range) -> tuple[int, int]:
    return numbers[0] - 1, numbers[-1]


def reasons(bench: SharedRowBench, tag: str = "orders") -> list[str]:
    return [each.reason for each in reversed(bench.store.ledger(tag, newest=1000, timeout=TIMEOUT))]


@pytest.mark.covers("N.10")
def test_both_draw_from_one_row_in_turns_and_what_they_took_is_in_the_ledger(beside: SharedRowBench) -> None:
    beside.add("orders", max_id=beside.theirs.ahead, step=10)
    got = [
        low_high(beside.fetch()),
        *spans([reserve(beside.store, 10)]),
        low_high(beside.fetch()),
        low_high(beside.fetch()),
    ]
    got += spans([reserve(beside.open(), 5)])
    assert got == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 45)]
    assert ranges(beside.store) == [(0, 10), (10, 20), (20, 40), (40, 45)]
    assert reasons(beside) == ["foreign", "test", "foreign", "test"]
    entry = beside.store.ledger("orders", newest=1000, timeout=TIMEOUT)[1]
    assert (entry.host, entry.pid, entry.application) == ("", 0, "")
    assert low_high(beside.fetch()) == (45, 55)
    assert get(beside.store).max == 55


@pytest.mark.covers("N.10")
def test_a_tag_that_only_the_other_program_has_is_there_with_its_numbers_and_step(beside: SharedRowBench) -> None:
    beside.add("orders", max_id=5000 + beside.theirs.ahead, step=10)
    beside.add("Users", max_id=1, step=3)
    found = get(beside.store)
    assert (found.max, found.step, found.order, found.halted, found.lease_mode) == (5000, 10, "trend", False, "auto")
    # Leaf doubles its step, and processes of tinyid hold a segment each.
    assert (found.step_mode, found.ahead) == (("fixed", 10) if beside.layout == "tinyid" else ("auto", 1))
    assert found.description == ("Test leaf" if beside.theirs.description else "")
    assert get(beside.open()) == found
    assert [each.tag for each in beside.store.tags(count=10, timeout=TIMEOUT)] == ["Users", "orders"]
    assert beside.store.tags(count=10, after="Users", timeout=TIMEOUT) == [found]
    changes = TagChanges(step=20, step_mode="fixed", ahead=1, lease=5, seen=found.version)
    changed = beside.store.configure("orders", changes, timeout=TIMEOUT)
    assert (changed.max, changed.step, changed.lease) == (5000, 20, 5)
    assert get(beside.store) == changed
    assert beside.row() == (5000 + beside.theirs.ahead, 20)
    assert low_high(beside.fetch()) == (5000, 5020)
    assert spans([reserve(beside.store)]) == [(5020, 5040)]
    assert ranges(beside.store) == [(0, 5020), (5020, 5040)]


@pytest.mark.covers("U.29")
def test_a_step_that_is_adapted_leaves_the_column_which_has_the_lowest_one(leaf: SharedRowBench) -> None:
    leaf.add("orders", max_id=1, step=10)
    found = get(leaf.store)
    assert (found.step, found.min_step, found.max_step) == (10, 10, 1_000_000)
    grown = leaf.store.configure("orders", TagChanges(step=40, seen=found.version), timeout=TIMEOUT)
    assert get(leaf.open()) == grown
    assert (grown.step, grown.min_step, leaf.row()) == (40, 10, (1, 10))
    assert reserve(leaf.store).high == 40
    assert low_high(leaf.fetch()) == (40, 50)
    leaf.run("UPDATE leaf_alloc SET step = 2000000")
    found = get(leaf.store)
    assert (found.step, found.min_step, found.max_step) == (40, 2_000_000, 2_000_000)
    leaf.store.configure("orders", TagChanges(min_step=30), timeout=TIMEOUT)
    assert leaf.row() == (51, 30)
    leaf.store.configure("orders", TagChanges(step=50, step_mode="fixed"), timeout=TIMEOUT)
    assert (leaf.row(), get(leaf.open()).step) == ((51, 50), 50)
    create(leaf.store, "made", step=10)
    assert get(leaf.store, "made").step_mode == "fixed"
    leaf.add("quiet", max_id=1, step=10)
    assert [reserve(leaf.store, tag="quiet").high for _ in range(3)] == [10, 20, 30]
    assert (get(leaf.open(), "quiet").step, leaf.row("quiet")) == (10, (31, 10))


def test_a_tag_that_this_issuer_creates_is_one_of_the_other_program(beside: SharedRowBench) -> None:
    made = create(beside.store, above=99, step=10, description="x" * 300, limit=150)
    assert get(beside.store) == made
    assert beside.row() == (99 + beside.theirs.ahead, 10)
    assert low_high(beside.fetch()) == (99, 109)
    assert [reserve(beside.store).high for _ in range(4)] == [119, 129, 139, 149]
    assert spans([reserve(beside.store)]) == [(149, 150)]
    with pytest.raises(LimitHit):
        reserve(beside.store)
    assert low_high(beside.fetch()) == (150, 160)  # the limit stops only this issuer
    assert get(beside.store).description == "x" * 300


@pytest.mark.covers("N.10")
def test_a_name_that_the_collation_equates_is_not_the_tag(beside: SharedRowBench) -> None:
    beside.add("orders", max_id=500, step=10)
    before = beside.row()
    for name in ("Orders", "ORDERS", "orders ", "ördérs"):
        assert beside.store.get(name, timeout=TIMEOUT) is None
        for call in (
            partial(reserve, beside.store, tag=name),
            partial(beside.store.halt, name, timeout=TIMEOUT),
            partial(beside.store.recover, name, at_least=9000, timeout=TIMEOUT),
        ):
            with pytest.raises(TagMissing):
                call()
        with pytest.raises(Misconfigured, match="same name as 'orders'"):
            create(beside.store, name)
    with pytest.raises(Misconfigured, match="same name as 'New'"):
        beside.store.create_many({"New": TagSettings(), "new": TagSettings()}, timeout=TIMEOUT)
    assert beside.row() == before
    assert [each.tag for each in beside.store.tags(count=10, timeout=TIMEOUT)] == ["orders"]


def test_numbers_are_handed_back_unless_the_other_program_has_fetched(beside: SharedRowBench) -> None:
    create(beside.store, step=100)
    assert beside.store.hand_back([reserve(beside.store)], 40, timeout=TIMEOUT)
    assert beside.row()[0] == 40 + beside.theirs.ahead
    assert low_high(beside.fetch()) == (40, 140)
    held = reserve(beside.store)
    beside.fetch()
    assert not beside.store.hand_back([held], 150, timeout=TIMEOUT)
    assert spans([reserve(beside.store)]) == [(340, 440)]
    assert ranges(beside.store) == [(0, 40), (40, 140), (140, 150), (240, 340), (340, 440)]
    assert beside.store.hand_back([reserve(beside.store)], 440, timeout=TIMEOUT)
    assert low_high(beside.fetch()) == (440, 540)


@pytest.mark.covers("N.10")
def test_a_max_that_was_lowered_by_hand_is_refused_until_recover(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    reserve(beside.store, 100)
    beside.fetch()
    assert reserve(beside.store).high == 120
    ledger = ranges(beside.store)
    table, key = beside.theirs.table, beside.theirs.key
    beside.run(f"UPDATE {table} SET max_id = 1 WHERE {key} = 'orders'")  # noqa: S608 - ours
    for _ in range(2):
        with pytest.raises(MaxBehind) as caught:
            reserve(beside.open())
        assert (caught.value.max, caught.value.at_least, caught.value.certain) == (1 - beside.theirs.ahead, 120, True)
    assert beside.row()[0] == 1
    assert beside.store.halt("orders", timeout=TIMEOUT)
    beside.store.configure("orders", TagChanges(lease=0), timeout=TIMEOUT)
    assert beside.row()[0] == 1  # nothing but recover raises it
    beside.run(f"DELETE FROM {table} WHERE {key} = 'orders'")  # noqa: S608 - ours
    with pytest.raises(TagMissing):
        reserve(beside.store)
    beside.add("orders", max_id=50)
    with pytest.raises((MaxBehind, Halted)):
        reserve(beside.store)
    recovered = beside.store.recover("orders", at_least=0, timeout=TIMEOUT)
    assert (recovered.max, recovered.halted) == (120, False)
    assert ranges(beside.store) == ledger
    assert spans([reserve(beside.store, 10)]) == [(120, 130)]
    assert low_high(beside.fetch())[0] == 130


def test_rows_that_were_both_set_back_below_the_ledger_are_refused(beside: SharedRowBench) -> None:
    """As after a backup of some tables was restored."""
    create(beside.store, step=10)
    reserve(beside.store, 100)
    table, key = beside.theirs.table, beside.theirs.key
    beside.run(f"UPDATE {table} SET max_id = {50 + beside.theirs.ahead} WHERE {key} = 'orders'")  # noqa: S608 - ours
    beside.run("UPDATE issuer_tags SET `max` = 50")
    with pytest.raises(MaxBehind):
        reserve(beside.open())
    assert beside.store.recover("orders", at_least=100, timeout=TIMEOUT).max == 100


def test_a_tag_whose_row_is_gone_starts_after_its_numbers_when_it_is_created_again(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    reserve(beside.store)
    beside.run(f"DELETE FROM {beside.theirs.table}")  # noqa: S608 - ours
    assert beside.store.tags(count=10, timeout=TIMEOUT) == []
    assert create(beside.store, step=10).max == 10
    assert spans([reserve(beside.store)]) == [(10, 20)]


def test_a_halt_stops_this_issuer_and_a_raised_max_stands_in_the_row(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    beside.store.halt("orders", timeout=TIMEOUT)
    with pytest.raises(Halted):
        reserve(beside.store)
    assert low_high(beside.fetch()) == (0, 10)
    assert beside.store.recover("orders", at_least=500, timeout=TIMEOUT).max == 500
    assert low_high(beside.fetch()) == (500, 510)
    assert beside.store.configure("orders", TagChanges(raise_to=700), timeout=TIMEOUT).max == 700
    assert spans([reserve(beside.store)]) == [(700, 710)]
    assert ranges(beside.store) == [(0, 10), (500, 510), (700, 710)]


@pytest.mark.covers("N.10")
def test_what_such_a_row_cannot_have_is_refused(beside: SharedRowBench) -> None:
    name = "x" * beside.theirs.name_most
    create(beside.store, name)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: create(beside.store, name + "y"), "characters"),
        (lambda: create(beside.store, step=2**31), "step"),
        (lambda: create(beside.store, scheme={"id": "1", "stride": [{"from": 1, "first": 1, "stride": 2}]}), "scheme"),
        (lambda: beside.store.configure(name, TagChanges(scheme={"id": "1"}), timeout=TIMEOUT), "scheme"),
        (lambda: beside.store.configure(name, TagChanges(step=2**31), timeout=TIMEOUT), "step"),
        (lambda: beside.store.delete(name, timeout=TIMEOUT), "issuer adopt"),
    ]
    for call, problem in calls:
        with pytest.raises(Misconfigured, match=problem):
            call()
    assert [each.tag for each in beside.store.tags(count=10, timeout=TIMEOUT)] == [name]
    assert beside.store.configure(name, TagChanges(step=2**31 - 1), timeout=TIMEOUT).step == 2**31 - 1


def test_the_last_number_fits_into_the_column(beside: SharedRowBench) -> None:
    last = HIGHEST - beside.theirs.ahead
    create(beside.store, above=last - 15, step=10)
    assert reserve(beside.store).high == last - 5
    assert reserve(beside.store, 5).high == last
    with pytest.raises(LimitHit):
        reserve(beside.store, 1)


#: What is done to the table, and what the store says of it.
UNSAFE = [
    ("ALTER TABLE {table} ENGINE=MyISAM", "engine MyISAM"),
    ("ALTER TABLE {table} MODIFY max_id INT NOT NULL", "max_id is int"),
    ("ALTER TABLE {table} MODIFY update_time DATE NOT NULL", "update_time is date"),
    ("ALTER TABLE {table} DROP COLUMN step", "step is missing"),
    ("CREATE TRIGGER t BEFORE UPDATE ON {table} FOR EACH ROW SET NEW.max_id = 1", "trigger t"),
    ("RENAME TABLE {table} TO elsewhere", "no table"),
    ("ALTER TABLE {table} DROP INDEX {index}", "no primary or unique key"),
    ("ALTER TABLE {table} DROP INDEX {index}, ADD INDEX (biz_tag)", "no primary or unique key"),
    ("ALTER TABLE {table} DROP INDEX {index}, ADD UNIQUE (biz_tag(5))", "no primary or unique key"),
    ("ALTER TABLE {table} ADD area INT NOT NULL, DROP INDEX {index}, ADD UNIQUE (biz_tag, area)", "no primary or uni"),
]


@pytest.mark.covers("N.10")
@pytest.mark.parametrize(("statement", "problem"), UNSAFE)
def test_a_table_that_could_repeat_or_lose_numbers_is_refused(
    leaf: SharedRowBench, statement: str, problem: str
) -> None:
    leaf.run(statement.format(table="leaf_alloc", index="`PRIMARY`"))
    for call in (lambda: get(leaf.store), lambda: create(leaf.store), lambda: leaf.store.upgrade(timeout=TIMEOUT)):
        with pytest.raises(Misconfigured, match=problem):
            call()
    assert leaf.run("SHOW TABLES LIKE 'issuer%%'") == []


def test_a_table_without_transactions_is_refused_later_too(leaf: SharedRowBench) -> None:
    create(leaf.store)
    leaf.run("ALTER TABLE leaf_alloc ENGINE=MyISAM")
    with pytest.raises(Misconfigured, match="MyISAM"):
        reserve(leaf.open())


def test_the_table_of_the_other_layout_is_refused(leaf: SharedRowBench) -> None:
    for layout, problem in (("leaf-go", "id is missing"), ("tinyid", "no table tiny_id_info")):
        with (
            closing(open_store(f"{leaf.server}?layout={layout}")) as store,
            pytest.raises(Misconfigured, match=problem),
        ):
            store.get("orders", timeout=TIMEOUT)
    with pytest.raises(Misconfigured, match="layout must be one of leaf, leaf-go, tinyid"):
        open_store(f"{leaf.server}?layout=cosid")
    with pytest.raises(Misconfigured, match="unknown parameter colour"):
        open_store(f"{leaf.server}?layout=leaf&colour=red")


def test_rows_of_tinyid_with_a_delta_are_left_to_it(tinyid: SharedRowBench) -> None:
    for tag, delta, remainder in (("odd", 2, 1), ("never", 1, 1), ("fine", 1, 0)):
        tinyid.add(tag)
        tinyid.run("UPDATE tiny_id_info SET delta = %s, remainder = %s WHERE biz_type = %s", delta, remainder, tag)
    assert [each.tag for each in tinyid.store.tags(count=10, timeout=TIMEOUT)] == ["fine"]
    for tag in ("odd", "never"):
        with pytest.raises(Corrupt, match="delta"):
            reserve(tinyid.store, tag=tag)
    # One that was shared before is a damaged record beside the others.
    tinyid.add("other")
    reserve(tinyid.store, tag="fine")
    tinyid.run("UPDATE tiny_id_info SET delta = 2 WHERE biz_type = 'fine'")
    damaged, other = tinyid.store.tags(count=10, timeout=TIMEOUT)
    assert isinstance(damaged, Corrupt)
    assert (damaged.tag, other.tag) == ("fine", "other")


@pytest.mark.covers("N.10")
def test_the_shared_row_is_locked_before_the_own_row(beside: SharedRowBench) -> None:
    """Who waits for the shared row holds nothing that anybody else could wait for."""
    create(beside.store, step=10)
    with closing(connected(beside.server)) as program, program.cursor() as cursor:
        table, key = beside.theirs.table, beside.theirs.key
        cursor.execute(f"UPDATE {table} SET max_id = max_id + 10 WHERE {key} = 'orders'")  # noqa: S608 - ours
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reserve, beside.open())
            try:
                until(lambda: waits(beside), TIMEOUT, "the reservation waits for the row")
                found = beside.run("SELECT tag FROM issuer_tags WHERE tag = 'orders' FOR UPDATE NOWAIT")
                assert found == [(b"orders",)]
            finally:
                program.commit()
            waiting.result()
    assert ranges(beside.store) == [(0, 10), (10, 20)]
    assert reasons(beside) == ["foreign", "test"]


def waits(bench: SharedRowBench) -> bool:
    statements = bench.run("SELECT info FROM information_schema.processlist WHERE db = %s", bench.database)
    return any(f'FROM "{bench.theirs.table}"' in (text or "") for (text,) in statements)


@pytest.mark.covers("N.10")
def test_a_row_that_changes_in_spite_of_the_lock_brings_no_numbers(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    reserve(beside.store)
    time.sleep(beside.theirs.pause)
    with before(SharedRowTransaction, "take_over", beside.fetch), pytest.MonkeyPatch.context() as patched:
        patched.setattr(SharedRowTransaction, "_lock", "")
        with pytest.raises(Unconfirmed, match="in spite of the lock"):
            reserve(beside.store)
    assert low_high(beside.fetch())[0] >= 20
    assert ranges(beside.store) == [(0, 10)]


def test_reservations_wait_for_the_row_as_long_as_their_deadline(leaf: SharedRowBench) -> None:
    create(leaf.store, step=10)
    with closing(connected(leaf.server)) as program, program.cursor() as cursor:
        cursor.execute("UPDATE leaf_alloc SET max_id = max_id + 10 WHERE biz_tag = 'orders'")
        with pytest.raises(Unconfirmed):
            leaf.store.reserve("orders", 5, purpose=Purpose("test"), timeout=0.3)
        program.rollback()
    assert spans([reserve(leaf.store)]) == [(0, 10)]


@pytest.mark.covers("N.10")
@pytest.mark.parametrize("ahead", [0, -3_600_000])
def test_reservations_beside_tinyid_are_a_tenth_of_a_second_apart(
    tinyid: SharedRowBench, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ahead`: of the server's clock, this machine's is so many ms. All machines take turns by the server's clock."""
    really = records.now_ms
    monkeypatch.setattr(records, "now_ms", lambda: really() + ahead)
    create(tinyid.store, step=10)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: reserve(tinyid.open()), range(8)))
    times = sorted(each.tag.timestamp for each in got)
    assert min(later - earlier for earlier, later in pairwise(times)) >= 100
    assert sorted(spans(got)) == [(low, low + 10) for low in range(0, 80, 10)]
    # Both calls of a batch have a turn.
    take = lambda within, left: within.reserve("orders", 10, purpose=Purpose("test"), timeout=left)  # noqa: E731
    monkeypatch.setattr(contract, "BATCH_TIME", TIMEOUT)
    done = tinyid.store.batch([take, take], timeout=20)
    assert spans(each for each in done if isinstance(each, Reservation)) == [(80, 90), (90, 100)]
    # The clock of the server has gone back: nobody waits for it.
    tinyid.run("UPDATE issuer_tags SET timestamp = timestamp + 3600000")
    assert reserve(tinyid.store).high == 110

    def refused() -> bool:
        reserve(tinyid.store)
        try:
            tinyid.store.reserve("orders", 5, purpose=Purpose("test"), timeout=0.05)
        except Unconfirmed:
            return True
        return False

    until(refused, message="two calls that this machine makes within a turn")


@pytest.mark.covers("N.10")
def test_a_batch_takes_over_what_the_other_program_has_taken(beside: SharedRowBench) -> None:
    for tag in ("a", "b", "c"):
        beside.add(tag, max_id=beside.theirs.ahead)
        beside.fetch(tag)
    calls = [
        lambda store, left, tag=tag: store.reserve(tag, 10, purpose=Purpose("test"), timeout=left)
        for tag in ("a", "no", "b", "c")
    ]
    answers: list[object] = []
    while len(answers) < len(calls):
        answers += beside.store.batch(calls[len(answers) :], timeout=TIMEOUT)
    assert isinstance(answers.pop(1), TagMissing)
    assert [(each.low, each.high) for each in answers] == [(10, 20)] * 3  # type: ignore[attr-defined]
    assert [ranges(beside.store, tag) for tag in "abc"] == [[(0, 10), (10, 20)]] * 3


def test_processes_that_use_tags_first_at_once_take_over_each_tag_once(leaf: SharedRowBench) -> None:
    tags = [f"t{number}" for number in range(8)]
    for tag in tags:
        leaf.add(tag, max_id=101)
    stores = [leaf.open() for _ in range(6)]
    with ThreadPoolExecutor(len(stores)) as pool:
        for _ in pool.map(lambda store: [reserve(store, tag=tag) for tag in tags], stores):
            pass
    for tag in tags:
        assert ranges(leaf.store, tag) == [(0, 100), *((low, low + 10) for low in range(100, 160, 10))]


def test_names_in_another_character_set_are_compared_by_their_letters(mariadb_server: MariaDBServer) -> None:
    with SharedRowBench(mariadb_server.url, "leaf", collation="latin1_swedish_ci") as bench:
        bench.add("größe", max_id=51)
        assert [each.tag for each in bench.store.tags(count=10, timeout=TIMEOUT)] == ["größe"]
        assert spans([reserve(bench.store, tag="größe")]) == [(50, 60)]
        assert bench.store.get("京", timeout=TIMEOUT) is None
        with pytest.raises(Misconfigured):
            create(bench.store, "京")


def test_leaf_takes_the_column_twice_and_then_doubles_its_own_step() -> None:
    """What was seen of a Leaf whose column says 10."""
    steps = Steps()
    assert [steps.next(10) or 10 for _ in range(9)] == [10, 10, 20, 40, 80, 160, 320, 640, 1280]
