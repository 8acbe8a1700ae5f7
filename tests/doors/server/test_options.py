"""What a server is started with, and what is refused before anything is started."""

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import listen
from issuer.errors import ConfigurationError
from issuer.settings import load
from tests.refusals import refused


def options(**given: Any) -> ServerOptions:
    return ServerOptions.of(load(given, environ={}), {}, verbose=False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
@pytest.mark.parametrize("name", ["http", "resp"])
def test_this_machine_is_served_without_tokens(name: str, host: str) -> None:
    (*_, last) = options(**{"http": "none", name: f"{host}:8000"}).endpoints
    assert (last.name, last.is_loopback) == (name, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "[2001:db8::1]", "[::ffff:10.0.0.1]"])  # noqa: S104 - to be refused
@pytest.mark.parametrize("name", ["http", "resp"])
def test_others_are_served_with_tokens_or_if_it_is_said_so(name: str, host: str) -> None:
    given = {name: f"{host}:8000"}
    error = refused(ConfigurationError, "without tokens any program there could draw", options, **given)
    assert "issuer token" in str(error)
    assert "--open" in str(error)
    assert options(**given, open=True).endpoints[-1].name == name
    assert options(**given, tokens="tokens.toml").endpoints[-1].name == name


def test_what_contradicts_itself_is_refused() -> None:
    refused(ConfigurationError, "contradict each other", options, open=True, tokens="tokens.toml")
    refused(ConfigurationError, "http and resp are both off", options, http="none")
    refused(ConfigurationError, "there is no host 'no.such.host.invalid'", options, http="no.such.host.invalid:80")
    refused(ConfigurationError, "there is no host", options, http=f"{'a' * 64}.example:80")


def test_each_name_of_compatible_calls_counts_once() -> None:
    assert options(compat="leaf, tinyid,leaf", compat_prefix="/ids/").settings.compat == ["leaf", "tinyid"]
    assert options(compat=["leaf:exact", "leaf-go"], compat_prefix="/a/b").settings.compat_prefix == "/a/b"


def test_only_redis_is_kept() -> None:
    assert not options().has_redis
    assert options(redis_url="redis://r", store_url="memory://").has_redis


def test_sockets_are_listened_on_before_any_worker_is_there() -> None:
    both = options(http="127.0.0.1:0", resp="[::1]:0").endpoints
    with ExitStack() as ends:
        sockets = listen(both, ends)
        for each in both:
            bound = sockets[each.name]
            host, port = bound.getsockname()[:2]
            with socket.create_connection((host, port)):
                pass
            assert each.shown(port) == {"http": f"http://127.0.0.1:{port}", "resp": f"redis://[::1]:{port}"}[each.name]
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_refused_and_nothing_else_is_left_listening() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        at = options(http=f"127.0.0.1:{port}", resp=f"127.0.0.1:{taken.getsockname()[1]}").endpoints
        with ExitStack() as ends:
            refused(ConfigurationError, "can't listen on redis://.*: another program listens there", listen, at, ends)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_an_address_that_this_machine_does_not_have_is_told() -> None:
    at = options(http="192.0.2.1:8000", open=True).endpoints
    refused(ConfigurationError, "this machine has no such address", listen, at, ExitStack())
