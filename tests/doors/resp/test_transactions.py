"""MULTI and EXEC, as clients send them by default: queued and answered as Redis does, with no number lost."""

import socket
from pathlib import Path

import pytest
import redis

from issuer.doors.resp.transaction import COMMANDS_MOST
from tests.doors.http.doors import tokens
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.doors.resp.test_redis import draws

ABORTED = "EXECABORT Transaction discarded because of previous errors."


def test_a_pipeline_of_redis_py_draws_by_its_default(strict: Served, redis_client: redis.Redis) -> None:
    with redis.Redis(port=strict.port, socket_timeout=120) as client:
        assert client.incr("a") == 1
        pipeline = client.pipeline()
        pipeline.incr("a").incr("a").get("a").incrby("a", 5).incr("missing").incr("a")
        replies = pipeline.execute(raise_on_error=False)
        assert replies[:4] == [2, 3, b"3", 8]
        assert isinstance(replies[4], redis.ResponseError)
        assert replies[5] == 9
        before = draws(redis_client)
        assert client.pipeline().incr("a").incr("a").incr("a").execute() == [10, 11, 12]
        assert draws(redis_client) - before == 1
        assert client.pipeline().execute() == []
        assert client.incr("a") == 13


def test_nothing_is_drawn_before_exec_nor_without_it(direct: Served) -> None:
    incr = packed("INCR", "a")
    with direct.client() as client, direct.client() as other:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert client.send(incr).reply() == 1
        assert client.ask("MULTI") == b"OK"
        # The same bytes as before, which have a short way.
        assert [client.send(incr).reply() for _ in range(2)] == [b"QUEUED"] * 2
        assert other.ask("INCR", "a") == 2
        assert client.ask("EXEC") == [3, 4]
        assert client.send(incr).reply() == 5
        client.send(packed("MULTI"), incr, packed("DISCARD"), incr, packed("MULTI"), packed("EXEC"))
        assert client.replies(6) == [b"OK", b"QUEUED", b"OK", 6, b"OK", []]
        client.send(packed("MULTI"), incr, packed("RESET"), incr)
        assert client.replies(4) == [b"OK", b"QUEUED", b"RESET", 7]
        client.send(packed("MULTI"), incr, packed("QUIT"))
        assert client.rest() == [b"OK", b"QUEUED", b"OK"]
        assert other.ask("INCR", "a") == 8


def test_a_transaction_in_one_read_is_answered_as_its_commands_are(serve: Serve, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, a=(["issue"], ["a", "few", "missing"]))
    served = serve(access=access)
    for tag in "ab":
        served.create(tag, order="trend")
    served.create("few", order="trend", limit=3)

    def kinds(client: Raw, before: bytes, tag: str | bytes) -> list[str]:
        client.send(before + packed("MULTI") + packed("INCR", tag) * 5 + packed("EXEC"))
        *replies, last = client.replies((before != b"") + 7)[before != b"" :]
        return [code(each) or type(each).__name__ for each in (*replies, *(last if isinstance(last, list) else [last]))]

    with served.client() as client:
        # Behind a PING, the commands are parsed one by one.
        ways = b"", packed("PING")
        assert [kinds(client, before, "a") for before in ways] == [["NOAUTH"] * 7] * 2
        assert client.ask("AUTH", made["a"]) == b"OK"
        counted = dict(served.server.shared.commands)
        queued = ["bytes"] * 6
        told: dict[str | bytes, str] = {"a": "int", "b": "NOPERM", "missing": "NOTAG", b"\xff": "ERR"}
        for name, kind in told.items():
            assert [kinds(client, before, name) for before in ways * 2] == [[*queued, *[kind] * 5]] * 4, name
        assert kinds(client, b"", "few") == [*queued, *["int"] * 3, *["LIMIT"] * 2]
        more = {each: times - counted[each] for each, times in served.server.shared.commands.items() if each != "AUTH"}
        assert more == {"MULTI": 17, "INCR": 85, "EXEC": 17, "PING": 8}
        assert client.ask("MULTI") == b"OK"
        assert kinds(client, b"", "a") == ["ERR", *["bytes"] * 5, "EXECABORT"]
        assert client.ask("INCR", "a") == 21


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("HGETALL",), "ERR 'HGETALL' is not supported here: use INCR, INCRBY, GET, EXISTS or TYPE"),
        (("INCR",), "ERR wrong number of arguments for 'incr' command: it takes 1"),
        (("MULTI",), "ERR MULTI is not allowed inside a transaction"),
        (("WATCH", "a"), "ERR WATCH is not allowed inside a transaction"),
        (("HELLO", 3), "ERR HELLO is not allowed inside a transaction"),
    ],
    ids=["unknown", "arguments", "MULTI", "WATCH", "HELLO"],
)
def test_after_a_command_that_was_refused_exec_runs_none(client: Raw, words: tuple[str, ...], why: str) -> None:
    client.send(packed("MULTI"), packed("INCR", "a"), packed(*words), packed("INCR", "a"), packed("EXEC"))
    assert [str(each) for each in client.replies(5)] == ["b'OK'", "b'QUEUED'", why, "b'QUEUED'", ABORTED]
    assert client.ask("INCR", "a") == 1


def test_what_belongs_to_no_transaction_is_told(client: Raw) -> None:
    for words, why in (
        (("EXEC",), "EXEC without"),
        (("DISCARD",), "DISCARD without"),
        (("WATCH", "a"), "WATCH is"),
    ):
        assert why in str(client.ask(*words))
    assert client.ask("UNWATCH") == b"OK"


def test_a_transaction_is_bounded(client: Raw) -> None:
    client.send(packed("MULTI"), packed("INCR", "a") * (COMMANDS_MOST + 1), packed("EXEC"))
    replies = client.replies(COMMANDS_MOST + 3)
    assert replies[1:-2] == [b"QUEUED"] * COMMANDS_MOST
    assert str(replies[-2]).startswith("ERR transaction too large")
    assert str(replies[-1]) == ABORTED
    client.send(packed("MULTI"), packed("ECHO", "x" * 60_000) * 18)
    assert [code(each) for each in client.replies(19)] == [""] * 18 + ["ERR"]


def test_many_commands_of_one_transaction_are_answered(direct: Served, client: Raw) -> None:
    direct.create("b", order="trend")
    client.send(packed("MULTI"), (packed("INCR", "a") + packed("INCR", "b")) * 3000, packed("EXEC"), packed("PING"))
    assert client.replies(6001) == [b"OK", *[b"QUEUED"] * 6000]
    assert client.reply() == [each for number in range(1, 3001) for each in (number, number)]
    assert client.reply() == b"PONG"


def test_a_transaction_needs_a_token(serve: Serve, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, a=(["issue"], ["a"]))
    served = serve(access=access)
    for tag in "ab":
        served.create(tag, order="trend")
    with served.client() as client:
        assert code(client.ask("MULTI")) == "NOAUTH"
        assert client.ask("AUTH", made["a"]) == b"OK"
        client.send(packed("MULTI"), packed("INCR", "a"), packed("INCR", "b"), packed("EXEC"))
        assert client.replies(3) == [b"OK", b"QUEUED", b"QUEUED"]
        first, second = client.reply()
        assert (first, code(second)) == (1, "NOPERM")


def test_scan_dbsize_and_time_are_answered(direct: Served) -> None:
    with redis.Redis(port=direct.port, socket_timeout=120) as client:
        assert list(client.scan_iter()) == []
        assert client.dbsize() == 0
        seconds, micros = client.time()
        assert seconds > 1_700_000_000
        assert 0 <= micros < 1_000_000
        with pytest.raises(redis.ResponseError, match="invalid cursor"):
            client.execute_command("SCAN", "x")
