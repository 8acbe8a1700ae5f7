"""What a URL of Redis may say: a user, a password, a database, a protocol; and TLS, with the certificates of both."""

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

StartRedis = Callable[..., RedisServer]


#: What the error of a denied command says that an issuer's user needs.
RIGHTS = ("+info", "+evalsha", "+script|load", "+time", "+hmget", "+hget", "+hset", "+hdel", "+hincrby", "+select")


def assert_serves(connect: Connect, url: str) -> None:
    """Numbers flow and stay exact, and so do those that a tag's keeping needs."""
    with connect(redis=url, store=MemoryStore(), **ENDLESS) as ids:
        ids.create("a", start=2**60, step=7)
        assert ids.take("a", 50) == list(range(2**60, 2**60 + 50))
        seen = ids.inspect("a")
        assert (seen.redis_error, seen.redis and seen.redis.cur) == (None, 2**60 + 49)
        floor = ids.recover("a")[0].new
        assert floor < ids.next("a") < floor + 100  # a segment that was on its way is a gap
        ids.delete("a")


def grant(server: RedisServer, *rights: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~issuer:*", "-@all", *rights)


def test_tcp_and_unix_sockets_serve_with_either_protocol_and_the_database_that_the_url_chooses(
    connect: Connect, start_redis: StartRedis
) -> None:
    tcp, unix = start_redis(), start_redis(unix_socket=True)
    for server, url in (
        (tcp, f"{tcp.url.replace('/0', '/3')}?protocol=2"),
        (tcp, f"{tcp.url.replace('/0', '/3')}?protocol=3"),
        (unix, f"{unix.url}?db=3&protocol=2"),
        (unix, f"{unix.url}?db=3&protocol=3"),
    ):
        with server.client() as client:
            client.flushall()
            assert_serves(connect, url)
            assert client.info("keyspace").keys() == {"db3"}


def test_no_connection_is_subscribed_to_messages_about_maintenance(connect: Connect, start_redis: StartRedis) -> None:
    """Each connection would take one more round trip, and a message would replace our timeouts."""
    server = start_redis()
    with server.client(protocol=2) as client:
        before = client.info("errorstats").get("errorstat_ERR")
        assert_serves(connect, server.url)
        assert client.info("errorstats").get("errorstat_ERR") == before, "no server here has that command"


def test_a_database_that_is_not_there_is_no_outage(connect: Connect, redis_url: str, store: MemoryStore) -> None:
    with connect(redis=redis_url.replace("/0", "/99"), store=store) as ids:
        ids.create("strict", order="strict")
        ids.create("trend", order="trend")
        for tag in ("strict", "trend"):
            with pytest.raises(issuer.ConfigurationError, match="database that its URL names"):
                ids.next(tag)
        [finding] = [each for each in ids.doctor() if each.check == "redis-reachable"]
        assert (finding.level, type(finding.error)) == ("weak", issuer.ConfigurationError)


def test_a_password_opens_whatever_characters_it_has_and_a_wrong_one_is_a_configuration_error(
    connect: Connect, start_redis: StartRedis, store: MemoryStore
) -> None:
    server = start_redis(password="p@ss:w/rd?%41")
    assert_serves(connect, server.url)
    bare = f"127.0.0.1:{server.port}/0"
    for number, wrong in enumerate((f"redis://:wrong@{bare}", f"redis://{bare}", f"redis://nobody:wrong@{bare}")):
        with connect(redis=wrong, store=store) as ids:
            for order in ("strict", "trend"):
                ids.create(f"{order}-{number}", order=order)
                with pytest.raises(issuer.ConfigurationError):
                    ids.next(f"{order}-{number}")


@pytest.mark.parametrize(
    ("connect", "protocol", "draw", "granted", "further"),
    [
        ("blocking", "2", lambda ids: ids.next("a", key="z"), RIGHTS, ("+get", "+set", "+cluster|myid")),
        ("asyncio", "3", lambda ids: ids.next("snow"), RIGHTS, ("+hgetall",)),
        ("blocking", "3", lambda ids: ids.next("a"), RIGHTS[:-2], ("+cluster|myid",)),
    ],
    indirect=["connect"],
    ids=["key", "machine numbers", "plain"],
)
def test_a_call_that_needs_another_right_names_it(
    connect: Connect,
    start_redis: StartRedis,
    *,
    draw: Callable[[issuer.Issuer], int],
    granted: tuple[str, ...],
    further: tuple[str, ...],
    protocol: str,
) -> None:
    store = MemoryStore()
    server = start_redis()
    url = f"redis://shop:secret@127.0.0.1:{server.port}/0?protocol={protocol}"
    with connect(redis=server.url, store=store) as ids:
        ids.create("a")
        ids.create("snow", strategy="snowflake")
    grant(server, *granted)
    with connect(redis=url, store=store) as ids, pytest.raises(issuer.FenceError) as caught:
        draw(ids)
    [said] = re.findall(r"give this user (.*) on the keys", str(caught.value))
    # The scripts of draws can report to keepers. They also draw without this permission.
    assert {*said.split()} - {"+publish"} == {*RIGHTS[:-1], *further}
    grant(server, *said.split())
    with connect(redis=url, store=store) as ids:
        assert draw(ids) >= 1


@pytest.mark.colours("asyncio")
def test_a_database_that_may_not_be_chosen_is_named(
    connect: Connect, start_redis: StartRedis, store: MemoryStore
) -> None:
    server = start_redis()
    grant(server, *RIGHTS[:-1])
    with connect(redis=f"redis://shop:secret@127.0.0.1:{server.port}/3", store=store) as ids:
        ids.create("a")
        with pytest.raises(issuer.FenceError, match=r"\+select"):
            ids.next("a")


@pytest.mark.colours("blocking")
def test_a_user_with_no_more_rights_than_the_issuer_says_it_needs_does_everything(
    connect: Connect, start_redis: StartRedis
) -> None:
    server = start_redis()
    grant(server, *RIGHTS)
    for protocol in ("2", "3"):
        assert_serves(connect, f"redis://shop:secret@127.0.0.1:{server.port}/{protocol}?protocol={protocol}")


# ---------------------------------------------------------------------------------------------- TLS


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
