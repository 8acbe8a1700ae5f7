"""A program that needs one address and one token: its issuer has neither Redis nor a store, but a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.doors.tokens import line_for
from issuer.gateway import tag_scripts
from issuer.gateway.relayed import sent
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, run
from tests.servers.web import WebServer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from tests.colours import Connect


pytestmark = [pytest.mark.live, pytest.mark.covers("U.25")]

#: Times that a busy machine needs.
PATIENT: dict[str, Any] = {"timeout": 60, "store_timeout": 60}


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[WebServer]:
    made = WebServer(f"sqlite:///{tmp_path}/store.db", redis=redis_url)
    yield made
    made.close()


@pytest.fixture(params=[*COLOURS])
def client(request: pytest.FixtureRequest, server: WebServer) -> Iterator[Any]:
    with COLOURS[request.param](server=server.address, **PATIENT) as ids:
        yield ids


def token_of(path: Path, *scopes: Any, tags: tuple[str, ...] = ("*",), rate: float | None = None) -> str:
    """Write a tokens file with one token, and return the token."""
    token = "issuer_" + "x" * 43
    path.write_text(line_for(token, "billing", scopes, tags, rate))
    return token


def test_each_kind_of_tag_has_the_numbers_that_the_server_has(client: Any, server: WebServer) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "strict": {},
        "trend": {"order": "trend"},
        "text": {"format": "INV-{seq:04d}"},
        "daily": {"restart": "daily", "format": "{date:%y%m%d}-{seq:03d}"},
        "shards": {"shards": {"shard_bits": 2}},
        "series": {"keyed": True, "format": "{key}-{seq}"},
        "snow": {"strategy": "snowflake"},
    }
    for name, options in kinds.items():
        client.create(name, **options)
    assert [client.next("strict") for _ in range(3)] + client.take("strict", 2) == [1, 2, 3, 4, 5]
    assert server.run(server.ids.next("strict")) == 6
    assert [client.next("trend") for _ in range(3)] == [1, 2, 3]
    assert server.run(server.ids.next("trend")) > 3
    assert str(client.issue("text")) == "INV-0001"
    assert str(client.peek("text")) == "INV-0002"
    assert client.next("text") == 2
    assert str(client.issue("daily")).endswith("-001")
    assert client.issue("shards", shard_key="a").shard == server.run(server.ids.issue("shards", shard_key="a")).shard
    assert str(client.issue("series", restart_key="acme")) == "acme-1"
    assert str(client.peek("series", restart_key="acme")) == "acme-2"
    snow = [client.next("snow"), *client.take("snow", 2), server.run(server.ids.next("snow"))]
    assert len({*snow}) == 4
    assert client.decode("snow", snow[0]).fields["machine"] != client.decode("snow", snow[3]).fields["machine"]
    assert client.next("strict", key="order-1") == client.next("strict", key="order-1") == 7
    assert client.next("trend", key="order-1") == client.next("trend", key="order-1")


class Served(MemoryStore):
    """Stands for a server, which forks and restarts of its users don't touch."""


WAYS: dict[str, Callable[[Any], list[int]]] = {
    "next": lambda ids: [ids.next("a")],
    "take": lambda ids: ids.take("a", 2),
    "issue": lambda ids: [ids.issue("a").value],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_server_whose_store_and_redis_were_restored_repeats_nothing_for_a_client(
    way: str, request: pytest.FixtureRequest, redis_url: str, redis_client: redis.Redis, connect: Connect
) -> None:
    store, draw = Served(), WAYS[way]
    first = WebServer(store, redis=redis_url)
    request.addfinalizer(first.close)
    with connect(server=first.address, **PATIENT) as ids:
        ids.create("a", step=10, format="N{seq}" if way == "issue" else "")
        backup = store.snapshot()
        issued = [number for _ in range(20) for number in draw(ids)]
        first.close()
        store.restore(backup)
        redis_client.flushall()
        again = WebServer(store, redis=redis_url, port=first.port)
        request.addfinalizer(again.close)
        for _ in range(2):
            with pytest.raises(issuer.StoreBehind):
                draw(ids)
        ids.recover("a", at_least=issued[-1])
        assert draw(ids)[0] > issued[-1]


def test_a_server_whose_redis_alone_went_back_repeats_nothing_for_a_client(
    client: Any, server: WebServer, redis_client: redis.Redis
) -> None:
    """Within one term, where only the hash shows it: the draws of the server know nothing of the client's numbers."""
    client.create("a", step=100)
    assert client.next("a") == 1
    old = redis_client.dump("issuer:{a}")
    assert client.take("a", 10)[-1] == 11
    redis_client.restore("issuer:{a}", 0, old, replace=True)  # type: ignore[arg-type]  # bytes
    server.ids.engine.registry.combiner("a").state.seen = 0  # as another process of the server
    with pytest.raises(issuer.CorruptState, match="after 11 the server issued 2"):
        client.next("a")
    client.recover("a")
    assert client.next("a") > 11


def test_numbers_of_a_scheme_that_the_client_does_not_know_yet_are_no_counters(
    redis_url: str, connect: Connect
) -> None:
    server = WebServer(Served(), redis=redis_url, keys={"k": b"0123456789abcdef"})
    try:
        with connect(server=server.address, scheduler=None, **PATIENT) as ids:
            ids.create("a", limit=10**6)
            assert ids.next("a") == 1
            server.run(server.ids.configure("a", scramble="k", scramble_strict=True))
            numbers = [ids.next("a") for _ in range(30)] + ids.take("a", 30)
            assert numbers != sorted(numbers), "the first one that is lower than another has the record read again"
            assert len({*numbers}) == 60
            assert ids.engine.registry.combiner("a").state.seen == 0, "no count of the numbers up to the limit"
    finally:
        server.close()


def test_a_call_that_warms_a_tag_draws_no_number(client: Any, server: WebServer) -> None:
    client.create("a")
    client.create("snow", strategy="snowflake")
    client.warm("a")
    client.warm("snow")
    assert server.run(server.ids.inspect("a")).redis.max > 0
    assert client.next("a") == 1


def test_a_key_in_any_language_and_one_that_is_wrong(client: Any) -> None:
    client.create("a")
    client.create("shards", shards={"shard_bits": 2})
    assert client.next("a", key="Zürich 東京") == client.next("a", key="Zürich 東京")
    with pytest.raises(issuer.UnknownTag):
        client.next("b", key="x")
    for call in (client.issue, client.peek):
        with pytest.raises(issuer.InvalidArgument, match="shard_key"):
            call("shards", shard_key=5)


def test_a_keeper_runs_at_the_server(client: Any, server: WebServer) -> None:
    with pytest.raises(issuer.ConfigurationError, match=f"make this call at the server, {server.address}"):
        client.keep()


def test_operators_methods_reach_the_redis_of_the_server(client: Any, server: WebServer) -> None:
    client.create("a", step=100)
    assert client.take("a", 5) == [1, 2, 3, 4, 5]
    assert client.inspect("a").redis.cur == 5
    client.configure("a", start=1000)
    assert client.next("a") == 1000
    [done] = client.recover("a")
    assert client.next("a") == done.new + 1
    assert client.verify("a") == []
    assert client.who("a", 3).entries
    assert bool(client.ready())
    assert {"redis", "store"} & {each.subject.partition(":")[0] for each in client.doctor()} or client.doctor()
    client.halt("a")
    with pytest.raises(issuer.StoreBehind):
        client.take("a", 1000)
    client.recover("a")
    client.delete("a")
    with pytest.raises(issuer.UnknownTag):
        server.run(server.ids.next("a"))
    client.create("a")
    assert client.next("a") > done.new


def test_a_trend_tag_goes_on_while_the_server_is_away_and_gives_back_what_is_left(
    server: WebServer,
) -> None:
    ids = issuer.connect(server.address, **PATIENT)
    ids.create("a", order="trend", step=100, ahead=2)
    numbers = [ids.next("a")]
    server.before = lambda _: True  # the line is cut
    numbers += [ids.next("a") for _ in range(100)]
    assert numbers == list(range(1, 102))
    server.before = None
    ids.close()
    entries = server.run(server.ids.segments("a")).entries
    assert max(each.high for each in entries) == 101


def test_the_ledger_has_the_name_of_the_token(redis_url: str, tmp_path: Path) -> None:
    token = token_of(tmp_path / "tokens", "issue", "reserve", "admin")
    server = WebServer(f"sqlite:///{tmp_path}/store.db", tmp_path / "tokens", redis=redis_url)
    try:
        with issuer.connect(server.address, token=token, **PATIENT) as ids:
            ids.create("a", order="trend")
            ids.next("a")
            assert {each.application for each in ids.segments("a").entries} == {"billing"}
    finally:
        server.close()


@pytest.mark.parametrize("key", [None, "order-1"])
def test_a_lost_reply_costs_a_number_and_repeats_none(client: Any, server: WebServer, key: str | None) -> None:
    client.create("a")
    assert client.next("a") == 1
    lost: list[bytes] = []

    def lose(body: bytes) -> bool:
        lost.append(body)
        return len(lost) == 1

    server.after = lose
    number = client.next("a", key=key)
    assert number == (3 if key is None else 2)
    assert len(lost) == 2
    assert client.next("a") == number + 1


def test_a_strict_call_waits_for_a_server_that_comes_back(client: Any, server: WebServer) -> None:
    client.create("a")
    assert client.next("a") == 1
    cut: list[bytes] = []

    def away(body: bytes) -> bool:
        cut.append(body)
        return len(cut) < 4

    server.before = away
    assert client.next("a") == 2
    assert len(cut) == 4


def test_a_server_that_stays_away_is_an_error_at_the_deadline(client: Any, server: WebServer) -> None:
    client.create("a")
    client.next("a")
    server.before = lambda _: True
    with pytest.raises(issuer.StoreUnavailable):
        client.next("a", timeout=0.2)


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [(("issue", "reserve"), {"next", "peek"}), (("reserve",), {"peek"}), (("read", "reserve"), {"peek", "inspect"})],
)
def test_what_the_token_does_not_allow_is_forbidden(
    redis_url: str, tmp_path: Path, scopes: tuple[str, ...], allowed: set[str]
) -> None:
    token = token_of(tmp_path / "tokens", *scopes, tags=("a", "b"))
    server = WebServer(f"sqlite:///{tmp_path}/store.db", tmp_path / "tokens", redis=redis_url)
    try:
        for tag in ("a", "c"):
            server.run(server.ids.create(tag))
        server.run(server.ids.next("a"))
        with issuer.connect(server.address, token=token, **PATIENT) as ids:
            calls: dict[str, Callable[[], object]] = {
                "next": lambda: ids.next("a"),
                "other": lambda: ids.next("c"),
                "inspect": lambda: ids.inspect("a"),
                "read": lambda: relay.post("/v1/redis", {"step": reading}, 60, dict),
                "nodes": lambda: relay.post("/v1/redis", {"step": nodes}, 60, dict),
                "create": lambda: ids.create("b"),
                "configure": lambda: ids.configure("a", step=7),
                "halt": lambda: ids.halt("a"),
                "recover": lambda: ids.recover("a"),
                "delete": lambda: ids.delete("a"),
            }
            relay: Any = ids.engine.config.relay
            reading = {"kind": "pipeline", "commands": [sent(tag_scripts.read_raw("issuer:{c}"), "issuer")]}
            nodes = {"kind": "elsewhere", "commands": [sent(tag_scripts.read_raw("issuer:{a}"), "issuer")]}
            refused = {}
            for name, call in calls.items():
                try:
                    found: Any = call()
                    assert name != "inspect" or found.redis_error is None
                except issuer.Forbidden as error:
                    refused[name] = error
            assert {"other", "read", "nodes", "create", "configure", "halt", "recover", "delete"} <= refused.keys()
            assert ("next" in refused) is ("next" not in allowed)
            assert {each.caller for each in refused.values()} == {"billing"}
            assert refused["halt"].scope == "admin"
    finally:
        server.close()


def test_a_token_that_the_server_does_not_know_is_told(redis_url: str, tmp_path: Path) -> None:
    token_of(tmp_path / "tokens", "admin")
    server = WebServer(f"sqlite:///{tmp_path}/store.db", tmp_path / "tokens", redis=redis_url)
    try:
        with issuer.connect(server.address, token="issuer_other", **PATIENT) as ids:
            for call in (ids.next, ids.inspect, ids.create):
                with pytest.raises(issuer.Unauthenticated, match="the token is unknown") as told:
                    call("a")
                assert "issuer_other" not in str(told.value)
    finally:
        server.close()


def test_threads_and_tasks_that_call_at_the_same_time_share_a_request(client: Any, server: WebServer) -> None:
    client.create("a")
    client.next("a")
    requests: list[bytes] = []
    together = threading.Event()

    def counted(body: bytes) -> bool:
        requests.append(body)
        together.wait(60)
        return False

    server.before = counted
    with ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(client.next, "a") for _ in range(32)]
        until(lambda: requests)
        until(lambda: len(pool._threads) == 32)
        until(lambda: client.engine.registry.combiner("a").waiting or True)
        together.set()
        numbers = [call.result() for call in calls]
    assert sorted(numbers) == list(range(2, 34))
    assert len(requests) < 32


def test_a_rate_that_allows_fewer_numbers_at_once_than_callers_share_is_no_error(
    redis_url: str, tmp_path: Path, connect: Connect
) -> None:
    token = token_of(tmp_path / "tokens", "issue", "reserve", rate=60)
    server = WebServer(f"sqlite:///{tmp_path}/store.db", tmp_path / "tokens", redis=redis_url)
    try:
        server.run(server.ids.create("a"))
        with connect(server=server.address, token=token, **PATIENT) as ids:
            assert ids.next("a") == 1
            source, deadline = ids.engine.registry.combiner("a").supply.state.source, Deadline(60)
            assert source is not None
            assert run(ids, "a", source.take(100, deadline), deadline) == [*range(2, 52)]
            with pytest.raises(issuer.InvalidArgument, match="must be 1"):
                run(ids, "a", source.take(0, deadline), deadline)
    finally:
        server.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_numbers_of_its_own(server: WebServer) -> None:
    with issuer.connect(server.address, **PATIENT) as ids:
        ids.create("s")
        ids.create("t", order="trend")
        numbers = [ids.next(tag) for tag in "st"]
        ours = {*server.clients}
        read, write = os.pipe()
        if not (child := os.fork()):
            os.write(write, json.dumps([ids.next("s"), ids.next("t")]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert {*server.clients} - ours, "the child has a connection of its own"
        numbers += [ids.next(tag) for tag in "st"]
        theirs = json.loads(os.read(read, 1000))
        assert len({numbers[0], numbers[2], theirs[0]}) == len({numbers[1], numbers[3], theirs[1]}) == 3


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(issuer.ConfigurationError, match=text):
        yield


def test_a_server_beside_servers_of_ones_own_is_a_contradiction(tmp_path: Path, monkeypatch: Any) -> None:
    with refused("contradict each other"):
        issuer.connect("http://localhost:8000", store="memory://")
    with refused("contradict each other"):
        issuer.connect("http://localhost:8000", token="a", token_file=tmp_path / "token")
    with refused("https://"):
        issuer.connect("redis://localhost")
    with refused("token_file"):
        issuer.connect("http://localhost:8000", token_file=tmp_path / "none")
    monkeypatch.setenv("ISSUER_SERVER", "http://localhost:8000")
    with refused("ISSUER_SERVER"):
        issuer.connect(store="memory://")


def test_the_settings_and_the_command_line_name_a_server(server: WebServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("issuer_secret\n")
    environment = {
        **os.environ,
        "ISSUER_SERVER": server.address,
        "ISSUER_TOKEN_FILE": str(tmp_path / "token"),
        "ISSUER_TIMEOUT": "60",
    }

    def ran(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "issuer", *words], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    ran("create", "a")
    assert ran("next", "a").strip() == "1"
    assert json.loads(ran("inspect", "a", "--json"))["redis"]["cur"] == 1
    assert "1 of 1" in ran("recover", "a", "--yes") or ran("next", "a")
    assert server.address in ran("config")
    del environment["ISSUER_TOKEN_FILE"]
    environment |= {"ISSUER_SERVER": server.address.replace("//", "//secret1@"), "ISSUER_TOKEN": "secret2"}
    assert "secret" not in ran("config") + ran("config", "--json")


_PROGRAM = """
import os, sys
{before}
import issuer
ids = issuer.connect({address!r}, timeout=60)
print(ids.next("a"), ids.next("t"))
ids.close()
print({{"redis", "pymongo", "sqlite3", "click", "msgspec"}} & {{*sys.modules}} or "small")
"""


@pytest.mark.parametrize(
    "before",
    ["", "sys.modules['fcntl'] = None\nfor name in ('fork', 'register_at_fork', 'getuid'): vars(os).pop(name, None)"],
    ids=["here", "without forks and fcntl"],
)
def test_a_client_loads_no_redis_and_no_store_and_needs_no_forks(server: WebServer, before: str) -> None:
    server.run(server.ids.create("a"))
    server.run(server.ids.create("t", order="trend"))
    program = _PROGRAM.format(address=server.address, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["1 1", "small"], done.stderr


def test_a_tag_that_gets_a_scheme_is_drawn_at_the_server_from_then_on(client: Any, server: WebServer) -> None:
    client.create("a", order="trend", step=10)
    numbers = [client.next("a") for _ in range(3)]
    server.run(server.ids.configure("a", stride=2, offset=1))
    numbers += [client.next("a") for _ in range(40)]
    numbers += [server.run(server.ids.next("a")) for _ in range(3)]
    assert numbers == sorted({*numbers})
    assert [server.run(server.ids.decode("a", each)).value for each in numbers] == numbers
    assert client.engine.registry.combiner("a").state.elsewhere


def test_the_server_relays_no_command_that_could_issue_a_number(client: Any) -> None:
    client.create("a")
    client.next("a")
    key = tag_scripts.read_hash("issuer:{a}").key
    relay = client.engine.config.relay
    for call in (
        tag_scripts.draw(key, 1, None),
        tag_scripts.lease(key, 10, None),
        tag_scripts.load(key, 0, 10, 2, reign="0" * 40, born="x"),
    ):
        with pytest.raises(issuer.Forbidden):
            relay.post("/v1/redis", {"step": {"kind": "pipeline", "commands": [sent(call, "issuer")]}}, 10, dict)
    for key, script, *words in (
        (":{a}", "", "FLUSHALL"),
        (":{a}", "", "HMGET", ":{b}", "x"),
        (":{a}", "", "hmget", "issuer:{b}", "x"),
        (":{a}", "", "GET", ":{a}"),
        (":{a}", "", "HSET", ":{a}", "cur", "0"),
        (":{a}", "", "EVAL", "return 1", "0"),
        (":{a}", "machine_claim", "1", ":{a}"),
        (":{a}", "floor", "1", ":{b}"),
        (":{a}", "HMGET", "1", ":{a}"),
        ("", "", "CONFIG", "SET", "requirepass", "x"),
        ("", "", "TIME"),
        (":once:{a}", "", "HGETALL", ":once:{a}"),
    ):
        command = {"words": words, "key": key, "script": script, "repeatable": True}
        with pytest.raises(issuer.Forbidden):
            relay.post("/v1/redis", {"step": {"kind": "pipeline", "commands": [command]}}, 10, dict)
    assert client.next("a") == 2
