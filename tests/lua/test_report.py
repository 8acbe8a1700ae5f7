"""A caller that can't load a segment has its draws report the tag, on a channel that keepers listen to."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lua.hashes import KEY, OTHER_REIGN, WINDOW, TagHash, command
from tests.servers.redis import RedisServer

CHANNEL = "issuer:due"


class Reports:
    """What is published on the channel."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub
        pubsub.subscribe(CHANNEL)
        assert self._pubsub.get_message(timeout=30)["type"] == "subscribe"

    @property
    def new(self) -> list[str]:
        """The reports since the last time. A server sends them before its replies to later calls."""
        self._pubsub.subscribe(CHANNEL)
        found = []
        while (message := self._pubsub.get_message(timeout=30))["type"] != "subscribe":
            found.append(message["data"])
        return found


@pytest.fixture
def reports(tag: TagHash) -> Iterator[Reports]:
    client: Any = tag.client
    with client.pubsub() as pubsub:
        yield Reports(pubsub)


@pytest.mark.covers("U.19")
def test_only_the_draw_that_reaches_the_mark_reports_it(tag: TagHash, reports: Reports) -> None:
    tag.put(0, 100)
    for _ in range(19):
        tag.next(window=-1)
    assert reports.new == []
    tag.next(window=-1)
    assert reports.new == [KEY]
    for _ in range(80):
        tag.next(window=-1)
    assert reports.new == []
    for count in range(1, 4):
        assert tag.next(window=-1) == ["exhausted"]
        assert reports.new == [KEY], count
    tag.put(0, 100)
    assert tag.next(70, window=-1) == ["ok", "0", "70"]
    assert reports.new == [KEY]


def test_nothing_is_reported_while_the_next_segment_is_there(tag: TagHash, reports: Reports) -> None:
    tag.put(0, 100, (100, 200))
    for _ in range(105):
        tag.next(window=-1)
    assert reports.new == []
    for _ in range(20):
        tag.next(window=-1)
    assert reports.new == [KEY]  # of buffer 2


def test_who_can_load_reports_nothing(tag: TagHash, reports: Reports) -> None:
    assert tag.next(window=WINDOW) == ["empty"]
    tag.put(0, 100)
    for _ in range(102):
        tag.next(window=WINDOW)
    assert tag.lease(1) == ["exhausted"]
    tag.put(0, 100, fence=OTHER_REIGN)
    assert tag.next(window=WINDOW) == ["fenced"]
    assert reports.new == []


def test_each_reply_without_numbers_that_a_segment_would_end_is_reported(tag: TagHash, reports: Reports) -> None:
    assert tag.next(window=-1) == ["empty"]
    assert tag.client.keys() == []
    tag.put(0, 100, fence=OTHER_REIGN)
    assert tag.next(window=-1) == ["fenced"]
    tag.put(100, 100)
    assert tag.next(window=-1) == ["exhausted"]
    assert tag.lease(window=-1) == ["exhausted"]
    assert tag.once(window=-1) == ["exhausted"]
    assert reports.new == [KEY] * 5
    tag.put(0, 100, scheme="1-a", until="1")
    assert tag.next(window=-1, scheme="1-a")[0] == "over"
    assert reports.new == [KEY]
    assert tag.next(window=-1, scheme="1-b")[0] == "scheme"
    tag.put(0, 100, cur="garbage")
    assert tag.next(window=-1) == ["corrupt"]
    assert reports.new == []


def test_leases_and_keys_that_reach_the_mark_report_it(tag: TagHash, reports: Reports) -> None:
    for script in ("lease", "once"):
        tag.put(19, 100, mark=20)
        assert (tag.once(window=-1) if script == "once" else tag.lease(30, window=-1))[0] == "ok"
        assert reports.new == [KEY]


def test_a_user_without_the_right_to_publish_draws_nevertheless(
    tag: TagHash, reports: Reports, any_redis: RedisServer
) -> None:
    rights = "~issuer:* resetchannels +info +evalsha +eval +script|load +time +hmget +hget +hset +hdel +hincrby"
    for more, reported in (("", []), ("+publish", []), ("+publish &issuer:due", [KEY])):
        command(tag.client, "ACL", "SETUSER", "reporter", "reset", "on", ">secret", *f"{rights} {more}".split())
        with any_redis.client(username="reporter", password="secret", decode_responses=True) as client:
            tag.put(19, 100, mark=20)
            assert TagHash(client).next(window=-1) == ["ok", "19", "20"]
        assert reports.new == reported, more
    command(tag.client, "ACL", "DELUSER", "reporter")
