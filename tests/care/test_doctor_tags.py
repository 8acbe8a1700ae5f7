"""`doctor` on tags in trouble, and on any number of tags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import issuer
from issuer import Issuer, RedisUnavailable
from issuer.care import care
from issuer.care.doctor import examination, tags
from issuer.core import arithmetic
from issuer.drivers import topology
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings, now_ms
from tests.care.findings import Fires, Opened, levels, of_check, weak
from tests.colours import BOTH
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

#: The check of how many tags were examined.
LOOKED_AT = "tags-looked-at"


@pytest.mark.covers("N.7")
def test_tags_in_trouble(
    redis_server: RedisServer, redis_url: str, opened: Opened, fires: Fires, tmp_path: Path
) -> None:
    ids, other = opened(redis_url), opened(redis_url, store=f"sqlite:///{tmp_path / 'other.db'}")
    other.create("orders")
    limits = {"halted": 10**9, "ended": 1000, "near": 1100, "corrupt": 10**9, "alien": 10**9, "orders": 10**9}
    for name, limit in limits.items():
        ids.create(name, limit=limit)
        ids.next(name)
    assert not of_check(ids, "tag-limit"), "of a limit that is less than two segments all is reserved at once"
    for name in ("ended", "near"):
        ids.take(name, 999)
    assert set(weak(ids.doctor())) == {"tag-limit"}
    assert fires(other, tags.verified, "weak").tag == "orders"
    halting = open_store(f"sqlite:///{tmp_path / 'ids.db'}")
    assert halting.halt("halted", below=10**6, timeout=30)
    halting.close()
    client = redis_server.client()
    client.hset("issuer:{corrupt}", "cur", "1e3")
    client.delete("issuer:{alien}")
    client.set("issuer:{alien}", "a string")
    assert fires(ids, tags.halted, "weak").tag == "halted"
    assert fires(ids, tags.limit, "advice").tag == "near"
    assert {each.tag for each in of_check(ids, "tag-corrupt")} == {"corrupt", "alien"}
    for name in ("corrupt", "alien"):
        with pytest.raises(issuer.CorruptState):
            ids.next(name)
    assert {each.tag for each in of_check(ids, "tag-limit") if each.level == "weak"} == {"ended"}


@BOTH
def test_segments_that_redis_lost_are_no_use_of_a_tag(
    redis_client: Redis, redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "BURST", 0)
    ids = opened(redis_url)
    for name in ("lost", "used"):
        ids.create(name, step=10)
        for _ in range(4):
            redis_client.flushall()
            ids.warm(name)
            warmed = now_ms()
            until(lambda: now_ms() > warmed, message="the next reservation is later")  # noqa: B023 - called at once
    ids.next("used")
    assert [each.tag for each in of_check(ids, "tag-runway")] == ["used"]


def restored(ids: Issuer, memory: MemoryStore, tag: str) -> None:
    """Draw from the tag, and put the store back to before: also to the time at which the tag was changed."""
    backup = memory.snapshot()
    ids.take(tag, 25)
    memory.restore(backup)


@BOTH
def test_of_any_number_of_tags_those_are_named_that_verify_names(
    redis_url: str, redis_client: Redis, opened: Opened
) -> None:
    """A restored store sets back the times at which its tags were used: no choice by time would find these tags."""
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for name in ("behind", "torn"):
        ids.create(name, step=10)
        ids.next(name)
    redis_client.hset("issuer:{torn}", "mark", "x")
    restored(ids, memory, "behind")
    memory.create_many({f"t{number:04}": TagSettings() for number in range(1100)}, timeout=60)
    calls: list[tuple[int, int]] = []
    findings = ids.doctor(progress=lambda done, of: calls.append((done, of)))
    named = {each.tag: each.check for each in findings if each.level == "weak" and each.tag}
    assert named == {"behind": "tag-store-behind", "torn": "tag-corrupt"}
    assert named.keys() == {each.tag for each in ids.verify()}
    assert calls == [(done, 1102) for done in range(1, 1103)]
    assert levels(findings, "tags-looked-at") == {("ok", "tags")}


@pytest.mark.covers("U.19")
@BOTH
def test_the_findings_are_those_of_all_tags_however_few_are_in_memory_at_once(
    redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for number in range(9):
        ids.create(f"t{number}", limit=1000 + 100 * number, lease=number * 100, order="trend")
        if number % 2:
            ids.take(f"t{number}", 1000)
            ids.halt(f"t{number}")
    for blank, bare in (("t3 ", "t3"), (" t7", "t7"), (" t", "t0")):
        memory.write(replace(memory._tags[bare], tag=blank))
    monkeypatch.setattr(MemoryStore, "witnessed", lambda *_, **__: {"t0": 10**6, "t8": 10**6})
    whole = ids.doctor()
    assert {each.check for each in whole} >= {"tag-blanks", "tag-halted", "tag-lease", "tag-limit", "tag-store-behind"}
    remedies = {each.tag: each.remedy for each in whole if each.check == "tag-blanks"}
    assert "ids.create('t', above=" in remedies[" t"]
    assert "create" not in remedies["t3 "] + remedies[" t7"]
    held: list[int] = []
    end = examination.Examination._end_page

    def noted(self: examination.Examination, batch: Any) -> None:
        held.append(len(self.facts.records))
        end(self, batch)
        assert not self.facts.records
        assert not self.facts.tags

    monkeypatch.setattr(examination, "PAGE", 2)
    monkeypatch.setattr(examination.Examination, "_end_page", noted)
    by_pages = ids.doctor()
    assert held == [2, 2, 2, 2, 2, 2, 0]
    assert sorted(map(str, by_pages)) == sorted(map(str, whole))
    assert [each.level for each in by_pages] == [each.level for each in whole]
    monkeypatch.setattr(examination, "MOST_FINDINGS", 3)
    *listed, more = [each for each in ids.doctor() if each.check == "tag-halted"]
    assert [each.tag for each in listed] == [" t7", "t1", "t3"]
    assert (more.level, more.tag, more.what) == ("weak", None, "further tags with the same finding: 3")


def test_tags_that_come_and_go_meanwhile_are_no_tags_that_were_left_out(
    redis_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    ids = opened(redis_url, store=memory)
    for number in range(3):
        ids.create(f"t{number}", step=10)
    restored(ids, memory, "t0")  # so its record is read again
    count, read = examination.Examination._count, examination.Examination._read_records

    def counted(self: examination.Examination) -> Any:
        yield from count(self)
        for name in ("u0", "u1"):
            memory.create(name, TagSettings(), timeout=1)

    def deleted(self: examination.Examination) -> Any:
        yield from read(self)
        memory.delete("t0", timeout=1)

    monkeypatch.setattr(examination.Examination, "_count", counted)
    monkeypatch.setattr(examination.Examination, "_read_records", deleted)
    (found,) = [each for each in ids.doctor() if each.check == "tags-looked-at"]
    assert (found.level, found.what) == ("ok", "all tags were examined: 4")


@pytest.mark.parametrize("what", ["doctor", "verify", "inspected"])
def test_a_redis_that_goes_away_half_way_is_waited_for_once_and_what_is_left_out_is_told(
    redis_proxy: FaultProxy, opened: Opened, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for module in (examination, care):
        monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(care, "TOGETHER", 2)
    monkeypatch.setattr(topology, "FORGOTTEN", 10**6)
    ids = opened(redis_proxy.url, timeout=60, redis_timeout=0.5)
    for number in range(20):
        ids.create(f"t{number:02}")

    def progress(done: int) -> None:
        if done == 2:
            redis_proxy.blackhole()
        elif done == 4:
            redis_proxy.pass_through()

    if what == "doctor":
        (told,) = [each for each in ids.doctor(progress=lambda done, _: progress(done)) if each.check == LOOKED_AT]
        assert (told.level, told.what[:8], type(told.error)) == ("unknown", "2 of 20 ", RedisUnavailable)
        return
    seen = []
    care_of = ids.engine.care
    every: Any = care_of.inspected(ids.tags(), None)
    if what == "verify":
        every = finished(lambda: care_of.verified(None, None))
    for done, each in enumerate(every, 1):
        found = each.result
        seen.append(found == [] if isinstance(found, list) else found is not None and found.redis_error is None)
        progress(done)
    assert seen == [True] * 2 + [False] * 18
