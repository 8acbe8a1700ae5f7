"""The clock that a test moves: periods end, keys are forgotten; and clocks that a library stops: durations go on."""

import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import pytest
import time_machine

import issuer
from issuer import clock
from issuer.core.steps import send
from issuer.drivers.topology import TRIAL
from issuer.gateway.commands import NAMES, pack, script
from issuer.gateway.server_commands import server_time
from issuer.testing import Double
from issuer.threads import finished
from tests.waiting import run

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("production"), pytest.mark.covers("U.22")]

DAY = 86_400
CLOCK = "return 'not replaced'"


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        made.ids.create("daily", restart="daily", format="{date:%Y%m%d}-{seq}")
        made.ids.create("orders")
        made.clock.set(datetime(2030, 1, 31, 12, tzinfo=UTC))
        yield made


def text(double: Double) -> str:
    return double.ids.issue("daily").text


def test_a_period_ends_when_the_clock_is_moved(double: Double) -> None:
    assert [text(double), text(double)] == ["20300131-1", "20300131-2"]
    double.clock.move(DAY)
    assert [text(double), text(double)] == ["20300201-1", "20300201-2"]
    assert double.clock.now().date().isoformat() == "2030-02-01"


def test_back_in_time_the_period_goes_on_and_no_text_repeats(double: Double) -> None:
    texts = [text(double), text(double)]
    for seconds in (-DAY, 2 * DAY, -DAY, -DAY, 5 * DAY):
        double.clock.move(seconds)
        texts += [text(double), text(double)]
    assert len(set(texts)) == len(texts)


def test_an_idempotency_key_is_forgotten_when_its_time_is_over(double: Double) -> None:
    assert double.ids.next("orders", key="a", ttl=60) == 1
    double.clock.move(59)
    assert double.ids.next("orders", key="a", ttl=60) == 1
    double.clock.move(-30)
    double.clock.move(31)
    assert double.ids.next("orders", key="a", ttl=60) == 2


def test_other_processes_and_doubles_have_clocks_of_their_own(double: Double) -> None:
    with Double() as other:
        other.ids.create("daily", restart="daily", format="{date:%Y%m%d}-{seq}")
        assert other.ids.issue("daily").text != text(double)
    with double.connect() as second:
        assert second.issue("daily").text == "20300131-2"


def test_the_clock_stays_moved_after_a_restart(double: Double) -> None:
    double.ids.next("orders", key="a", ttl=60)
    double.snapshot()
    double.clock.move(DAY)
    assert text(double) == "20300201-1"
    for harm in (double.roll_back, double.lose_data, double.fail_over):
        harm()
        assert text(double).startswith("20300201-")
    double.roll_back()
    assert double.ids.next("orders", key="a", ttl=60) > 1, "its time was over before Redis went back"


def test_it_follows_no_clock_that_the_test_has_replaced(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    double.clock.set(datetime(2031, 1, 31, 12, tzinfo=UTC))
    assert text(double) == "20310131-1"


def test_a_moment_needs_a_time_zone(double: Double) -> None:
    with pytest.raises(issuer.InvalidArgument, match="time zone"):
        double.clock.set(datetime(2030, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_every_script_and_command_shows_the_same_time(double: Double) -> None:
    engine = double.ids.engine
    shown = finished(lambda: engine.run(send(server_time("x")), engine.deadline(5), None))
    assert abs(shown / 1000 - double.clock.now().timestamp()) < 60
    for name in NAMES:
        assert script(name).text.count("'TIME'") == script(name).text.count("redis.call('TIME')"), name


def test_a_request_that_arrives_in_pieces_gets_the_moved_clock(double: Double) -> None:
    assert text(double) == "20300131-1"
    sha = hashlib.sha1(CLOCK.encode(), usedforsecurity=False).hexdigest()
    server = double._server
    server.load(double._database, [CLOCK])
    assert server.proxy is not None
    server.proxy.replaced[double._database] = {sha.encode(): b"0" * 40}
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.proxy.path))
        client.sendall(pack("SELECT", double._database))
        assert client.recv(100) == b"+OK\r\n"
        request = pack("EVALSHA", sha, 0)
        client.sendall(request[:40])
        time.sleep(0.1)  # so that it arrives alone
        client.sendall(request[40:])
        assert client.recv(100).startswith(b"-NOSCRIPT")


def test_snowflakes_have_the_clock_of_the_process_and_refuse_one_of_redis_that_differs(double: Double) -> None:
    double.ids.create("flakes", strategy="snowflake")
    with pytest.raises(issuer.ClockBehind):
        double.ids.next("flakes")
    double.clock.set(datetime.now(UTC) - timedelta(days=1))
    double.ids.create("others", strategy="snowflake")
    with pytest.raises(issuer.NoMachineNumber, match="ahead of Redis"):
        double.ids.next("others")
    double.clock.set(datetime.now(UTC))
    double.ids.create("more", strategy="snowflake")
    assert double.ids.next("more") < double.ids.next("more")


THEN = datetime(2031, 5, 1, 12, tzinfo=UTC)

FROZEN = pytest.mark.parametrize(
    "frozen",
    [
        lambda: freezegun.freeze_time(THEN, real_asyncio=True),
        lambda: freezegun.freeze_time(THEN, tick=True, real_asyncio=True),
        lambda: time_machine.travel(THEN, tick=False),
        lambda: time_machine.travel(THEN),
    ],
    ids=["freezegun", "freezegun-tick", "time-machine", "time-machine-tick"],
)
Frozen = Callable[[], AbstractContextManager[Any]]


@FROZEN
def test_no_library_reaches_the_clock_of_durations(frozen: Frozen) -> None:
    before = clock.monotonic(), clock.monotonic_ns() / 1e9
    with frozen():
        after = clock.monotonic(), clock.monotonic_ns() / 1e9
    assert all(0 < late - early < 3600 for early, late in zip(before, after, strict=True))


@FROZEN
@pytest.mark.parametrize("fault", ["redis", "store"])
def test_a_timeout_ends(frozen: Frozen, fault: str) -> None:
    with Double() as double, frozen():
        double.ids.create("a")
        away, error = {
            "redis": (double.redis_away, issuer.RedisUnavailable),
            "store": (double.store_away, issuer.StoreUnavailable),
        }[fault]
        with away(), pytest.raises(error) as refused:
            double.ids.next("a", timeout=2)  # the other server answers in this time, also on a busy machine
        assert 0 < refused.value.retry_after <= TRIAL
        assert double.ids.next("a", timeout=60) == 1


@FROZEN
def test_a_timeout_of_a_task_ends(frozen: Frozen) -> None:
    async def main(double: Double) -> None:
        async with double.aconnect() as ids:
            with frozen():
                await ids.create("a")
                with double.redis_away(), pytest.raises(issuer.RedisUnavailable) as refused:
                    await ids.next("a", timeout=0.3)
                assert 0 < refused.value.retry_after <= TRIAL
                assert await ids.next("a", timeout=60) == 1

    with Double() as made:
        run(main(made))


@FROZEN
def test_after_the_freeze_everything_is_as_before(frozen: Frozen) -> None:
    with Double() as double:
        double.ids.create("a")
        with frozen(), double.redis_away(), pytest.raises(issuer.RedisUnavailable):
            double.ids.next("a", timeout=0.1)
        assert double.ids.next("a", timeout=60) == 1
        with double.redis_away(), pytest.raises(issuer.RedisUnavailable) as refused:
            double.ids.next("a", timeout=0.1)
        assert 0 < refused.value.retry_after <= TRIAL


@FROZEN
def test_a_double_may_be_made_and_its_clock_moved_while_the_clock_stands_still(frozen: Frozen) -> None:
    with frozen(), Double() as double:
        double.clock.set(THEN)
        double.ids.create("bills", restart="daily", format="{date:%Y%m%d}-{seq}")
        assert double.ids.issue("bills").text == "20310501-1"
        double.ids.create("dated", format="{date:%Y%m%d}-{seq}")
        assert double.ids.issue("dated").text == "20310501-1"
        made = double.ids.inspect("dated").store
        assert made is not None
        assert abs(made.timestamp - THEN.timestamp() * 1000) < 600_000


@FROZEN
def test_segments_are_loaded_in_the_background_while_the_clock_stands_still(frozen: Frozen) -> None:
    with Double() as double, frozen(), double.connect(scheduler="background") as ids:
        ids.create("a", step=10)
        assert ids.take("a", 100, timeout=60) == list(range(1, 101))
