"""Where `issuer serve` listens besides plain TCP: Unix sockets, and TLS for both protocols."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
import redis

import issuer
from issuer.doors.server.options import ServerOptions
from issuer.errors import ConfigurationError
from issuer.settings import Settings, load
from tests.doors.http.doors import tokens
from tests.doors.server.conftest import PATIENT, Serve, Served, lives
from tests.doors.server.test_stopping import NEVER, NOTICES, Crowd
from tests.refusals import refused
from tests.servers.tls import Certificates, make_certificates
from tests.waiting import until


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return make_certificates(folder)


def options(settings: Settings) -> ServerOptions:
    return ServerOptions.of(settings, {}, verbose=False)


def with_tls(certificates: Certificates, name: str = "server") -> tuple[str, ...]:
    return (f"--tls-cert={certificates.folder}/{name}.crt", f"--tls-key={certificates.folder}/{name}.key")


class UnixConnection(http.client.HTTPConnection):
    """A connection over a Unix socket. `host`: its path."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def drawn(client: http.client.HTTPConnection) -> int:
    client.request("POST", "/v1/tags/orders/next", headers={"Accept": "text/plain", "Host": "localhost"})
    return int(client.getresponse().read())


# ------------------------------------------------------------------ Unix sockets


@pytest.mark.live
def test_both_protocols_are_served_over_unix_sockets_that_are_gone_afterwards(serve: Serve, home: Path) -> None:
    web, database = home / "http.sock", home / "resp.sock"
    token = tokens(home, a=(["issue"], ["*"]))[1]["a"]
    server = serve("--resp", f"unix:{database}", "--tokens", "tokens.toml", http=f"unix:{web}")
    server.told(f"serving http+unix:{web} and redis+unix:{database} with one worker")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(web)), timeout=120) as client:
        for given, status in ((token, 200), ("wrong", 401)):
            bearer = {"Authorization": f"Bearer {given}"}
            assert client.post("http://localhost/v1/tags/orders/next", headers=bearer).status_code == status
    with redis.Redis(unix_socket_path=str(database), password=token, socket_timeout=120) as one:
        assert one.incr("orders") == 2
    with (
        redis.Redis(unix_socket_path=str(database), password="wrong", socket_timeout=120) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.incr("orders")
    server.told("authentication failed over resp")
    assert server.stop() == 0
    assert not web.exists()
    assert not database.exists()


def over_unix_http(path: Path) -> Iterator[int]:
    with closing(UnixConnection(str(path), timeout=120)) as client:
        while True:
            if client.sock is None:
                try:
                    client.connect()
                except (ConnectionRefusedError, FileNotFoundError):
                    return
            yield drawn(client)


@pytest.mark.live
def test_a_stop_loses_no_request_over_a_unix_socket(serve: Serve, home: Path) -> None:
    path = home / "http.sock"
    server = serve("--workers", "2", "--drain-delay", "1", http=f"unix:{path}")
    server.told("serving ")
    crowd = Crowd(lambda: over_unix_http(path), 16)
    until(lambda: crowd.numbers.total() >= 4000 or crowd.lost, message="they draw")
    server.process.terminate()
    crowd.refused()
    assert [*map(str, crowd.lost)] == []
    assert set(crowd.numbers.values()) == {1}
    assert server.process.wait(120) == 0


@pytest.mark.live
def test_the_unix_socket_of_a_killed_server_is_replaced_and_that_of_a_running_one_is_not(
    serve: Serve, home: Path
) -> None:
    path = home / "http.sock"
    killed = serve(http=f"unix:{path}")
    killed.told("serving ")
    processes = killed.children()
    killed.process.kill()
    until(lambda: not any(map(lives, processes)), message="its processes end with it")
    assert path.is_socket()
    running = serve(http=f"unix:{path}")
    running.told("serving ")
    second = serve(http=f"unix:{path}")
    assert second.process.wait(120) == 2
    assert f"can't listen on http+unix:{path}: another program listens there" in second.log
    with closing(UnixConnection(str(path), timeout=120)) as client:
        assert drawn(client) > 0
    assert running.stop() == 0


@pytest.mark.live
def test_a_file_at_the_path_of_a_unix_socket_stays(serve: Serve, home: Path) -> None:
    (home / "http.sock").write_text("precious")
    server = serve(http=f"unix:{home}/http.sock")
    assert server.process.wait(120) == 2
    assert (home / "http.sock").read_text() == "precious"


@pytest.mark.parametrize("path", ["http.sock", "", "/" + "x" * 103, "/a\0b"])
def test_the_path_of_a_unix_socket_is_absolute_and_short(home: Path, path: str) -> None:  # noqa: ARG001 - no settings
    refused(ConfigurationError, "must be unix: and an absolute path of up to 103 bytes", load, {"http": f"unix:{path}"})


# ------------------------------------------------------------------ TLS


@pytest.mark.live
def test_both_protocols_speak_tls_and_nothing_else(serve: Serve, certificates: Certificates) -> None:
    server = serve("--resp", "127.0.0.1:0", *with_tls(certificates))
    ports = {scheme: server.port(scheme) for scheme in ("https", "rediss")}
    trusted = ssl.create_default_context(cafile=str(certificates.authority))
    with closing(http.client.HTTPSConnection("127.0.0.1", ports["https"], timeout=120, context=trusted)) as client:
        assert [drawn(client) for _ in range(3)] == [1, 2, 3]
    url = f"rediss://127.0.0.1:{ports['rediss']}?{certificates.query(client=False)}"
    with redis.Redis.from_url(url, socket_timeout=120) as database:
        assert [database.incr("orders") for _ in range(3)] == [4, 5, 6]
        with database.pipeline(transaction=False) as several:
            for _ in range(2000):
                several.incr("orders")
            assert several.execute() == list(range(7, 2007))
    with issuer.connect(f"https://127.0.0.1:{ports['https']}?ssl_ca={certificates.authority}") as ids:
        assert ids.next("orders") > 2006
    stranger = ssl.create_default_context(cafile=str(certificates.stranger))
    for port in ports.values():
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            stranger.wrap_socket(plain, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), timeout=120) as plain, suppress(ConnectionResetError):
            plain.sendall(b"INCR orders\r\nPOST /v1/tags/orders/next HTTP/1.1\r\n\r\n")
            answer = plain.recv(4096)
            assert answer == b"" or answer[0] == 21  # an alert of TLS
    with socket.create_connection(("127.0.0.1", ports["https"]), timeout=120) as plain:
        older = ssl.create_default_context(cafile=str(certificates.authority))
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with older.wrap_socket(plain, server_hostname="127.0.0.1") as connected:
            assert connected.version() == "TLSv1.2"
    assert server.stop() == 0


def over_https(server: Served, trusted: ssl.SSLContext) -> Iterator[int]:
    port = server.port("https")
    with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=trusted)) as client:
        while True:
            if client.sock is None:
                try:
                    client.connect()
                except ConnectionRefusedError:
                    return
            yield drawn(client)


@pytest.mark.live
def test_a_stop_loses_no_request_over_https(serve: Serve, certificates: Certificates) -> None:
    server = serve("--workers", "2", "--drain-delay", "1", *with_tls(certificates))
    trusted = ssl.create_default_context(cafile=str(certificates.authority))
    crowd = Crowd(lambda: over_https(server, trusted), 16)
    until(lambda: crowd.numbers.total() >= 1000 or crowd.lost, message="they draw")
    server.process.terminate()
    crowd.refused()
    assert [*map(str, crowd.lost)] == []
    assert set(crowd.numbers.values()) == {1}
    assert server.process.wait(120) == 0


@NOTICES
@pytest.mark.live
def test_a_stop_loses_no_request_over_rediss(serve: Serve, certificates: Certificates) -> None:
    more = ("--workers", "2", "--drain-delay", "1", *with_tls(certificates))
    server = serve("--resp", "127.0.0.1:0", *more, constants=(*PATIENT, "issuer.doors.server.worker.ARRIVING=5"))
    url = f"rediss://127.0.0.1:{server.port('rediss')}?{certificates.query(client=False)}"

    def drawing() -> Iterator[int]:
        with redis.Redis.from_url(url, socket_timeout=120, socket_connect_timeout=120, retry=NEVER) as client:
            while True:
                try:
                    number = client.incr("orders")
                except redis.ConnectionError as error:
                    if "refused" in str(error):
                        return
                    raise
                yield int(number)

    crowd = Crowd(drawing, 16)
    until(lambda: crowd.numbers.total() >= 1000 or crowd.lost, message="they draw")
    server.process.terminate()
    crowd.refused()
    assert [*map(str, crowd.lost)] == []
    assert set(crowd.numbers.values()) == {1}
    assert server.process.wait(120) == 0


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(home: Path, certificates: Certificates) -> None:
    folder = certificates.folder
    (folder / "empty.crt").write_text("")
    for cert, key in (("server.crt", "client.key"), ("none.crt", "server.key"), ("empty.crt", "server.key")):
        settings = load({"tls_cert": str(folder / cert), "tls_key": str(folder / key)})
        refused(ConfigurationError, f"tls_cert .*{cert} and tls_key .*{key} can't be used", options, settings)
    for alone in ("tls_cert", "tls_key"):
        refused(ConfigurationError, "belong together", options, load({alone: str(home)}))
