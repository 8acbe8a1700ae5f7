"""A record that another program has damaged is an entry of its own: all other tags are listed, verified and served."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import issuer
from issuer.care import keeper
from issuer_persistence.sqlite import SQLiteStore
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.schemes import Make
from tests.waiting import until

pytestmark = pytest.mark.live

TAGS = ("a", "orders", "z")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ids.db"


@pytest.fixture
def make_live(connect: Connect, redis_url: str, path: Path) -> Make:
    """Make issuers on a store with three tags, with 1..10 issued of each. The record of `orders` is damaged."""

    def made(**more: object) -> issuer.Issuer:
        return connect(redis=redis_url, store=SQLiteStore(path), **{**ENDLESS, **more})

    with made() as ids:
        for tag in TAGS:
            ids.create(tag, step=100, order="strict")
            assert ids.take(tag, 10) == list(range(1, 11))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute("UPDATE tags SET step = 0 WHERE tag = 'orders'")
    return made


def test_it_is_a_finding_of_verify_and_of_the_doctor_and_the_others_are_sound(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        [found] = ids.verify()
        assert (found.tag, found.kind) == ("orders", "damaged record")
        assert "step" in found.problem
        seen = {each.check: each for each in ids.doctor()}
        assert seen["tag-damaged-record"].subject == "tag orders"
        assert seen["tag-damaged-record"].level == "weak"
        assert seen["tags-looked-at"].what == "all tags were examined: 3"


def test_the_server_is_ready_and_the_other_tags_are_recovered(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        assert ids.ready().store is None
        with pytest.raises(issuer.CorruptState, match=r"'orders'.*step"):
            ids.tags()
        with pytest.raises(issuer.CorruptState, match=r"'orders'.*step"):
            ids.recover(None)
        for tag in ("a", "z"):
            assert ids.next(tag) == 101  # above all that was reserved


def test_a_keeper_loads_segments_of_the_others(make_live: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 2)
    with make_live(scheduler=None) as ids, make_live() as kept:
        for tag in ("a", "z"):
            ids.take(tag, 85)
        kept.keep()
        until(lambda: all(ids.inspect(tag).store.max == 200 for tag in ("a", "z")), 60, "both have a next segment")


def test_a_damaged_part_is_told_when_its_tag_is_recovered_and_no_other_one(make_live: Make, path: Path) -> None:
    with make_live(scheduler=None) as ids:
        for tag in ("bills", "notes"):
            ids.create(tag, keyed=True, step=100)
            for part in ("x", "w", "z"):
                ids.issue(tag, restart_key=part)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute("UPDATE tags SET step = 0 WHERE tag = 'bills#x'")
            database.execute("UPDATE tags SET max = 0 WHERE tag = 'bills#z'")
        with pytest.raises(issuer.CorruptState, match="bills#x"):
            ids.recover("bills")
        for part in ("w", "z"):  # those before and after it were recovered
            assert ids.issue("bills", restart_key=part).value == 101
        with pytest.raises(issuer.CorruptState, match="bills#x"):
            ids.halt("bills")
        assert [ids.inspect(f"bills#{part}").store.halted for part in ("w", "z")] == [True, True]
        ids.recover("bills#w")
        ids.recover("bills#z")
        assert ids.issue("bills", restart_key="y").value == 1
        assert [each.tag for each in ids.recover("notes")] == ["notes", "notes#w", "notes#x", "notes#z"]


def test_machine_numbers_in_the_store_are_listed_beside_it(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        ids.create("snow", strategy="snowflake", options={"machine": "store"})
        assert ids.next("snow")
        assert len(ids.machines("snow").used) == 1
