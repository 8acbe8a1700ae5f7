"""Every number is counted once, whichever way it took: each colour, on a real Redis."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from prometheus_client import CollectorRegistry

from issuer.gateway.keys import redis_key
from issuer.metrics import Metrics, install
from tests.colours import COLOURS, Connect
from tests.metrics.conftest import Measure
from tests.metrics.shown import shown, watched
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.colours(*COLOURS), pytest.mark.live, pytest.mark.usefixtures("patient")]


Where = dict[str, object]


def issued(metrics: Metrics, tag: str = "a") -> float | None:
    return shown(metrics).value("issued_total", tag=tag)


@pytest.fixture
def where(redis_url: str, tmp_path: Path) -> dict[str, object]:
    return {"redis": redis_url, "store": f"sqlite:///{tmp_path / 'a.db'}"}


def test_strict_numbers_of_threads_that_share_draws_and_of_one_alone(
    connect: Connect, where: Where, measure: Measure
) -> None:
    with connect(**where) as ids:
        metrics = measure(ids)
        ids.create("a", step=200)
        numbers = [ids.next("a") for _ in range(300)]
        assert issued(metrics) == 300
        with ThreadPoolExecutor(16) as pool:
            numbers += pool.map(lambda _: ids.next("a"), range(1500))
        numbers += ids.take("a", 700)
        numbers += [ids.next("a", timeout=60) for _ in range(20)]
        assert len(set(numbers)) == 2520
        found = shown(metrics)
        assert found.value("issued_total", tag="a") == 2520
        draws = found.value("draws_total", tag="a")
        assert draws is not None
        assert 300 < draws <= 2520


def test_two_processes_count_their_own_numbers_only(connect: Connect, where: Where, measure: Measure) -> None:
    with connect(**where) as one, connect(**where) as other:
        mine = measure(one)
        theirs = install(watched(other), CollectorRegistry())  # type: ignore[arg-type]  # of either colour
        one.create("a", step=50)
        for _ in range(40):
            one.next("a")
            other.take("a", 3)
        assert (issued(mine), issued(theirs)) == (40, 120)


@pytest.mark.parametrize("order", ["trend", "strict"])
def test_leased_numbers_count_when_they_are_given_out_and_not_when_they_are_drawn(
    connect: Connect, where: Where, measure: Measure, order: str
) -> None:
    with connect(**where, lease=70) as ids:
        metrics = measure(ids)
        ids.create("a", step=1000, order=order)  # type: ignore[arg-type]  # one of both
        drawn = [ids.next("a") for _ in range(333)] + ids.take("a", 99)
        assert issued(metrics) == len(set(drawn)) == 432
        assert ids.next("a") == drawn[-1] + 1
        if order == "strict":
            assert not shown(metrics).value("held_numbers", tag="a")
        else:  # the next lease may be on its way
            until(lambda: 0 < (shown(metrics).value("held_numbers", tag="a") or 0.0) <= 300)
    assert issued(metrics) == 433, "what is given back was never issued"


def test_numbers_of_its_own_segments_count_over_their_borders(connect: Connect, where: Where, measure: Measure) -> None:
    with connect(**{**where, "redis": "none"}) as ids:
        metrics = measure(ids)
        ids.create("a", step=50, order="trend")
        drawn = [ids.next("a") for _ in range(777)]
        assert issued(metrics) == len(set(drawn)) == 777
        drawn += [number for number, _ in zip(ids.stream("a"), range(123), strict=False)]
        assert issued(metrics) in (900, 901), "a stream that is left may have taken one more"
        ids.reserve("a", 60)
        assert issued(metrics) in (960, 961)


def test_keys_texts_and_redis_that_goes_away_in_between(
    connect: Connect, start_redis: Callable[..., RedisServer], tmp_path: Path, measure: Measure
) -> None:
    server = start_redis()
    with connect(redis=server.url, store=f"sqlite:///{tmp_path / 'a.db'}") as ids:
        metrics = measure(ids)
        ids.create("a", step=100, order="trend", format="A{seq}")
        first = [ids.next("a", key="k") for _ in range(5)]
        assert len(set(first)) == 1
        assert issued(metrics) == 1, "the same number once more is no other one"
        for _ in range(9):
            ids.issue("a")
        assert issued(metrics) == 10
        server.stop()
        drawn = ids.take("a", 250)
        assert len(drawn) == 250
        assert issued(metrics) == 260
        assert shown(metrics).value("direct_processes", tag="a") == 1


def test_a_deleted_tag_and_one_that_is_made_again_keep_their_count(
    connect: Connect, where: Where, measure: Measure
) -> None:
    with connect(**where) as ids:
        metrics = measure(ids)
        for _ in range(3):
            ids.create("a", step=1000)  # so that no segment is being fetched when the tag is deleted
            ids.take("a", 10)
            shown(metrics)
            ids.take("a", 10)
            ids.delete("a")
        assert issued(metrics) == 60


def test_a_keeper_shows_how_many_tags_it_keeps(
    connect: Connect, where: Where, measure: Measure, redis_client: redis.Redis
) -> None:
    with connect(**where) as ids:
        metrics = measure(ids)
        for tag in "abc":
            ids.create(tag, step=100)
        ids.next("a")
        assert (shown(metrics).value("kept_tags"), shown(metrics).value("tags")) == (0, 1)
        ids.keep()
        until(lambda: shown(metrics).value("kept_tags") == 3)
        redis_client.publish("issuer:due", redis_key("issuer", "b"))
        until(lambda: shown(metrics).value("tags") == 2, message="it has loaded a segment of another one")
