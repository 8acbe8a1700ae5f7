"""Each guard of the scripts is taken out once, and the harm that it prevents must show: else it proves nothing.

A scenario runs on a real server and returns the harm that it found, nothing if there was none. It is run with the
scripts as they are, and with the guard gone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import redis

from issuer.persistence.records import HIGHEST
from tests.audit import repeats
from tests.lua.hashes import INTACT, OTHER_STORE, STORE, Change, TagHash, command, mutated, numbers
from tests.lua.issuing import BehindError, RangeStore, SmallIssuer
from tests.lua.test_faults import (
    failover_to_a_lagging_replica,
    kill_and_older_snapshot,
    there_and_back_with_the_connection_kept,
)
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live

Start = Callable[..., RedisServer]
Texts = Mapping[str, str]
Harm = list[object]


def hash_on(server: RedisServer, texts: Texts) -> TagHash:
    return TagHash(server.client(decode_responses=True), texts)


def draw_all(tag: TagHash) -> list[int]:
    """Draw one by one until nothing is left."""
    drawn: list[int] = []
    while (reply := tag.next(1))[0] == "ok":
        drawn += numbers(reply)
    return drawn


# ------------------------------------------------------------------------------------------------ the fence in `next`


def after(fault: Callable[[Start, SmallIssuer], None]) -> Callable[[Start, Texts], Harm]:
    def scenario(start: Start, texts: Texts) -> Harm:
        issuer = SmallIssuer(texts)
        fault(start, issuer)
        return [*repeats(issuer.issued)]

    scenario.__name__ = fault.__name__
    return scenario


rollback = after(kill_and_older_snapshot)
lagging_failover = after(failover_to_a_lagging_replica)
there_and_back = after(there_and_back_with_the_connection_kept)


def writable_replica(start: Start, texts: Texts) -> Harm:
    """Some clients draw from a replica that may be written to, and shows its master's id."""
    master, replica = start(), start("--replica-read-only", "no")
    replica.replicaof(master)
    here, there = hash_on(master, texts), hash_on(replica, texts)
    here.put(0, 100)
    here.client.wait(1, 5000)
    drawn: list[int] = []
    # The replica first: its own write goes nowhere, while the master's would reach it.
    for tag in (there, here):
        reply = tag.next(10)
        drawn += numbers(reply) if reply[0] == "ok" else []
    return [*repeats(drawn)]


#: What design.md warns of: the run id outlives a change of masters and back.
INFO = "local info = redis.call('INFO', 'replication')\n"
RUN_ID = (
    INFO,
    INFO + "info = string.gsub(info, '\\nmaster_replid:%x+', "
    "'\\nmaster_replid:' .. string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'))\n",
)
NOTMASTER = ("if not string.find(info, '\\nrole:master\\r', 1, true) then return {'notmaster'} end", "")
ARM = (
    "  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id)\n"
    "  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked', 'scheme', 'until',\n"
)
ARM_WITH_NUMBERS = (
    "  if not missing then return redis.call('HSET', key, 'fence', reign, 'born', fresh, 'store', store_id) end\n" + ARM
)


def comes_back_after_a_restart(start: Start, texts: Texts) -> Harm:
    server = start()
    hash_on(server, texts).put(50, 100)
    server.restore(server.snapshot())
    tag = hash_on(server, texts)
    _, reign, born, *_ = tag.open("fresh")
    tag.load(100, 200, reign=reign, born=born)
    return [*([] if tag.next()[0] == "ok" else ["fenced for ever"])]


# ------------------------------------------------------------------------------------------------ `load`


def load_sent_again_after_a_flush(start: Start, texts: Texts, armed_by: str = "second") -> Harm:
    """The second copy arrives when the hash is gone and armed anew."""
    tag = hash_on(start(), texts)
    born = tag.open("first")[2]
    tag.load(0, 100)
    drawn = draw_all(tag)
    tag.client.flushall()
    tag.open(armed_by)
    tag.load(0, 100, born=born)
    return [*repeats(drawn + draw_all(tag))]


def open_and_load_sent_again_after_a_flush(start: Start, texts: Texts) -> Harm:
    """A copy of the `open` arms the hash that is gone, and a copy of the load finds it."""
    return load_sent_again_after_a_flush(start, texts, armed_by="first")


def load_sent_again_when_used_up(start: Start, texts: Texts) -> Harm:
    tag = hash_on(start(), texts)
    tag.open()
    tag.load(0, 100)
    drawn = draw_all(tag)
    tag.load(0, 100)
    return [*repeats(drawn + draw_all(tag))]


def load_that_was_overtaken(start: Start, texts: Texts) -> Harm:
    """Order: a segment reserved earlier arrives after a later one was used."""
    tag = hash_on(start(), texts)
    tag.open()
    tag.load(100, 200)
    drawn = draw_all(tag)
    tag.load(0, 100)
    drawn += draw_all(tag)
    return [pair for pair in pairwise(drawn) if pair[0] > pair[1]]


def load_into_a_full_hash(start: Start, texts: Texts) -> Harm:
    """A segment that was loaded is issued: none is pushed out by the next one."""
    tag = hash_on(start(), texts)
    tag.open()
    accepted: set[int] = set()
    for low in (0, 100, 200):
        if tag.load(low, low + 100)[0] in ("current", "next"):
            accepted |= set(range(low + 1, low + 101))
    return [*sorted(accepted - set(draw_all(tag)))]


def load_across_a_rollback(start: Start, texts: Texts) -> Harm:
    """A load that is said to have been taken can be drawn from."""
    server = start()
    tag = hash_on(server, texts)
    _, reign, born, *_ = tag.open()
    server.restore(server.snapshot())
    tag = hash_on(server, texts)
    loaded = tag.load(0, 100, reign=reign, born=born)[0]
    return [loaded] if loaded != "stale" and tag.next()[0] != "ok" else []


# ------------------------------------------------------------------------------------------------ numbers as strings


def single_numbers_around_2_53(start: Start, texts: Texts) -> Harm:
    """What a caller gets who draws one and takes `high`."""
    tag = hash_on(start(), texts)
    tag.put(2**53 - 3, 2**53 + 8, mark=2**53 + 8)
    highs: list[int] = []
    for _ in range(11):
        reply = tag.next(1)
        highs += [int(reply[2])] if reply[0] == "ok" else []
    return [*repeats(highs)]


def what_lies_above_the_segment(start: Start, texts: Texts) -> Harm:
    """Numbers beyond what was reserved, wherever the segment ends, or twice; and numbers left behind."""
    tag = hash_on(start(), texts)
    harm: Harm = []
    for end in (9, 99, 1000, 2**53, 2**53 + 1, HIGHEST - 1, HIGHEST):
        for n in (1, 2, 5):
            tag.put(end - 4, end, mark=end)
            drawn: list[int] = []
            while (reply := tag.next(n))[0] == "ok" and len(drawn) < 20:
                drawn += numbers(reply)
            harm += [number for number in drawn if number > end] + repeats(drawn)
            harm += [f"{number} was left behind" for number in range(end - 3, end + 1) if number not in drawn]
    return harm


def draw_without_the_right_to_count(start: Start, texts: Texts) -> Harm:
    """A draw of one grants one at most."""
    server = start()
    hash_on(server, texts).put(0, 100)
    command(server.client(), "ACL", "SETUSER", "drawer", "on", ">secret", "~*", "+@all", "-hincrby")
    tag = TagHash(server.client(username="drawer", password="secret", decode_responses=True), texts)
    try:
        return [*numbers(tag.next(1))[1:]]
    except redis.ResponseError:
        return []


# ------------------------------------------------------------------------------------------------ election


def clock_that_went_back(start: Start, texts: Texts) -> Harm:
    """Somebody is elected, by a draw and by `open`."""
    tag = hash_on(start(), texts)
    harm: Harm = []
    tag.put(50, 100, mark=20, asked=tag.now() + 10**9)
    if tag.next()[3:] != ["extend", "100"]:
        harm.append("no draw is elected")
    tag.put(50, 100, mark=20, asked=tag.now() + 10**9)
    if tag.open()[6] != "1":
        harm.append("no open is elected")
    return harm


def loaders_at_once(start: Start, texts: Texts) -> Harm:
    """One caller at a time is elected."""
    tag = hash_on(start(), texts)
    tag.put(0, 100)
    elected = sum(len(tag.next(window=60_000)) > 3 for _ in range(100))
    elected += sum(tag.open(window=60_000)[6] == "1" for _ in range(5))
    return [*range(1, elected)]


# ------------------------------------------------------------------------------------------------ `floor` and `open`


def load_across_a_recovery(start: Start, texts: Texts) -> Harm:
    """The store is restored from a backup and recovered, while a load of the time before is still on its way."""
    tag = hash_on(start(), texts)
    store = RangeStore()
    born = tag.open("first")[2]
    tag.load(*store.reserve())
    drawn = draw_all(tag)
    late = store.reserve()
    store.max = 100
    tag.floor(100, born="recovered")
    tag.load(*late, born=born)
    drawn += draw_all(tag)
    # Another process serves what the store hands out now, without Redis.
    low, high = store.reserve(100)
    return [*repeats([*drawn, *range(low + 1, high + 1)])]


def two_stores_on_one_prefix(start: Start, texts: Texts) -> Harm:
    tag = hash_on(start(), texts)
    one, two = RangeStore(), RangeStore()
    tag.open("a", store=STORE)
    tag.load(*one.reserve())
    drawn = draw_all(tag)
    if tag.open("b", store=OTHER_STORE, role="mine")[0] == "open":
        two.reserve()
        tag.load(*two.reserve())
        drawn += draw_all(tag)
    # What the second store handed out, only Redis knew of.
    tag.client.flushall()
    tag.open("c", store=STORE)
    tag.load(*one.reserve())
    return [*repeats(drawn + draw_all(tag))]


def floor_below_what_is_issued(start: Start, texts: Texts) -> Harm:
    """Neither a low floor nor one in another reign lets a number come again."""
    server = start()
    tag = hash_on(server, texts)
    tag.put(0, 100, (100, 200))
    drawn = list(numbers(tag.next(50)))
    tag.floor(20)
    drawn += draw_all(tag)
    harm: Harm = [*repeats(drawn)]
    tag.put(0, 100, fence="0" * 40)
    tag.floor(20)
    return [*harm, *draw_all(tag)]


def floor_within_the_buffers(start: Start, texts: Texts) -> Harm:
    """No number up to the floor comes any more, and each one above it does."""
    tag = hash_on(start(), texts)
    harm: Harm = []
    for at in (10, 100, 120, 200, 250):
        tag.put(0, 100, (100, 200))
        tag.floor(at)
        harm += set(draw_all(tag)) ^ set(range(at + 1, 201))
    return harm


Scenario = Callable[[Start, Texts], Sequence[object]]


@dataclass(frozen=True)
class Mutation:
    """`guard` names what is taken out. `scenario` must find harm then, and none in the scripts as they are."""

    guard: str
    scenario: Scenario
    changes: dict[str, list[Change]]


def scenarios(mutations: list[Mutation]) -> list[Scenario]:
    """Return the scenario of each, every one once."""
    return list(dict.fromkeys(each.scenario for each in mutations))


HINCRBY_REPLY = ("redis.call('HGET', key, 'cur')\n", "string.format('%.0f', moved)\n")
LESS = "  return #a < #b or (#a == #b and a < b)\n"
NOW_SINCE = "since and now >= since and now - since <= window"
CURRENT = "if not current or seen_reign ~= reign then return {'stale', 'reign'} end\n"
MOMENT = "fresh = fresh .. '.' .. moment[1] .. '.' .. moment[2]\n"
BORN_CHECK = "if born ~= seen_born then return {'stale', 'born'} end\n"
BELOW = "if less(low, top) then return {'stale', 'below'} end\n"
FULL = "if next_max then return {'full'} end\n"
OTHER = "if store and store ~= store_id then return {'otherstore', store} end\n"
REFUSED = "if overflow and not string.find(tostring(moved.err), 'overflow', 1, true) then return moved end\n"

# The whole fence is taken out in test_faults.py.
MUTATIONS = [
    Mutation("role:master", writable_replica, {"next": [NOTMASTER]}),
    Mutation(
        "master_replid: before the id",
        lagging_failover,
        {"next": [("'\\nmaster_replid:' .. fence .. '\\r'", "fence")]},
    ),
    Mutation("the replid, not the run id", there_and_back, {"next": [RUN_ID], "open": [RUN_ID], "load": [RUN_ID]}),
    Mutation("arming drops the numbers", rollback, {"open": [(ARM, ARM_WITH_NUMBERS)]}),
    Mutation(
        "open arms what is of another reign",
        comes_back_after_a_restart,
        {"open": [("if not current or not born or not store then", "if missing or not born or not store then")]},
    ),
    Mutation("load: born", load_sent_again_after_a_flush, {"load": [(BORN_CHECK, "")]}),
    Mutation("open: born is of the moment", open_and_load_sent_again_after_a_flush, {"open": [(MOMENT, "")]}),
    Mutation("load: below, uniqueness", load_sent_again_when_used_up, {"load": [(BELOW, "")]}),
    Mutation("load: below, order", load_that_was_overtaken, {"load": [(BELOW, "")]}),
    Mutation("load: full", load_into_a_full_hash, {"load": [(FULL, "")]}),
    Mutation("load: reign", load_across_a_rollback, {"load": [(CURRENT, "")]}),
    Mutation("HGET, not HINCRBY's reply", single_numbers_around_2_53, {"next": [HINCRBY_REPLY]}),
    Mutation(
        "the clamp at the end",
        what_lies_above_the_segment,
        {"next": [("if overflow or less(max, high) then", "if overflow then")]},
    ),
    Mutation(
        "the clamp at 2^63",
        what_lies_above_the_segment,
        {"next": [("if overflow or less(max, high) then", "if not overflow and less(max, high) then")]},
    ),
    Mutation(
        "comparing strings, not Lua numbers",
        what_lies_above_the_segment,
        {"next": [(LESS, "  return tonumber(a) < tonumber(b)\n")]},
    ),
    Mutation("comparing lengths first", what_lies_above_the_segment, {"next": [(LESS, "  return a < b\n")]}),
    Mutation("only an overflow ends the segment", draw_without_the_right_to_count, {"next": [(REFUSED, "")]}),
    Mutation(
        "next: a clock that went back",
        clock_that_went_back,
        {"next": [(NOW_SINCE, "since and now - since <= window")]},
    ),
    Mutation(
        "open: a clock that went back",
        clock_that_went_back,
        {"open": [(NOW_SINCE, "since and now - since <= window")]},
    ),
    Mutation("next: one election", loaders_at_once, {"next": [(f"not ({NOW_SINCE})", "true")]}),
    Mutation("open: one election", loaders_at_once, {"open": [(f"not ({NOW_SINCE})", "true")]}),
    Mutation(
        "floor: a fresh born",
        load_across_a_recovery,
        {"floor": [("arm(highest, fresh, ", "arm(highest, born, ")]},
    ),
    Mutation("open: the store's id", two_stores_on_one_prefix, {"open": [(OTHER, "")]}),
    Mutation(
        "floor: never down",
        floor_below_what_is_issued,
        {"floor": [("if less(cur, at) then cur = at end", "cur = at")]},
    ),
    Mutation(
        "floor: not below the top of another reign",
        floor_below_what_is_issued,
        {
            "floor": [
                ("if not current or not top or not same", "if not top or not same"),
                (
                    "'born', fresh, 'store', store_id)\nif",
                    "'born', fresh, 'store', store_id, 'fence', reign)\nif",
                ),
            ]
        },
    ),
    Mutation(
        "floor: buffer 2 too",
        floor_within_the_buffers,
        {"floor": [("if less(cur, at) then cur = at end\n", "")]},
    ),
    Mutation(
        "floor: buffer 1 goes when it lies below",
        floor_within_the_buffers,
        {"floor": [("if not less(at, max) then", "if false then")]},
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


def test_a_mutation_that_no_longer_fits_the_script_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"the guard of lua/next\.lua is not where it was: no such guard"):
        mutated(next=[("no such guard", "")])


# ------------------------------------------------------------------------------------------------ floor, never delete


def empty(tag: TagHash, at: int, *, by_floor: bool) -> None:
    if by_floor:
        tag.floor(at, born="emptied")
    else:
        tag.client.delete(tag.key)


@pytest.mark.parametrize("by_floor", [True, False], ids=["floored", "deleted"])
def test_only_a_floor_shows_that_the_store_went_back(by_floor: bool, start_redis: Start) -> None:
    """The store is restored from a backup: what Redis remembers is all that stops the same numbers."""
    tag = hash_on(start_redis(), INTACT)
    store = RangeStore()
    tag.open("first")
    tag.load(*store.reserve())
    drawn = draw_all(tag)
    empty(tag, 100, by_floor=by_floor)
    store.max = 0
    top = int(tag.open("second")[3])
    if by_floor:
        with pytest.raises(BehindError):
            store.reserve(top)
        return
    tag.load(*store.reserve(top))
    assert len(repeats(drawn + draw_all(tag))) == 100


#: What `load` was before it asked for born: an empty key took any segment.
TRUSTING = [("if missing then return {'stale', 'missing'} end\n", ""), (CURRENT, ""), (BORN_CHECK, "")]


@pytest.mark.parametrize("changes", [{}, {"load": TRUSTING}], ids=["intact", "trusting"])
@pytest.mark.parametrize("by_floor", [True, False], ids=["floored", "deleted"])
def test_a_load_on_its_way_repeats_only_if_the_hash_was_deleted_and_load_asks_for_nothing(
    by_floor: bool, changes: dict[str, list[Change]], start_redis: Start
) -> None:
    """Either belt holds: with both gone, all hundred numbers come again."""
    tag = hash_on(start_redis(), mutated(**changes))
    _, reign, born, *_ = tag.open("first")
    tag.load(0, 100, reign=reign, born=born)
    drawn = draw_all(tag)
    empty(tag, 100, by_floor=by_floor)
    tag.open("second", store=STORE)
    tag.load(0, 100, reign=reign, born=born)
    twice = repeats(drawn + draw_all(tag))
    assert len(twice) == (0 if by_floor or not changes else 100)


@pytest.mark.parametrize(("word", "changes"), [("first", {}), ("second", {"open": [(MOMENT, "")]})])
def test_either_the_callers_word_or_the_moment_makes_a_born_that_is_fresh(
    word: str, changes: dict[str, list[Change]], start_redis: Start
) -> None:
    """Rule 7 of lua/README.md: the moment tells copies apart, and the word what a clock set back would take for one."""
    tag = hash_on(start_redis(), mutated(**changes))
    born = tag.open("first")[2]
    tag.load(0, 100)
    tag.client.flushall()
    tag.open(word)
    assert tag.load(0, 100, born=born) == ["stale", "born"]


def test_state_put_back_inside_one_reign_is_out_of_reach_until_recover(start_redis: Start) -> None:
    """What the README says: nothing shows that it happened. A floor above everything issued mends it."""
    tag = hash_on(start_redis(), INTACT)
    tag.put(0, 1000)
    old = tag.client.dump(tag.key)
    assert isinstance(old, bytes)
    drawn = list(numbers(tag.next(100)))
    tag.client.restore(tag.key, 0, old, replace=True)
    assert repeats([*drawn, *numbers(tag.next(100))])
    tag.floor(1000)
    assert tag.next() == ["exhausted"]
