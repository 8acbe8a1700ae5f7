"""The chronicle in Redis: events, acts and processes, which people read. Its content may be anybody's."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from issuer import Issuer
from issuer.care.chronicle import Act, Chronicle, Happening, Process, line_of, parsed
from issuer.errors import RedisUnavailable
from issuer.gateway.keys import chronicle_key, due_channel, kept_key, redis_key, tag_of
from issuer.gateway.machine_scripts import machines_key
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import now_ms
from tests.colours import Awaited, Connect
from tests.servers.redis import RedisServer

DAY = 86_400_000
HAPPENING = Happening(5, "FenceTripped", ("a", "b"), 2, "Redis has lost its data", "host", 7, "shop")
ACT = Act(5, "configure", "a", "ann", "10.0.0.1", "step 1000 -> 5000")
PROCESS = Process("host", 7, "shop", "0.1.0", 1, 5, 3, 100, 0, 0, "", "keeper")


def chronicle_of(ids: Issuer, timeout: float | None = None) -> Chronicle:
    chronicler = ids.engine.chronicle
    if isinstance(ids, Awaited):
        return ids.wait(chronicler.read(timeout))
    return finished(lambda: chronicler.read(timeout))


@pytest.fixture
def ids(connect: Connect, redis_url: str, store: MemoryStore) -> Iterator[Issuer]:
    with connect(redis=redis_url, store=store, scheduler=None) as made:
        yield made


class TestLines:
    def test_a_line_has_the_whole_record(self) -> None:
        for record in (HAPPENING, ACT, PROCESS):
            assert parsed(type(record), line_of(record).encode()) == record

    def test_a_line_that_is_no_record_is_left_out(self) -> None:
        good = asdict(HAPPENING)
        for wrong in (
            {"time": "5"},
            {"time": True},
            {"time": -1},
            {"time": 2**63},
            {"time": 1.5},
            {"tags": "ab"},
            {"tags": [1]},
            {"tags": ["a"] * 6},
            {"text": None},
            {"text": "x" * 501},
            {"text": "\ud800"},
            {"tags": ["\ud800"]},
        ):
            assert parsed(Happening, json.dumps(good | wrong).encode()) is None, wrong
        del good["pid"]
        deep = b"[" * 10_000
        for line in (json.dumps(good).encode(), b"", b"null", b"[]", b"\xff", b"1" * 5000, deep, b"{" + b" " * 20_000):
            assert parsed(Happening, line) is None, line

    @given(st.binary(max_size=50) | st.dictionaries(st.sampled_from([*asdict(HAPPENING)]), st.from_type(object)))
    def test_whatever_a_line_is_nothing_is_raised(self, content: Any) -> None:
        line = content if isinstance(content, bytes) else json.dumps(content, default=str).encode()
        for kind in (Happening, Act, Process):
            assert parsed(kind, line) is None

    def test_a_newer_version_may_add_members(self) -> None:
        assert parsed(Act, json.dumps(asdict(ACT) | {"more": 1}).encode()) == ACT

    @given(st.text(min_size=1), st.text())
    def test_no_tag_has_the_key_of_a_chronicle(self, tag: str, key: str) -> None:
        for part in ("events", "acts", "processes"):
            own = chronicle_key("issuer", part)
            assert tag_of("issuer", own) is None
            others = (redis_key("issuer", tag), kept_key(redis_key("issuer", tag), key), due_channel("issuer"))
            assert own not in (*others, machines_key("issuer", tag, None), machines_key("issuer", "", tag))


class TestReading:
    def test_the_newest_comes_first_and_what_was_written_twice_comes_once(
        self, ids: Issuer, redis_client: redis.Redis
    ) -> None:
        old, new = HAPPENING, Happening(9, "RedisBack", (), 1, "", "host", 7, "shop")
        redis_client.lpush("issuer:events", *map(line_of, (new, old, new)), "junk")
        redis_client.lpush("issuer:acts", line_of(ACT), b"\xff")
        running = Process("host", 8, "shop", "0.1.0", 1, now_ms(), 0, 0, 0, 0, "", "")
        redis_client.hset("issuer:processes", mapping={"host:8:1": line_of(running), "junk": "{}", b"\xff": b"\xff"})
        assert chronicle_of(ids) == Chronicle([new, old], [ACT], [running])

    def test_who_reads_removes_processes_that_were_not_seen_for_a_day(
        self, ids: Issuer, redis_client: redis.Redis
    ) -> None:
        now = now_ms()
        for name, seen in (("old", now - DAY - 1), ("ahead", now + 2 * DAY), ("running", now - DAY // 2)):
            line = line_of(Process(name, 7, "shop", "0.1.0", 1, seen, 0, 0, 0, 0, "", ""))
            redis_client.hset("issuer:processes", name, line)
        assert [each.host for each in chronicle_of(ids).processes] == ["running"]
        assert redis_client.hkeys("issuer:processes") == [b"running"]

    def test_an_issuer_without_redis_has_none(self, connect: Connect) -> None:
        with connect(redis="none", store="memory://", scheduler=None) as alone:
            assert chronicle_of(alone) == Chronicle()

    def test_without_an_answer_of_redis_an_error_is_raised(
        self, connect: Connect, server: RedisServer, store: MemoryStore
    ) -> None:
        with connect(redis=server.url, store=store, scheduler=None) as ids:
            assert chronicle_of(ids) == Chronicle()
            server.kill()
            with pytest.raises(RedisUnavailable):
                chronicle_of(ids)
