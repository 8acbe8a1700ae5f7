"""Tags of strategies when things go wrong: Redis away, tags that are deleted, issuers that are closed meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import issuer
from issuer.core.supply import supply
from issuer.engine import blocking as engine
from issuer.strategies import Instance
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order, Tag, TagSettings
from tests.audit import repeats
from tests.colours import Connect
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("patient"), pytest.mark.colours("blocking")]  # all is decided in the core


@pytest.mark.parametrize("order", ["strict", "trend"])
def test_what_needs_no_redis_is_served_without_it(
    connect: Connect, store: MemoryStore, tmp_path: Path, order: Order
) -> None:
    scheme = {"strategy": "snowflake", "options": {"machine": "fixed"}}
    store.create("s", TagSettings(step=1, order=order, scheme=scheme), timeout=10)
    for call in (lambda ids: [ids.next("s")], lambda ids: ids.take("s", 2), lambda ids: [ids.issue("s").value]):
        instance = Instance(machine=7, directory=str(tmp_path))
        with connect(redis=f"redis://127.0.0.1:{free_port()}/0", store=store, instance=instance, timeout=40) as ids:
            assert all(call(ids))


#: What a call may raise whose time is over before anybody has answered.
UNANSWERED = (issuer.RedisUnavailable, issuer.StoreUnavailable)

FIXED = {"machine": "fixed"}


def test_a_tag_that_another_process_deleted_leaves_nothing_behind(
    connect: Connect, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "LEARN_AFTER", -1.0)
    instance = Instance(machine=7, directory=str(tmp_path))
    with (
        connect(redis="none", store=store) as ids,
        connect(redis="none", store=store, instance=instance) as first,
        connect(redis="none", store=store, instance=instance) as second,
    ):
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
        assert first.next("s")
        with pytest.raises(issuer.ConfigurationError, match="in use"):
            second.next("s")
        ids.delete("s")
        with pytest.raises(issuer.UnknownTag):
            until(lambda: first.next("s") == 0, timeout=60)
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
        assert until(lambda: second.next("s"), timeout=60, ignoring=(issuer.ConfigurationError,))


def test_a_first_call_that_is_under_way_at_close_takes_no_machine_number(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go = threading.Event(), threading.Event()
    get = store.get

    def slow(tag: str, *, timeout: float) -> Tag | None:
        record = get(tag, timeout=timeout)
        waiting.set()
        assert go.wait(60)
        return record

    instance = Instance(machine=7, directory=str(tmp_path))
    with issuer.connect(redis="none", store=store, instance=instance) as ids:
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
    # `close` gives up waiting for the call long before the call gives up waiting for the store.
    ids = issuer.connect(redis="none", store=store, instance=instance, store_timeout=40)
    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(store, "get", slow)
            patch.setattr(engine, "CLOSING", 0.5)
            calling = pool.submit(ids.next, "s")
            assert waiting.wait(60)
            ids.close()
        go.set()
        with pytest.raises(issuer.IssuerError, match="this issuer is closed"):
            calling.result(60)
    with issuer.connect(redis="none", store=store, instance=instance) as again:
        assert again.next("s")


def test_all_processes_of_a_tag_take_their_machine_numbers_from_one_place(
    connect: Connect, redis_url: str, tmp_path: Path
) -> None:
    """A process that was given a machine number, beside those that were not and lease one, perhaps the same."""
    numbers: list[int] = []
    own = {"redis": redis_url, "store": MemoryStore()}
    given = Instance(machine=1, directory=str(tmp_path))
    with connect(**own) as plain, connect(**own) as third, connect(**own, instance=given) as fixed:
        plain.create("s", strategy="snowflake", options={"machine_bits": 1, "time_bits": 40, "sequence_bits": 22})
        for ids in (plain, third):
            ids.next("s")
        with pytest.raises(issuer.NoMachineNumber):
            until(lambda: fixed.next("s", timeout=1), 60, ignoring=UNANSWERED)
        for ids in (plain, third) * 100:  # at times both of them in the same millisecond
            numbers += ids.take("s", 10)
        assert fixed.create("t", strategy="snowflake").scheme["options"] == {"machine": "fixed"}
        shared = fixed.create("u", strategy="snowflake", options={"machine": "store"})
        assert shared.scheme["options"]["machine"] == "store"
    assert repeats(numbers) == []
