"""Over TLS: the server shows its certificate, the client too where it is asked to, and numbers flow as before."""

import asyncio
import gc
import re
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Send
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.servers import from_url
from issuer.gateway import tag_scripts
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.deadlines import ENDLESS, refused
from tests.forks import in_child
from tests.servers.redis import RedisServer
from tests.servers.tls import Certificates
from tests.waiting import until

KEY = "issuer:{a}"

StartTls = Callable[..., RedisServer]


@pytest.mark.parametrize(
    ("connect", "client_certificates"),
    [("blocking", True), ("asyncio", True), ("asyncio", False)],
    indirect=["connect"],
)
def test_numbers_flow_and_stay_exact(
    connect: Connect, start_tls: StartTls, store: MemoryStore, client_certificates: bool
) -> None:
    server = start_tls(client_certificates=client_certificates, password="secret")
    for tag, protocol in (("a", "2"), ("b", "3")):
        with connect(redis=f"{server.url}&protocol={protocol}", store=store, **ENDLESS) as ids:
            ids.create(tag, start=2**60, step=7)
            assert ids.take(tag, 50) == list(range(2**60, 2**60 + 50))
            seen = ids.inspect(tag)
            assert seen.redis is not None
            assert seen.redis.fence == server.replication()["master_replid"]


def test_who_is_not_trusted_gets_nothing_and_the_error_says_why(
    connect: Connect, start_tls: StartTls, store: MemoryStore, certificates: Certificates
) -> None:
    server = start_tls(client_certificates=True)
    with connect(redis=server.url, store=store) as ids:
        ids.create("a")

    def scripts() -> int:
        return int(server.client().info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    # `create` has read the hash by a script. Nobody that follows may run one.
    before = scripts()
    # Each is vouched for by its certificate: the server by one that another authority has signed or by one that is not
    # there, the client by none.
    authority = str(certificates.authority)
    for url, why in (
        (server.url.replace(authority, str(certificates.stranger)), "(?i)certificate"),
        (server.url.replace(authority, "/nowhere/authority.crt"), "No such file"),
        (f"rediss://127.0.0.1:{server.port}/0?{certificates.query(client=False)}", "."),
        (f"redis://127.0.0.1:{server.port}/0", "."),
    ):
        with connect(redis=url, store=store) as ids:

            def told(ids: issuer.Issuer = ids, why: str = why) -> bool:
                with pytest.raises((issuer.ConfigurationError, issuer.RedisUnavailable)) as error:
                    ids.next("a", timeout=0.5)
                return re.search(why, str(error.value)) is not None

            until(told, 60, why)  # a machine that stands still may not come as far within the 0.5 s
    assert scripts() == before


def test_a_certificate_that_is_refused_is_told_at_once_as_what_it_is(
    connect: Connect, start_tls: StartTls, store: MemoryStore, certificates: Certificates
) -> None:
    server = start_tls()
    for authority in (str(certificates.stranger), "/nowhere/authority.crt"):
        untrusted = server.url.replace(str(certificates.authority), authority)
        with connect(redis=untrusted, store=store, **ENDLESS) as ids:
            for order in ("strict", "trend"):
                ids.create(f"{order}{authority}", order=order)
                for _ in range(2):
                    with pytest.raises(issuer.ConfigurationError, match=r"no connection over TLS: .*ssl_ca_certs"):
                        ids.next(f"{order}{authority}")


def test_a_socket_that_is_missing_may_come_back(connect: Connect, store: MemoryStore, tmp_path: Path) -> None:
    with connect(redis=f"unix://{tmp_path / 'redis.sock'}", store=store, timeout=0.5) as ids:
        ids.create("a", order="strict")
        with pytest.raises(issuer.RedisUnavailable, match="No such file"):
            ids.next("a")


def test_a_server_that_hangs_in_the_handshake_costs_no_more_than_the_deadline(
    connect: Connect, start_tls: StartTls, store: MemoryStore
) -> None:
    server = start_tls()
    with connect(redis=server.url, store=store) as ids:
        ids.create("a")
    server.pause()
    with connect(redis=server.url, store=store, **ENDLESS) as ids:
        for deadline in (0, 0.5):
            refused(ids, "a", deadline)
        server.resume()
        assert ids.next("a") == 1


def test_a_server_that_stands_still_at_the_end_leaves_no_connection_open(
    start_tls: StartTls, store: MemoryStore
) -> None:
    server = start_tls()

    async def last() -> None:
        async with issuer.aconnect(redis=server.url, store=store, **ENDLESS) as ids:
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
    draw = tag_scripts.draw(KEY, 1, 4)
    with closing(Connections(from_url(start_tls().url, "main", Connections.pool_class), 30.0)) as connections:
        assert finished(lambda: connections.do(Send(draw), Deadline(30))).status == "empty"
        (link,) = connections.node(KEY).idle

        def in_between() -> object:
            with pytest.raises(redis.ConnectionError):  # the fork put a closed socket in the place of the parent's
                link.ask(draw.packed, 2.0)
            return "refused"

        assert in_child(in_between)() == "refused"
        assert finished(lambda: connections.do(Send(draw), Deadline(30))).status == "empty"
