"""Clients that never read, say half of a request or nothing, come in crowds, or leave; and the server's end."""

import random
import socket
import threading

import hiredis
import pytest

from issuer.doors.resp.connection import UNREAD_MOST
from issuer.doors.resp.demand import LONGEST
from issuer.doors.resp.parsing import BULK_MOST
from issuer.doors.resp.shared import READ_MOST
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.doors.resp.test_parsing import soup
from tests.seeds import seeded
from tests.waiting import until


def flood(client: Raw, request: bytes) -> None:
    """Send the request again and again, and read nothing, until the server takes no more."""
    client.socket.settimeout(0.5)
    try:
        for _ in range(2000):
            client.send(request)
    except (TimeoutError, ConnectionError):
        return
    raise AssertionError("the server takes whatever comes")


def test_a_pipeline_is_answered_alike_wherever_it_is_split(direct: Served, client: Raw) -> None:
    pipeline = packed("INCR", "a") + packed("ECHO", "x\r\n") + b"PING\r\n" + packed("GET", "a") + packed("INCR", "a")
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(pipeline) + 1):
        client.send(pipeline[:at])
        if at % 2:
            # So that the parts come in two reads: this one is answered when the first was read.
            with direct.client() as other:
                assert other.ask("PING") == b"PONG"
        first = 2 * at + 1
        client.send(pipeline[at:])
        assert client.replies(5) == [first, b"x\r\n", b"PONG", b"%d" % first, first + 1]


def test_a_client_that_never_reads_is_read_no_more_and_harms_nobody(direct: Served) -> None:
    with direct.client() as deaf, direct.client() as client:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        flood(deaf, packed("ECHO", b"x" * BULK_MOST))
        (held,) = (each for each in direct.server.shared.connections if not each._reading)
        assert held._transport.get_write_buffer_size() <= UNREAD_MOST + 2 * BULK_MOST
        assert held._parser.held <= READ_MOST + BULK_MOST
        assert client.ask("INCR", "a") == 1


def test_of_short_commands_with_long_replies_no_more_is_begun_than_can_be_written(direct: Served) -> None:
    with direct.client() as deaf, direct.client() as client:
        assert deaf.ask("CLIENT", "ID") == 1
        (held,) = (each for each in direct.server.shared.connections if each._session.number == 1)
        held._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.send(packed("COMMAND", "DOCS") * 2000)
        until(lambda: not held._writable)
        assert held._transport.get_write_buffer_size() <= 2 * UNREAD_MOST
        assert client.ask("PING") == b"PONG"


def test_a_client_that_reads_again_gets_all_its_replies_in_order(direct: Served, client: Raw) -> None:
    n = 20_000
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender = threading.Thread(target=client.send, args=(packed("INCR", "a") * n,))
    sender.start()
    until(lambda: direct.ids.engine.runtime.fast_path.numbers.get("a") is not None)
    assert client.replies(n) == list(range(1, n + 1))
    sender.join()


def test_a_pipeline_of_more_commands_than_may_be_unanswered_is_answered(client: Raw) -> None:
    n = 5 * UNREAD_MOST // LONGEST
    client.send(packed("INCR", "a") * n, packed("GET", "a"))
    assert client.replies(n + 1) == [*range(1, n + 1), b"%d" % n]


def test_a_client_that_says_nothing_more_is_closed_and_one_that_talks_is_not(serve: Serve) -> None:
    served = serve(idle=1.0)
    served.create("a", order="trend")
    with served.client() as client, served.client() as half, served.client() as silent:
        half.send(packed("INCR", "a")[:-3])
        gone = threading.Event()

        def listen() -> None:
            assert half.rest() == []
            assert silent.rest() == []
            gone.set()

        listener = threading.Thread(target=listen)
        listener.start()
        talk = until(lambda: client.ask("INCR", "a") and gone.is_set())
        listener.join()
        assert talk
        assert client.ask("PING") == b"PONG"


def test_a_client_that_does_not_take_its_replies_is_closed_at_last(serve: Serve) -> None:
    served = serve(idle=1.0)
    with served.client() as deaf:
        flood(deaf, packed("ECHO", b"x" * BULK_MOST))
        until(lambda: not served.clients)


def test_one_client_too_many_is_told_so_and_the_next_may_come_when_one_has_gone(serve: Serve) -> None:
    served = serve(clients_most=2)
    with served.client() as one, served.client() as two:
        assert [one.ask("PING"), two.ask("PING")] == [b"PONG"] * 2
        with served.client() as three:
            (why,) = three.send(packed("PING")).rest()
            assert str(why) == "ERR max number of clients reached"
        assert one.ask("PING") == b"PONG"
        two.socket.close()
        until(lambda: served.server.shared.served == 1)
        with served.client() as four:
            assert four.ask("PING") == b"PONG"


def test_a_thousand_idle_clients_keep_nobody_from_drawing(direct: Served) -> None:
    idle = [Raw(direct.port) for _ in range(1000)]
    try:
        with direct.client() as client:
            until(lambda: direct.clients == 1001)
            assert client.ask("INCR", "a") == 1
            assert [each.ask("PING") for each in idle[::100]] == [b"PONG"] * 10
    finally:
        for each in idle:
            each.socket.close()
    until(lambda: direct.clients == 0)


def test_closing_answers_what_was_asked_and_takes_no_new_clients(direct: Served) -> None:
    with direct.client() as client, direct.client() as idle:
        assert idle.ask("PING") == b"PONG"
        client.send(packed("INCR", "a") * 100, packed("INCRBY", "a", 5), packed("INCR", "a"))
        assert client.reply() == 1
        direct.wait(direct.server.close(30.0))
        assert client.rest() == [*range(2, 101), 105, 106]
        assert idle.rest() == []
        with pytest.raises(ConnectionRefusedError):
            direct.client()
        assert not direct.ids.closed


def test_closing_does_not_wait_for_a_client_that_never_reads(direct: Served) -> None:
    with direct.client() as deaf:
        flood(deaf, packed("ECHO", b"x" * BULK_MOST))
        direct.wait(direct.server.close(0.2))
        assert direct.clients == 0


def random_bytes(served: Served, seed: int, cases: int) -> None:
    """Send soup, several clients after another, and see that the server bears it and no number goes astray."""
    chance = random.Random(seed)
    left = cases
    with served.client() as client:
        while left:
            with served.client() as wild:
                n = min(left, chance.randrange(1, 50))
                left -= n
                wild.send(*(soup(chance) for _ in range(n)))
                wild.socket.shutdown(socket.SHUT_WR)
                try:
                    wild.rest()
                except hiredis.ProtocolError as error:
                    raise AssertionError(f"seed {seed}: a reply is none") from error
            before = int(client.ask("GET", "a") or 0)
            assert client.ask("INCR", "a") == before + 1, seed
    until(lambda: served.clients == 0)


def test_random_bytes_break_nothing(direct: Served, caplog: pytest.LogCaptureFixture) -> None:
    random_bytes(direct, seeded(3), 500)
    assert "bug of the issuer" not in caplog.text


@pytest.mark.soak
def test_a_million_random_inputs_break_nothing(direct: Served, caplog: pytest.LogCaptureFixture) -> None:
    random_bytes(direct, seeded(4), 1_000_000)
    assert "bug of the issuer" not in caplog.text


def test_every_client_gets_numbers_of_its_own_while_others_are_torn_away(direct: Served) -> None:
    chance = random.Random(seeded(5))
    kept: list[int] = []
    ended = threading.Event()

    def draw() -> None:
        with direct.client() as client:
            while not ended.is_set():
                client.send(packed("INCR", "a") * 20)
                kept.extend(client.replies(20))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with direct.client() as torn:
            torn.send(packed("INCR", "a") * chance.randrange(1, 50))
            kept.extend(torn.replies(chance.randrange(2)))
            torn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
    ended.set()
    for thread in threads:
        thread.join()
    assert len(kept) == len({*kept})
    assert all(code(each) == "" for each in kept)
