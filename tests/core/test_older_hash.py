"""An older hash that is put back within a reign carries the same fence: a process that has seen more refuses it."""

from collections.abc import Callable
from uuid import uuid4

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.colours import BOTH, Connect
from tests.waiting import until

pytestmark = [BOTH, pytest.mark.usefixtures("patient")]
KEY = redis_key("issuer", "a")


def copied(client: redis.Redis) -> Callable[[], object]:
    client.copy(KEY, "aside")
    return lambda: client.copy("aside", KEY, replace=True)


def renamed(client: redis.Redis) -> Callable[[], object]:
    client.rename(KEY, "aside")
    return lambda: client.rename("aside", KEY)


def restored(client: redis.Redis) -> Callable[[], object]:
    dumped = client.dump(KEY)
    assert isinstance(dumped, bytes)
    return lambda: client.restore(KEY, 0, dumped, replace=True)


DRAWS: dict[str, Callable[[Issuer], object]] = {
    "one": lambda ids: ids.next("a"),
    "one with a deadline": lambda ids: ids.next("a", timeout=20),
    "several": lambda ids: ids.take("a", 3),
    "of a key": lambda ids: ids.next("a", key=uuid4().hex),
    "of a key that comes again": lambda ids: ids.next("a", key="k"),
}


@pytest.mark.parametrize(("aside", "draw"), [(copied, each) for each in DRAWS] + [(renamed, "one"), (restored, "one")])
def test_a_strict_draw_at_or_below_what_this_process_had_seen_is_refused(
    aside: Callable[[redis.Redis], Callable[[], object]],
    draw: str,
    connect: Connect,
    redis_client: redis.Redis,
    redis_url: str,
) -> None:
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None, timeout=20) as ids:
        ids.create("a", step=1000)
        numbers = ids.take("a", 20)
        back = aside(redis_client)
        numbers += [ids.next("a") for _ in range(30)]
        back()
        for _ in range(2):
            with pytest.raises(issuer.CorruptState, match=r"run ids\.recover\('a'\)"):
                DRAWS[draw](ids)
        ids.recover("a")
        numbers += [ids.next("a"), *ids.take("a", 30)]
        assert numbers == sorted(set(numbers))


def test_a_reply_that_elects_a_loader_is_refused_too(
    connect: Connect, redis_client: redis.Redis, redis_url: str
) -> None:
    with connect(redis=redis_url, store=MemoryStore(), timeout=20) as ids:
        ids.create("a", step=100)
        assert ids.take("a", 19)[-1] == 19
        back = copied(redis_client)
        numbers = [ids.next("a") for _ in range(10)]
        until(lambda: redis_client.hexists(KEY, "next_max"))
        back()
        with pytest.raises(issuer.CorruptState, match=r"run ids\.recover\('a'\)"):
            ids.next("a")
        assert numbers == [*range(20, 30)]
