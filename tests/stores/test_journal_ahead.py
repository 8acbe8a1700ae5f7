"""A store that went back in time, with Redis empty: the journal knows, and nothing is repeated in silence."""

from pathlib import Path

import pytest
import redis

import issuer
from issuer import Issuer
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order
from tests.colours import Connect

pytestmark = pytest.mark.usefixtures("patient")


class Served(MemoryStore):
    """Stands for a server, which forks and restarts of its users don't touch."""


def opened(connect: Connect, url: str, store: MemoryStore, journal: Path) -> Issuer:
    return connect(redis=url, store=store, scheduler=None, journal=str(journal))


@pytest.mark.parametrize("order", ["strict", "trend"])
def test_an_older_store_and_an_empty_redis_are_found_out_by_the_journal(
    connect: Connect, redis_client: redis.Redis, redis_url: str, tmp_path: Path, order: Order
) -> None:
    store, journal = Served(), tmp_path / "journal"
    with opened(connect, redis_url, store, journal) as ids:
        ids.create("a", step=10, order=order)
        ids.take("a", 5)
        backup = store.snapshot()
        issued = ids.take("a", 100)
    store.restore(backup)
    redis_client.flushall()
    with opened(connect, redis_url, store, journal) as ids:
        (finding,) = (each for each in ids.verify("a") if each.kind == "below the journal")
        assert finding.numbers is not None
        assert (finding.numbers[0], finding.numbers[1] >= issued[-1]) == (11, True)
        assert [each.level for each in ids.doctor() if each.check == "tag-store-behind"] == ["weak"]
        with pytest.raises(issuer.StoreBehind) as behind:
            ids.next("a")
        assert behind.value.taken is not None
        assert behind.value.taken >= issued[-1]
        with pytest.raises(issuer.StoreBehind):
            ids.next("a")
        ids.recover("a", from_journal=[str(journal)])
        assert ids.next("a") > issued[-1]
        assert ids.verify("a") == []
        assert "tag-store-behind" not in {each.check for each in ids.doctor()}


def test_a_tag_that_the_store_has_lost_is_not_made_again_from_its_beginning(
    connect: Connect, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    store, journal = Served(), tmp_path / "journal"
    with opened(connect, redis_url, store, journal) as ids:
        backup = store.snapshot()
        ids.create("a", step=10)
        issued = ids.take("a", 30)
    store.restore(backup)
    redis_client.flushall()
    with opened(connect, redis_url, store, journal) as ids:
        with pytest.raises(issuer.StoreBehind):
            ids.create("a", step=10)
        ids.recover("a", from_journal=[str(journal)])
        assert ids.next("a") > issued[-1]


def test_what_was_handed_back_in_order_is_no_store_that_went_back(connect: Connect, tmp_path: Path) -> None:
    store, journal = Served(), tmp_path / "journal"
    numbers: list[int] = []
    for _ in range(4):
        with connect(redis="none", store=store, scheduler=None, journal=str(journal)) as ids:
            if not numbers:
                ids.create("a", step=10)
            numbers += ids.take("a", 3)
            assert ids.verify("a") == []
    assert numbers == list(range(1, 13))
