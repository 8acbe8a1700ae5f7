"""Names that clients make up: what they cost, over both protocols, and that tags which are there do not suffer."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import hiredis
import pytest

import issuer
from issuer import AsyncIssuer
from issuer.doors import lookups
from issuer.doors.access import Access
from issuer.doors.lookups import LookUps
from issuer.doors.rates import RateBuckets
from issuer.doors.resp.server import start
from issuer.doors.web.app import application
from issuer.drivers.aio import runner
from issuer.errors import Unavailable, UnknownTag
from issuer_persistence.memory import MemoryStore
from tests.clocks import Clock
from tests.doors.http.doors import Door as Http
from tests.doors.resp.serving import packed
from tests.waiting import eventually


class Watched(MemoryStore):
    """A store that counts for which tags it is asked, and answers nobody while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.under_way = 0
        self.gate = threading.Event()
        self.gate.set()

    def get(self, tag: str, **named: Any) -> Any:
        self.asked[tag] += 1
        self.under_way += 1
        self.gate.wait(120)
        self.under_way -= 1
        return super().get(tag, **named)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()


class Client:
    """A connection of Redis's protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._parser = reader, writer, hiredis.Reader()

    def incr(self, *tags: str) -> None:
        self._writer.write(b"".join(packed("INCR", tag) for tag in tags))

    async def reply(self) -> Any:
        while (found := self._parser.gets()) is False:
            self._parser.feed(await self._reader.read(65_536))
        return found

    async def ask(self, *words: str) -> Any:
        self._writer.write(packed(*words))
        return await self.reply()

    def close(self) -> None:
        self._writer.close()


class Doors:
    """Both protocols over one issuer, as in a worker."""

    def __init__(self, ids: AsyncIssuer, http: Http, port: int, look_ups: LookUps, ends: AsyncExitStack) -> None:
        self.ids, self.http, self.look_ups = ids, http, look_ups
        self._port, self._ends = port, ends

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self._ends.callback(client.close)
        return client


@asynccontextmanager
async def doors(store: Watched, redis: str = "none", clock: Clock | None = None) -> AsyncIterator[Doors]:
    access = Access(None)
    if clock is not None:
        access.rates = RateBuckets(clock)
    # Nothing is given up while a test runs.
    patient: dict[str, Any] = dict.fromkeys(("timeout", "insist", "store_timeout", "redis_timeout"), 3600.0)
    async with AsyncExitStack() as ends:
        ids = await ends.enter_async_context(issuer.aconnect(redis=redis, store=store, scheduler=None, **patient))
        look_ups = LookUps(ids.engine, access.rates)
        server = await start(ids, access, socket.create_server(("127.0.0.1", 0)), look_ups=look_ups)
        ends.push_async_callback(server.close, 5.0)
        http = Http(ids, application(ids, access, look_ups=look_ups))
        yield Doors(ids, http, server.shared.port, look_ups, ends)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may take as long for a look-up as the test holds it."""
    monkeypatch.setattr(lookups, "WITHIN", 60.0)


def made_up(client: int, n: int) -> list[str]:
    return [f"no-{client}-{each}" for each in range(n)]


async def test_a_name_that_is_not_there_is_asked_for_once_and_remembered_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "REMEMBERED", 3600.0)
    async with doors(store := Watched()) as served:
        client = await served.client()
        client.incr("no", "no", "no")
        told = [str(await client.reply()) for _ in range(3)]
        assert [each.split()[0] for each in told] == ["NOTAG"] * 3
        for words in (("INCRBY", "no", "5"), ("INCR", "no")):
            assert str(await client.ask(*words)).startswith("NOTAG")
        assert [await client.ask(*words) for words in (("GET", "no"), ("EXISTS", "no"))] == [None, 0]
        for what, body in (("next", None), ("take", {"n": 1}), ("reserve", {"n": 1}), ("warm", None)):
            assert await served.http.refused("POST", f"/v1/tags/no/{what}", body) == (404, "unknown_tag")
        for what in ("peek", "decode/1"):
            assert await served.http.refused("GET", f"/v1/tags/no/{what}") == (404, "unknown_tag")
        assert store.asked == {"no": 1}
        monkeypatch.setattr(lookups, "REMEMBERED", 0.0)
        assert str(await client.ask("INCR", "nor")).startswith("NOTAG")
        await served.ids.create("nor")
        assert await client.ask("INCR", "nor") == 1


@pytest.mark.usefixtures("unhurried")
async def test_a_name_is_looked_up_once_at_a_time_whoever_asks() -> None:
    async with doors(store := Watched()) as served:
        for tag in ("a", "known"):
            await served.ids.create(tag, order="trend", step=100_000)
        assert await served.ids.next("known") == 1
        clients = [await served.client() for _ in range(20)]
        with store.held():
            for each in clients:
                each.incr("a")
            over_http = asyncio.create_task(served.http.good("POST", "/v1/tags/a/next"))
            await eventually(lambda: store.under_way)
            for each in [await served.client() for _ in range(50)]:  # so that all others were read by now
                assert await each.ask("INCR", "known")
            assert store.asked["a"] == 1
        numbers = [await each.reply() for each in clients] + [(await over_http)["number"]]
        assert sorted(numbers) == list(range(1, 22))
        assert store.asked["a"] <= 3, "by the look-up, and by what draws for each protocol"


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("clients", "at_once"), [(3, 3), (20, lookups.AT_ONCE)])
async def test_few_names_are_looked_up_at_once_and_known_tags_are_served_meanwhile(clients: int, at_once: int) -> None:
    async with doors(store := Watched()) as served:
        await served.ids.create("a", order="trend", step=100_000)
        known = await served.client()
        assert await known.ask("INCR", "a") == 1
        strangers = [await served.client() for _ in range(clients)]
        with store.held():
            for at, each in enumerate(strangers):
                each.incr(*made_up(at, 50))
            await eventually(lambda: store.under_way == at_once)
            for at in range(100):
                assert await known.ask("INCR", "a") == 2 * at + 2
                assert (await served.http.good("POST", "/v1/tags/a/next"))["number"] == 2 * at + 3
            assert store.under_way == at_once
        for each in strangers[:3]:
            assert str(await each.reply()).startswith("NOTAG")


async def test_the_store_is_asked_for_names_that_are_not_there_at_a_rate_which_others_do_not_use_up() -> None:
    clock = Clock()
    async with doors(store := Watched(), clock=clock) as served:
        there = [f"tag-{each}" for each in range(150)]
        for tag in there:
            await served.ids.create(tag, order="trend")
        honest = await served.client()
        assert [await honest.ask("EXISTS", tag) for tag in there] == [1] * len(there)
        store.asked.clear()
        strangers = [await served.client() for _ in range(3)]
        for at, each in enumerate(strangers):
            each.incr(*made_up(at, 100))
        for most in (lookups.MISSES_PER_SECOND, 2 * lookups.MISSES_PER_SECOND):
            await eventually(lambda most=most: store.asked.total() == most)  # type: ignore[misc]  # bound above
            for _ in range(50):
                assert (await served.http.ask("GET", "/livez")).status == 200
                await asyncio.sleep(0)
            assert store.asked.total() == most
            clock.now += 1.0


@pytest.mark.live
async def test_a_store_that_is_silent_keeps_no_number_back_that_redis_has(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WITHIN", 0.05)
    monkeypatch.setattr(runner, "GRACE", 60.0)  # the store does not end its calls by itself
    store = Watched()
    async with issuer.aconnect(redis=redis_url, store=store, scheduler=None) as before:
        await before.create("a", step=1000)
        assert await before.next("a") == 1
        async with doors(store, redis=redis_url) as served:
            client = await served.client()
            with store.held():
                assert await client.ask("INCR", "a") == 2
                assert store.asked["a"]


@pytest.mark.usefixtures("unhurried")
async def test_a_call_waits_for_the_look_up_of_another_one_until_its_own_deadline() -> None:
    async with doors(store := Watched()) as served:
        with store.held():
            other = asyncio.create_task(served.look_ups.look_up("no", "caller"))
            await eventually(lambda: store.asked["no"])
            with pytest.raises(Unavailable, match="too many unknown tags"):
                await served.look_ups.look_up("no", "caller", timeout=0.05)
        with pytest.raises(UnknownTag):
            await other


@pytest.mark.usefixtures("unhurried")
async def test_what_names_leave_behind_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "WAITING_MOST", 2)
    monkeypatch.setattr(lookups, "_REMEMBERED_MOST", 10)
    monkeypatch.setattr(lookups, "REMEMBERED", 0.0)
    async with doors(store := Watched()) as served:
        clients = [await served.client() for _ in range(lookups.AT_ONCE + 3)]
        with store.held():
            for at, each in enumerate(clients):
                each.incr(f"no-{at}")
            assert str(await clients[-1].reply()).startswith("UNAVAILABLE too many unknown tags are being looked up")
        for each in clients[:-1]:
            assert str(await each.reply()).startswith("NOTAG")
        for at in range(50):
            await clients[0].ask("INCR", f"nor-{at}")
        assert len(served.look_ups._missed) <= 10
        assert not served.look_ups._under_way
        assert (served.look_ups._running, served.look_ups._turns) == (0, {})


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("by", ["another address", "no address", "a name that was found before"])
async def test_invented_names_do_not_delay_a_tag(by: str) -> None:
    """Hundreds of invented names wait for their look-up. Then a tag is used that this process has not used yet."""
    alike = by == "a name that was found before"
    inventor = "" if by == "no address" else "10.0.0.1"
    async with doors(store := Watched()) as served:
        await served.ids.create("there", order="trend")
        if alike:
            await served.look_ups.look_up("there", "10.0.0.1")
            assert not served.ids.engine.knows("there")
            store.asked.clear()
        names = made_up(0, 90)
        with store.held():
            invented = [
                asyncio.create_task(served.http.ask("POST", f"/v1/tags/{each}/next", client=(inventor, 5)))
                for each in names
            ]
            await eventually(lambda: store.under_way == lookups.AT_ONCE)
            client = ("10.0.0.1" if alike else "10.0.0.2", 5)
            there = asyncio.create_task(served.http.good("POST", "/v1/tags/there/next", client=client))
            await eventually(lambda: sum(map(len, served.look_ups._turns.values())) == 90 - lookups.AT_ONCE + 1)
        assert (await there)["number"] == 1
        assert {each.status for each in await asyncio.gather(*invented)} == {404}
        # It is the second turn that is passed on. Further look-ups may begin before the store is asked for it.
        assert [*store.asked].index("there") < 4 * lookups.AT_ONCE


async def test_a_turn_of_a_caller_that_gives_up_just_then_is_passed_on() -> None:
    async with doors(Watched()) as served:
        look_ups, end = served.look_ups, asyncio.Event()

        async def turn() -> None:
            async with look_ups._turn("10.0.0.1", "a"):
                await end.wait()

        async with look_ups._turn("10.0.0.1", "a"):
            *first, gone, last = (asyncio.create_task(turn()) for _ in range(lookups.AT_ONCE + 1))
            await eventually(lambda: len(look_ups._turns.get("10.0.0.1", ())) == 2)
        gone.cancel()  # it got the turn of this test just now
        end.set()
        await asyncio.gather(*first)
        await asyncio.wait_for(last, 60.0)
        assert gone.cancelled()
        assert (look_ups._running, look_ups._turns) == (0, {})


@pytest.mark.usefixtures("unhurried")
async def test_all_who_wait_for_the_look_up_of_an_unknown_name_are_told() -> None:
    async with doors(store := Watched()) as served:
        clients = [await served.client() for _ in range(3)]
        with store.held():
            for each in clients:
                each.incr("no")
            over_http = [asyncio.create_task(served.look_ups.look_up("no", "127.0.0.1", 60.0)) for _ in range(3)]
            await eventually(lambda: store.under_way)
        assert [type(each) for each in await asyncio.gather(*over_http, return_exceptions=True)] == [UnknownTag] * 3
        assert [str(await each.reply()).split()[0] for each in clients] == ["NOTAG"] * 3
        assert store.asked == {"no": 1}
