"""What the gateway sends, byte for byte, what it makes of every reply, and the keys of tags."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument
from issuer.gateway import server_commands, tag_scripts
from issuer.gateway.commands import RedisCall, pack, script
from issuer.gateway.keys import check_tag, part_tag, redis_key
from issuer.gateway.tag_scripts import Drawn, Floored, GivenBack, Hash, Leased, Loaded, Opened
from issuer_persistence.records import HIGHEST
from tests.refusals import refused

KEY = "issuer:{orders}"
REIGN = "8e1d" * 10
DRAW: RedisCall[Drawn] = tag_scripts.draw(KEY, 1, 4)
LEASE: RedisCall[Leased] = tag_scripts.lease(KEY, 1000, 4)
GIVE_BACK: RedisCall[GivenBack] = tag_scripts.give_back(KEY, 5, 9, reign=REIGN, born="b", backs=3)
OPEN: RedisCall[Opened] = tag_scripts.open(KEY, "b", "s", 4, "claim")
LOAD: RedisCall[Loaded] = tag_scripts.load(KEY, 0, 9, 2, reign=REIGN, born="b")
FLOOR: RedisCall[Floored] = tag_scripts.floor(KEY, 9, "b", "s", "keep")
PEEK: RedisCall[Hash] = tag_scripts.read_raw(KEY)


def resp(*words: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)])


class TestPacking:
    def test_a_command_is_an_array_of_bulk_strings_of_so_many_bytes(self) -> None:
        assert pack("GET", "a", HIGHEST) == b"*3\r\n$3\r\nGET\r\n$1\r\na\r\n$19\r\n9223372036854775807\r\n"
        assert pack("é", "") == b"*2\r\n$2\r\n\xc3\xa9\r\n$0\r\n\r\n"
        assert pack("GET", "a\r\n$1\r\nb") == b"*2\r\n$3\r\nGET\r\n$8\r\na\r\n$1\r\nb\r\n"

    def test_a_window_goes_out_in_milliseconds_and_none_as_minus_one(self) -> None:
        evalsha = (b"EVALSHA", script("lease").sha.encode(), b"1", KEY.encode())
        assert tag_scripts.lease(KEY, HIGHEST, 2.5).packed == resp(*evalsha, b"9223372036854775807", b"2500")
        assert tag_scripts.lease(KEY, 1, None).packed == resp(*evalsha, b"1", b"-1")

    def test_only_what_costs_a_gap_at_most_may_be_sent_twice(self) -> None:
        looks = (
            PEEK,
            server_commands.info(),
            server_commands.SERVER_INFO,
            server_commands.setting("save"),
            server_commands.server_time(),
        )
        assert all(call.repeatable for call in (DRAW, LEASE, *looks))
        assert not any(call.repeatable for call in (LOAD, GIVE_BACK, FLOOR, OPEN))


#: What the gateway makes of replies that carry more than a status.
REPLIES: list[tuple[RedisCall[Any], list[bytes], object]] = [
    (DRAW, [b"ok", b"0", b"1"], Drawn("ok", 0, 1)),
    (DRAW, [b"ok", b"1", b"20", b"extend", b"%d" % HIGHEST], Drawn("ok", 1, 20, extend=True, max=HIGHEST)),
    (
        LEASE,
        [b"ok", b"9007199254740993", b"%d" % HIGHEST, REIGN.encode(), b"b1", b"7", b"extend", b"%d" % HIGHEST],
        Leased("ok", 2**53 + 1, HIGHEST, REIGN, "b1", 7, extend=True, max=HIGHEST),
    ),
    (GIVE_BACK, [b"spent", b"cur"], GivenBack("spent", "cur")),
    (LOAD, [b"stale", b"below"], Loaded("stale", "below")),
    (
        OPEN,
        [b"open", REIGN.encode(), b"b1", b"9007199254740993", b"7", b"1", b"0"],
        Opened("open", REIGN, "b1", 2**53 + 1, 7, due=True, elected=False),
    ),
    (OPEN, [b"otherstore", b"s9"], Opened("otherstore", store="s9")),
    (FLOOR, [b"floored", b"9", b"20", b"3", b"10"], Floored("floored", 9, 20, 3, 10)),
    (FLOOR, [b"floored", b"9", b"9", b"", b""], Floored("floored", 9, 9, None, None)),
    (FLOOR, [b"otherstore", b"\xc3("], Floored("otherstore", store="\ufffd(")),
    (LEASE, [b"ok", b"0", b"9", REIGN.encode(), b"\xff", b"0"], Leased("ok", 0, 9, REIGN, "\ufffd")),
]


def test_numbers_are_exact_each_word_comes_to_its_place_and_what_is_no_text_is_decoded_all_the_same() -> None:
    for call, reply, record in REPLIES:
        assert call.decode(reply) == record, reply


class TestPeeking:
    def test_a_hash_in_use_and_a_missing_one(self) -> None:
        numbers = [b"5", b"9007199254740993", b"2", b"20", b"30", b"22", b"3", b"1", b"0"]
        known = PEEK.decode([*numbers, REIGN.encode(), b"b1", b"s1", b"c1"])
        assert known == Hash(5, 2**53 + 1, 2, 20, 30, 22, REIGN, "b1", "s1", "c1")
        assert PEEK.decode([None] * 13) == Hash(None, None, None, None, None, None, None, None, None)

    def test_a_hash_of_another_term_has_no_numbers_but_all_the_rest(self) -> None:
        read = tag_scripts.read_hash(KEY).decode
        fields = [b"5", b"10", b"2", b"20", b"30", b"22", b"3", b"1", b"0", REIGN.encode(), b"b1", b"s1", b"c1"]
        assert read([b"current", *fields]) == PEEK.decode(fields)
        found = read([b"fenced", *fields])
        assert found == Hash(None, None, None, None, None, None, REIGN, "b1", "s1", "c1", lost=30)
        assert (found.top, found.due, found.names_store) == (30, True, False)
        assert read([b"fenced", b"x", *fields[1:]]).corrupt == "cur"

    def test_a_field_that_is_no_number_is_named(self) -> None:
        for field in range(9):
            for garbage in (b"", b"1.5", b"-1", b" 1", b"1e3", b'"1"', b"\xff", "٣".encode(), b"1" * 20):
                reply = [b"5", b"10", b"2", b"20", b"30", b"22", b"3", b"1", b"0", *[None] * 4]
                reply[field] = garbage
                assert PEEK.decode(reply).corrupt == tag_scripts.FIELDS[field], garbage
        # The scripts call these corrupt, too.
        for garbage in (b"9223372036854775808", b"9999999999999999999", b"007"):
            hash = PEEK.decode([b"5", garbage, b"2", *[None] * 10])
            assert (hash.max, hash.corrupt) == (None, "max"), garbage
        # Garbage in the other fields can be looked at.
        hash = PEEK.decode([b"5", b"10", b"2", *[None] * 6, b"\xff", b"\xfe", b"\xfd", b"\xfc"])
        assert (hash.fence, hash.born, hash.store, hash.corrupt) == ("\ufffd", "\ufffd", "\ufffd", None)


def test_a_setting_comes_by_either_protocol_and_is_none_where_the_server_lacks_it() -> None:
    call = server_commands.setting("save")
    assert call.decode([b"save", b"3600 1"]) == call.decode({b"save": b"3600 1"}) == "3600 1"
    assert call.decode([]) is call.decode({}) is None


def test_info_is_taken_apart_and_the_clock_is_in_milliseconds() -> None:
    reply = b"# Server\r\nexecutable:/usr/bin/a:b\r\n\r\n# Replication\r\nslave0:ip=::1,port=1\r\n"
    assert server_commands.info().decode(reply) == {"executable": "/usr/bin/a:b", "slave0": "ip=::1,port=1"}
    assert server_commands.server_time().decode([b"1763690000", b"123999"]) == 1763690000123


def test_of_cluster_nodes_the_kin_is_told_by_ip_or_by_name_as_the_one_asked_is() -> None:
    reply = (
        b"aa 10.0.0.1:7000@17000,one.example.org,shard-id=x myself,master - 0 0 1 connected 0-100 [5->-cc]\n"
        b"bb 10.0.0.2:7001@17001,two.example.org slave,fail aa 0 0 1 disconnected\n"
        b"cc 10.0.0.3:7002@17002,three.example.org master - 0 0 2 connected 101-16383\n"
        b"dd 10.0.0.4:7003@17003, master,fail - 0 0 1 disconnected\n"
        b"ee 10.0.0.5:7004@17004 slave cc 0 0 2 connected\n"
        b"ff :0@0 master,noaddr,fail - 0 0 1 disconnected\n"
    )
    assert server_commands.kin("10.0.0.1", "key").decode(reply) == [("10.0.0.2", 7001), ("10.0.0.4", 7003)]
    assert server_commands.kin("one.example.org", "key").decode(reply) == [
        ("two.example.org", 7001),
        ("10.0.0.4", 7003),
    ]
    assert server_commands.importer(5, "key").decode(reply) == "10.0.0.3"
    assert server_commands.importer(6, "key").decode(reply) == ""  # the migration has ended


#: Tags with many of the letters that the encoding has to keep apart.
TAGS = st.text(st.sampled_from("%{}257BDab") | st.characters(codec="utf-8"), min_size=1, max_size=12)


def test_any_short_text_without_control_characters_is_a_tag() -> None:
    for tag in ("a", "orders", "a b", "订单", "a:b{c}%7B", "-", "\u202e", "e\u0301", "x" * 200, "é" * 100):
        assert check_tag(tag) == tag


def test_anything_else_is_refused_with_the_reason() -> None:
    problems: dict[str, list[object]] = {
        "1 to 200 bytes, not (0|201|202)": ["", "x" * 201, "é" * 101],
        "must not begin or end with blanks": [" orders", "orders ", "\u3000a", "a\u00a0", " "],
        "control characters": ["a\nb", "a\0", "\x85", "a\u2028b", "a\u2029b"],
        "must be valid Unicode text": ["\ud800"],
        "not (bytes|int|NoneType|list)": [b"orders", 5, None, ["orders"]],
    }
    for problem, tags in problems.items():
        for tag in tags:
            error = refused(InvalidArgument, problem, check_tag, tag)
            assert error.value is tag
            assert isinstance(error, ValueError)


def test_the_key_is_the_prefix_and_the_tag_in_braces() -> None:
    assert redis_key("issuer", "orders") == "issuer:{orders}"
    assert redis_key("a:b", "{x}%") == "a:b:{%7Bx%7D%25}" != redis_key("a:b:", "{x}%")


@given(TAGS, TAGS)
def test_different_tags_never_share_a_key(one: str, other: str) -> None:
    assert (redis_key("issuer", one) == redis_key("issuer", other)) is (one == other)


@given(TAGS)
def test_the_tag_alone_decides_the_cluster_slot(tag: str) -> None:
    # Redis Cluster hashes what stands between the first { and the first } after it, if that isn't empty.
    key = redis_key("issuer", tag)
    hashed = key[key.index("{") + 1 : key.index("}")]
    assert hashed
    assert key == f"issuer:{{{hashed}}}"


def test_a_restart_key_with_blanks_around_it_is_refused_as_its_part_could_not_be_told_apart() -> None:
    assert part_tag("orders", "a b") == "orders#a b"
    for key in ("a ", " a", " "):
        assert (
            refused(InvalidArgument, "restart key must not begin or end with blanks", part_tag, "orders", key).value
            == key
        )
