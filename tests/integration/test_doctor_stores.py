"""`doctor` on stores that are set up badly or went back in time, and on tags that are in trouble."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import issuer
from issuer.core.doctor import examination, store, tags
from issuer.drivers.breaker import Breaker
from persistence.memory import MemoryStore
from persistence.opening import open_store
from tests.integration.examining import Fires, Opened, StartRedis, at, weak
from tests.servers.ports import free_port

# ------------------------------------------------------------------------------------------------------------ the store


def test_a_store_in_memory(opened: Opened, fires: Fires) -> None:
    ids = opened(None, store=MemoryStore())
    assert "memory" in fires(ids, store.lasting, "weak").what


@pytest.mark.covers("N.7")
def test_a_url_that_asks_for_one_server_only(mongo_url: str, opened: Opened, fires: Fires) -> None:
    ids = opened(None, store=f"{mongo_url}/doctor_w1?w=1&retryWrites=false")
    finding = fires(ids, store.write_concern, "advice")
    assert finding.what.startswith("the URL or client asks for w=1;")
    assert fires(ids, store.retry_writes, "advice").what == "retryWrites is off"


def test_a_store_that_is_away(opened: Opened) -> None:
    ids = opened(None, store=f"mongodb://127.0.0.1:{free_port()}/x", timeout=0.5)
    [finding] = [each for each in ids.doctor() if each.level == "weak"]
    assert (finding.check, type(finding.error)) == ("store-reachable", issuer.StoreUnavailable)


def test_callers_that_give_up_before_a_loader_is_replaced(opened: Opened, fires: Fires) -> None:
    ids = opened(None, timeout=2, store_timeout=2)
    assert fires(ids, store.timeouts, "advice").subject == "settings"


# ------------------------------------------------------------------------------------------------------------ the tags


@pytest.mark.covers("N.7")
def test_two_stores_on_one_prefix(start_redis: StartRedis, opened: Opened, fires: Fires, tmp_path: Path) -> None:
    server = start_redis()
    one, other = opened(server.url), opened(server.url, store=f"sqlite:///{tmp_path / 'other.db'}")
    for ids in (one, other):
        ids.create("orders")
    one.next("orders")
    assert fires(other, tags.two_stores, "weak").tag == "orders"
    assert weak(one.doctor()) == []


def test_a_store_that_went_back_in_time(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    memory = MemoryStore()
    ids = opened(start_redis().url, store=memory)
    ids.create("orders", step=10)
    ids.create("users", step=10)
    ids.take("orders", 5)
    backup = memory.snapshot()
    ids.take("orders", 50)
    assert weak(ids.doctor()) == ["store-lasting"]
    memory.restore(backup)
    finding = fires(ids, tags.behind, "weak")
    assert (finding.tag, finding.remedy) == ("orders", "issuer recover orders")
    ids.recover("orders")
    assert weak(ids.doctor()) == ["store-lasting"]


def test_a_segment_that_is_loaded_while_doctor_looks_is_no_store_behind(
    start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuer.connect(redis=start_redis().url, store=f"sqlite:///{tmp_path / 'x.db'}", scheduler=None) as ids:
        ids.create("orders", step=10)
        look = examination.Examination._look_at_tag

        def late(self: examination.Examination, record: Any) -> Any:
            ids.take("orders", 95)
            return look(self, record)

        monkeypatch.setattr(examination.Examination, "_look_at_tag", late)
        assert weak(ids.doctor()) == []

        # Without the second look at the store the old record would be believed.
        def believing(_self: object, _tag: str) -> Any:
            return 0
            yield

        monkeypatch.setattr(examination.Examination, "_max_now", believing)
        assert weak(ids.doctor()) == ["tag-store-behind"]


def test_halted_tags_limits_and_hashes_that_somebody_else_wrote_to(
    start_redis: StartRedis, opened: Opened, fires: Fires, tmp_path: Path
) -> None:
    server = start_redis()
    ids = opened(server.url)
    for name, limit in (("halted", 10**9), ("ended", 1000), ("near", 1100), ("corrupt", 10**9), ("alien", 10**9)):
        ids.create(name, limit=limit)
        ids.next(name)
    assert at("weak", ids.doctor()) == {"tag-limit"}
    halting = open_store(f"sqlite:///{tmp_path / 'ids.db'}")
    assert halting.halt("halted", below=10**6, timeout=5)
    halting.close()
    server.client().hset("issuer:{corrupt}", "cur", "1e3")
    server.client().delete("issuer:{alien}")
    server.client().set("issuer:{alien}", "a string")
    assert fires(ids, tags.halted, "weak").tag == "halted"
    assert fires(ids, tags.limit, "advice").tag == "near"
    assert {each.tag for each in ids.doctor() if each.check == "tag-corrupt"} == {"corrupt", "alien"}
    assert {each.tag for each in ids.doctor() if each.check == "tag-limit" and each.level == "weak"} == {"ended"}


def test_a_step_that_is_too_small_for_the_rate(start_redis: StartRedis, opened: Opened, fires: Fires) -> None:
    ids = opened(start_redis().url)
    ids.create("orders", step=10)
    ids.create("young", step=10)
    ids.take("orders", 1200)
    ids.take("young", 100)
    finding = fires(ids, tags.runway, "advice")
    assert finding.remedy.startswith("issuer set orders --step ")
    assert int(finding.remedy.rpartition(" ")[2]) > 10


def test_many_tags_are_looked_at_up_to_a_number_the_newest_first(start_redis: StartRedis, opened: Opened) -> None:
    memory = MemoryStore()
    ids = opened(start_redis().url, store=memory)
    for moment in range(5):
        ids.create(f"t{moment}", limit=10)
        memory._tags[f"t{moment}"] = replace(memory._tags[f"t{moment}"], timestamp=moment)
    calls: list[tuple[int, int]] = []
    findings = ids.doctor(most=2, progress=lambda done, of: calls.append((done, of)))
    assert calls == [(1, 2), (2, 2)]
    [told] = [each for each in findings if each.check == "tags-looked-at"]
    assert (told.level, told.what.partition(" tags")[0]) == ("unknown", "2 of 5")
    assert {each.level for each in ids.doctor(most=5) if each.check == "tags-looked-at"} == {"ok"}
    with pytest.raises(issuer.InvalidArgument):
        ids.doctor(most=-1)


def test_a_redis_that_goes_away_half_way_is_not_waited_for_once_a_tag(
    start_redis: StartRedis, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    memory = MemoryStore()
    for number in range(10):
        memory.create(f"t{number}", above=0, step=1, limit=100, order="strict", description="", timeout=1)
    ids = opened(server.url, store=memory, redis_timeout=0.4)

    def seconds() -> float:
        began = monotonic()
        findings = ids.doctor(progress=lambda done, _: server.pause() if done == 1 else None)
        took = monotonic() - began
        server.resume()
        assert at("weak", findings) == {"redis-reachable", "store-lasting"}
        assert {each.what.partition(" tags")[0] for each in findings if each.check == "tags-looked-at"} == {"1 of 10"}
        return took

    assert seconds() < 3
    # Two guards stand behind each other: the examination stops by itself, and the breaker refuses what goes on.
    monkeypatch.setattr(examination.Examination, "_reached", lambda _self: True)
    monkeypatch.setattr(Breaker, "admit", lambda _self, **_options: False)
    assert seconds() > 9 * 0.4
