"""How `issuer serve` stops: no request that was sent is lost, whoever notices the stop when."""

import http.client
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.doors.server.conftest import PATIENT, Serve, Served, lives
from tests.waiting import until

pytestmark = pytest.mark.live

#: What was asked is not asked again.
NEVER = Retry(NoBackoff(), 0)

#: It waits for connections as long as they need, and for handshakes no longer than a worker takes to notice the end.
PATIENT_SOCKETS = ("issuer.doors.server.sockets.ACCEPTING=300", "issuer.doors.server.sockets.HANDSHAKES=0.001")


class Crowd:
    """Clients that draw without a pause, each over a connection that it keeps, until they are refused."""

    def __init__(self, drawing: Callable[[], Iterator[int]], clients: int) -> None:
        self.numbers: Counter[int] = Counter()
        self.lost: list[Exception] = []
        self._threads = [threading.Thread(target=self._draw, args=(drawing,)) for _ in range(clients)]
        for each in self._threads:
            each.start()

    def _draw(self, drawing: Callable[[], Iterator[int]]) -> None:
        try:
            for number in drawing():
                self.numbers[number] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is lost
            self.lost.append(error)

    def refused(self) -> None:
        for each in self._threads:
            each.join(120)
        assert not any(each.is_alive() for each in self._threads)


def over_http(server: Served) -> Iterator[int]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port(), timeout=120)) as client:
        while True:
            if client.sock is None:
                try:
                    client.connect()
                except ConnectionRefusedError:
                    return
            client.request("POST", "/v1/tags/orders/next", headers={"Accept": "text/plain"})
            yield int(client.getresponse().read())


NOTICES = pytest.mark.skipif(
    redis.__version__ < "8.1", reason="this redis-py uses connections that a server has closed"
)


def over_resp(server: Served) -> Iterator[int]:
    with redis.Redis(port=server.port("redis"), socket_timeout=120, retry=NEVER) as client:
        while True:
            try:
                number = client.incr("orders")
            except redis.ConnectionError as error:
                if "refused" in str(error):
                    return
                raise
            yield int(number)


@pytest.mark.parametrize("protocol", [over_http, pytest.param(over_resp, marks=NOTICES)])
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clients_that_keep_their_connections_lose_no_request(
    serve: Serve, protocol: Callable[[Served], Iterator[int]], workers: str, number: signal.Signals
) -> None:
    server = serve("--resp", "127.0.0.1:0", "--workers", workers, "--drain-delay", "1")
    crowd = Crowd(lambda: protocol(server), 16)
    until(lambda: crowd.numbers.total() >= 4000 or crowd.lost, message="they draw")
    server.process.send_signal(number)
    crowd.refused()
    assert crowd.lost == []
    assert set(crowd.numbers.values()) == {1}
    assert server.process.wait(120) == 0


@pytest.mark.parametrize("scheme", ["http", "redis"])
def test_connections_that_nobody_has_accepted_yet_are_served(serve: Serve, scheme: str) -> None:
    server = serve("--resp", "127.0.0.1:0", constants=(*PATIENT, *PATIENT_SOCKETS))
    assert server.next("orders") == 1
    sent = b"POST /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\n\r\n" if scheme == "http" else b"INCR orders\r\n"
    answer = b"HTTP/1.1 200 " if scheme == "http" else b":"
    worker = server.children()[0]
    with ExitStack() as ends:
        os.kill(worker, signal.SIGSTOP)
        try:
            address = ("127.0.0.1", server.port(scheme))
            clients = [ends.enter_context(socket.create_connection(address, timeout=120)) for _ in range(50)]
            for each in clients:
                each.sendall(sent)
            server.process.terminate()
            server.told("received SIGTERM: stopping")
        finally:
            os.kill(worker, signal.SIGCONT)
        for each in clients:
            assert each.recv(65_536).startswith(answer)
    assert server.process.wait(120) == 0


@NOTICES
def test_a_stop_shows_as_not_ready_first_and_everything_is_served_meanwhile(serve: Serve) -> None:
    # What is known of a tag holds on, so that the short way of a draw is open as long as it is.
    known = (*PATIENT, "issuer.doors.web.service.PLAIN_FOR=3600")
    server = serve("--resp", "127.0.0.1:0", env={"ISSUER_DRAIN_DELAY": "3600"}, constants=known)
    client, database = server.fresh(), redis.Redis(port=server.port("redis"), socket_timeout=120, retry=NEVER)
    with client, database, redis.Redis(port=server.port("redis"), socket_timeout=120) as quiet:
        assert client.get("/readyz").json()["ready"] is True
        assert "connection" not in client.get("/readyz").headers
        assert (database.incr("orders"), quiet.ping()) == (1, True)
        assert [server.next("orders", client) for _ in range(2)] == [2, 3]
        server.process.terminate()
        server.told("received SIGTERM: stopping after serving for another 3600 s")
        until(lambda: client.get("/readyz").status_code != 200, message="not ready")
        found = client.get("/readyz")
        assert (found.status_code, found.json()["code"], found.json()["ready"]) == (503, "stopping", False)
        assert (found.headers["connection"], found.headers["retry-after"]) == ("close", "1")
        for path in ("/livez", "/nothing"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["connection"]) == (404 if path == "/nothing" else 200, "close")
        drawn = client.post("/v1/tags/orders/next")
        assert (drawn.json()["number"], drawn.headers["connection"]) == (4, "close")
        first = database.client_id()  # says nothing about numbers, so that the connection stays
        assert (database.client_id(), database.incr("orders")) == (first, 5)
        assert (database.client_id() != first, database.incr("orders"), quiet.incr("orders")) == (True, 6, 7)
        assert server.process.poll() is None
    processes = server.children()
    server.process.terminate()
    assert server.process.wait(120) == 128 + signal.SIGTERM
    assert not any(map(lives, processes))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_person_at_a_terminal_waits_for_no_load_balancer(serve: Serve, home: Path, number: signal.Signals) -> None:
    server = serve("--workers", "2", env={"ISSUER_DRAIN_DELAY": "3600"})
    assert server.next("orders") in {1, 1001}
    processes = server.children()
    assert list(home.glob("issuer-metrics-*"))
    assert server.stop(number) == 0
    assert not any(map(lives, processes))
    assert not list(home.glob("issuer-metrics-*"))


def test_a_worker_that_stands_still_is_replaced(serve: Serve) -> None:
    constants = ("issuer.doors.server.supervisor.SILENT_LOOKS=10", "issuer.doors.server.supervisor.ALIVE_EVERY=0.5")
    server = serve(constants=(*PATIENT, *constants))
    assert server.next("orders") == 1
    worker = server.children()[0]
    os.kill(worker, signal.SIGSTOP)
    with server.fresh() as client:
        assert server.next("orders", client) > 1
    assert f"worker 1 (process {worker}) has not responded for 5 s: killing it" in server.log
    assert not lives(worker)
    assert server.stop() == 0
