"""What the gateway sends, byte for byte, and what it makes of every reply."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer import gateway
from issuer.gateway import Call, Drawn, Floored, GivenBack, Hash, Leased, Loaded, Opened
from issuer.persistence.records import HIGHEST
from issuer.scripts import script

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
    def test_a_command_is_an_array_of_bulk_strings_of_so_many_bytes(self) -> None:
        assert gateway.pack("GET", "a", 12) == b"*3\r\n$3\r\nGET\r\n$1\r\na\r\n$2\r\n12\r\n"
        assert gateway.pack("é", "") == b"*2\r\n$2\r\n\xc3\xa9\r\n$0\r\n\r\n"
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
        looks = (gateway.info(), gateway.setting("save"), gateway.server_time())
        assert all(call.repeatable for call in (DRAW, LEASE, PEEK, INFO, *looks))
        assert not any(call.repeatable for call in (LOAD, GIVE_BACK, FLOOR, OPEN))


#: What the gateway makes of each reply that carries more than a status.
REPLIES: list[tuple[Call[Any], list[bytes], object]] = [
    (DRAW, [b"ok", b"0", b"1"], Drawn("ok", 0, 1)),
    (DRAW, [b"ok", b"1", b"20", b"extend", b"100"], Drawn("ok", 1, 20, extend=True, max=100)),
    (
        DRAW,
        [b"ok", b"9223372036854775806", b"9223372036854775807", b"extend", b"9223372036854775807"],
        Drawn("ok", HIGHEST - 1, HIGHEST, extend=True, max=HIGHEST),
    ),
    (LEASE, [b"ok", b"0", b"9", REIGN.encode(), b"b1", b"0"], Leased("ok", 0, 9, REIGN, "b1")),
    (
        LEASE,
        [b"ok", b"9007199254740993", b"%d" % HIGHEST, REIGN.encode(), b"b1", b"7", b"extend", b"%d" % HIGHEST],
        Leased("ok", 2**53 + 1, HIGHEST, REIGN, "b1", 7, extend=True, max=HIGHEST),
    ),
    *((GIVE_BACK, [b"spent", why.encode()], GivenBack("spent", why)) for why in ("missing", "reign", "born", "cur")),
    *((LOAD, [b"stale", why.encode()], Loaded("stale", why)) for why in ("missing", "reign", "born", "below")),
    *(
        (
            OPEN,
            [b"open", REIGN.encode(), b"b1", b"9007199254740993", b"7", b"%d" % due, b"%d" % elected],
            Opened("open", REIGN, "b1", 2**53 + 1, 7, due=due, elected=elected),
        )
        for due, elected in ((True, True), (True, False), (False, False))
    ),
    (OPEN, [b"otherstore", b"s9"], Opened("otherstore", store="s9")),
    (FLOOR, [b"floored", b"9", b"20", b"3", b"10"], Floored("floored", 9, 20, 3, 10)),
    (FLOOR, [b"floored", b"9", b"9", b"0", b"0"], Floored("floored", 9, 9, 0, 0)),
    (FLOOR, [b"floored", b"9", b"9", b"", b""], Floored("floored", 9, 9, None, None)),
    (FLOOR, [b"otherstore", b"s9"], Floored("otherstore", store="s9")),
]

#: The statuses that carry nothing else, and the record of each.
BARE: list[tuple[Call[Any], Callable[[Any], object], str]] = [
    (DRAW, Drawn, "exhausted empty fenced notmaster corrupt"),
    (LEASE, Leased, "exhausted empty fenced notmaster corrupt"),
    (GIVE_BACK, GivenBack, "back notmaster corrupt"),
    (OPEN, Opened, "notmaster corrupt"),
    (LOAD, Loaded, "current next full notmaster corrupt"),
    (FLOOR, Floored, "notmaster corrupt"),
]


class TestDecoding:
    def test_numbers_are_exact_and_each_word_comes_to_its_place(self) -> None:
        for call, reply, record in REPLIES:
            assert call.decode(reply) == record, reply

    def test_a_refusal_carries_no_numbers(self) -> None:
        for call, record, statuses in BARE:
            for status in statuses.split():
                assert call.decode([status.encode()]) == record(status), status
        drawn, leased, opened, floored = Drawn("fenced"), Leased("fenced"), Opened("corrupt"), Floored("corrupt")
        assert (drawn.low, drawn.high, drawn.extend, drawn.max) == (0, 0, False, 0)
        assert (leased.low, leased.high, leased.fence, leased.born) == (0, 0, "", "")
        assert (opened.top, opened.elected, opened.due) == (0, False, False)
        assert (floored.cur, floored.top, floored.cur_before) == (0, 0, None)

    def test_what_is_no_text_is_decoded_all_the_same(self) -> None:
        assert LEASE.decode([b"ok", b"0", b"9", REIGN.encode(), b"\xff", b"0"]).status == "ok"
        for garbage in (b"\xff", b"\xc3("):
            assert OPEN.decode([b"otherstore", garbage]).status == "otherstore"
            assert FLOOR.decode([b"otherstore", garbage]).status == "otherstore"


class TestPeeking:
    def test_it_reads_the_fields_and_changes_nothing(self) -> None:
        assert PEEK.packed == resp(b"HMGET", KEY.encode(), *(field.encode() for field in gateway.FIELDS))
        assert PEEK.text == ""

    def test_a_hash_in_use_and_a_missing_one(self) -> None:
        numbers = [b"5", b"9007199254740993", b"2", b"20", b"30", b"22", b"3", b"1", b"0"]
        known = PEEK.decode([*numbers, REIGN.encode(), b"b1", b"s1", b"c1"])
        assert known == Hash(5, 2**53 + 1, 2, 20, 30, 22, REIGN, "b1", "s1", "c1")
        assert PEEK.decode([None] * 13) == Hash(*[None] * 10)

    def test_a_field_that_is_no_number_is_named(self) -> None:
        for field in range(9):
            for garbage in (b"", b"1.5", b"-1", b" 1", b"1e3", b'"1"', b"\xff", "٣".encode(), b"1" * 20):
                reply = [b"5", b"10", b"2", b"20", b"30", b"22", b"3", b"1", b"0", *[None] * 4]
                reply[field] = garbage
                assert PEEK.decode(reply).corrupt == gateway.FIELDS[field], garbage
        # The scripts call these corrupt, too.
        for garbage in (b"9223372036854775808", b"9999999999999999999", b"007"):
            hash = PEEK.decode([b"5", garbage, b"2", *[None] * 10])
            assert (hash.max, hash.corrupt) == (None, "max"), garbage

    def test_garbage_in_the_other_fields_can_be_looked_at(self) -> None:
        hash = PEEK.decode([b"5", b"10", b"2", *[None] * 6, b"\xff", b"\xfe", b"\xfd", b"\xfc"])
        assert (hash.fence, hash.born, hash.store, hash.corrupt) == ("\ufffd", "\ufffd", "\ufffd", None)


class TestLookingAtAServer:
    def test_its_clock_is_in_milliseconds(self) -> None:
        assert gateway.server_time().packed == resp(b"TIME")
        assert gateway.server_time().decode([b"1763690000", b"123999"]) == 1763690000123

    def test_a_setting_comes_by_either_protocol_and_is_none_where_the_server_lacks_it(self) -> None:
        call = gateway.setting("save")
        assert call.packed == resp(b"CONFIG", b"GET", b"save")
        assert call.decode([b"save", b"3600 1"]) == call.decode({b"save": b"3600 1"}) == "3600 1"
        assert call.decode([]) is call.decode({}) is None

    def test_info_is_taken_apart(self) -> None:
        reply = b"# Server\r\nredis_version:7.0.15\r\n\r\n# Replication\r\nrole:master\r\nslave0:ip=::1,port=1\r\n"
        assert gateway.info().packed == resp(b"INFO")
        wanted = {"redis_version": "7.0.15", "role": "master", "slave0": "ip=::1,port=1"}
        assert gateway.info().decode(reply) == wanted
        reply = b"# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/a:b\r\n\r\n"
        assert INFO.decode(reply) == {"redis_version": "7.0.15", "executable": "/usr/bin/a:b"}


def test_of_cluster_nodes_the_kin_is_told_by_ip_or_by_name_as_the_one_asked_is() -> None:
    reply = (
        b"aa 10.0.0.1:7000@17000,one.example.org,shard-id=x myself,master - 0 0 1 connected 0-100 [5->-cc]\n"
        b"bb 10.0.0.2:7001@17001,two.example.org slave,fail aa 0 0 1 disconnected\n"
        b"cc 10.0.0.3:7002@17002,three.example.org master - 0 0 2 connected 101-16383\n"
        b"dd 10.0.0.4:7003@17003, master,fail - 0 0 1 disconnected\n"
        b"ee 10.0.0.5:7004@17004 slave cc 0 0 2 connected\n"
        b"ff :0@0 master,noaddr,fail - 0 0 1 disconnected\n"
    )
    assert gateway.kin("10.0.0.1", "key").decode(reply) == [("10.0.0.2", 7001), ("10.0.0.4", 7003)]
    assert gateway.kin("one.example.org", "key").decode(reply) == [("two.example.org", 7001), ("10.0.0.4", 7003)]
