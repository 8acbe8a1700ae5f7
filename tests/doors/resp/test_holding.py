"""What clients make the server hold: counted for all of them together, and for a limited time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.budget import STRANGERS_SHARE, Budget
from issuer.doors.resp import connection
from issuer.doors.resp.commands import SPECS
from issuer.doors.resp.connection import UNREAD_MOST
from issuer.doors.resp.replies import PONG
from issuer.doors.resp.shared import READ_MOST
from issuer.gateway.commands import script
from tests.doors.http.doors import tokens
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.servers.proxy import FaultProxy
from tests.waiting import eventually, until

MULTI = packed("MULTI")
#: Commands whose replies are more than the system takes from a server for a client that doesn't read.
LONG = packed("COMMAND", "DOCS") * 4000
#: Commands that a transaction may have, and the bytes of one in the queue.
MANY, EACH = 9999, len(packed("INCR", "a"))


def queue_many(client: Raw) -> None:
    client.send(MULTI, b"INCR a\nINCR b\n" * (MANY // 2))
    assert client.replies(MANY) == [b"OK", *[b"QUEUED"] * (MANY - 1)]


def test_a_budget_counts_its_shares_and_refuses_what_is_too_much() -> None:
    whole = Budget(100)
    part = whole.strangers
    assert part.hold(25)
    assert not part.hold(1)
    assert whole.hold(75)
    assert not whole.hold(1)
    part.hold(-25)
    assert (whole.held, part.held) == (75, 0)
    assert whole.hold(20)
    assert not part.hold(10)
    assert (whole.held, part.held) == (95, 0)


def test_queued_commands_take_no_more_memory_than_their_bytes(direct: Served, client: Raw) -> None:
    budget = direct.server.shared.budget
    queue_many(client)
    until(lambda: budget.held == (MANY - 1) * EACH)
    assert client.ask("DISCARD") == b"OK"
    assert client.ask("INCR", "a") == 1
    until(lambda: budget.held == 0)


def test_when_the_budget_is_used_up_who_wants_more_is_told_and_closed(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(3 * MANY * EACH)
    served = serve(budget=budget)
    served.create("a", order="trend")
    with served.client() as one, served.client() as two, served.client() as three, served.client() as other:
        for client in (one, two):
            queue_many(client)
        three.send(packed("INCR", "a"), MULTI, b"INCR a\nINCR b\n" * MANY)
        last = str(three.rest()[-1])
        assert last.startswith("UNAVAILABLE the clients of this server make it hold too many bytes")
        assert last.endswith("; retry in 1 s")
        assert "hold too many bytes" in caplog.text
        assert other.ask("INCR", "a") == 2
        assert budget.held <= budget.most
        one.send(packed("DISCARD"), packed("INCR", "a"))
        assert one.replies(2) == [b"OK", 3]
        two.socket.close()
        until(lambda: budget.held == 0)


def test_replies_that_are_not_read_count_and_the_last_to_come_is_closed(serve: Serve) -> None:
    budget = Budget(8 * UNREAD_MOST)
    served = serve(budget=budget)
    deaf = [served.client() for _ in range(16)]
    try:
        deaf[0].send(LONG)
        one: Any = until(lambda: next((each for each in served.server.shared.connections if not each._writable), None))
        written = one._transport.get_write_buffer_size()
        until(lambda: budget.held == one._parser.held + written)
        assert written > 0
        for client in deaf[1:]:
            client.send(LONG)
        until(lambda: served.clients < len(deaf))
        assert budget.held <= budget.most
        with served.client() as other:
            assert other.ask("PING") == b"PONG"
    finally:
        for client in deaf:
            client.socket.close()
    until(lambda: budget.held == 0)


def test_clients_without_a_token_use_up_no_more_than_their_share(serve: Serve, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, a=(["issue"], ["a"]))
    budget = Budget(800_000)
    served = serve(access=access, budget=budget)
    served.create("a", order="trend")
    half = b"*2\r\n$4\r\nAUTH\r\n$16000\r\n" + b"x" * 15_000
    strangers = [served.client().send(half) for _ in range(20)]
    try:
        share = STRANGERS_SHARE * budget.most
        until(lambda: share - 2 * len(half) < budget.held)
        with served.client() as last:
            assert [code(each) for each in last.send(half).rest()] == ["UNAVAILABLE"]
        assert budget.held <= share
        with served.client() as client:
            assert client.ask("AUTH", made["a"]) == b"OK"
            queue_many(client)
            assert share < budget.held <= budget.most
            assert budget.strangers.held <= share
    finally:
        for stranger in strangers:
            stranger.socket.close()
    until(lambda: (budget.held, budget.strangers.held) == (0, 0))


def test_a_command_that_is_not_completed_in_time_closes_the_connection(serve: Serve) -> None:
    served = serve(progress=0.4)
    served.create("a", order="trend")
    with served.client() as half, served.client() as idle, served.client() as slow:
        half.send(packed("INCR", "a"), packed("INCR", "a")[:-3])
        assert half.reply() == 1
        # Many parts of commands, none of which takes long, are no reason.
        whole = packed("INCR", "a")
        slow.send(whole[:5])
        while served.clients == 3:
            assert slow.send(whole[5:] + whole[:5]).reply() > 1
        assert [str(each) for each in half.rest()] == ["ERR no command was completed, or no reply read, within 0.4 s"]
        assert idle.ask("PING") == b"PONG"


def test_a_client_that_does_not_read_its_replies_in_time_is_closed(serve: Serve) -> None:
    served = serve(progress=0.4)
    with served.client() as deaf, served.client() as other:
        assert [deaf.ask("PING"), other.ask("PING")] == [b"PONG"] * 2
        deaf.send(LONG)
        until(lambda: served.clients == 1)
        assert other.ask("PING") == b"PONG"


@pytest.fixture
def before(direct: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many PINGs came before each ECHO, with turns of 10 commands."""
    counts: list[int] = []

    def echo(*_: object) -> bytes:
        counts.append(direct.server.shared.commands["PING"])
        return PONG

    monkeypatch.setitem(SPECS, "ECHO", replace(SPECS["ECHO"], run=echo))
    for turn in ("TURN", "SHORT_TURN"):
        monkeypatch.setattr(connection, turn, 10)
    return counts


def test_many_commands_in_one_read_let_others_have_their_turn(direct: Served, before: list[int]) -> None:
    n = 8000
    with direct.client() as many, direct.client() as other:
        assert [many.ask("PING"), other.ask("PING")] == [b"PONG"] * 2

        async def both() -> None:  # the loop sees both at once
            many.send(b"PING\n" * n, packed("INCR", "a"))
            other.send(packed("ECHO", "x"))

        direct.wait(both())
        assert other.reply() == b"PONG"
        assert before[0] < 100
        assert many.replies(n + 1) == [*[b"PONG"] * n, 1]


def test_one_command_does_not_wait_for_the_turns_of_many_others(direct: Served, before: list[int]) -> None:
    n = 2000
    crowd = [direct.client() for _ in range(50)]
    with direct.client() as other:
        assert [client.ask("PING") for client in (*crowd, other)] == [b"PONG"] * 51

        async def everybody() -> int:
            for client in crowd:
                client.send(b"PING\n" * n)
            await eventually(lambda: len(direct.server.shared.turns) > 40)
            other.send(packed("ECHO", "x"))
            return direct.server.shared.commands["PING"]

        seen = direct.wait(everybody())
        assert other.reply() == b"PONG"
        assert before[0] - seen < 10 * len(crowd)
        for client in crowd:
            assert client.replies(n) == [b"PONG"] * n
            client.socket.close()


def test_a_client_that_reads_again_waits_for_its_turn(direct: Served, client: Raw) -> None:
    assert client.ask("PING") == b"PONG"
    (one,) = direct.server.shared.connections

    async def resume() -> tuple[int, int]:
        one.pause_writing()
        one._parser.feed(b"PING\n" * 100)
        one.resume_writing()
        return len(direct.server.shared.turns), direct.server.shared.commands["PING"]

    assert direct.wait(resume()) == (1, 1)
    assert client.replies(100) == [b"PONG"] * 100


def test_while_others_wait_for_their_turn_only_small_requests_are_begun_at_once(direct: Served) -> None:
    with direct.client() as busy, direct.client() as client:
        shared = direct.server.shared
        numbers = [each.ask("CLIENT", "ID") for each in (busy, client)]
        of = {each._session.number: each for each in shared.connections}

        async def read(data: bytes) -> int:
            shared.wait_for_turn(of[numbers[0]])
            shared.buffer[: len(data)] = data
            of[numbers[1]].buffer_updated(len(data))
            return shared.commands["PING"]

        assert direct.wait(read(b"PING\n" * 10)) == 10
        assert direct.wait(read(b"PING\n" * 200)) == 10
        assert client.replies(210) == [b"PONG"] * 210


def test_numbers_that_wait_behind_those_of_another_tag_are_bounded(serve: Serve, redis_proxy: FaultProxy) -> None:
    served = serve(redis=redis_proxy.url)
    served.create("slow", order="strict")
    served.create("fast", order="trend", step=1_000_000, lease=100_000)
    fast = packed("INCR", "fast") * 80  # so short that it is remembered, and not parsed again
    with served.client() as client:
        assert client.ask("INCR", "slow") == 1
        assert client.send(fast).replies(80) == list(range(1, 81))
        redis_proxy.hold(match=script("next").sha.encode(), times=1)
        client.send(packed("INCR", "slow"))
        until(lambda: redis_proxy.held)
        (one,) = served.server.shared.connections
        counted = served.server.shared.commands
        for _ in range(500):
            before = counted["INCR"]
            client.send(fast)
            until(lambda: counted["INCR"] > before or not one._reading)  # noqa: B023 - at once
        assert one._replies.held <= UNREAD_MOST + READ_MOST
        redis_proxy.release()
