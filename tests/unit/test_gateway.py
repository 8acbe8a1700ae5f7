"""What the gateway sends, byte for byte, and what it makes of every reply."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer import gateway
from issuer.core.outcomes import refused
from issuer.errors import ConfigurationError, CorruptState, FenceError
from issuer.gateway import Call, Drawn, Floored, GivenBack, Hash, Leased, Loaded, Opened
from issuer.scripts import script
from persistence.records import HIGHEST

KEY = "issuer:{orders}"
REIGN = "8e1d" * 10
DRAW: Call[Drawn] = gateway.draw(KEY, 1, 4)
LEASE: Call[Leased] = gateway.lease(KEY, 1000, 4)
GIVE_BACK: Call[GivenBack] = gateway.give_back(KEY, 5, 9, reign=REIGN, born="b", backs=3)
OPEN: Call[Opened] = gateway.open(KEY, "b", "s", 4, "claim")
LOAD: Call[Loaded] = gateway.load(KEY, 0, 9, 2, reign=REIGN, born="b")
FLOOR: Call[Floored] = gateway.floor(KEY, 9, "b", "s", "keep")
PEEK: Call[Hash] = gateway.peek(KEY)
INFO: Call[dict[str, str]] = gateway.server_info()


def resp(*words: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)])


class TestPacking:
    def test_a_command_is_an_array_of_bulk_strings(self) -> None:
        assert gateway.pack("GET", "a", 12) == b"*3\r\n$3\r\nGET\r\n$1\r\na\r\n$2\r\n12\r\n"

    def test_lengths_are_in_bytes(self) -> None:
        assert gateway.pack("é", "") == b"*2\r\n$2\r\n\xc3\xa9\r\n$0\r\n\r\n"

    def test_a_key_may_hold_anything_that_is_text(self) -> None:
        assert gateway.pack("GET", "a\r\n$1\r\nb") == b"*2\r\n$3\r\nGET\r\n$8\r\na\r\n$1\r\nb\r\n"

    @given(st.integers(-HIGHEST, HIGHEST))
    def test_numbers_go_out_in_plain_decimal_digits(self, number: int) -> None:
        assert gateway.pack(number) == resp(str(number).encode())

    @pytest.mark.parametrize(
        ("call", "name", "words"),
        [
            (gateway.draw(KEY, HIGHEST, None), "next", [b"9223372036854775807", b"-1"]),
            (gateway.lease(KEY, HIGHEST, None), "lease", [b"9223372036854775807", b"-1"]),
            (gateway.lease(KEY, 1, 2.5), "lease", [b"1", b"2500"]),
            (
                gateway.give_back(KEY, 2**53, 2**53 + 1, reign=REIGN, born="b", backs=2**53 + 1),
                "giveback",
                [b"9007199254740992", b"9007199254740993", REIGN.encode(), b"b", b"9007199254740993"],
            ),
            (gateway.open(KEY, "b", "s", 2.5, "look"), "open", [b"b", b"s", b"2500", b"look"]),
            (
                gateway.load(KEY, 2**53, 2**53 + 2, 2**53 + 1, reign=REIGN, born="b"),
                "load",
                [b"9007199254740992", b"9007199254740994", b"9007199254740993", REIGN.encode(), b"b"],
            ),
            (gateway.floor(KEY, 7, "b", "s", "repair"), "floor", [b"7", b"b", b"s", b"repair"]),
        ],
    )
    def test_a_script_is_called_by_its_sha_with_one_key(self, call: Call[Any], name: str, words: list[bytes]) -> None:
        assert call.packed == resp(b"EVALSHA", script(name).sha.encode(), b"1", KEY.encode(), *words)
        assert call.text == script(name).text

    def test_only_what_costs_a_gap_at_most_may_be_sent_twice(self) -> None:
        assert DRAW.repeatable
        assert LEASE.repeatable
        assert PEEK.repeatable
        assert INFO.repeatable
        assert not LOAD.repeatable
        assert not GIVE_BACK.repeatable
        assert not FLOOR.repeatable
        assert not OPEN.repeatable


class TestDecodingADraw:
    def test_numbers_without_election(self) -> None:
        assert DRAW.decode([b"ok", b"0", b"1"]) == Drawn("ok", 0, 1)

    def test_numbers_with_election(self) -> None:
        assert DRAW.decode([b"ok", b"1", b"20", b"extend", b"100"]) == Drawn("ok", 1, 20, extend=True, max=100)

    def test_the_highest_number_is_exact(self) -> None:
        reply = [b"ok", b"9223372036854775806", b"9223372036854775807", b"extend", b"9223372036854775807"]
        assert DRAW.decode(reply) == Drawn("ok", HIGHEST - 1, HIGHEST, extend=True, max=HIGHEST)

    @pytest.mark.parametrize("status", ["exhausted", "empty", "fenced", "notmaster", "corrupt"])
    def test_a_refusal_carries_no_numbers(self, status: str) -> None:
        drawn = DRAW.decode([status.encode()])
        assert (drawn.status, drawn.low, drawn.high, drawn.extend, drawn.max) == (status, 0, 0, False, 0)


class TestDecodingALease:
    def test_numbers_without_election(self) -> None:
        assert LEASE.decode([b"ok", b"0", b"9", REIGN.encode(), b"b1", b"0"]) == Leased("ok", 0, 9, REIGN, "b1")

    def test_the_highest_numbers_with_election_are_exact(self) -> None:
        reply = [b"ok", b"9007199254740993", b"%d" % HIGHEST, REIGN.encode(), b"b1", b"7", b"extend", b"%d" % HIGHEST]
        assert LEASE.decode(reply) == Leased("ok", 2**53 + 1, HIGHEST, REIGN, "b1", 7, extend=True, max=HIGHEST)

    def test_a_born_that_is_no_text_is_decoded_all_the_same(self) -> None:
        assert LEASE.decode([b"ok", b"0", b"9", REIGN.encode(), b"\xff", b"0"]).status == "ok"

    @pytest.mark.parametrize("status", ["exhausted", "empty", "fenced", "notmaster", "corrupt"])
    def test_a_refusal_carries_no_numbers(self, status: str) -> None:
        leased = LEASE.decode([status.encode()])
        assert (leased.status, leased.low, leased.high, leased.fence, leased.born) == (status, 0, 0, "", "")


class TestDecodingAGiveBack:
    @pytest.mark.parametrize("status", ["back", "notmaster", "corrupt"])
    def test_a_status(self, status: str) -> None:
        given = GIVE_BACK.decode([status.encode()])
        assert (given.status, given.why) == (status, "")

    @pytest.mark.parametrize("why", ["missing", "reign", "born", "cur"])
    def test_a_spent_one_says_why(self, why: str) -> None:
        assert GIVE_BACK.decode([b"spent", why.encode()]) == GivenBack("spent", why)


class TestDecodingAnOpen:
    @pytest.mark.parametrize(("due", "elected"), [(True, True), (True, False), (False, False)])
    def test_where_the_hash_stands(self, due: bool, elected: bool) -> None:
        reply = [b"open", REIGN.encode(), b"b1", b"9007199254740993", b"7", b"%d" % due, b"%d" % elected]
        assert OPEN.decode(reply) == Opened("open", REIGN, "b1", 2**53 + 1, 7, due=due, elected=elected)

    def test_another_store_is_named(self) -> None:
        assert OPEN.decode([b"otherstore", b"s9"]) == Opened("otherstore", store="s9")

    @pytest.mark.parametrize("status", ["notmaster", "corrupt"])
    def test_a_refusal(self, status: str) -> None:
        opened = OPEN.decode([status.encode()])
        assert (opened.status, opened.top, opened.elected, opened.due) == (status, 0, False, False)


class TestDecodingALoad:
    @pytest.mark.parametrize("status", ["current", "next", "full", "notmaster", "corrupt"])
    def test_a_status(self, status: str) -> None:
        loaded = LOAD.decode([status.encode()])
        assert (loaded.status, loaded.why) == (status, "")

    @pytest.mark.parametrize("why", ["missing", "reign", "born", "below"])
    def test_a_stale_one_says_why(self, why: str) -> None:
        assert LOAD.decode([b"stale", why.encode()]) == Loaded("stale", why)


class TestDecodingAFloor:
    def test_where_the_hash_stands_and_stood(self) -> None:
        assert FLOOR.decode([b"floored", b"9", b"20", b"3", b"10"]) == Floored("floored", 9, 20, 3, 10)

    def test_zero_is_a_place_to_have_stood_and_nothing_is_none(self) -> None:
        assert FLOOR.decode([b"floored", b"9", b"9", b"0", b"0"]) == Floored("floored", 9, 9, 0, 0)
        assert FLOOR.decode([b"floored", b"9", b"9", b"", b""]) == Floored("floored", 9, 9, None, None)

    def test_another_store_is_named(self) -> None:
        assert FLOOR.decode([b"otherstore", b"s9"]) == Floored("otherstore", store="s9")

    @pytest.mark.parametrize("status", ["notmaster", "corrupt"])
    def test_a_refusal(self, status: str) -> None:
        floored = FLOOR.decode([status.encode()])
        assert (floored.status, floored.cur, floored.top, floored.cur_before) == (status, 0, 0, None)


class TestPeeking:
    def test_it_reads_the_fields_and_changes_nothing(self) -> None:
        assert PEEK.packed == resp(b"HMGET", KEY.encode(), *(field.encode() for field in gateway.FIELDS))
        assert PEEK.text == ""

    def test_a_hash_in_use(self) -> None:
        reply = [
            b"5",
            b"9007199254740993",
            b"2",
            b"20",
            b"30",
            b"22",
            b"3",
            b"1",
            b"0",
            REIGN.encode(),
            b"b1",
            b"s1",
            b"c1",
        ]
        assert PEEK.decode(reply) == Hash(5, 2**53 + 1, 2, 20, 30, 22, REIGN, "b1", "s1", "c1")

    def test_a_missing_hash(self) -> None:
        assert PEEK.decode([None] * 13) == Hash(*[None] * 10)

    @pytest.mark.parametrize("field", range(9))
    @pytest.mark.parametrize("garbage", [b"", b"1.5", b"-1", b" 1", b"1e3", b'"1"', b"\xff", "٣".encode(), b"1" * 20])
    def test_a_field_that_is_no_number_is_named(self, field: int, garbage: bytes) -> None:
        reply: list[bytes | None] = [b"5", b"10", b"2", b"20", b"30", b"22", b"3", b"1", b"0", None, None, None, None]
        reply[field] = garbage
        assert PEEK.decode(reply).corrupt == gateway.FIELDS[field]

    @pytest.mark.parametrize("garbage", [b"9223372036854775808", b"9999999999999999999", b"007"])
    def test_what_the_scripts_call_corrupt_is_corrupt_here_too(self, garbage: bytes) -> None:
        hash = PEEK.decode([b"5", garbage, b"2", *[None] * 10])
        assert (hash.max, hash.corrupt) == (None, "max")

    def test_garbage_in_the_other_fields_can_be_looked_at(self) -> None:
        hash = PEEK.decode([b"5", b"10", b"2", *[None] * 6, b"\xff", b"\xfe", b"\xfd", b"\xfc"])
        assert (hash.fence, hash.born, hash.store, hash.corrupt) == ("\ufffd", "\ufffd", "\ufffd", None)


def test_info_is_read_line_by_line() -> None:
    reply = b"# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/a:b\r\n\r\n"
    assert INFO.decode(reply) == {"redis_version": "7.0.15", "executable": "/usr/bin/a:b"}


@pytest.mark.parametrize("garbage", [b"\xff", b"\xc3("])
def test_a_store_id_that_is_no_text_is_decoded_all_the_same(garbage: bytes) -> None:
    assert OPEN.decode([b"otherstore", garbage]).status == "otherstore"
    assert FLOOR.decode([b"otherstore", garbage]).status == "otherstore"


class TestRefusals:
    def test_each_has_its_own_error_that_says_what_to_do(self) -> None:
        assert isinstance(refused(Drawn("notmaster"), "orders", KEY), FenceError)
        assert isinstance(refused(Loaded("corrupt"), "orders", KEY), CorruptState)
        assert isinstance(refused(Leased("corrupt"), "orders", KEY), CorruptState)
        assert isinstance(refused(GivenBack("notmaster"), "orders", KEY), FenceError)
        other = refused(Opened("otherstore", store="s9"), "orders", KEY, "s1")
        assert isinstance(other, ConfigurationError)
        assert "s9" in str(other)
        assert "s1" in str(other)


class TestLookingAtAServer:
    def test_its_clock_is_in_milliseconds(self) -> None:
        assert gateway.server_time().packed == resp(b"TIME")
        assert gateway.server_time().decode([b"1763690000", b"123999"]) == 1763690000123

    @pytest.mark.parametrize("reply", [[b"save", b"3600 1"], {b"save": b"3600 1"}])
    def test_a_setting_comes_by_either_protocol(self, reply: object) -> None:
        call = gateway.setting("save")
        assert call.packed == resp(b"CONFIG", b"GET", b"save")
        assert call.decode(reply) == "3600 1"

    @pytest.mark.parametrize("reply", [[], {}])
    def test_a_setting_that_the_server_lacks_is_none(self, reply: object) -> None:
        assert gateway.setting("active-replica").decode(reply) is None

    def test_info_is_taken_apart(self) -> None:
        reply = b"# Server\r\nredis_version:7.0.15\r\n\r\n# Replication\r\nrole:master\r\nslave0:ip=::1,port=1\r\n"
        assert gateway.info().packed == resp(b"INFO")
        wanted = {"redis_version": "7.0.15", "role": "master", "slave0": "ip=::1,port=1"}
        assert gateway.info().decode(reply) == wanted

    def test_all_of_it_may_be_asked_again(self) -> None:
        assert all(call.repeatable for call in (gateway.info(), gateway.setting("save"), gateway.server_time()))
