"""Clients that read no replies, send too much, or come in crowds: what they cost a worker, and what they get."""

import re
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path

import pytest

from issuer.doors.budget import BYTES_MOST
from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import listen
from issuer.settings import load
from tests.doors.http.doors import tokens
from tests.doors.resp.serving import Raw, packed
from tests.doors.server.conftest import Serve
from tests.waiting import until

pytestmark = pytest.mark.live

REQUESTS = 10_000
#: Open files that a server may have: it has places for some 130 clients.
FILES = 300
#: A transaction of which the server must keep 200 KB.
TRANSACTION = packed("MULTI") + packed("INCR", "a") * 9_000
#: Most memory of a worker that has them, in MB.
MEMORY_MOST = 80


def peak(worker: int) -> int:
    """Return how many MB the process has had at most."""
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def spent(worker: int) -> int:
    """Return the process's processor time."""
    fields = Path(f"/proc/{worker}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])


def deaf(port: int) -> socket.socket:
    """Connect a client for which the system takes little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(120)
    client.connect(("127.0.0.1", port))
    return client


@contextmanager
def unread(worker: int, port: int, requests: bytes) -> Iterator[socket.socket]:
    """Send the requests; return when the worker does no more for them, though nothing is read."""
    with deaf(port) as client:
        sender = threading.Thread(target=client.sendall, args=(requests,))
        sender.start()
        was = [spent(worker)]

        def rests() -> bool:
            was.append(spent(worker))
            return len(was) > 20 and was[-1] - was[-20] <= 1  # it says now and then that it lives

        until(rests, message="the worker does no more for them")
        yield client
        sender.join()


def test_pipelined_requests_of_http_cost_no_memory_while_their_answers_are_not_read(serve: Serve) -> None:
    server = serve()
    page = server.http.get("/docs").content
    (worker,) = server.children()
    with unread(worker, server.port(), b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * REQUESTS) as client:
        answers = client.makefile("rb")
        for _ in range(REQUESTS):
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            length = 0
            while (line := answers.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            assert answers.read(length) == page
    assert peak(worker) <= MEMORY_MOST
    assert server.stop() == 0


@pytest.mark.parametrize("words", [("COMMAND", "DOCS"), ("INCR", "a")], ids=["long replies", "numbers"])
def test_pipelined_commands_cost_no_memory_while_their_replies_are_not_read(
    serve: Serve, words: tuple[str, ...]
) -> None:
    server = serve("--resp", "127.0.0.1:0")
    port = server.port("redis")
    (worker,) = server.children()
    with Raw(port) as other:
        told = other.ask(*words)
    with unread(worker, port, packed(*words) * REQUESTS) as client, Raw(port) as other:
        assert other.ask("PING") == b"PONG"
        replies = Raw(port, client)
        expected = range(2, REQUESTS + 2) if words[0] == "INCR" else repeat(told, REQUESTS)
        for each in expected:
            assert replies.reply() == each
    assert peak(worker) <= MEMORY_MOST
    assert server.stop() == 0


@contextmanager
def readers_of_nothing(port: int, clients: int) -> Iterator[None]:
    """So many clients that ask for the page again and again, and read none of it.

    Each has other short replies before it, so that not all of them stop between two pages.
    """
    short, page = (b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in (b"/nothing", b"/docs"))
    with ExitStack() as ends:
        for number in range(clients):
            client = ends.enter_context(deaf(port))
            client.sendall(short * (number % 40 * 6) + page * 30)
        yield


def test_clients_that_read_nothing_hold_no_place(serve: Serve) -> None:
    server = serve(files=FILES, constants=("issuer.doors.server.sockets.UNREAD=1",))
    with readers_of_nothing(server.port(), FILES), server.fresh() as client:
        assert client.get("/livez", timeout=60).status_code == 200
        assert server.next("orders", client) == 1
        # Their own connections are closed at last, too.
        until(lambda: client.get("/docs").status_code == 200, message="the page is free again")
    assert server.stop() == 0


def test_the_system_keeps_little_of_what_a_client_does_not_read() -> None:
    (endpoint,) = ServerOptions.of(load({"http": "127.0.0.1:0"}, environ={}), {}, verbose=False).endpoints
    listening = listen([endpoint], ExitStack())["http"]
    with listening, socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
        accepted.setblocking(False)
        kept = 0
        with suppress(BlockingIOError):
            while kept < 2_000_000:
                kept += accepted.send(b"x" * 65_536)
    assert kept < 2_000_000


@pytest.mark.parametrize(("size", "status"), [(6_000, b"404"), (40_000, b"431")])
def test_the_head_of_a_request_is_bounded(serve: Serve, size: int, status: bytes) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port()), timeout=120) as client:
        head = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * size
        with suppress(ConnectionError):
            client.sendall(head + (b"" if status == b"431" else b"\r\n\r\n"))  # it needs no end
        assert client.recv(12) == b"HTTP/1.1 " + status
    assert server.stop() == 0


def test_a_client_without_a_token_gets_one_reply_on_a_connection(serve: Serve, home: Path) -> None:
    token = tokens(home, shop=(["issue"], ["*"]))[1]["shop"]
    server = serve("--tokens", "tokens.toml", "--compat", "tinyid")
    port = server.port()

    def statuses(*requests: tuple[str, str, bool]) -> list[bytes]:
        """Send requests at once, each with a method, a path and perhaps the token; return what comes until the end."""
        sent, answered = b"", b""
        for method, path, known in requests:
            said = f"Authorization: Bearer {token}\r\n" if known else ""
            sent += f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{said}Content-Length: 0\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=120) as client, suppress(ConnectionError):
            with suppress(ConnectionError):
                client.sendall(sent)
            while piece := client.recv(4096):
                answered += piece
        return re.findall(rb"HTTP/1.1 (\d+)", answered)

    draw, nothing, probe = ("POST", "/v1/tags/a/next"), ("GET", "/nothing"), ("GET", "/livez")
    for method, path, status in (
        (*draw, b"401"),
        (*nothing, b"404"),
        (*probe, b"200"),
        ("GET", "/docs", b"200"),
        ("PUT", "/v1/tags/a", b"405"),
        ("GET", "/tinyid/id/nextId?bizType=a&token=wrong", b"200"),
        ("GET", "/tinyid/id/other", b"404"),
    ):
        assert statuses(*[(method, path, False)] * 500) == [status], path
    known = (*draw, True)
    # A client with a token keeps its connection, whatever it asks for.
    kept = [(*each, True) for each in (draw, nothing, probe, draw)]
    assert statuses(*kept, (*probe, False)) == [b"200", b"404", b"200", b"200", b"200"]
    # What follows a refused request is not begun, so it draws nothing.
    assert statuses(known, (*draw, False), known) == [b"200", b"401"]
    assert int(server.http.post(draw[1], headers={"Authorization": f"Bearer {token}"}).json()["number"]) == 4
    assert server.stop() == 0


def test_both_protocols_share_one_budget_and_numbers_that_nobody_reads_are_in_it(serve: Serve) -> None:
    server = serve("--resp", "127.0.0.1:0")
    answer = server.http.post("/v1/tags", json={"tag": "a", "step": 1_000_000, "stride": 2, "offset": 1})
    assert answer.status_code == 201

    with ExitStack() as ends, Raw(server.port("redis")) as refused:
        for n in (1_000_000, (BYTES_MOST - 40_000_000 - 100_000) // 40):
            client = ends.enter_context(deaf(server.port()))
            body = b'{"n": %d}' % n
            head = b"POST /v1/tags/a/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert client.recv(12) == b"HTTP/1.1 200"
        answer = server.http.post("/v1/tags/a/take", json={"n": 10_000})
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "busy", "1")
        refused.send(TRANSACTION)
        assert str(refused.rest()[-1]).startswith("UNAVAILABLE ")
    until(
        lambda: server.http.post("/v1/tags/a/take", json={"n": 1_000_000}).status_code == 200,
        message="there is room again, because the clients have gone",
    )
    assert server.stop() == 0


#: Hard limit of open files; the soft one is half of it, which is too few for the server.
MANY = 440


@contextmanager
def crowd(port: int, clients: int) -> Iterator[None]:
    """So many clients that are connected, and say nothing."""
    with ExitStack() as ends:
        for _ in range(clients):
            ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
        yield


def test_a_crowd_at_one_protocol_leaves_the_other_its_files(serve: Serve) -> None:
    server = serve("--resp", "127.0.0.1:0", files=MANY, constants=("issuer.doors.server.supervisor.STOPPING=300",))
    server.next("orders")
    (worker,) = server.children()
    assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (MANY, MANY)
    resp = server.port("redis")

    def is_full() -> bool:
        with Raw(resp) as client:
            client.send(b"PING\r\n")
            return [str(each) for each in client.rest()] == ["ERR max number of clients reached"]

    with crowd(resp, MANY):
        until(is_full, ignoring=(ConnectionError,), message="more clients are refused")
        with server.fresh() as http:
            assert server.next("orders", http) == 2
            assert http.get("/metrics").status_code == 200
    with Raw(resp) as client:
        assert until(lambda: client.ask("INCR", "orders"), ignoring=(ConnectionError,)) == 3
    with crowd(server.port(), MANY), Raw(resp) as client:
        assert [client.ask("INCR", "orders") for _ in range(3)] == [4, 5, 6]
    with server.fresh() as http:
        assert server.next("orders", http) == 7
    assert server.stop() == 0


def test_a_limit_that_is_too_low_is_told_at_the_start(serve: Serve) -> None:
    server = serve("--resp", "127.0.0.1:0", files=200)
    assert server.process.wait(120) == 2
    assert "the limit of open files is 200, and at least 300 are needed: raise it" in server.log
