"""`issuer machines`: what was used of which machine number, and the way out of the future."""

from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from issuer.persistence.records import now_ms
from tests.e2e.conftest import Cli
from tests.e2e.terminal import Terminal

KEY = "issuer:machines:{events}"
TEN_DAYS = 10 * 86_400_000


@pytest.fixture
def ahead(with_redis: Cli, redis_client: redis.Redis) -> int:
    """Until when the machine number of `events` was used: a clock was ten days ahead."""
    with_redis("create", "events", "--strategy", "snowflake", "--option", "machine_bits=4")
    assert with_redis("next", "events").code == 0
    fields: Any = redis_client.hkeys(KEY)
    (number,) = [name.decode().partition(":")[0] for name in fields if name.endswith(b":last")]
    last = now_ms() + TEN_DAYS
    redis_client.hset(KEY, f"{number}:last", last)
    return last


def test_the_future_is_shown_and_left_by_a_yes_that_knows_what_it_costs(
    with_redis: Cli, redis_url: str, store: str, ahead: int
) -> None:
    assert with_redis("next", "events").code == 5
    shown = with_redis("machines", "events")
    assert (shown.code, "9 days" in shown.out) == (0, True)
    (used,) = with_redis("machines", "events", "--json").json()["used"]
    assert (used["last"], used["held"], used["ahead"] > TEN_DAYS - 600_000) == (ahead, False, True)
    until = f"{datetime.fromtimestamp(ahead / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    question = f"Set aside 1 machine number of events until {until}? Then 15 of 16 are left, and new numbers lie below"
    at = ("--redis", redis_url, "--store", store)
    for answer, code, after in (("n\n", 1, 5), ("y\n", 0, 0)):
        with Terminal(*at, "machines", "events", "--set-aside", columns=250) as terminal:
            terminal.shows(question)
            terminal.shows("[y/N]")
            terminal.types(answer)
            assert terminal.ends() == code
        assert with_redis("next", "events").code == after
    found = with_redis("machines", "events", "--json").json()["used"]
    assert max(each["last"] for each in found) == ahead


@pytest.mark.usefixtures("ahead")
def test_a_script_says_yes_and_gets_a_list(with_redis: Cli) -> None:
    assert with_redis("machines", "events", "--set-aside").code == 2
    assert with_redis("next", "events").code == 5
    done = with_redis("machines", "events", "--set-aside", "--yes", "--json")
    assert (done.code, len(done.json())) == (0, 1)
    assert with_redis("next", "events").code == 0
    with_redis("create", "orders")
    refused = with_redis("machines", "orders")
    assert (refused.code, "has no machine numbers" in refused.err) == (2, True)
