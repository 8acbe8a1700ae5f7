"""A claim that is repeated is the same claim: a lost reply, or a proxy that sends all twice, costs only numbers."""

import pytest

from issuer import Issuer
from issuer.gateway.commands import script
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.servers.proxy import FaultProxy

pytestmark = [BOTH, pytest.mark.usefixtures("patient"), pytest.mark.live]

#: An election stands for 11 s here: a caller that waits for it to lapse gets an error.
LESS = 8.0

STEP = 20


def elects(ids: Issuer, tag: str) -> list[int]:
    """Draw what comes before the threshold of the first segment."""
    return [ids.next(tag) for _ in range(STEP // 5 - 1)]


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("lost", ["open", "next"])
def test_an_election_whose_reply_is_lost_keeps_nobody_waiting(
    connect: Connect, redis_proxy: FaultProxy, lost: str, scheduler: str | None
) -> None:
    with connect(redis=redis_proxy.url, store=MemoryStore(), scheduler=scheduler) as ids:
        ids.create("a", step=STEP)
        numbers = elects(ids, "a") if lost == "next" else []
        redis_proxy.drop_replies(match=script(lost).sha.encode(), times=1)
        numbers += [ids.next("a", timeout=LESS) for _ in range(3 * STEP)]
        assert redis_proxy.hits == 1
        assert numbers == sorted(set(numbers))


def test_a_lease_whose_reply_is_lost_keeps_nobody_waiting(connect: Connect, redis_proxy: FaultProxy) -> None:
    with connect(redis=redis_proxy.url, store=MemoryStore(), lease=2) as ids:
        ids.create("a", step=STEP, order="trend")
        redis_proxy.drop_replies(match=script("lease").sha.encode(), times=STEP)
        numbers = [number for _ in range(3 * STEP) for number in ids.take("a", 1, timeout=LESS)]
        assert repeats(numbers) == []


@pytest.mark.parametrize("way", ["next", "take", "key", "lease"])
def test_a_proxy_that_sends_each_command_twice_costs_only_numbers(
    connect: Connect, redis_proxy: FaultProxy, way: str
) -> None:
    lease = 2 if way == "lease" else 0
    with connect(redis=redis_proxy.url, store=MemoryStore(), lease=lease) as ids:
        ids.create("a", step=STEP, order="trend" if lease else "strict")
        redis_proxy.duplicate(match=b"EVALSHA")
        numbers: list[int] = []
        while len(numbers) < 3 * STEP:
            match way:
                case "take":
                    numbers += ids.take("a", 3, timeout=LESS)
                case "key":
                    numbers.append(ids.next("a", key=f"k{len(numbers)}", timeout=LESS))
                case _:
                    numbers.append(ids.next("a", timeout=LESS))
        assert redis_proxy.hits
        assert repeats(numbers) == []


def test_a_proxy_that_sends_each_command_twice_costs_no_machine_number(
    connect: Connect, redis_proxy: FaultProxy
) -> None:
    redis_proxy.duplicate(match=b"EVALSHA")
    with connect(redis=redis_proxy.url, store=MemoryStore()) as ids:
        ids.create("s", strategy="snowflake")
        numbers = [ids.next("s", timeout=LESS) for _ in range(5)]
        assert repeats(numbers) == []
        assert len(ids.machines("s").used) == 1
