"""A client that sends requests and reads no replies: what that costs a worker, and what it gets at last."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from tests.resp.serving import Raw, packed
from tests.server.conftest import Serve
from tests.waiting import until

pytestmark = pytest.mark.live

REQUESTS = 10_000
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


@contextmanager
def unread(worker: int, port: int, requests: bytes) -> Iterator[socket.socket]:
    """Send the requests; return when the worker does no more for them, though nothing is read."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(120)
        client.connect(("127.0.0.1", port))
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
