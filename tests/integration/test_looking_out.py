"""A thread looks out for a reply that comes soon, and sleeps where replies take longer."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.drivers.blocking import link
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = pytest.mark.live

Looks = list[bool]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What each look-out came to."""
    seen: Looks = []
    look_out: Callable[[Any], bool] = link.Link._look_out

    def noted(self: link.Link) -> bool:
        seen.append(look_out(self))
        return seen[-1]

    monkeypatch.setattr(link.Link, "_look_out", noted)
    return seen


def drawn(ids: issuer.Issuer, n: int, looks: Looks) -> list[int]:
    ids.create("a", step=1_000_000)
    ids.next("a")
    looks.clear()
    return [ids.next("a") for _ in range(n)]


def test_a_server_nearby_is_looked_out_for(redis_url: str, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_OUT", 5.0)  # as quick as an idle machine, however busy this one is
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        assert drawn(ids, 200, looks) == list(range(2, 202))
    assert looks == [True] * 200


def test_a_server_far_away_is_looked_out_for_once_in_a_while(redis_proxy: FaultProxy, looks: Looks) -> None:
    redis_proxy.delay_replies(0.002)
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        assert drawn(ids, 2 * link.FAR, looks) == list(range(2, 2 * link.FAR + 2))
    assert len(looks) in (1, 2)  # the first calls, which create the tag, have begun to count
    assert not any(looks)


def test_a_server_that_comes_nearer_is_looked_out_for_again(
    redis_proxy: FaultProxy, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_proxy.delay_replies(0.002)
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        drawn(ids, link.FAR, looks)
        redis_proxy.pass_through()
        monkeypatch.setattr(link, "LOOK_OUT", 5.0)
        looks.clear()
        for _ in range(link.FAR + 20):
            ids.next("a")
    assert len(looks) >= 20
    assert all(looks)


def test_who_looks_out_lets_other_threads_run(redis_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_OUT", 5.0)
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1_000_000)
        ids.next("a")
        redis_proxy.hold()
        caller = threading.Thread(target=ids.next, args=("a",))
        caller.start()
        until(lambda: redis_proxy.held)
        assert sum(range(1_000_000)) == 499_999_500_000
        assert caller.is_alive()
        redis_proxy.release()
        caller.join(5)
        assert not caller.is_alive()
