"""The double is a whole issuer: each kind of tag works, as with servers that were set up."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import issuer
from issuer.plugins import Plugin
from issuer.settings import load
from issuer.testing import Double, override
from issuer.testing.proxy import DoubleProxy
from issuer.testing.server import DATABASES, LONGEST_PLACE, new_folder, own_server
from tests import programs
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


@pytest.mark.covers("U.22")
def test_each_double_begins_with_nothing_and_the_first_number_is_1() -> None:
    for _ in range(3):
        with Double() as double:
            assert double.ids.tags() == []
            double.ids.create("orders")
            assert [double.ids.next("orders"), double.ids.take("orders", 3)] == [1, [2, 3, 4]]


@pytest.mark.covers("U.22")
def test_every_kind_of_tag_is_issued_from(double: Double) -> None:
    ids = double.connect(keys={"main": "0123456789abcdef"}, lease=10)
    ids.create("keyed")
    assert ids.next("keyed", key="order-7") == ids.next("keyed", key="order-7") == 1
    ids.create("yearly", restart="yearly", format="{date:%Y}-{seq:04d}")
    assert ids.issue("yearly").text == f"{datetime.now(UTC):%Y}-0001"
    ids.create("sharded", shards={"app": 3})
    assert ids.next("sharded", shard_key="a") < ids.next("sharded", shard_key="a")
    ids.create("spaced", stride=5, offset=3)
    assert ids.take("spaced", 3) == [3, 8, 13]
    ids.create("hidden", scramble="main", order="trend", start=1000)
    assert ids.decode("hidden", ids.next("hidden")).counter == 1000
    ids.create("flakes", strategy="snowflake", format="{date:%Y%m%d%H%M%S%L}-{machine}-{sequence}")
    flake = ids.issue("flakes")
    assert ids.decode("flakes", flake.text).value == flake.value
    assert ids.next("flakes") < ids.next("flakes")
    ids.create("series", keyed=True, format="{key}-{seq}")
    assert [ids.issue("series", restart_key=each).text for each in "aab"] == ["a-1", "a-2", "b-1"]
    ids.create("rows", order="trend", lease=10)
    assert ids.take("rows", 30) == list(range(1, 31))
    assert ids.verify() == []
    ids.recover("keyed")
    assert ids.next("keyed") > 1
    assert ids.doctor()


def test_two_doubles_at_once_do_not_see_each_other(double: Double) -> None:
    double.ids.create("orders")
    assert double.ids.next("orders") == 1
    with Double() as other:
        other.ids.create("orders")
        assert [other.ids.next("orders"), double.ids.next("orders")] == [1, 2]
    assert double.ids.next("orders") == 3


def test_a_database_that_is_used_again_is_empty_and_no_open_double_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = own_server()
    monkeypatch.setattr(server, "_unused", iter([DATABASES - 1]))
    monkeypatch.setattr(server, "ended", deque())
    with Double() as first:
        first.ids.create("orders")
        assert [first.ids.next("orders"), first.ids.next("orders", key="a")] == [1, 2]
        with pytest.raises(issuer.IssuerError, match="doubles are open"):
            Double().__enter__()
    with Double() as second:
        assert second.redis_url == first.redis_url
        second.ids.create("orders")
        assert [second.ids.next("orders", key="a"), second.ids.next("orders")] == [1, 2]


def test_another_program_uses_it_by_its_urls(double: Double) -> None:
    double.ids.create("orders")
    assert double.ids.next("orders") == 1
    words = ("--redis", double.redis_url, "--store", double.store_url, "next", "orders")
    done = programs.run("-m", "issuer", *words)
    assert done.stdout == "2\n", done.stderr
    assert double.ids.next("orders") == 3


def test_nothing_is_left_at_the_end() -> None:
    threads = set(threading.enumerate())
    with Double() as other:
        other.ids.create("orders")
        other.ids.next("orders")
        folder = Path(other.store_url.removeprefix("sqlite-double:///")).parent
        assert folder.is_dir()
    until(lambda: set(threading.enumerate()) <= threads, message="its threads have ended")
    assert not folder.exists()
    other.close()  # a second time it does nothing


def test_two_threads_share_one_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DoubleProxy] = []
    with Double() as one, Double() as two:
        other = threading.Thread(target=two.redis_away, args=(1,))

        def make(server: Path, path: Path) -> DoubleProxy:
            if not other.ident:
                other.start()
                other.join(0.2)  # it waits for this proxy
            made.append(DoubleProxy(server, path))
            return made[-1]

        monkeypatch.setattr("issuer.testing.server.DoubleProxy", make)
        one.redis_away(1)
        other.join()
        assert len(made) == 1


def test_paths_of_sockets_are_short_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (place := tmp_path / ("long" * 20)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr("os.access", lambda path, _: path != "/dev/shm")
    folder = new_folder()
    folder.rmdir()
    assert len(str(folder.parent)) <= LONGEST_PLACE


@pytest.mark.usefixtures("production")
def test_settings_of_the_environment_do_not_leak_in(double: Double) -> None:
    async def drawn() -> int:
        async with double.aconnect() as ids:
            await ids.create("messages")
            return await ids.next("messages")

    double.ids.create("orders")
    assert double.ids.next("orders") == 1
    assert asyncio.run(drawn()) == 1
    assert os.environ["ISSUER_TIMEOUT"] == "0"
    with override(timeout=9):
        assert "ISSUER_TIMEOUT" not in os.environ
        with issuer.connect() as ids:
            ids.create("orders")
            assert ids.next("orders") == 1
    assert os.environ["ISSUER_STORE_URL"] == "mongodb://production.invalid/issuer"


def test_while_an_issuer_is_opened_other_threads_see_the_variables_of_the_process(
    production: Path, double: Double
) -> None:
    seen: list[object] = []

    def plugins() -> Iterator[Plugin]:  # read while the issuer is being opened
        seen.extend([os.environ["ISSUER_JOURNAL"], load().store_url])
        yield from ()

    double.connect(plugins=plugins())

    async def main() -> None:
        await double.aconnect(plugins=plugins()).close()

    asyncio.run(main())
    assert seen == [str(production), "mongodb://production.invalid/issuer"] * 2


def test_an_unknown_argument_is_rejected(double: Double) -> None:
    with pytest.raises(TypeError, match="timout"):
        double.connect(timout=1)


def test_settings_of_a_call_come_before_those_of_the_double_and_a_closed_issuer_is_replaced() -> None:
    async def drawn() -> int:
        async with own.aids as closed:
            await closed.create("orders")
        return await own.aids.next("orders")

    with Double(timeout=7) as own:
        assert [own.ids.engine.timeout, own.connect(timeout=9).engine.timeout] == [7, 9]
        assert asyncio.run(drawn()) == 1
