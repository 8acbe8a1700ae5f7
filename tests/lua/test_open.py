"""`open` on real servers: where the hash stands, arming, and who is elected."""

from issuer_persistence.records import HIGHEST
from tests.lua.hashes import BORN, KEY, OTHER_REIGN, OTHER_STORE, STORE, WINDOW, Made, TagHash, at_moment, unchanged

#: The windows of two callers who name themselves.
MINE, OTHERS = f"{WINDOW}.00007", f"{WINDOW}.00008"


def test_a_missing_hash_is_armed_at_zero_without_numbers(tag: TagHash) -> None:
    assert tag.open("fresh", role="look") == ["open", tag.reign(), Made("fresh"), "0", "0", "1", "0"]
    assert tag.fields() == tag.floored(0, "fresh")
    assert tag.next() == ["exhausted"]
    assert tag.client.ttl(KEY) == -1


def test_a_hash_of_another_reign_keeps_its_top_and_loses_its_numbers(tag: TagHash) -> None:
    for fence in ("", OTHER_REIGN, "x" * 40):
        for top, next in ((100, None), (200, (100, 200))):
            tag.put(5, 100, next, fence=fence, asked=tag.now())
            opened = tag.open("fresh", role="look")
            assert opened == ["open", tag.reign(), Made("fresh"), str(top), str(top), "1", "0"]
            assert tag.fields() == tag.floored(top, "fresh")
            assert tag.next() == ["exhausted"]


def test_the_top_is_exact(tag: TagHash) -> None:
    for top in (2**53 + 1, HIGHEST - 1, HIGHEST):
        tag.put(0, top, fence=OTHER_REIGN)
        assert tag.open("fresh")[3:5] == [str(top), str(top)]


def test_a_hash_that_lacks_what_arming_writes_is_armed_anew(tag: TagHash) -> None:
    for lacking in ("fence", "born", "store"):
        tag.put(5, 100)
        tag.client.hdel(KEY, lacking)
        assert tag.open("fresh")[1:6] == [tag.reign(), Made("fresh"), "100", "100", "1"]
        assert (lacking, tag.next()) == (lacking, ["exhausted"])


def test_a_hash_of_this_reign_is_told_and_left_alone(tag: TagHash) -> None:
    tag.put(5, 100, (100, 200))
    with unchanged(tag):
        for role in ("claim", "look"):
            assert tag.open("fresh", role=role) == ["open", tag.reign(), BORN, "200", "5", "0", "0"]


def test_another_store_is_refused_with_its_id_and_nothing_is_changed(tag: TagHash) -> None:
    for fence in (tag.reign(), OTHER_REIGN):
        tag.put(5, 100, fence=fence)
        with unchanged(tag):
            for role in ("claim", "look"):
                assert tag.open("fresh", store=OTHER_STORE, role=role) == ["otherstore", STORE]


def test_a_segment_is_due_from_the_mark_on_unless_buffer_2_is_full(tag: TagHash) -> None:
    for cur, due in ((0, "0"), (19, "0"), (20, "1"), (99, "1"), (100, "1")):
        tag.put(cur, 100, mark=20)
        assert tag.open(role="look")[4:] == [str(cur), due, "0"]
        tag.put(cur, 100, (100, 200), mark=20)
        assert tag.open()[4:] == [str(cur), "0", "0"]


class TestElection:
    def test_the_first_claim_wins_and_the_second_loses(self, tag: TagHash) -> None:
        assert tag.open("first")[5:] == ["1", "1"]
        assert tag.open("second")[1:] == [tag.reign(), Made("first"), "0", "0", "1", "0"]

    def test_a_look_neither_wins_nor_hinders(self, tag: TagHash) -> None:
        assert tag.open(role="look")[5:] == ["1", "0"]
        assert tag.field("asked") is None
        assert tag.open(role="claim")[5:] == ["1", "1"]

    def test_a_claim_that_is_repeated_is_the_same_claim(self, tag: TagHash) -> None:
        for now, turn in ((1_700_000_000_123, 0), (1_700_000_000_124, 1)):
            tag.texts = at_moment(now)
            assert (turn, tag.open(window=MINE)[5:]) == (turn, ["1", "1"])
            assert tag.field("asked") == f"{now}.00007"
            for window in (WINDOW, OTHERS):
                assert tag.open(window=window)[5:] == ["1", "0"]
                assert tag.next(window=window) == ["exhausted"]

    def test_who_resigns_leaves_it_to_the_next_claim(self, tag: TagHash) -> None:
        for window in (WINDOW, MINE):
            tag.put(100, 100)
            before = tag.fields()
            assert tag.open(role="claim", window=window)[5:] == ["1", "1"]
            assert tag.open(role="resign", window=window)[5:] == ["1", "0"]
            assert tag.fields() == before
            assert tag.open(role="claim")[5:] == ["1", "1"]

    def test_nobody_resigns_for_another(self, tag: TagHash) -> None:
        tag.put(100, 100)
        for mine, other in ((MINE, OTHERS), (MINE, WINDOW), (WINDOW, OTHERS)):
            tag.client.hdel(KEY, "asked")
            assert tag.open(window=mine)[5:] == ["1", "1"]
            with unchanged(tag):
                tag.open(role="resign", window=other)

    def test_what_names_the_claimant_does_not_change_the_time(self, tag: TagHash) -> None:
        """Also for a script of an older version, which makes a number of the whole field: until the year 2109."""
        for now in (1_700_000_000_123, 2**41 - 1, 2**42 - 1):
            tag.put(100, 100, asked=f"{now}.0000{'9' * 15}")
            assert (
                tag.client.eval("return redis.call('HGET', KEYS[1], 'asked') + 0 == tonumber(ARGV[1])", 1, KEY, now)
                == 1
            )

    def test_when_nothing_is_due_nobody_is_elected(self, tag: TagHash) -> None:
        tag.put(0, 100)
        assert tag.open(window=MINE)[5:] == ["0", "0"]
        assert tag.open(role="claim")[5:] == ["0", "0"]
        assert tag.field("asked") is None

    def test_another_one_is_elected_once_the_window_has_passed_or_the_clock_went_back(self, tag: TagHash) -> None:
        now = 1_700_000_000_123
        tag.texts = at_moment(now)
        for ago, elected in ((-1, "1"), (0, "0"), (WINDOW, "0"), (WINDOW + 1, "1")):
            tag.put(50, 100, mark=20, asked=now - ago)
            assert (ago, tag.open()[5:]) == (ago, ["1", elected])
            assert tag.field("asked") == str(now if elected == "1" else now - ago)
            assert tag.open()[5:] == ["1", "0"]
