"""`next` and `lease`: what they grant, when they elect, and that a refusal changes nothing."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product

import pytest

from issuer.core.supply.local_buffer import threshold
from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.lua.hashes import BORN, KEY, WINDOW, TagHash, at_moment, numbers, unchanged
from tests.servers.redis import RedisServer

AROUND_2_53 = range(2**53 - 3, 2**53 + 4)


class TestStatuses:
    def test_without_a_hash_it_is_empty_and_makes_none(self, tag: TagHash) -> None:
        assert tag.next() == ["empty"]
        assert tag.client.keys() == []

    @pytest.mark.covers("3.10")
    def test_a_used_up_hash_is_exhausted_and_redis_never_extends_itself(self, tag: TagHash) -> None:
        for cur in (0, 100, HIGHEST):
            tag.put(cur, cur, step=1000)
            with unchanged(tag):
                assert [tag.next(n) for n in (1, 7, HIGHEST)] == [["exhausted"]] * 3

    def test_a_hash_of_another_reign_is_fenced_and_stays_as_it_is(self, tag: TagHash) -> None:
        reign = tag.reign()
        parts = (reign[:39], reign[1:], reign + "\r", reign.upper() + " ")
        for fence in ("", "0" * 40, "0" * 39, "f" * 41, ":", "\r\n", ".*", "%x+", *parts, None):
            tag.put(5, 100, (100, 200), fence=fence or "")
            if fence is None:
                tag.client.hdel(KEY, "fence")
            with unchanged(tag):
                assert (fence, tag.next()) == (fence, ["fenced"])


class TestNumbers:
    @pytest.mark.covers("3.7")
    def test_after_k_draws_the_hash_shows_the_last_number_issued_and_the_end_of_the_segment(self, tag: TagHash) -> None:
        tag.put(100, 200)
        for k in range(1, 8):
            assert tag.next() == ["ok", str(99 + k), str(100 + k)]
            assert (tag.field("cur"), tag.field("max")) == (str(100 + k), "200")

    def test_nothing_but_cur_moves(self, tag: TagHash) -> None:
        tag.put(0, 100, (100, 200))
        before = tag.fields()
        tag.next(5)
        assert tag.fields() == {**before, "cur": "5"}
        assert tag.client.keys() == [KEY]

    def test_a_draw_beyond_the_end_is_granted_short(self, tag: TagHash) -> None:
        for n in (11, 12, 1000, 2**53 + 1, HIGHEST):
            tag.put(90, 100, mark=100)
            assert tag.next(n) == ["ok", "90", "100", "extend", "100"]
            assert tag.field("cur") == "100"
            assert tag.next(n) == ["exhausted"]

    def test_a_short_grant_never_reaches_into_buffer_2(self, tag: TagHash) -> None:
        tag.put(90, 100, (500, 600))
        assert tag.next(8) == ["ok", "90", "98"]
        assert tag.next(5) == ["ok", "98", "100"]
        assert tag.next(5) == ["ok", "500", "505"]

    def test_a_number_that_gets_longer_is_still_below_the_end(self, tag: TagHash) -> None:
        tag.put(8, 1001, mark=1001)
        assert [tag.next()[2] for _ in range(4)] == ["9", "10", "11", "12"]
        assert tag.next(987)[1:3] == ["12", "999"]
        assert [tag.next()[2] for _ in range(2)] == ["1000", "1001"]
        assert tag.next() == ["exhausted"]

    def test_around_2_53_every_number_and_the_end_are_exact(self, tag: TagHash) -> None:
        for at in AROUND_2_53:
            for n in (1, 2, 3):
                tag.put(at, 2**53 + 100, mark=2**53 + 100)
                assert tag.next(n) == ["ok", str(at), str(at + n)]
            tag.put(at - 2, at, mark=at)
            assert numbers(tag.next(5)) == range(at - 1, at + 1)
            assert tag.next() == ["exhausted"]

    def test_a_sum_carries_into_every_digit_and_keeps_its_zeros(self, tag: TagHash) -> None:
        for at, n in product(
            (10**14, 10**15 - 1, 10**15, 10**16 - 2, 17 << 50, 3 * 10**18 - 1), (2, 3, 10**15 - 1, 10**15 + 1)
        ):
            tag.put(at, HIGHEST, mark=HIGHEST)
            assert tag.next(n) == ["ok", str(at), str(at + n)]
            assert tag.field("cur") == str(at + n)

    def test_the_last_numbers_there_are_come_once_and_never_wrap(self, tag: TagHash) -> None:
        for n, left in product((1, 2, 5, 2**53 + 1, HIGHEST), (1, 2, 3)):
            tag.put(HIGHEST - left, HIGHEST, mark=HIGHEST)
            drawn: list[int] = []
            while (reply := tag.next(n))[0] == "ok":
                drawn += numbers(reply)
            assert reply == ["exhausted"]
            assert (n, drawn) == (n, list(range(HIGHEST - left + 1, HIGHEST + 1)))
            assert tag.field("cur") == str(HIGHEST)

    def test_an_overflow_grants_the_rest_of_the_segment(self, tag: TagHash) -> None:
        for low, high in ((0, HIGHEST), (5, HIGHEST - 1)):
            tag.put(low, high, mark=high)
            assert tag.next(HIGHEST)[:3] == ["ok", str(low), str(high)]

    @pytest.mark.covers("3.8")
    def test_a_hundred_connections_get_each_number_exactly_once_and_one_is_elected(
        self, tag: TagHash, any_redis: RedisServer
    ) -> None:
        tag.put(0, 250, (250, 2000))
        hashes = [TagHash(any_redis.client(decode_responses=True)) for _ in range(100)]
        for hash in hashes:
            hash.client.ping()
        together = threading.Barrier(len(hashes))

        def run(hash: TagHash) -> list[list[str]]:
            together.wait()
            return [hash.next(1 + turn % 2) for turn in range(5)]

        with ThreadPoolExecutor(len(hashes)) as pool:
            replies = [reply for replies in pool.map(run, hashes) for reply in replies]
        drawn = [number for reply in replies for number in numbers(reply)]
        assert not repeats(drawn)
        assert sorted(drawn) == list(range(1, len(drawn) + 1))
        assert [reply[3:] for reply in replies if len(reply) > 3] == [["extend", "2000"]]


class TestSwitch:
    def test_the_draw_after_the_end_goes_on_with_buffer_2(self, tag: TagHash) -> None:
        tag.put(100, 100, (300, 400), asked=17)
        before = tag.fields()
        assert tag.next() == ["ok", "300", "301"]
        kept = {name: before[name] for name in ("fence", "born", "store")}
        assert tag.fields() == {**kept, "cur": "301", "max": "400", "mark": "320"}

    def test_the_first_number_of_a_segment_of_one_is_also_its_mark(self, tag: TagHash) -> None:
        tag.put(100, 100, (100, 101))
        assert tag.next(9) == ["ok", "100", "101", "extend", "101"]

    def test_the_election_of_buffer_1_does_not_hinder_the_one_of_buffer_2(self, tag: TagHash) -> None:
        tag.put(100, 100, (100, 200), asked=tag.now())
        assert tag.next(20) == ["ok", "100", "120", "extend", "200"]

    @pytest.mark.covers("3.19")
    def test_ten_switches_in_a_row_give_every_number_in_order_and_are_never_exhausted(self, tag: TagHash) -> None:
        segments = ((low, low + 50) for low in count(0, 50))
        _, reign, born, *_ = tag.open()
        assert tag.load(*next(segments), reign=reign, born=born) == ["current"]
        drawn: list[int] = []
        elections: list[int] = []
        while len(drawn) < 550:
            reply = tag.next(window=f"{WINDOW}.00007")
            drawn += numbers(reply)
            if len(reply) > 3:
                elections.append(drawn[-1])
                assert tag.open(window=f"{WINDOW}.00007")[5:] == ["1", "1"]
                assert tag.load(*next(segments), reign=reign, born=born) == ["next"]
        assert drawn == list(range(1, 551))
        assert elections == [low + 10 for low in range(0, 550, 50)]

    def test_segments_as_short_as_one_number_follow_each_other_too(self, tag: TagHash) -> None:
        for step in (1, 2, 3, 5):
            tag.client.delete(KEY)
            segments = ((low, low + step) for low in count(0, step))
            _, reign, born, *_ = tag.open()
            tag.load(*next(segments), reign=reign, born=born)
            drawn: list[int] = []
            while len(drawn) < 20:
                reply = tag.next(3)
                drawn += numbers(reply)
                if len(reply) > 3:
                    assert tag.load(*next(segments), reign=reign, born=born)[0] in ("next", "current")
            assert drawn == list(range(1, len(drawn) + 1))


class TestElection:
    def test_a_draw_that_jumps_over_the_mark_is_elected(self, tag: TagHash) -> None:
        for n in (20, 21, 50, 100, 1000):
            tag.put(0, 100)
            assert (n, tag.next(n)[3:]) == (n, ["extend", "100"])

    def test_the_draw_that_reaches_the_mark_is_elected_and_none_before_or_after(self, tag: TagHash) -> None:
        for low, size in product((0, 2**53 - 7, 2**53 + 1, HIGHEST - 11), (1, 4, 5, 6, 11)):
            tag.put(low, low + size)
            elected = [number for number in range(low + 1, low + size + 1) if len(tag.next()) > 3]
            assert elected == [threshold(low, low + size)]

    def test_another_one_is_elected_once_the_window_has_passed_or_the_clock_went_back(self, tag: TagHash) -> None:
        now = 1_700_000_000_123
        tag.texts = at_moment(now)
        for ago, elected in ((-1, ["extend", "100"]), (0, []), (WINDOW, []), (WINDOW + 1, ["extend", "100"])):
            tag.put(50, 100, mark=20, asked=now - ago)
            assert (ago, tag.next()[3:]) == (ago, elected)
            assert tag.field("asked") == str(now if elected else now - ago)
            assert tag.next()[3:] == []

    def test_a_date_that_makes_no_sense_hinders_nobody(self, tag: TagHash) -> None:
        for asked in ("", "x", "nan", "inf", "-inf", "-1", "1e300"):
            tag.put(50, 100, mark=20, asked=asked)
            assert (asked, tag.next()[3:]) == (asked, ["extend", "100"])
            tag.put(50, 100, mark=20, asked=asked)
            assert (asked, tag.open()[5:]) == (asked, ["1", "1"])

    def test_the_elected_claims_again_and_keeps_it(self, tag: TagHash) -> None:
        mine = f"{WINDOW}.00007"
        draws: dict[str, Callable[[], list[str]]] = {
            "next": lambda: tag.next(window=mine),
            "lease": lambda: tag.lease(window=mine),
            "once": lambda: tag.once(window=mine),
        }
        for name, draw in draws.items():
            tag.put(19, 100, mark=20)
            tag.client.delete(f"{KEY}:once:k")
            assert (name, draw()[-2:]) == (name, ["extend", "100"])
            assert (name, tag.next(window=mine)) == (name, ["ok", "20", "21"])  # not once more for each draw
            assert (name, tag.open(window=WINDOW)[5:]) == (name, ["1", "0"])
            assert (name, tag.open(window=mine)[5:]) == (name, ["1", "1"])

    def test_nobody_is_elected_while_buffer_2_is_full(self, tag: TagHash) -> None:
        tag.put(0, 100, (100, 200))
        assert [reply for reply in (tag.next() for _ in range(100)) if len(reply) > 3] == []
        assert tag.field("asked") is None

    def test_a_caller_with_a_negative_window_is_never_elected(self, tag: TagHash) -> None:
        for asked in ({}, {"asked": 0}, {"asked": 10**12}):
            tag.put(0, 100, **asked)
            before = tag.fields()
            assert [reply for reply in (tag.next(window=-1) for _ in range(100)) if len(reply) > 3] == []
            assert tag.fields() == {**before, "cur": "100"}


# ---------------------------------------------------------------------------------------------- lease


#: What lies in the hash, n, the window: every way through a draw.
DRAWS: dict[str, tuple[tuple[int, int, tuple[int, int] | None], dict[str, int], int, int]] = {
    "below the mark": ((0, 100, None), {}, 7, WINDOW),
    "to the mark": ((0, 100, None), {}, 20, WINDOW),
    "to the mark, never to be elected": ((0, 100, None), {}, 20, -1),
    "beyond the mark, elected long ago": ((50, 100, None), {"asked": 17}, 1, WINDOW),
    "beyond the mark, elected in the future": ((50, 100, None), {"asked": 10**15}, 1, WINDOW),
    "beyond the mark, with a buffer 2": ((50, 100, (100, 200)), {}, 10, WINDOW),
    "short at the end": ((90, 100, (300, 400)), {}, 1000, WINDOW),
    "all the rest, by an overflow": ((90, 100, None), {}, HIGHEST, WINDOW),
    "from buffer 2": ((100, 100, (300, 400)), {"asked": 17}, 5, WINDOW),
    "from buffer 2 to its mark": ((100, 100, (300, 400)), {}, 20, WINDOW),
    "used up": ((100, 100, None), {}, 1, WINDOW),
    "around 2^53": ((2**53 - 1, 2**53 + 50, None), {}, 2, WINDOW),
    "the highest numbers": ((HIGHEST - 3, HIGHEST, None), {}, 5, WINDOW),
    "of another reign": ((0, 100, None), {"fence": 0}, 1, WINDOW),
    "a cur above max": ((101, 100, None), {}, 1, WINDOW),
}


def test_a_lease_grants_what_next_would_and_leaves_the_same_hash(tag: TagHash) -> None:
    for draw, ((cur, max, buffer_2), fields, n, window) in DRAWS.items():
        tag.put(cur, max, buffer_2, **fields)
        drawn, after_draw = tag.next(n, window), tag.fields()
        tag.put(cur, max, buffer_2, **fields)
        leased, after_lease = tag.lease(n, window), tag.fields()
        if drawn[0] == "ok":
            assert leased[3:6] == [tag.reign(), BORN, "0"], draw
            del leased[3:6]
        assert (draw, leased) == (draw, drawn)
        # The date of an election is that of the call.
        assert ("asked" in after_lease) == ("asked" in after_draw), draw
        assert (draw, {**after_lease, "asked": ""}) == (draw, {**after_draw, "asked": ""})


def test_a_lease_without_a_hash_is_empty_and_makes_none(tag: TagHash) -> None:
    assert tag.lease() == ["empty"]
    assert tag.client.keys() == []


def test_a_hash_without_born_is_corrupt_as_no_tail_could_come_back(tag: TagHash) -> None:
    tag.put(5, 100)
    tag.client.hdel(KEY, "born")
    before = tag.fields()
    assert tag.lease() == ["corrupt"]
    assert tag.fields() == before


def test_a_lease_is_elected_once_as_draws_are(tag: TagHash) -> None:
    tag.put(0, 100)
    assert tag.lease(20) == ["ok", "0", "20", tag.reign(), BORN, "0", "extend", "100"]
    assert tag.lease(20) == ["ok", "20", "40", tag.reign(), BORN, "0"]
    assert tag.next() == ["ok", "40", "41"]
