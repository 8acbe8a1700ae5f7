"""Redis and the store are both killed: calls fail with their type, and go on by themselves, whichever is back first."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from issuer import Issuer, RedisUnavailable, StoreUnavailable
from tests.audit import assert_increasing
from tests.colours import Connect
from tests.deadlines import refused_by_store
from tests.servers.mongo import MongoServers
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")


def left(ids: Issuer, tag: str) -> list[int]:
    """Draw until the process has nothing left, and return that."""
    numbers: list[int] = []
    with suppress(RedisUnavailable, StoreUnavailable):  # the one that was needed first
        while True:
            numbers.append(ids.next(tag, timeout=0.5))
    return numbers


@pytest.mark.covers("3.32", "3.31")
@pytest.mark.parametrize("first", ["redis", "store"])
def test_with_both_killed_calls_fail_and_go_on_by_themselves_whichever_is_back_first(
    connect: Connect, server: RedisServer, mongo_server: MongoServers, tmp_path: Path, first: str
) -> None:
    settings = {"redis": server.url, "store": f"{mongo_server.url}/down", "journal": str(tmp_path / "journal")}
    with connect(**settings) as ids, ThreadPoolExecutor() as callers:
        ids.create("strict", step=100)
        ids.create("trend", step=100, order="trend", lease=10)
        strict, trend = [ids.next("strict")], [ids.next("trend")]
        server.kill()
        mongo_server.kill()
        assert left(ids, "strict") == []
        trend += left(ids, "trend")
        assert trend == [*range(1, 11)]
        with connect(**settings) as late:  # a process that starts now
            assert left(late, "strict") == left(late, "trend") == []
            with pytest.raises(StoreUnavailable):
                late.create("new", timeout=0.5)
        waiting = {tag: callers.submit(ids.next, tag, timeout=120) for tag in ("strict", "trend")}
        if first == "redis":
            server.start()
            for tag in waiting:  # Redis has begun a new term, and a new term needs a segment of the store
                refused_by_store(ids, tag, 0.5)
            assert not any(each.done() for each in waiting.values())
            mongo_server.start()
        else:
            mongo_server.start()
            trend += [waiting.pop("trend").result(), *ids.take("trend", 150)]
            with pytest.raises(RedisUnavailable):
                ids.next("strict", timeout=0.5)
            server.start()
        for tag, numbers in (("strict", strict), ("trend", trend)):
            waited = [each.result() for name, each in waiting.items() if name == tag]
            assert_increasing([*numbers, *waited, *ids.take(tag, 300)])
        assert ids.verify() == [], "no number is above the store's max, nor the journal's"
