"""The guards of `lease` and `giveback`: each is taken out once, and the harm that it prevents must show."""

from contextlib import suppress

import pytest
import redis

from tests.audit import repeats
from tests.lua.hashes import BORN, INTACT, OTHER_STORE, WINDOW, mutated, numbers
from tests.lua.test_faults import FENCE
from tests.lua.test_mutations import (
    MOMENT,
    NOTMASTER,
    NOW_SINCE,
    Harm,
    Mutation,
    Scenario,
    Start,
    Texts,
    draw_all,
    hash_on,
    scenarios,
)

pytestmark = pytest.mark.live


def lease_across_a_rollback(start: Start, texts: Texts) -> Harm:
    server = start()
    tag = hash_on(server, texts)
    tag.put(0, 100)
    before = server.snapshot()
    leased = list(numbers(tag.lease(50)))
    server.restore(before)
    reply = hash_on(server, texts).lease(50)
    return [*repeats([*leased, *(numbers(reply) if reply[0] == "ok" else [])])]


def lease_without_born(start: Start, texts: Texts) -> Harm:
    """Who is granted numbers is told all that belongs to them."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.client.hdel(tag.key, "born")
    reply = tag.lease(50)
    return [reply] if None in reply else []


def tail_after_others_drew(start: Start, texts: Texts) -> Harm:
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(10)
    used = [1, 2, 3, 4]
    others = list(numbers(tag.next(5)))
    tag.give_back(4, 10)
    return [*repeats([*used, *others, *draw_all(tag)])]


def tail_that_came_twice(start: Start, texts: Texts) -> Harm:
    """In between others draw, up to exactly the lease's end: all but the count is as it was."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(10)
    tag.give_back(4, 10)
    others = list(numbers(tag.next(6)))
    tag.give_back(4, 10)
    return [*repeats([1, 2, 3, 4, *others, *draw_all(tag)])]


def tail_that_came_twice_after_another_one(start: Start, texts: Texts) -> Harm:
    """Who drew up to the same end has given it back as well, before the copy comes, and others have drawn again."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(10)
    tag.give_back(4, 10)
    backs = int(tag.lease(6)[5])
    tag.give_back(7, 10, backs=backs)
    others = list(numbers(tag.next(3)))
    tag.give_back(4, 10)
    tag.give_back(7, 10, backs=backs)
    return [*repeats([*range(1, 8), *others, *draw_all(tag)])]


def tail_that_came_twice_after_another_row(start: Start, texts: Texts) -> Harm:
    """Others drew up to the lease's end, and beyond it; what lay beyond has come back, so cur stands there again."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(10)
    tag.give_back(4, 10)
    others = list(numbers(tag.next(6)))
    tag.give_back(10, 20, backs=tag.lease(10)[5])
    tag.give_back(4, 10)
    return [*repeats([1, 2, 3, 4, *others, *draw_all(tag)])]


def tail_that_came_twice_after_a_floor_did(start: Start, texts: Texts) -> Harm:
    """A copy of a floor must not bring its born back."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.floor(0, born="first")
    born = tag.lease(100)[4]
    tag.give_back(0, 100)
    issued = draw_all(tag)
    tag.floor(100, born="second")
    tag.floor(0, born="first")
    tag.give_back(0, 100, born=born)
    return [*repeats(issued + draw_all(tag))]


def tail_of_a_gap(start: Start, texts: Texts) -> Harm:
    """Between two segments lie numbers of somebody else: another process reserved them, and serves them direct."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(100)
    tag.load(200, 300)
    others = list(range(101, 201))
    tag.give_back(70, 100)
    return [*repeats([*range(1, 71), *others, *draw_all(tag)])]


def tail_after_everything_began_anew(start: Start, texts: Texts) -> Harm:
    """Redis was flushed and the store made anew, without a restart: the same numbers mean something else now."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(100)
    tag.client.flushall()
    _, reign, *_ = tag.open("anew", store=OTHER_STORE)
    tag.load(0, 100, reign=reign)
    drawn = draw_all(tag)
    tag.give_back(50, 100, born=BORN)
    return [*repeats(drawn + draw_all(tag))]


def tail_after_a_recovery(start: Start, texts: Texts) -> Harm:
    """State was put back inside one reign, and recovered from: nothing issued until then comes again."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    old = tag.client.dump(tag.key)
    assert isinstance(old, bytes)
    tag.lease(100)
    tag.client.restore(tag.key, 0, old, replace=True)
    drawn = draw_all(tag)
    tag.floor(100, born="recovered")
    tag.give_back(50, 100, born=BORN)
    return [*repeats(drawn + draw_all(tag))]


def tail_across_a_rollback(start: Start, texts: Texts) -> Harm:
    """A tail that is said to be back can be drawn."""
    server = start()
    tag = hash_on(server, texts)
    tag.put(0, 100)
    reign = tag.reign()
    tag.lease(50)
    server.restore(server.snapshot())
    tag = hash_on(server, texts)
    status = tag.give_back(20, 50, reign=reign)[0]
    return [status] if status == "back" and tag.next()[0] != "ok" else []


def tail_on_a_writable_replica(start: Start, texts: Texts) -> Harm:
    """The same: nobody draws there, and the master hears nothing of it."""
    master, replica = start(), start("--replica-read-only", "no")
    replica.replicaof(master)
    here, there = hash_on(master, texts), hash_on(replica, texts)
    here.put(0, 100)
    here.lease(50)
    here.client.wait(1, 5000)
    status = there.give_back(20, 50)[0]
    return [status] if status == "back" and here.next()[1] != "20" else []


def tail_of_a_corrupt_hash(start: Start, texts: Texts) -> Harm:
    """Somebody wrote to the hash: it is refused until it was recovered."""
    tag = hash_on(start(), texts)
    tag.put(50, 100, cur=150)
    tag.give_back(90, 150)
    return [*draw_all(tag)]


def tail_that_is_none(start: Start, texts: Texts) -> Harm:
    """Nothing but a lower number is written to the hash."""
    tag = hash_on(start(), texts)
    harm: Harm = []
    for used in ("fifty", "60"):
        tag.put(50, 100)
        with suppress(redis.ResponseError):
            tag.give_back(used, 50)
        harm += [] if tag.field("cur") == "50" else [used]
    return harm


def mark_reached_again(start: Start, texts: Texts) -> Harm:
    """Somebody is elected, though the one before came too late and went home."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(30)
    tag.give_back(10, 30)
    return [] if len(tag.next(20)) > 3 else ["nobody is elected"]


def tail_beyond_the_mark(start: Start, texts: Texts) -> Harm:
    """One caller at a time is elected."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    tag.lease(30)
    tag.give_back(25, 30)
    return [*tag.next(1)[3:]]


def leases_at_once(start: Start, texts: Texts) -> Harm:
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    return [*range(1, sum(len(tag.lease(window=60_000)) > 6 for _ in range(100)))]


LEASE_BORN = "if not born or not whole(backs) then return {'corrupt'} end\n"
REIGN = "if not current or seen_reign ~= reign then return {'spent', 'reign'} end\n"
BORN_CHECK = "if born ~= seen_born then return {'spent', 'born'} end\n"
CORRUPT = "if not top then return {'corrupt'} end\n"
CUR = "if cur ~= high then return {'spent', 'cur'} end\n"
ROW = "if not last and (seen_backs ~= backs_before or less(backs_low, high)) then return {'spent', 'backs'} end\n"
LOW = " or less(backs_low, high)"
BEFORE = "seen_backs ~= backs_before or "
COUNT = "redis.call('HINCRBY', key, 'backs', 1)\n"
ASKED = "if less(used, mark) then redis.call('HDEL', key, 'asked') end\n"
BADARG = "if not (whole(used) and whole(high)) or not less(used, high) then\n"

# Any order of events, with each of these guards gone: tests/property and tests/model.
MUTATIONS = [
    Mutation("lease: the fence", lease_across_a_rollback, {"lease": [(FENCE, "")]}),
    Mutation("lease: born", lease_without_born, {"lease": [(LEASE_BORN, "")]}),
    Mutation("lease: one election", leases_at_once, {"lease": [(f"not ({NOW_SINCE})", "true")]}),
    Mutation("cur is high", tail_after_others_drew, {"giveback": [(CUR, "")]}),
    Mutation("cur is high, across a gap", tail_of_a_gap, {"giveback": [(CUR, "")]}),
    Mutation(
        "cur is high, not only not below it",
        tail_after_others_drew,
        {"giveback": [(CUR, CUR.replace("cur ~= high", "less(cur, high)"))]},
    ),
    Mutation("backs is the lease's", tail_that_came_twice, {"giveback": [(ROW, "")]}),
    Mutation("a row of returns comes down", tail_that_came_twice, {"giveback": [(LOW, "")]}),
    Mutation(
        "a row of returns begins at one count",
        tail_that_came_twice_after_another_row,
        {"giveback": [(BEFORE, "")]},
    ),
    Mutation("backs is counted", tail_that_came_twice, {"giveback": [(COUNT, "")]}),
    Mutation(
        "backs is counted, not only marked",
        tail_that_came_twice_after_another_one,
        {"giveback": [(COUNT, "redis.call('HSET', key, 'backs', '1')\n")]},
    ),
    Mutation(
        "floor: born is of the moment",
        tail_that_came_twice_after_a_floor_did,
        {"floor": [(MOMENT, "")]},
    ),
    Mutation("born, when all began anew", tail_after_everything_began_anew, {"giveback": [(BORN_CHECK, "")]}),
    Mutation("born, after a recovery", tail_after_a_recovery, {"giveback": [(BORN_CHECK, "")]}),
    Mutation("reign", tail_across_a_rollback, {"giveback": [(REIGN, "")]}),
    Mutation("role:master", tail_on_a_writable_replica, {"giveback": [NOTMASTER]}),
    Mutation("a corrupt hash", tail_of_a_corrupt_hash, {"giveback": [(CORRUPT, "")]}),
    Mutation("used is a number", tail_that_is_none, {"giveback": [(BADARG, "if not whole(high) then\n")]}),
    Mutation("used below high", tail_that_is_none, {"giveback": [(" or not less(used, high) then", " then")]}),
    Mutation("below the mark the election ends", mark_reached_again, {"giveback": [(ASKED, "")]}),
    Mutation(
        "beyond the mark it stands",
        tail_beyond_the_mark,
        {"giveback": [(ASKED, "redis.call('HDEL', key, 'asked')\n")]},
    ),
]


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("scenario", scenarios(MUTATIONS))
def test_with_every_guard_there_is_no_harm(scenario: Scenario, start_redis: Start) -> None:
    assert scenario(start_redis, INTACT) == []


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_without_the_guard_the_harm_shows(mutation: Mutation, start_redis: Start) -> None:
    assert mutation.scenario(start_redis, mutated(**mutation.changes))


def test_a_used_that_lies_below_the_lease_repeats_and_no_script_can_tell(start_redis: Start) -> None:
    """Whoever used none of the lease says so by its low, not by 0: the hash does not know where the lease began."""
    tag = hash_on(start_redis(), INTACT)
    tag.put(0, 100, mark=100)
    others = list(numbers(tag.next(10)))
    low, high = tag.lease(10)[1:3]
    assert tag.give_back(0, high) == ["back"]
    assert repeats([*others, *numbers(tag.next(100))]) == others
    tag.put(0, 100, mark=100)
    tag.next(10)
    tag.lease(10, WINDOW)
    assert tag.give_back(low, high, born=BORN) == ["back"]
    assert numbers(tag.next(100)) == range(11, 101)
