"""Tags in parts: what is done to a tag is done to its shards and series."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Ask
from issuer.drivers.store_pool import StorePool
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import TagChanges
from tests.colours import BOTH
from tests.days import Set
from tests.refusals import refused
from tests.schemes import Make

pytestmark = pytest.mark.colours("blocking")

SMALL = {"shard_bits": 2, "app_bits": 8}


@BOTH
def test_a_part_is_deleted_and_changed_with_its_tag_alone(make: Make) -> None:
    ids = make()
    ids.create("users", shards=SMALL)
    ids.create("cust", keyed=True)
    ids.issue("cust", restart_key="a")
    before = ids.tags()
    for part, whole in (("users#1", "users"), ("cust#a", "cust")):
        caught = refused(issuer.InvalidArgument, f"part of '{whole}'", ids.delete, part)
        assert (caught.tag, caught.value) == (part, whole)
        for change in ({"limit": 5}, {"step": 5}, {"description": "x"}, {"stride": 2, "offset": 1}):
            refused(issuer.InvalidArgument, f"part of '{whole}'", ids.configure, part, **change)
    assert ids.tags() == before
    ids.halt("users#1")
    assert [done.tag for done in ids.recover("users#1")] == ["users#1"]
    ids.delete("users")
    ids.delete("cust")
    assert ids.tags() == []


@BOTH
def test_a_new_series_takes_two_calls_of_the_store_and_its_reservation(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make()
    ids.create("cust", keyed=True)
    ids.issue("cust", restart_key="a")
    asked: list[object] = []
    submit = StorePool.submit

    def counted(pool: StorePool, step: Ask, *rest: Any) -> float:
        asked.append(step)
        return submit(pool, step, *rest)

    monkeypatch.setattr(StorePool, "submit", counted)
    assert ids.issue("cust", restart_key="b").counter == 1
    assert len(asked) == 3


def test_background_work_is_silent_about_a_part_that_a_caller_is_creating(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ids = make()
    ids.create("cust", keyed=True)
    ids.engine.registry.combiner("cust#a")  # as the caller does first
    finished(ids.engine.upkeep.sweep)
    finished(ids.engine.upkeep.refresh)
    ids.tick()
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert ids.issue("cust", restart_key="a").counter == 1


def test_background_work_creates_no_part_as_a_tag_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any settings, a tag is created at its first use."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with issuer.connect(scheduler=None) as ids:
        ids.create("cust", keyed=True)
        part = ids.engine.registry.combiner("cust#a")  # as a caller does first
        with pytest.raises(issuer.UnknownTag):
            finished(lambda: part.run(part.supply.refresh(), Deadline(20)))
        assert ids.issue("cust", restart_key="a").counter == 1


@BOTH
def test_a_series_of_a_tag_that_another_process_has_deleted_is_not_created(make: Make, store: MemoryStore) -> None:
    ids, other = make(), make()
    ids.create("cust", keyed=True)
    other.issue("cust", restart_key="a")
    ids.delete("cust")
    refused(issuer.UnknownTag, "'cust'", other.issue, "cust", restart_key="b")
    assert store.get("cust#b", timeout=20) is None


@pytest.mark.parametrize("known", [True, False])
def test_a_shard_that_was_deleted_alone_is_made_again_above_its_numbers(
    make: Make, store: MemoryStore, known: bool
) -> None:
    ids = make()
    ids.create("users", shards=SMALL, step=5)
    first = [ids.issue("users", shard_key="a") for _ in range(3)]
    part = f"users#{first[0].shard}"
    made = next(each for each in ids.tags() if each.tag == part)
    gone = store.delete(part, timeout=5)
    other = ids if known else make(prefix="new")
    assert other.peek("users", shard_key="a").counter == (4 if known else gone.max + 1)
    again = [other.issue("users", shard_key="a") for _ in range(20)]
    numbers = [each.value for each in (*first, *again)]
    assert numbers == sorted(set(numbers))
    assert {each.shard for each in again} == {first[0].shard}
    [remade] = [each for each in other.tags() if each.tag == part]
    assert (remade.limit, remade.step, remade.scheme) == (made.limit, made.step, made.scheme)
    ids.delete("users")
    assert ids.tags() == []
    refused(issuer.UnknownTag, "", make().next, "users", shard_key="a")


def test_a_part_with_a_limit_of_its_own_gets_that_of_all_with_the_next_change(make: Make, store: MemoryStore) -> None:
    ids = make()
    ids.create("users", shards=SMALL, step=5)
    ids.create("cust", keyed=True, limit=100)
    number = ids.issue("users", shard_key="a")
    [ids.issue("cust", restart_key=key) for key in "ab"]
    part, most = f"users#{number.shard}", {each.limit for each in ids.tags() if each.tag.startswith("users#")}
    store.configure(part, TagChanges(limit=10), timeout=5)
    store.configure("cust#b", TagChanges(limit=1000, raise_to=500), timeout=5)
    with pytest.raises(issuer.LimitReached):
        [ids.issue("users", shard_key="a") for _ in range(10)]
    ids.configure("users", step=7)
    ids.configure("cust", step=7)
    assert ids.issue("users", shard_key="a").counter == 11
    assert {each.limit for each in ids.tags() if each.tag.startswith("users#")} == most
    assert [(each.limit, each.step) for each in ids.tags() if "cust#" in each.tag] == [(100, 7), (1000, 7)]


def test_a_delete_that_stopped_half_way_is_ended_by_the_next(make: Make, store: MemoryStore) -> None:
    ids = make()
    ids.create("users", shards=SMALL)
    store.delete("users", timeout=5)
    store.delete("users#0", timeout=5)
    assert len(ids.tags()) == 3
    refused(issuer.UnknownTag, "", ids.delete, "users")
    assert ids.tags() == []


@BOTH
def test_one_number_can_not_hold_for_all_parts_nor_one_within_a_period_for_all(make: Make, at: Set) -> None:
    ids = make()
    at("2026-11-20 12:00:00")
    ids.create("users", shards=SMALL)
    refused(issuer.InvalidArgument, "users#0", ids.recover, "users", at_least=100)
    assert ids.recover("users#0", at_least=100)[0].new == 100
    ids.create("day", restart="yearly", format="{date:%Y}{seq:04d}")
    first = ids.issue("day")
    before = ids.tags()
    refused(issuer.InvalidArgument, "periods", ids.recover, "day", at_least=500)
    assert ids.tags() == before
    ids.recover("day", at_least=(first.counter or 0) + 2000)
    assert ids.next("day") == first.value + 2001


@BOTH
def test_verify_looks_at_every_part(make: Make, store: MemoryStore) -> None:
    ids = make()
    ids.create("users", shards=SMALL, step=5)
    shard = ids.issue("users", shard_key="a").shard
    store._tags[f"users#{shard}"] = store._tags[f"users#{shard}"].changed(max=1)
    found = ids.verify("users")
    assert {each.tag for each in found} == {f"users#{shard}"}


@BOTH
def test_a_journal_brings_a_lost_tag_back_with_its_parts(make: Make, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    ids = make(store=f"sqlite:///{tmp_path / 'a.db'}", journal=journal)
    ids.create("users", shards=SMALL, step=5)
    number = ids.next("users", shard_key="a")
    ids = make(store=f"sqlite:///{tmp_path / 'b.db'}", prefix="new")
    done = ids.recover("users", from_journal=[str(journal)])
    assert [each.tag for each in done] == ["users", *(f"users#{shard}" for shard in range(4))]
    again = ids.next("users", shard_key="a")
    assert ids.decode("users", again).shard == ids.decode("users", number).shard
    assert again > number


def test_inspect_tells_parts_period_and_scheme(make: Make, at: Set) -> None:
    ids = make()
    at("2026-11-20 12:00:00")
    ids.create("users", shards=SMALL)
    ids.create("cust", keyed=True)
    ids.create("plain")
    ids.create("day", restart="daily", format="{date:%Y%m%d}{seq:04d}")
    assert [ids.inspect(tag).parts for tag in ("users", "cust", "plain")] == [4, 0, None]
    ids.issue("cust", restart_key="a")
    assert ids.inspect("cust").parts == 1
    assert (ids.inspect("users").scheme["shards"]["shard_bits"], ids.inspect("plain").scheme) == (2, {})
    assert ids.issue("day").period == ids.inspect("day").period == "2026-11-20"
    assert ids.inspect("plain").period is None


@pytest.mark.covers("U.19")
@pytest.mark.parametrize("page", [1, 2, 3, 5, 100])
def test_parts_and_tags_are_found_on_every_page(make: Make, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr("issuer.core.record.PAGE", page)
    ids = make()
    others = ["a", "t", "users!", "users#4", "users#x", "users$", "usersx", "v"]
    for tag in others:
        ids.create(tag)
    ids.create("t#", shards=SMALL)
    ids.create("users", shards=SMALL)
    assert [ids.inspect(tag).parts for tag in ("users", "t#")] == [4, 4]
    parts = [f"{tag}#{shard}" for tag in ("t#", "users") for shard in range(4)]
    assert [each.tag for each in ids.tags()] == sorted([*others, *parts, "t#", "users"])
    ids.halt("users")
    assert [each.tag for each in ids.tags() if each.halted] == ids.ready().halted
    assert len(ids.ready().halted) == 1 + 4
    ids.delete("users")
    assert [each.tag for each in ids.tags()] == sorted([*others, *parts[:4], "t#"])
