"""Machine numbers in Redis: each status of the three scripts, and what a new reign may have forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import pytest
import redis

from tests.lua.hashes import INTACT, STORE, TagHash, at_moment, mutated, unchanged
from tests.servers.redis import RedisServer

KEY = "issuer:machines:{orders}"
A = "a"  # a token
LEASE, MARGIN = 60_000, 1000
HOLD = LEASE + MARGIN
#: The server's clock, unless a test moves it.
NOW = 1_700_000_000_123
CEILING = NOW + LEASE

Start = Callable[..., RedisServer]


@dataclass
class MachinesHash(TagHash):
    """A namespace's hash."""

    key: str = KEY

    def at(self, ms: int) -> Self:
        """Set the clock."""
        self.texts = at_moment(ms)
        return self

    def claim(
        self,
        number: int | str = 5,
        token: str = A,
        *,
        ceiling: int | str = CEILING,
        lease: int = LEASE,
        first: int = 0,
        store: str = STORE,
    ) -> list[str]:
        return self.call("machine_claim", number, "tests.0.1", token, ceiling, lease, MARGIN, first, store)

    def renew(
        self, number: int | str = 5, token: str = A, *, ceiling: int | str = CEILING, lease: int = LEASE
    ) -> list[str]:
        return self.call("machine_renew", number, token, ceiling, lease, MARGIN)

    def release(self, number: int | str = 5, token: str = A, used: int | str = 7) -> list[str]:
        return self.call("machine_release", number, token, used)

    def settled(self, since: int = 1000, **held: str | int) -> None:
        """Set the hash: this reign is old, so nobody has to wait for leases of the one before; and who holds 5."""
        self.client.delete(KEY)
        named = {f"5:{name}": value for name, value in held.items()}
        self.set(reign=self.reign(), since=since, longest=LEASE, **named)


def hash_on(server: RedisServer, texts: Mapping[str, str] = INTACT) -> MachinesHash:
    return MachinesHash(server.client(decode_responses=True), texts)


@pytest.fixture
def machines(any_redis: RedisServer) -> MachinesHash:
    """A namespace that has been in use for long, on each server of this machine in turn."""
    made = hash_on(any_redis).at(NOW)
    made.settled()
    return made


def test_a_free_number_is_leased_and_its_holder_shown(machines: MachinesHash) -> None:
    before = machines.fields()
    assert machines.claim() == ["yours", str(1000 + HOLD)]
    held = {
        "holder": "tests.0.1",
        "token": A,
        "last": str(CEILING),
        "lapses": str(NOW + LEASE),
        "floor": str(1000 + HOLD),
    }
    assert machines.fields() == {**before, "store": STORE, **{f"5:{name}": value for name, value in held.items()}}
    assert machines.client.ttl(KEY) == -1


def test_a_held_number_is_refused_and_nothing_changes(machines: MachinesHash) -> None:
    machines.claim()
    with unchanged(machines):
        assert machines.claim(5, "b") == ["held", str(HOLD + 1)]
    assert machines.claim(6, "b")[0] == "yours"


def test_a_claim_that_is_repeated_is_the_same_claim(machines: MachinesHash) -> None:
    claimed = machines.claim()
    assert claimed == ["yours", str(1000 + HOLD)]
    machines.at(NOW + LEASE + 2 * MARGIN)
    with unchanged(machines):
        assert machines.claim() == claimed
    machines.release()
    assert "5:floor" not in machines.fields()


def test_a_lapsed_number_is_left_alone_for_the_margin_and_then_leased_above_the_old_ceiling(
    machines: MachinesHash,
) -> None:
    ceiling = NOW + MARGIN
    machines.claim(lease=1, ceiling=ceiling)
    assert machines.at(NOW + 1 + MARGIN).claim(5, "b") == ["held", "1"]
    assert machines.at(NOW + 2 + MARGIN).claim(5, "b") == ["yours", str(ceiling)]
    assert machines.fields()["5:token"] == "b"
    machines.release(5, "b", used=CEILING)
    assert machines.claim(5, "c")[1] == str(CEILING)


def test_each_limit_holds_to_the_millisecond(machines: MachinesHash) -> None:
    lease: dict[str, str | int] = {"holder": "h", "token": A, "last": 1, "lapses": NOW}
    machines.settled(since=NOW)
    assert machines.at(NOW + HOLD - 1).claim(ceiling=1) == ["settling", "1"]
    assert machines.at(NOW + HOLD).claim(ceiling=NOW + 2 * HOLD + 1) == ["ahead", "1"]
    assert machines.claim(ceiling=NOW + 2 * HOLD)[0] == "yours"
    assert machines.renew(ceiling=NOW + 2 * HOLD + 1) == ["ahead", "1"]
    assert machines.renew(ceiling=NOW + 2 * HOLD) == ["yours", "0"]
    for late, since, renewed in (
        (0, 1000, ["yours", "0"]),
        (1, 1000, ["yours", str(1000 + HOLD)]),
        (1, NOW + 1 - HOLD, ["yours", str(NOW + 1)]),
        (1, NOW + 2 - HOLD, ["lost"]),
    ):
        machines.settled(since, **lease)
        assert (late, since, machines.at(NOW + late).renew(ceiling=1)) == (late, since, renewed)


def test_a_renewal_moves_lease_and_ceiling_and_never_lowers_the_ceiling(machines: MachinesHash) -> None:
    machines.claim()
    machines.at(NOW + 1000)
    for ceiling, last in ((CEILING - 1000, CEILING), (CEILING + 1000, CEILING + 1000)):
        assert machines.renew(ceiling=ceiling) == ["yours", "0"]
        fields = machines.fields()
        assert (fields["5:last"], fields["5:lapses"]) == (str(last), str(NOW + 1000 + LEASE))


def test_nobody_renews_or_releases_with_another_token(machines: MachinesHash) -> None:
    machines.claim()
    with unchanged(machines):
        for number, token in ((5, "b"), (5, "A"), (5, "aa"), (6, A)):
            assert machines.renew(number, token) == ["lost"]
            assert machines.release(number, token) == ["lost"]


def test_a_lapsed_number_is_renewed_if_nobody_can_have_had_it_in_between(machines: MachinesHash) -> None:
    machines.claim(lease=1, ceiling=NOW)
    assert machines.at(NOW + 2).renew(lease=1, ceiling=NOW) == ["yours", str(1000 + HOLD)]
    machines.client.hset(KEY, "since", NOW)
    with unchanged(machines):
        assert machines.at(NOW + 4).renew() == ["lost"]


def test_a_released_number_is_anybodys_at_once_from_above_what_was_used(machines: MachinesHash) -> None:
    machines.claim()
    assert machines.release(used=NOW) == ["free"]
    assert machines.release(used=1) == ["lost"]
    assert machines.renew() == ["lost"]
    assert "5:token" not in machines.fields()
    assert machines.claim(5, "b") == ["yours", str(NOW)]


def test_a_missing_hash_has_to_settle_unless_it_was_made_just_now(machines: MachinesHash) -> None:
    machines.client.delete(KEY)
    assert machines.claim() == ["settling", str(HOLD)]
    # Not even by a first one: it was there before.
    assert machines.claim(first=1)[0] == "settling"
    machines.client.delete(KEY)
    assert machines.claim(first=1)[0] == "yours"
    assert machines.claim(6, "b")[0] == "yours"


def test_the_hash_of_another_store_is_refused_and_left_alone(machines: MachinesHash) -> None:
    machines.claim()
    with unchanged(machines):
        assert machines.claim(6, store="another", lease=2 * LEASE) == ["otherstore", STORE]


def test_a_server_clock_that_went_back_has_to_settle_too(machines: MachinesHash) -> None:
    machines.settled(since=NOW - HOLD)
    assert machines.claim()[0] == "yours"
    back = NOW - 3_600_000
    assert machines.at(back).claim(7, ceiling=1) == ["settling", str(HOLD)]
    assert machines.at(back + HOLD).claim(7, ceiling=1)[0] == "yours"


def test_the_longest_lease_that_was_asked_for_decides_how_long_it_takes_to_settle(machines: MachinesHash) -> None:
    machines.claim(lease=10 * LEASE)
    machines.client.hset(KEY, "reign", "0" * 40)
    assert machines.renew(lease=10 * LEASE) == ["yours", "0"]
    assert machines.at(NOW + HOLD).claim(6) == ["settling", str(9 * LEASE)]
    assert machines.at(NOW + 10 * LEASE + MARGIN).claim(6)[0] == "yours"


def test_a_replica_answers_notmaster(start_redis: Start) -> None:
    master, replica = start_redis(), start_redis("--replica-read-only", "no")
    replica.replicaof(master)
    here = hash_on(replica)
    assert [here.claim(first=1), here.renew(), here.release()] == [["notmaster"]] * 3
    assert here.fields() == {}


def test_a_field_that_is_no_number_is_corrupt(machines: MachinesHash) -> None:
    for name in ("since", "longest", "5:lapses", "5:last"):
        machines.settled()
        machines.claim()
        machines.client.hset(KEY, name, "soon")
        with unchanged(machines):
            replies = [machines.claim(5, "b"), machines.renew(), machines.release()]
            assert (name, replies) == (name, [["corrupt"]] * 3)


BAD_CALLS: list[Callable[[MachinesHash], object]] = [
    lambda each: each.claim("five"),
    lambda each: each.claim(5, ""),
    lambda each: each.claim(ceiling="soon"),
    lambda each: each.claim(store=""),
    lambda each: each.call("machine_claim", 5, "h", "a", 1, "long", 1, 0, STORE),
    lambda each: each.call("machine_claim", 5, "h", "a", 1, 1, 1, 0),
    lambda each: each.renew("5:x"),
    lambda each: each.renew(5, ""),
    lambda each: each.renew(ceiling=""),
    lambda each: each.release(""),
    lambda each: each.release(5, ""),
    lambda each: each.release(5, used="-1"),
]


def test_bad_arguments_change_nothing(machines: MachinesHash) -> None:
    for number, call in enumerate(BAD_CALLS):
        with unchanged(machines), pytest.raises(redis.ResponseError, match="BADARG"):
            pytest.fail(f"bad call {number}: {call(machines)}")


# ------------------------------------------------------------------------------------------------ what is forgotten


def lagging_failover(server: RedisServer, here: MachinesHash, start: Start) -> RedisServer:
    """A replica that has not heard of the last claim takes over."""
    replica = start()
    replica.replicaof(server)
    here.settled()
    here.replicated()
    server.cut_off(replica)
    here.claim()
    server.kill()
    replica.resume()
    replica.promote()
    return replica


def restart_from_a_snapshot(server: RedisServer, here: MachinesHash, _: Start) -> RedisServer:
    before = server.snapshot()
    here.claim()
    server.restore(before)
    return server


def emptied(server: RedisServer, here: MachinesHash, _: Start) -> RedisServer:
    here.claim()
    here.client.flushall()
    return server


SETTLING = "if now < since + hold then return {'settling', string.format('%d', since + hold - now)} end\n"


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("fault", [lagging_failover, restart_from_a_snapshot, emptied])
def test_a_number_that_was_forgotten_with_its_holder_is_nobodys_until_that_lease_is_over(
    fault: Callable[[RedisServer, MachinesHash, Start], RedisServer], start_redis: Start
) -> None:
    for texts, status in ((INTACT, "settling"), (mutated(machine_claim=[(SETTLING, "")]), "yours")):
        server = start_redis()
        here = hash_on(server, texts)
        here.settled()
        left = hash_on(fault(server, here, start_redis), texts)
        assert left.claim(5, "b")[0] == status
