"""What the server may refuse or get stuck in: rights, memory, a script that does not end; and how others fare."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any

import pytest
import redis

from issuer.clock import Deadline
from issuer.core.steps import Send
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.redis_errors import SETTLING
from issuer.drivers.servers import from_url
from issuer.drivers.topology import Address
from issuer.errors import FenceError, RedisUnavailable
from issuer.gateway import tag_scripts
from issuer.gateway.commands import RedisCall, folder
from issuer.threads import finished
from tests import programs
from tests.lua.hashes import BORN, KEY, STORE, TagHash, command, numbers, unchanged
from tests.servers.redis import RedisServer
from tests.stolen import Stopwatch
from tests.waiting import until

README = (folder() / "README.md").read_text(encoding="utf-8")
USER = "drawer"
AWAY = (redis.ConnectionError, redis.TimeoutError)
CALLS = {
    "next": tag_scripts.draw(KEY, 1, 4),
    "lease": tag_scripts.lease(KEY, 1, 4),
    "giveback": tag_scripts.give_back(KEY, 40, 50, reign="x", born=BORN, backs=0),
    "open": tag_scripts.open(KEY, "fresh", STORE, 4, "claim"),
    "load": tag_scripts.load(KEY, 200, 300, 220, reign="x", born=BORN),
    "floor": tag_scripts.floor(KEY, 500, "fresh", STORE, "keep"),
}


def user_with(tag: TagHash, *rights: str) -> None:
    command(tag.client, "ACL", "SETUSER", USER, "reset", "on", ">secret", *rights)


@pytest.fixture
def _user(tag: TagHash) -> Iterator[None]:
    yield
    command(tag.client, "ACL", "DELUSER", USER)


@pytest.fixture
def mine(any_redis: RedisServer) -> Iterator[TagHash]:
    """The hash as USER sees it, who need not be there yet."""
    with any_redis.client(username=USER, password="secret", decode_responses=True) as client:
        yield TagHash(client)


@contextmanager
def connected(server: RedisServer, user: str = "") -> Iterator[Connections]:
    connections = Connections(from_url(server.url.replace("://", f"://{user}"), "main", Connections.pool_class), 60.0)
    yield connections
    connections.close()


def asked(connections: Connections, call: RedisCall[Any]) -> Any:
    return finished(lambda: connections.do(Send(call), Deadline(60)))


@contextmanager
def configured(tag: TagHash, **settings: str | int) -> Iterator[None]:
    names = {name: name.replace("_", "-") for name in settings}
    before = {name: tag.client.config_get(name)[name] for name in names.values()}
    for name, value in settings.items():
        tag.client.config_set(names[name], value)
    try:
        yield
    finally:
        for name, old in before.items():
            tag.client.config_set(name, str(old))


@pytest.mark.usefixtures("_user")
class TestRights:
    def test_those_in_the_readme_are_enough(self, tag: TagHash, any_redis: RedisServer, mine: TagHash) -> None:
        (rights,) = re.findall(r"\*\*Permissions\*\*: `([^`]*)`", README)
        page = (programs.REPOSITORY / "docs" / "operate" / "servers.md").read_text(encoding="utf-8")
        shown = page.partition("ACL SETUSER issuer on >secret ")[2].partition("\n")[0].split()
        assert {*shown, "+eval"} == set(rights.split())  # the issuer sends scripts by SCRIPT LOAD alone
        user_with(tag, *str(rights).split())
        tag.client.script_flush()
        with connected(any_redis, f"{USER}:secret@") as connections:
            # INFO server, EVALSHA, NOSCRIPT, SCRIPT LOAD, EVALSHA.
            assert asked(connections, tag_scripts.draw(KEY, 1, 4)).status == "empty"
        _, reign, born, *_ = mine.open()
        assert mine.load(0, 100, reign=reign, born=born) == ["current"]
        assert mine.next(30)[3:] == ["extend", "100"]
        assert mine.load(100, 200, reign=reign, born=born) == ["next"]
        assert mine.next(1000)[0] == "ok"
        assert mine.next()[:2] == ["ok", "100"]
        assert mine.lease(9)[:3] == ["ok", "101", "110"]
        assert mine.give_back(105, 110, reign=reign, born=born) == ["back"]
        assert mine.floor(150)[0] == "floored"

    def test_without_info_there_is_no_fence_and_so_a_typed_error_and_no_numbers(
        self, tag: TagHash, any_redis: RedisServer
    ) -> None:
        tag.put(50, 100)
        user_with(tag, "~*", "+@all", "-info")
        with unchanged(tag), connected(any_redis, f"{USER}:secret@") as connections:
            # The server's own check asks INFO as well; the scripts must be refused without it, too.
            connections.route.checked.add(Address())
            for call in CALLS.values():
                with pytest.raises(FenceError, match=r"\+info"):
                    asked(connections, call)

    def test_without_another_right_or_on_another_key_nothing_is_drawn_either(
        self, tag: TagHash, any_redis: RedisServer
    ) -> None:
        tag.put(50, 100)
        for rights in (("~*", "-hincrby"), ("~*", "-hmget"), ("~*", "-evalsha"), ("~other:*",)):
            user_with(tag, "+@all", *rights)
            with unchanged(tag), connected(any_redis, f"{USER}:secret@") as connections:
                for name in ("next", "lease"):
                    with pytest.raises(FenceError):
                        pytest.fail(f"{rights}, {name}: {asked(connections, CALLS[name])}")

    def test_a_right_that_is_missed_half_way_costs_a_gap_and_never_a_repeat(self, tag: TagHash, mine: TagHash) -> None:
        for denied in ("hset", "hget", "time"):
            tag.put(0, 100)
            user_with(tag, "~*", "+@all", f"-{denied}")
            drawn: list[int] = []
            for turn in range(30):
                drawn += numbers(tag.next())
                # Refused or not: it may be that this user's draw needs no more than it has.
                with suppress(redis.ResponseError):
                    drawn += numbers(mine.next(1, turn % 2))
            assert len(drawn) >= 30, denied
            assert drawn == sorted(set(drawn)), denied


@pytest.mark.parametrize(
    ("settings", "cur"),
    [
        # Other scripts, and a draw at the switch, begin with a deletion. Then they may go on although memory is full.
        pytest.param({"maxmemory": 1}, 50, id="memory is full"),
        pytest.param({"min_replicas_to_write": 1}, 50, id="too few replicas"),
        pytest.param({"min_replicas_to_write": 1}, 100, id="too few replicas at the switch"),
    ],
)
def test_a_server_that_may_not_write_issues_nothing(
    tag: TagHash, any_redis: RedisServer, settings: dict[str, int], cur: int
) -> None:
    tag.put(cur, 100, (100, 200))
    back = tag_scripts.give_back(KEY, 40, cur, reign=tag.reign(), born=BORN, backs=0)
    with unchanged(tag), configured(tag, **settings), connected(any_redis) as connections:
        others = () if "maxmemory" in settings else (back, CALLS["floor"])
        for call in (CALLS["next"], CALLS["next"], CALLS["lease"], *others):
            with pytest.raises(RedisUnavailable, match="can't serve now") as error:
                asked(connections, call)
            assert error.value.retry_after >= SETTLING
    assert numbers(tag.next())[0] == cur + 1


class TestStuckScript:
    @pytest.fixture
    def server(self, any_redis: RedisServer) -> Iterator[RedisServer]:
        with RedisServer(any_redis.binary, "--lua-time-limit", "20") as own:
            TagHash(own.client(decode_responses=True)).put(50, 100)
            yield own

    @contextmanager
    def stuck(self, server: RedisServer, script: str) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.client(socket_timeout=120).eval, script, 1, "elsewhere")
            until(lambda: self.is_busy(server), 60, "the server is busy with the script", ignoring=AWAY)
            yield
            with pytest.raises(redis.RedisError):
                running.result()

    def is_busy(self, server: RedisServer) -> bool:
        with server.client() as client:
            try:
                client.ping()
            except redis.ResponseError as error:
                return "BUSY" in str(error)
        return False

    @pytest.mark.covers("3.13")
    def test_script_kill_ends_one_that_has_not_written(self, server: RedisServer) -> None:
        with self.stuck(server, "while true do end"):
            with connected(server) as connections:
                connections.route.checked.add(Address())
                with pytest.raises(RedisUnavailable, match="BUSY"):
                    asked(connections, CALLS["next"])
            server.client().script_kill()
        assert TagHash(server.client(decode_responses=True)).next() == ["ok", "50", "51"]

    @pytest.mark.covers("3.13")
    def test_one_that_has_written_is_unkillable_and_the_way_out_leaves_the_hash_fenced(
        self, server: RedisServer
    ) -> None:
        server.snapshot()
        with self.stuck(server, "redis.call('SET', KEYS[1], 1) while true do end"):
            with pytest.raises(redis.ResponseError, match=r"UNKILLABLE|already executed write commands"):
                server.client().script_kill()
            with pytest.raises(redis.ConnectionError):
                command(server.client(socket_timeout=30), "SHUTDOWN", "NOSAVE")
        until(lambda: not server.running, message="the server has shut down", timeout=60)
        server.start()
        assert TagHash(server.client(decode_responses=True)).next() == ["fenced"]

    @pytest.mark.covers("3.13")
    def test_the_readme_has_this_runbook(self) -> None:
        runbook = README.partition("**If a script of another program hangs**")[2].partition("\n- ")[0]
        assert all(word in runbook for word in ("BUSY", "SCRIPT KILL", "UNKILLABLE", "SHUTDOWN NOSAVE", "fenced"))


# In `make test` tests/lua/test_scripts.py says that no script has a loop, on which all of it hangs.
@pytest.mark.soak
@pytest.mark.covers("3.11")
def test_others_are_answered_promptly_while_tags_are_drawn_from(tag: TagHash, any_redis: RedisServer) -> None:
    tag.put(0, 10**9, mark=10**9)
    sha = tag.client.script_load(tag.texts["next"])
    done = threading.Event()

    def draw_all_the_time(client: redis.Redis) -> int:
        rounds = 0
        while not done.is_set():
            pipe = client.pipeline(transaction=False)
            for _ in range(50):
                pipe.evalsha(sha, 1, KEY, "100000", "4")
            pipe.execute()
            rounds += 1
        return rounds

    waits = []
    with ThreadPoolExecutor(4) as pool:
        drawing = [pool.submit(draw_all_the_time, any_redis.client()) for _ in range(4)]
        try:
            for _ in range(200):
                with Stopwatch() as call:
                    tag.client.ping()
                waits.append(call.seconds)
        finally:
            done.set()
        assert sum(one.result() for one in drawing) > 0
    assert median(waits) < 0.05
