"""Machine numbers in Redis: each status of the three scripts on every server, and what breaks without each guard.

Leases are short and times are the server's own, so nothing here waits for more than tenths of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from tests.lua.hashes import INTACT, STORE, at_moment, mutated
from tests.lua.test_mutations import NOTMASTER, Mutation, Scenario, scenarios
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import until

KEY = "issuer:machines:{orders}"
A = "a"  # a token
LEASE, MARGIN = 60_000, 1000

Start = Callable[..., RedisServer]


@dataclass
class MachinesHash:
    """`client` decodes its replies. `texts`: the scripts, intact or mutated."""

    client: redis.Redis
    texts: Mapping[str, str] = field(default_factory=lambda: INTACT)

    def call(self, name: str, *args: str | int) -> list[str]:
        reply: Any = self.client.eval(self.texts[name], 1, KEY, *map(str, args))
        return list(reply)

    def claim(
        self,
        number: int | str = 5,
        token: str = A,
        *,
        ceiling: int | str | None = None,
        lease: int | str = LEASE,
        margin: int | str = MARGIN,
        first: int = 0,
        store: str = STORE,
    ) -> list[str]:
        ceiling = self.now() + int(lease) if ceiling is None else ceiling
        return self.call("machine_claim", number, "tests.0.1", token, ceiling, lease, margin, first, store)

    def renew(
        self,
        number: int | str = 5,
        token: str = A,
        *,
        ceiling: int | str | None = None,
        lease: int | str = LEASE,
        margin: int | str = MARGIN,
    ) -> list[str]:
        ceiling = self.now() + int(lease) if ceiling is None else ceiling
        return self.call("machine_renew", number, token, ceiling, lease, margin)

    def release(self, number: int | str = 5, token: str = A, used: int | str = 7) -> list[str]:
        return self.call("machine_release", number, token, used)

    def now(self) -> int:
        seconds: Any = self.client.time()
        return int(seconds[0]) * 1000 + int(seconds[1]) // 1000

    def fields(self) -> dict[str, str]:
        found: Any = self.client.hgetall(KEY)
        return dict(found)

    def settled(self) -> None:
        """As if this reign were old: nobody has to wait for leases of the one before."""
        info: Any = self.client.info("replication")
        self.client.hset(KEY, mapping={"reign": info["master_replid"], "since": "1000", "longest": str(LEASE)})


def hash_on(server: RedisServer, texts: Mapping[str, str] = INTACT) -> MachinesHash:
    return MachinesHash(server.client(decode_responses=True), texts)


@pytest.fixture
def machines(any_redis: RedisServer) -> MachinesHash:
    """A namespace that has been in use for long, on each server of this machine in turn."""
    made = hash_on(any_redis)
    made.settled()
    return made


# ------------------------------------------------------------------------------------------------ each status


def test_a_free_number_is_leased_and_its_holder_shown(machines: MachinesHash) -> None:
    before = machines.now()
    status, floor = machines.claim(5, "a", ceiling=before + 20_000)
    assert status == "yours"
    assert int(floor) < before
    fields = machines.fields()
    assert (fields["5:holder"], fields["5:token"], fields["5:last"]) == ("tests.0.1", "a", str(before + 20_000))
    assert LEASE <= int(fields["5:lapses"]) - before < 2 * LEASE
    assert machines.client.ttl(KEY) == -1


def test_a_held_number_is_refused_and_nothing_changes(machines: MachinesHash) -> None:
    machines.claim(5, "a")
    before = machines.fields()
    status, ms = machines.claim(5, "b")
    assert status == "held"
    assert 0 < int(ms) <= LEASE + MARGIN + 1
    assert machines.claim(5, "a")[0] == "held"
    assert machines.fields() == before
    assert machines.claim(6, "b")[0] == "yours"


def test_a_lapsed_number_is_left_alone_for_the_margin_and_then_leased_above_the_old_ceiling(
    machines: MachinesHash,
) -> None:
    ceiling = machines.now() + 500
    assert machines.claim(5, "a", lease=1, ceiling=ceiling, margin=100_000)[0] == "yours"
    assert machines.claim(5, "b", margin=100_000)[0] == "held"
    until(lambda: machines.claim(5, "b", margin=20)[0] == "yours", 60)
    assert machines.fields()["5:token"] == "b"
    machines.release(5, "b", used=ceiling)
    assert machines.claim(5, "c")[1] == str(ceiling)


def test_each_limit_holds_to_the_millisecond(fake_server: FencedFakeServer) -> None:
    machines = MachinesHash(fake_server.client(decode_responses=True))
    end, hold = 1_700_000_000_123, LEASE + MARGIN

    def at(ms: int) -> MachinesHash:
        machines.texts = at_moment(ms)
        return machines

    def begin(held: Mapping[str, str | int], since: int = 1000) -> None:
        machines.client.delete(KEY)
        machines.settled()
        machines.client.hset(KEY, mapping={"since": since, **{f"5:{name}": value for name, value in held.items()}})

    lease: Mapping[str, str | int] = {"holder": "h", "token": A, "last": 1, "lapses": end}
    begin(lease)
    assert at(end + MARGIN).claim(5, "b", ceiling=1) == ["held", "1"]
    assert at(end + MARGIN + 1).claim(5, "b", ceiling=1)[0] == "yours"
    begin({}, since=end)
    assert at(end + hold - 1).claim(5, "b", ceiling=1) == ["settling", "1"]
    assert at(end + hold).claim(5, "b", ceiling=end + 2 * hold + 1) == ["ahead", "1"]
    assert at(end + hold).claim(5, "b", ceiling=end + 2 * hold)[0] == "yours"
    assert at(end + hold).renew(5, "b", ceiling=end + 2 * hold + 1) == ["ahead", "1"]
    assert at(end + hold).renew(5, "b", ceiling=end + 2 * hold) == ["yours", "0"]
    begin(lease)
    assert at(end).renew(5, ceiling=1) == ["yours", "0"]
    begin(lease)
    assert at(end + 1).renew(5, ceiling=1) == ["yours", str(1000 + hold)]
    begin(lease, since=end + 1 - hold)
    assert at(end + 1).renew(5, ceiling=1)[0] == "yours"
    begin(lease, since=end + 2 - hold)
    assert at(end + 1).renew(5, ceiling=1) == ["lost"]


def test_a_renewal_moves_lease_and_ceiling_and_never_lowers_the_ceiling(machines: MachinesHash) -> None:
    machines.claim(5, "a", lease=LEASE // 2)
    before = machines.fields()
    ceiling = int(before["5:last"])
    assert machines.renew(5, "a", ceiling=ceiling - 1000) == ["yours", "0"]
    assert machines.fields()["5:last"] == str(ceiling)
    assert int(machines.fields()["5:lapses"]) > int(before["5:lapses"])
    assert machines.renew(5, "a", ceiling=ceiling + 1000) == ["yours", "0"]
    assert machines.fields()["5:last"] == str(ceiling + 1000)


@pytest.mark.parametrize("token", ["b", "A", "aa"])
def test_nobody_renews_or_releases_with_another_token(machines: MachinesHash, token: str) -> None:
    machines.claim(5, "a")
    before = machines.fields()
    assert machines.renew(5, token) == ["lost"]
    assert machines.release(5, token) == ["lost"]
    assert machines.renew(6, token) == ["lost"]
    assert machines.release(6, token) == ["lost"]
    assert machines.fields() == before


def test_a_lapsed_number_is_renewed_if_nobody_can_have_had_it_in_between(machines: MachinesHash) -> None:
    machines.claim(5, "a", lease=1)
    until(lambda: machines.now() > int(machines.fields()["5:lapses"]), 60)
    assert machines.renew(5, "a") == ["yours", str(1000 + LEASE + MARGIN)]
    machines.renew(5, "a", lease=1)
    until(lambda: machines.now() > int(machines.fields()["5:lapses"]), 60)
    machines.client.hset(KEY, "since", machines.now())
    before = machines.fields()
    assert machines.renew(5, "a") == ["lost"]
    assert machines.fields() == before


def test_a_released_number_is_anybodys_at_once_from_above_what_was_used(machines: MachinesHash) -> None:
    machines.claim(5, "a")
    used = machines.now()
    assert machines.release(5, "a", used=used) == ["free"]
    assert machines.release(5, "a", used=1) == ["lost"]
    assert machines.renew(5, "a") == ["lost"]
    assert "5:token" not in machines.fields()
    assert machines.claim(5, "b") == ["yours", str(used)]


def test_a_ceiling_that_is_ahead_of_the_servers_clock_is_refused(machines: MachinesHash) -> None:
    far = machines.now() + LEASE + MARGIN + 60_000
    status, ms = machines.claim(5, "a", ceiling=far)
    assert status == "ahead"
    assert 0 < int(ms) <= 60_000
    assert "5:token" not in machines.fields()
    machines.claim(5, "a")
    before = machines.fields()
    assert machines.renew(5, "a", ceiling=far)[0] == "ahead"
    assert machines.fields() == before


def test_a_missing_hash_has_to_settle_unless_it_was_made_just_now(machines: MachinesHash) -> None:
    machines.client.delete(KEY)
    status, ms = machines.claim(5, "a")
    assert status == "settling"
    assert LEASE < int(ms) <= LEASE + MARGIN
    # Not even by a first one: it was there before.
    assert machines.claim(5, "a", first=1)[0] == "settling"
    machines.client.delete(KEY)
    assert machines.claim(5, "a", first=1)[0] == "yours"
    assert machines.claim(6, "b")[0] == "yours"


def test_the_hash_of_another_store_is_refused_and_left_alone(machines: MachinesHash) -> None:
    machines.claim(5, "a")
    assert machines.fields()["store"] == STORE
    before = machines.fields()
    assert machines.claim(6, "b", store="another", lease=2 * LEASE) == ["otherstore", STORE]
    assert machines.fields() == before


def test_a_server_clock_that_went_back_has_to_settle_too(fake_server: FencedFakeServer) -> None:
    machines = MachinesHash(fake_server.client(decode_responses=True))
    machines.claim(5, "a", first=1)
    assert machines.claim(6, "b")[0] == "yours"
    fake_server.time_offset = -3600.0
    assert machines.claim(7, "c")[0] == "settling"
    fake_server.time_offset = -3600.0 + (LEASE + MARGIN) / 1000 + 1
    assert machines.claim(7, "c")[0] == "yours"


def test_the_longest_lease_that_was_asked_for_decides_how_long_it_takes_to_settle(
    fake_server: FencedFakeServer,
) -> None:
    machines = MachinesHash(fake_server.client(decode_responses=True))
    machines.claim(5, "a", first=1, lease=600_000)
    fake_server.new_reign()
    assert machines.renew(5, "a", lease=600_000) == ["yours", "0"]
    fake_server.time_offset = 100.0
    assert machines.claim(6, "b", lease=5000)[0] == "settling"
    fake_server.time_offset = 602.0
    assert machines.claim(6, "b", lease=5000)[0] == "yours"


def test_a_replica_answers_notmaster(start_redis: Start) -> None:
    master, replica = start_redis(), start_redis("--replica-read-only", "no")
    replica.replicaof(master)
    here = hash_on(replica)
    assert here.claim(first=1) == ["notmaster"]
    assert here.renew() == ["notmaster"]
    assert here.release() == ["notmaster"]
    assert here.fields() == {}


@pytest.mark.parametrize("name", ["since", "longest", "5:lapses", "5:last"])
def test_a_field_that_is_no_number_is_corrupt(machines: MachinesHash, name: str) -> None:
    machines.claim(5, "a")
    machines.client.hset(KEY, name, "soon")
    before = machines.fields()
    assert machines.claim(5, "b") == ["corrupt"]
    assert machines.renew(5, "a") == ["corrupt"]
    assert machines.release(5, "a") == ["corrupt"]
    assert machines.fields() == before


BAD_CALLS: list[Callable[[MachinesHash], object]] = [
    lambda each: each.claim("five"),
    lambda each: each.claim(5, ""),
    lambda each: each.claim(5, "a", ceiling="soon"),
    lambda each: each.claim(5, "a", store=""),
    lambda each: each.call("machine_claim", 5, "h", "a", 1, "long", 1, 0, STORE),
    lambda each: each.call("machine_claim", 5, "h", "a", 1, 1, 1, 0),
    lambda each: each.renew("5:x"),
    lambda each: each.renew(5, "", ceiling=1),
    lambda each: each.renew(5, "a", ceiling=""),
    lambda each: each.release("", "a"),
    lambda each: each.release(5, ""),
    lambda each: each.release(5, "a", "-1"),
]


def test_bad_arguments_change_nothing(machines: MachinesHash) -> None:
    before = machines.fields()
    for number, call in enumerate(BAD_CALLS):
        with pytest.raises(redis.ResponseError, match="BADARG"):
            pytest.fail(f"bad call {number}: {call(machines)}")
        assert machines.fields() == before


# ------------------------------------------------------------------------------------------------ without each guard


def held_at_once(*replies: list[str]) -> list[str]:
    """How many more than one were told that the number is theirs."""
    return [reply[0] for reply in replies if reply[0] == "yours"][1:]


def granted(claim: Callable[[], list[str]]) -> list[str]:
    """Claim until it is granted."""
    replies: list[list[str]] = []

    def asked() -> bool:
        replies.append(claim())
        return replies[-1][0] == "yours"

    until(asked, 60)
    return replies[-1]


def two_stores(start: Start, texts: Mapping[str, str]) -> list[str]:
    """Redis is emptied, and a tag of this name is new in one of two stores: in the other one its numbers are held."""
    here = hash_on(start(), texts)
    here.settled()
    first = here.claim(5, "a")
    here.client.flushall()
    assert here.claim(6, "b", first=1, store="another")[0] == "yours"
    return held_at_once(first, here.claim(5, "c"))


def lagging_failover(start: Start, texts: Mapping[str, str]) -> list[str]:
    """A replica that has not heard of the last claim takes over: its number is free there, though it is held."""
    master, replica = start(), start()
    replica.replicaof(master)
    here = hash_on(master, texts)
    here.settled()
    here.client.wait(1, 5000)
    master.cut_off(replica)
    first = here.claim(5, "a")
    master.kill()
    replica.resume()
    replica.promote()
    return held_at_once(first, hash_on(replica, texts).claim(5, "b"))


def restart_from_a_snapshot(start: Start, texts: Mapping[str, str]) -> list[str]:
    server = start()
    hash_on(server, texts).settled()
    before = server.snapshot()
    first = hash_on(server, texts).claim(5, "a")
    server.restore(before)
    return held_at_once(first, hash_on(server, texts).claim(5, "b"))


def emptied(start: Start, texts: Mapping[str, str]) -> list[str]:
    here = hash_on(start(), texts)
    here.settled()
    first = here.claim(5, "a")
    here.client.flushall()
    return held_at_once(first, here.claim(5, "b"))


def writable_replica(start: Start, texts: Mapping[str, str]) -> list[str]:
    """Some processes claim from a replica that may be written to, and shows its master's id."""
    master, replica = start(), start("--replica-read-only", "no")
    replica.replicaof(master)
    here, there = hash_on(master, texts), hash_on(replica, texts)
    here.settled()
    here.client.wait(1, 5000)
    # The replica first: its own write goes nowhere, while the master's would reach it.
    return held_at_once(there.claim(5, "a"), here.claim(5, "b"))


def lapsed_and_forgotten(start: Start, texts: Mapping[str, str]) -> list[str]:
    """A holder lapses, another one follows, a rollback forgets the other one, and the first wakes up and renews."""
    server = start()
    here = hash_on(server, texts)
    here.settled()
    here.claim(5, "a", lease=1)
    until(lambda: here.now() > int(here.fields()["5:lapses"]) + 1, 60)
    before = server.snapshot()
    second = here.claim(5, "b", margin=0)
    server.restore(before)
    return held_at_once(second, hash_on(server, texts).renew(5, "a"))


def renewed_below(start: Start, texts: Mapping[str, str]) -> list[str]:
    """The same, but it wakes up when all leases of the old reign are over: it goes on above what they have used."""
    server = start()
    here = hash_on(server, texts)
    here.settled()
    here.client.hset(KEY, "longest", 10)
    here.claim(5, "a", lease=1, margin=20)
    until(lambda: here.now() > int(here.fields()["5:lapses"]) + 20, 60)
    before = server.snapshot()
    ceiling = here.now() + 30
    assert here.claim(5, "b", lease=10, margin=20, ceiling=ceiling)[0] == "yours"
    server.restore(before)
    after = hash_on(server, texts)
    reply = granted(lambda: after.renew(5, "a", lease=10, margin=20))
    return [] if int(reply[1]) >= ceiling else reply


def two_tokens(start: Start, texts: Mapping[str, str]) -> list[str]:
    here = hash_on(start(), texts)
    here.settled()
    return held_at_once(here.claim(5, "a"), here.renew(5, "b"))


def two_claims(start: Start, texts: Mapping[str, str]) -> list[str]:
    here = hash_on(start(), texts)
    here.settled()
    return held_at_once(here.claim(5, "a"), here.claim(5, "b"))


def freed_by_another(start: Start, texts: Mapping[str, str]) -> list[str]:
    """A holder that has lapsed says goodbye late, when the number is somebody else's."""
    here = hash_on(start(), texts)
    here.settled()
    second = here.claim(5, "b")
    here.release(5, "a")
    return held_at_once(second, here.claim(5, "c"))


def below_the_ceiling(start: Start, texts: Mapping[str, str]) -> list[str]:
    """Whoever follows starts above what was promised to the one before."""
    here = hash_on(start(), texts)
    here.settled()
    ceiling = here.now() + 1000
    here.claim(5, "a", lease=1, ceiling=ceiling)
    reply = granted(lambda: here.claim(5, "b", margin=0))
    return [] if int(reply[1]) >= ceiling else reply


def lowered_ceiling(start: Start, texts: Mapping[str, str]) -> list[str]:
    """A holder whose clock went back renews with a lower ceiling than it has used."""
    here = hash_on(start(), texts)
    here.settled()
    used = here.now() + 1000
    here.claim(5, "a", ceiling=used)
    here.renew(5, "a", ceiling=used - 900, lease=1)
    reply = granted(lambda: here.claim(5, "b", margin=0))
    return [] if int(reply[1]) >= used else reply


def forgotten_ceiling(start: Start, texts: Mapping[str, str]) -> list[str]:
    """What a forgotten holder has used lies below the floor of whoever gets its number after a rollback."""
    server = start()
    hash_on(server, texts).settled()
    before = server.snapshot()
    here = hash_on(server, texts)
    ceiling = here.now() + 30
    here.claim(5, "a", lease=10, margin=20, ceiling=ceiling)
    server.restore(before)
    after = hash_on(server, texts)
    after.client.hset(KEY, "longest", 10)
    reply = granted(lambda: after.claim(5, "b", lease=10, margin=20))
    return [] if int(reply[1]) >= ceiling else reply


def clock_far_ahead(start: Start, texts: Mapping[str, str]) -> list[str]:
    """With a ceiling far ahead the floor after a rollback would lie below it."""
    here = hash_on(start(), texts)
    here.settled()
    far = here.now() + 3_600_000
    return [word for word in here.claim(5, "a", ceiling=far) if word == "yours"]


SETTLING = "if now < since + hold then return {'settling', string.format('%d', since + hold - now)} end\n"
NEW_REIGN = "if state[1] ~= reign or now < since then"
HELD = "if owner and now <= lapses + margin then"
AHEAD = "if now + lease + margin < ceiling then"
RENEWED_FLOOR = "lapsed and string.format('%.0f', since + hold) or '0'"
FLOOR = "local floor = math.max(last, since + hold)"

MUTATIONS = [
    Mutation("settling, in a failover", lagging_failover, {"machine_claim": [(SETTLING, "")]}),
    Mutation("settling, in a rollback", restart_from_a_snapshot, {"machine_claim": [(SETTLING, "")]}),
    Mutation("settling, when emptied", emptied, {"machine_claim": [(SETTLING, "")]}),
    Mutation("the reign", lagging_failover, {"machine_claim": [(NEW_REIGN, "if now < since then")]}),
    Mutation("a hash that is missing", emptied, {"machine_claim": [("first == '1' and not state[1]", "not state[1]")]}),
    Mutation(
        "the store",
        two_stores,
        {"machine_claim": [("if state[4] and state[4] ~= store then return {'otherstore', state[4]} end\n", "")]},
    ),
    Mutation("role:master", writable_replica, {"machine_claim": [NOTMASTER]}),
    Mutation("claim: held", two_claims, {"machine_claim": [(HELD, "if false then")]}),
    Mutation("renew: the token", two_tokens, {"machine_renew": [("owner ~= token or ", "")]}),
    Mutation(
        "renew: no lapsed one in a new reign",
        lapsed_and_forgotten,
        {"machine_renew": [(" or (lapsed and now < since + hold)", "")]},
    ),
    Mutation("renew: the floor", renewed_below, {"machine_renew": [(RENEWED_FLOOR, "'0'")]}),
    Mutation(
        "release: the token",
        freed_by_another,
        {"machine_release": [("if owner ~= token then return {'lost'} end\n", "")]},
    ),
    Mutation("claim: the ceiling", below_the_ceiling, {"machine_claim": [(FLOOR, "local floor = since + hold")]}),
    Mutation(
        "renew: never a lower ceiling",
        lowered_ceiling,
        {"machine_renew": [("math.max(last, ceiling)", "ceiling")]},
    ),
    Mutation("claim: the end of the hold", forgotten_ceiling, {"machine_claim": [(FLOOR, "local floor = last")]}),
    Mutation("claim: clocks ahead", clock_far_ahead, {"machine_claim": [(AHEAD, "if false then")]}),
]


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("scenario", scenarios(MUTATIONS))
def test_with_every_guard_there_is_no_harm(scenario: Scenario, start_redis: Start) -> None:
    assert scenario(start_redis, INTACT) == []


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_without_the_guard_the_harm_shows(mutation: Mutation, start_redis: Start) -> None:
    assert mutation.scenario(start_redis, mutated(**mutation.changes))
