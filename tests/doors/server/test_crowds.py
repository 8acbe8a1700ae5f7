"""More clients than a process may have files: those beyond are refused, and both protocols go on."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.doors.resp.serving import Raw
from tests.doors.server.conftest import Serve
from tests.waiting import until

pytestmark = pytest.mark.live

#: Hard limit of open files; the soft one is half of it, which is too few for the server.
FILES = 440


@contextmanager
def crowd(port: int, clients: int) -> Iterator[None]:
    """So many clients that are connected, and say nothing."""
    with ExitStack() as ends:
        for _ in range(clients):
            ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
        yield


def test_a_crowd_at_one_protocol_leaves_the_other_its_files(serve: Serve) -> None:
    server = serve("--resp", "127.0.0.1:0", files=FILES, constants=("issuer.doors.server.supervisor.STOPPING=300",))
    server.next("orders")
    (worker,) = server.children()
    assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (FILES, FILES)
    resp = server.port("redis")

    def is_full() -> bool:
        with Raw(resp) as client:
            client.send(b"PING\r\n")
            return [str(each) for each in client.rest()] == ["ERR max number of clients reached"]

    with crowd(resp, FILES):
        until(is_full, ignoring=(ConnectionError,), message="more clients are refused")
        with server.fresh() as http:
            assert server.next("orders", http) == 2
            assert http.get("/metrics").status_code == 200
    with Raw(resp) as client:
        assert until(lambda: client.ask("INCR", "orders"), ignoring=(ConnectionError,)) == 3
    with crowd(server.port(), FILES), Raw(resp) as client:
        assert [client.ask("INCR", "orders") for _ in range(3)] == [4, 5, 6]
    with server.fresh() as http:
        assert server.next("orders", http) == 7
    assert server.stop() == 0


def test_a_limit_that_is_too_low_is_told_at_the_start(serve: Serve) -> None:
    server = serve("--resp", "127.0.0.1:0", files=200)
    assert server.process.wait(120) == 2
    assert "the limit of open files is 200, and at least 300 are needed: raise it" in server.log
