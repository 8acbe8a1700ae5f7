"""A store that was restored to before a change of a tag's scheme: the change is not believed never to have been."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.schemes import Make, processes
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.usefixtures("patient"), pytest.mark.colours("blocking")]  # all is decided in the core

STRIDED = {"stride": 2, "offset": 1}


@pytest.fixture
def make_live(connect: Connect, server: RedisServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers, each of which stands for a process of its own, on a Redis that may be restored."""
    with processes(connect, redis=server.url, store=store, scheduler=None) as make:
        yield make


def _restored(
    make_live: Make, store: MemoryStore, first: dict[str, Any], *, recover: bool = True
) -> tuple[Issuer, Issuer, list[int]]:
    """Change a tag, draw, and restore the store from before; return an issuer that saw that, a new one, the numbers."""
    ids = make_live()
    ids.create("a", step=50, **first)
    numbers = ids.take("a", 50)
    backup = store.snapshot()
    ids.configure("a", stride=10, offset=3)
    numbers += ids.take("a", 30)
    store.restore(backup)
    fresh = make_live()
    if recover:
        fresh.recover("a")
    return ids, fresh, numbers


@pytest.mark.parametrize("first", [{}, STRIDED])
def test_a_store_restored_from_before_a_change_is_not_believed(
    make_live: Make, store: MemoryStore, first: dict[str, Any]
) -> None:
    # A strict tag: its hash is the witness of what was issued, and it says that there was a later scheme.
    ids, fresh, numbers = _restored(make_live, store, first)
    for each in (fresh, ids):
        with pytest.raises(issuer.StoreBehind, match="scheme"):
            numbers += each.take("a", 200)
        fresh.recover("a")
    with pytest.raises(issuer.StoreBehind):  # from where on?
        fresh.configure("a", stride=10, offset=3)
    fresh.configure("a", stride=10, offset=3, above=100_000)
    numbers += [*fresh.take("a", 200), *ids.take("a", 100)]
    assert repeats(numbers) == []


@pytest.mark.parametrize("early", [False, True])
def test_a_new_reign_hides_no_store_from_before_a_change(
    make_live: Make, store: MemoryStore, server: RedisServer, *, early: bool
) -> None:
    """Redis restarts between a restore of the store and a draw; `early`: somebody asks before `recover` has run."""
    _, fresh, numbers = _restored(make_live, store, STRIDED, recover=not early)
    server.restore(server.snapshot())
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    fresh.recover("a")
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    assert repeats(numbers) == []
