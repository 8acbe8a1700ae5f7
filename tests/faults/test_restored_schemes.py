"""A store that was restored to before a change of a tag's scheme: the change is not believed never to have been."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import issuer
from issuer import Issuer, gateway
from issuer.persistence.memory import MemoryStore
from issuer.scripts import Script, script
from tests.audit import repeats
from tests.colours import Connect
from tests.lua.hashes import mutated
from tests.schemes import Make, processes
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def make(connect: Connect, server: RedisServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers, each of which stands for a process of its own, on a Redis that may be restored."""
    with processes(connect, redis=server.url, store=store) as make:
        yield make


def _restored(
    make: Make, store: MemoryStore, first: dict[str, Any], *, recover: bool = True
) -> tuple[Issuer, Issuer, list[int]]:
    """Change a tag, draw, and restore the store from before; return an issuer that saw that, a new one, the numbers."""
    ids = make(scheduler=None)
    ids.create("a", step=50, **first)
    numbers = ids.take("a", 50)
    backup = store.snapshot()
    ids.configure("a", stride=10, offset=3)
    numbers += ids.take("a", 30)
    store.restore(backup)
    fresh = make(scheduler=None)
    if recover:
        fresh.recover("a")
    return ids, fresh, numbers


@pytest.mark.live
@pytest.mark.parametrize("first", [{}, {"stride": 2, "offset": 1}])
def test_a_store_restored_from_before_a_change_is_not_believed(
    make: Make, store: MemoryStore, first: dict[str, Any]
) -> None:
    # A strict tag: its hash is the witness of what was issued, and it says that there was a later scheme.
    ids, fresh, numbers = _restored(make, store, first)
    for each in (fresh, ids):
        with pytest.raises(issuer.StoreBehind, match="scheme"):
            numbers += each.take("a", 200)
        fresh.recover("a")
    fresh.configure("a", stride=10, offset=3, stride_above=100_000)
    numbers += [*fresh.take("a", 200), *ids.take("a", 100)]
    assert repeats(numbers) == []


def _changed_again(make: Make, store: MemoryStore) -> list[int]:
    """Make the lost change again, after the store was restored to before it."""
    _, fresh, numbers = _restored(make, store, {"stride": 2, "offset": 1})
    with suppress(issuer.StoreBehind):
        fresh.configure("a", stride=10, offset=3)
    with suppress(issuer.StoreBehind):
        numbers += make(scheduler=None).take("a", 300)
    return numbers


@pytest.mark.live
@pytest.mark.parametrize("guarded", [True, False])
def test_a_lost_change_is_not_made_again_without_a_word_from_where_on(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr("issuer.drivers.making._check_witness", lambda *_: iter(()))
    assert bool(repeats(_changed_again(make, store))) is not guarded


@pytest.mark.live
def test_mutation_a_store_restored_from_before_a_change_gives_values_twice(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fresh, numbers = _restored(make, store, {"stride": 2, "offset": 1})
    monkeypatch.setattr("issuer.core.scheme.turn", lambda _: 0)
    assert repeats([*numbers, *fresh.take("a", 500)])


def _restored_and_restarted(make: Make, store: MemoryStore, server: RedisServer, *, early: bool) -> list[int]:
    """Let Redis restart between a restore of the store and a draw; `early`: an issuer asks before `recover` has run."""
    _, fresh, numbers = _restored(make, store, {"stride": 2, "offset": 1}, recover=not early)
    server.restore(server.snapshot())
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    fresh.recover("a")
    with suppress(issuer.StoreBehind):
        numbers += fresh.take("a", 300)
    return numbers


@pytest.mark.live
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("early", [False, True])
def test_a_new_reign_hides_no_store_from_before_a_change(
    make: Make, store: MemoryStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch, *, early: bool, guarded: bool
) -> None:
    if not guarded:  # a hash of an older reign is armed for an earlier scheme
        text = mutated(open=[("if not missing and scheme ~= own", "if current and scheme ~= own")])["open"]
        mutant = Script("open", text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        monkeypatch.setattr(gateway, "script", lambda name: mutant if name == "open" else script(name))
    assert bool(repeats(_restored_and_restarted(make, store, server, early=early))) is not guarded
