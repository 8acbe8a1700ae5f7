"""`issuer import --split`: the source and this issuer give numbers side by side, and none twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from issuer.care.importing import database
from tests.cli.conftest import Cli, altered
from tests.cli.sources import LAYOUTS, Sources, shown

pytestmark = pytest.mark.live


def test_numbers_that_only_redis_has_are_not_split(with_redis: Cli, sources: Sources, home: Path) -> None:
    source = sources("leaf", rows=[("orders", 1001, 10, ""), ("within", 1001, 10, "")])
    for tag, start in (("orders", "2000"), ("within", "900")):
        with_redis("create", tag, "--start", start, "--step", "1000")
        assert with_redis("next", tag).out == f"{start}\n"
    altered(home, "UPDATE tags SET max = 500")  # a restored store: Redis has the numbers up to 1899 and 2999
    ended = with_redis("import", "--from", source.url, "--layout", "leaf", "--split", "100")
    assert ended.code == 4
    for tag, top in (("orders", 2999), ("within", 1899)):
        assert f"{tag} is not imported: numbers up to {top} are reserved here already" in ended.err
    assert source.run("SELECT max_id FROM leaf_alloc") == [(1001,), (1001,)]


def test_a_deleted_tag_above_the_end_of_a_split_is_refused_before_the_source_is_changed(
    direct: Cli, sources: Sources
) -> None:
    source = sources("leaf", rows=[("above", 101, 10, ""), ("within", 101, 10, "")])
    for tag, last in (("above", "900"), ("within", "149")):
        direct("create", tag, "--above", last)
        direct("delete", tag, "--yes")
    ended = direct("import", "--from", source.url, "--layout", "leaf", "--split", "60")
    assert (ended.code, shown(ended)) == (4, {"within": [100, 150, 160]})
    assert "above is not imported: no number above 900 is left up to the limit 160" in ended.err
    assert source.run("SELECT max_id FROM leaf_alloc ORDER BY biz_tag") == [(101,), (161,)]
    assert direct("next", "within").out == "150\n"


@pytest.mark.covers("U.13")
def test_a_split_gives_both_their_own_numbers_until_the_source_has_stopped(direct: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("orders", 101, 10, ""), ("bad", 1, 0, "")])
    given = {*range(1, 101)}
    line = ["import", "--from", source.url, "--layout", "leaf"]
    dry = direct(*line, "--split", "30", "--dry-run")
    assert (dry.code, shown(dry)) == (4, {"orders": [100, 101, 130]})
    assert source.run("SELECT max_id FROM leaf_alloc ORDER BY biz_tag") == [(1,), (101,)]
    assert direct(*line, "--split", "30").out == dry.out
    assert source.run("SELECT max_id FROM leaf_alloc ORDER BY biz_tag") == [(1,), (131,)]

    def draw(count: int) -> None:
        for _ in range(count):
            number = int(direct("next", "orders").out)
            assert number not in given
            given.add(number)

    def fetch(step: int | None = None) -> None:
        fetched = source.leaf("orders", step)
        assert given.isdisjoint(fetched)
        given.update(fetched)

    draw(5)
    fetch()
    fetch(20)
    draw(25)
    assert "limit" in direct("next", "orders").err
    assert shown(direct(*line, "--split", "7")) == {"orders": [160, 161, 167]}
    fetch()
    draw(7)
    fetch(40)
    assert direct("next", "orders").code == 1
    ended = direct(*line)
    assert shown(ended) == {"orders": [217, 218]}
    assert f"orders: its limit here becomes {2**63 - 1}" in ended.err
    draw(30)
    assert shown(direct(*line)) == {"orders": [217, 248]}
    refused = direct(*line, "--split", "5")
    assert (refused.code, "reserved here already, above 217" in refused.err) == (4, True)


@pytest.mark.covers("U.13")
def test_leaf_goes_on_while_its_rows_are_split(direct: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("orders", 1, 3, ""), ("pay", 1, 3, "")])
    there: list[int] = []
    here: list[int] = []
    stopped = Event()

    def leaf() -> None:
        other = source.again()
        with closing(other.connection):
            while not stopped.is_set():
                there.extend(other.leaf("orders"))

    line = ["import", "--from", source.url, "--layout", "leaf"]
    with ThreadPoolExecutor() as threads:
        running = [threads.submit(leaf) for _ in range(3)]
        try:
            for _ in range(4):
                assert direct(*line, "--split", "50").code == 0
                here += map(int, direct("next", "orders", "-n", "40").out.split())
        finally:
            stopped.set()
        for each in running:
            each.result()
    assert direct(*line).code == 0
    here += map(int, direct("next", "orders", "-n", "40").out.split())
    assert (len(here), len({*here, *there})) == (200, len(here) + len(there))
    assert min(here) < max(there)


def test_a_row_that_moves_while_it_is_split_changes_nothing(
    direct: Cli, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources("leaf", rows=[("orders", 101, 10, ""), ("pay", 7, 10, "")])
    read = database._rows

    def unlocked(cursor: Any, layout: Any, choice: Any, lock: str = "") -> Any:
        found = read(cursor, layout, choice)
        if lock:
            source.leaf("orders")
        return found

    monkeypatch.setattr(database, "_rows", unlocked)
    ended = direct("import", "--from", source.url, "--layout", "leaf", "--split", "30")
    assert (ended.code, "so none was changed" in ended.err) == (5, True)
    assert source.run("SELECT max_id FROM leaf_alloc ORDER BY biz_tag") == [(111,), (7,)]
    assert direct("tags", "--json").json() == []


@pytest.mark.parametrize("sources", ["mariadb"], indirect=True)
def test_a_counter_column_that_is_split_by_hand(direct: Cli, sources: Sources) -> None:
    source = sources("table")
    source.insert("orders", "id, name", (12, "a"))
    source.run("ALTER TABLE orders AUTO_INCREMENT = 1000")
    direct("create", "orders", "--start", "13", "--limit", "999")
    assert direct("next", "orders").out == "13\n"
    line = ["import", "--from", source.url, "--layout", "table", "--table", "orders", "--column", "id"]
    assert shown(direct(*line, "--dry-run")) == {"orders": [999, 1000]}
    source.run("INSERT INTO orders (name) VALUES ('b')")
    ended = direct(*line)
    assert (shown(ended), "its limit here becomes" in ended.err) == ({"orders": [1000, 1001]}, True)
    assert direct("next", "orders").out == "1001\n"


@pytest.mark.parametrize("layout", ["leaf-go", "tinyid", "cosid", "sequence", "django-sequences"])
def test_each_table_that_can_be_split_goes_on_above(direct: Cli, sources: Sources, layout: str) -> None:
    table, rows, _, promised = LAYOUTS[layout]
    source = sources(layout)
    source.insert(*table, *rows)
    line = ["import", "--from", source.url, "--layout", layout]
    ended = direct(*line, "--split", "11")
    assert ended.code == 0, ended.err
    here = {}
    for tag, (last, first, end) in shown(ended).items():
        assert ([last, first], end - last >= 11) == (promised[tag], True)
        drawn = []
        while not (done := direct("next", tag)).code:
            drawn.append(int(done.out))
        assert (drawn[0], drawn[-1] <= end) == (first, True)
        here[tag] = (end, drawn)
    for tag, (last, first) in shown(direct(*line)).items():
        end, drawn = here[tag]
        assert last == end
        assert int(direct("next", tag).out) == first > drawn[-1]


def test_tinyid_goes_on_with_its_own_statements_after_a_split(direct: Cli, sources: Sources) -> None:
    source = sources("tinyid", rows=[(1, "odd", 1, 10, 2, 1)])
    given = source.tinyid("odd")
    line = ["import", "--from", source.url, "--layout", "tinyid"]
    assert shown(direct(*line, "--split", "9")) == {"odd": [11, 13, 21]}
    given += source.tinyid("odd")
    given += [int(each) for each in direct("next", "odd", "-n", "5").out.split()]
    given += source.tinyid("odd")
    direct(*line)
    given += [int(each) for each in direct("next", "odd", "-n", "9").out.split()]
    assert sorted(given) == [*range(3, 60, 2)]
