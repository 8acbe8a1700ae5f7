"""Over TLS: the server shows its certificate, the client too where it is asked to, and numbers flow as before."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from contextlib import closing

import pytest
import redis

import issuer
from issuer import gateway
from issuer.clock import Deadline
from issuer.drivers.blocking.connections import Connections
from persistence.memory import MemoryStore
from tests.colours import Connect
from tests.deadlines import refused
from tests.faults.test_fork import in_child
from tests.servers.redis import RedisServer
from tests.servers.tls import Certificates

KEY = "issuer:{a}"

StartTls = Callable[..., RedisServer]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("client_certificates", [False, True])
def test_numbers_flow_and_stay_exact(
    connect: Connect, start_tls: StartTls, store: MemoryStore, client_certificates: bool
) -> None:
    server = start_tls(client_certificates=client_certificates, password="secret")
    for number, protocol in enumerate(("2", "3")):
        with connect(redis=f"{server.url}&protocol={protocol}", store=store) as ids:
            tag = f"tag-{number}"
            ids.create(tag, start=2**60, step=7)
            assert ids.take(tag, 50) == list(range(2**60, 2**60 + 50))
            seen = ids.inspect(tag)
            assert seen.redis is not None
            assert seen.redis.fence == server.replication()["master_replid"]


def test_a_server_that_the_authority_does_not_vouch_for_gets_nothing(
    connect: Connect, start_tls: StartTls, store: MemoryStore, certificates: Certificates
) -> None:
    server = start_tls()
    url = server.url.replace(str(certificates.authority), str(certificates.stranger))
    with connect(redis=url, store=store) as ids:
        ids.create("a")
        with pytest.raises((issuer.ConfigurationError, issuer.RedisUnavailable), match=r"(?i)certificate"):
            ids.next("a", timeout=3)
    assert "cmdstat_evalsha" not in server.client().info("commandstats")


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(
    connect: Connect, start_tls: StartTls, store: MemoryStore, certificates: Certificates
) -> None:
    server = start_tls(client_certificates=True)
    url = f"rediss://127.0.0.1:{server.port}/0?{certificates.query(client=False)}"
    with connect(redis=url, store=store) as ids:
        ids.create("a")
        with pytest.raises((issuer.ConfigurationError, issuer.RedisUnavailable)):
            ids.next("a", timeout=1)


def test_a_plain_url_of_a_server_that_speaks_tls_is_an_error_by_the_deadline(
    connect: Connect, start_tls: StartTls, store: MemoryStore
) -> None:
    server = start_tls()
    with connect(redis=f"redis://127.0.0.1:{server.port}/0", store=store) as ids:
        ids.create("a")
        refused(ids, "a", 1)


def test_a_server_that_hangs_in_the_handshake_costs_no_more_than_the_deadline(
    connect: Connect, start_tls: StartTls, store: MemoryStore
) -> None:
    server = start_tls()
    server.pause()
    with connect(redis=server.url, store=store) as ids:
        ids.create("a")
        for deadline in (0, 0.5, 2):
            refused(ids, "a", deadline)
        server.resume()
        assert ids.next("a", timeout=5) == 1


def test_a_server_that_stands_still_at_the_end_leaves_no_connection_open(
    start_tls: StartTls, store: MemoryStore
) -> None:
    server = start_tls()

    async def last() -> None:
        async with issuer.aconnect(redis=server.url, store=store) as ids:
            await ids.create("a")
            assert await ids.next("a") == 1
            server.pause()

    asyncio.run(last())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    server.resume()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_talk_over_its_parents_connection(start_tls: StartTls) -> None:
    """Under gevent a child goes on with copies of all greenlets, in the middle of a draw, too."""
    draw = gateway.draw(KEY, 1, 4)
    with closing(Connections.from_url(start_tls().url, 2.0, "main")) as connections:
        assert connections.call(draw, Deadline(2)).status == "empty"
        (link,) = connections.node(KEY).idle

        def in_between() -> object:
            with pytest.raises(redis.ConnectionError, match="the parent's"):
                link.ask(draw.packed, 2.0)
            return "refused"

        assert in_child(in_between)() == "refused"
        assert connections.call(draw, Deadline(2)).status == "empty"


def test_a_certificate_that_is_not_there_is_named_by_the_deadline(
    connect: Connect, start_tls: StartTls, store: MemoryStore, certificates: Certificates
) -> None:
    url = start_tls().url.replace(str(certificates.authority), "/nowhere/authority.crt")
    with connect(redis=url, store=store) as ids:
        ids.create("a")
        with pytest.raises((issuer.ConfigurationError, issuer.RedisUnavailable), match="No such file"):
            ids.next("a", timeout=1)
