"""What a redis:// or unix:// URL may say: a user, a password, a database, a protocol."""

import re
from collections.abc import Callable

import pytest

import issuer
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.servers.redis import RedisServer

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
