"""Tags of strategies when things go wrong: Redis away, tags that are deleted, issuers that are closed meanwhile."""

import time
from pathlib import Path

import pytest

from issuer.strategies import Instance
from persistence.memory import MemoryStore
from persistence.records import HIGHEST, Order
from tests.colours import Connect
from tests.servers.ports import free_port


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("order", ["strict", "trend"])
def test_what_needs_no_redis_is_served_without_it(
    connect: Connect, store: MemoryStore, tmp_path: Path, order: Order
) -> None:
    scheme = {"strategy": "snowflake", "options": {"machine": "fixed"}}
    store.create("s", above=0, step=1, limit=HIGHEST, order=order, description="", scheme=scheme, timeout=1)
    for call in (lambda ids: [ids.next("s")], lambda ids: ids.take("s", 2), lambda ids: [ids.issue("s").value]):
        instance = Instance(machine=7, directory=str(tmp_path))
        with connect(redis=f"redis://127.0.0.1:{free_port()}/0", store=store, instance=instance) as ids:
            begun = time.monotonic()
            assert all(call(ids))
            assert time.monotonic() - begun < 4
