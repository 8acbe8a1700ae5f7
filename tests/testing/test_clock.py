"""The clock that the test moves: periods end, keys are forgotten, leases of machine numbers lapse."""

import hashlib
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import issuer
from issuer.core.steps import send
from issuer.gateway.commands import NAMES, pack, script
from issuer.gateway.server_commands import server_time
from issuer.testing import Double
from issuer.threads import finished

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
