"""Tags of strategies when things go wrong: Redis away, tags that are deleted, issuers that are closed meanwhile."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.core import supply
from issuer.drivers.issuing import Issuing
from issuer.persistence.memory import MemoryStore
from issuer.persistence.records import HIGHEST, Order, Tag
from issuer.strategies import Instance, Serving
from issuer.strategies.snowflake import Snowflake
from tests.audit import repeats
from tests.colours import Connect
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.mark.parametrize("order", ["strict", "trend"])
def test_what_needs_no_redis_is_served_without_it(
    connect: Connect, store: MemoryStore, tmp_path: Path, order: Order
) -> None:
    scheme = {"strategy": "snowflake", "options": {"machine": "fixed"}}
    store.create("s", above=0, step=1, limit=HIGHEST, order=order, description="", scheme=scheme, timeout=1)
    for call in (lambda ids: [ids.next("s")], lambda ids: ids.take("s", 2), lambda ids: [ids.issue("s").value]):
        instance = Instance(machine=7, directory=str(tmp_path))
        with connect(redis=f"redis://127.0.0.1:{free_port()}/0", store=store, instance=instance, timeout=40) as ids:
            assert all(call(ids))


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
            until(lambda: first.next("s") == 0, timeout=30)
        ids.create("s", strategy="snowflake", order="trend", options=FIXED)
        assert until(lambda: second.next("s"), timeout=30, ignoring=(issuer.ConfigurationError,))


def under_way(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """An issuer is closed while its first call is on its way; returns what that call came to, and another one."""
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
    came: list[object] = []
    ids = issuer.connect(redis="none", store=store, instance=instance)
    monkeypatch.setattr(store, "get", slow)

    def draw() -> None:
        try:
            came.append(ids.next("s"))
        except issuer.IssuerError as error:
            came.append(str(error))

    calling = threading.Thread(target=draw)
    calling.start()
    assert waiting.wait(60)
    ids.close()
    monkeypatch.setattr(store, "get", get)
    go.set()
    calling.join(60)
    with issuer.connect(redis="none", store=store, instance=instance) as again, suppress(issuer.ConfigurationError):
        came.append(again.next("s"))
    return came


def test_a_first_call_that_is_under_way_at_close_takes_no_machine_number(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = under_way(store, tmp_path, monkeypatch)
    assert "this issuer is closed" in str(first)
    assert isinstance(second, int)


def test_without_the_look_it_holds_one_that_nobody_gives_back(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Issuing._serving

    def blind(self: Issuing[Any], line: Any, record: Tag) -> Serving:
        ended, line.supply.ended = line.supply.ended, None
        try:
            return serve(self, line, record)
        finally:
            line.supply.ended = ended

    monkeypatch.setattr(Issuing, "_serving", blind)
    assert [type(each) for each in under_way(store, tmp_path, monkeypatch)] == [int]


def in_a_mixed_fleet(connect: Connect, redis_url: str, tmp_path: Path) -> list[int]:
    """Draw in a process that was given a machine number, and in one that was not and leases the same one."""
    numbers: list[int] = []
    own = {"redis": redis_url, "store": MemoryStore()}
    given = Instance(machine=1, directory=str(tmp_path))
    with connect(**own) as plain, connect(**own, instance=given) as fixed:
        plain.create("s", strategy="snowflake", options={"machine_bits": 1, "time_bits": 40, "sequence_bits": 22})
        with connect(**own) as third:
            crew = [plain, third]
            for ids in crew:
                ids.next("s")
            with suppress(issuer.NoMachineNumber):
                fixed.next("s", timeout=1)
                crew.append(fixed)
            for ids in crew * 100:  # at times all of them in the same millisecond
                numbers += ids.take("s", 10)
    return numbers


@pytest.mark.live
@pytest.mark.parametrize("guarded", [True, False])
def test_all_processes_of_a_tag_take_their_machine_numbers_from_one_place(
    connect: Connect, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # the tag doesn't say which, so each process takes its own
        monkeypatch.setattr(Snowflake, "settled", classmethod(lambda _kind, options, _instance, **_others: options))
    numbers = in_a_mixed_fleet(connect, redis_url, tmp_path)
    assert bool(repeats(numbers)) is not guarded
    assert not guarded or len(numbers) == 2000


def test_a_tag_made_by_a_process_with_a_machine_number_says_fixed(connect: Connect, tmp_path: Path) -> None:
    given = Instance(machine=7, directory=str(tmp_path))
    with connect(redis="none", store="memory://", instance=given) as ids:
        assert ids.create("s", strategy="snowflake").scheme["options"] == {"machine": "fixed"}
        assert (
            ids.create("t", strategy="snowflake", options={"machine": "store"}).scheme["options"]["machine"] == "store"
        )
