"""Requests out of bytes, wherever they are split, and whatever else comes."""

import random
import sys
from itertools import pairwise

import pytest

from issuer.doors.resp.parsing import (
    BULK_MOST,
    ELEMENTS_MOST,
    FREE,
    LINE_MOST,
    REQUEST_MOST,
    MalformedError,
    Parser,
    Request,
    split,
)
from tests.doors.resp.serving import packed
from tests.seeds import seeded

PIPELINE = (
    packed("INCR", "a") * 2 + b"PING\r\n" + packed("INCRBY", "äöü", 10)
    + b"*0\r\n\r\n" + packed("ECHO", b"x\r\ny\0$1\r\n")
    + b"  incr   'a b' \"c\\x41\\n\" \n" + packed("PING") + b"*-1\r\n" + packed(b"") + packed("SET", "a", "")
)  # fmt: skip
REQUESTS: list[Request] = [
    [b"INCR", b"a"], [b"INCR", b"a"], [b"PING"], [b"INCRBY", "äöü".encode(), b"10"], [b"ECHO", b"x\r\ny\0$1\r\n"],
    [b"incr", b"a b", b"cA\n"], [b"PING"], [b""], [b"SET", b"a", b""],
]  # fmt: skip


def fed(parser: Parser, data: bytes, found: list[Request] | None = None) -> list[Request]:
    """Return the requests that are complete with these bytes. Add them to `found` if it is given."""
    requests = [] if found is None else found
    parser.feed(data)
    while request := parser.next():
        requests += [request] * max(1, parser.times)
    return requests


def parsed(*parts: bytes) -> tuple[list[Request], str]:
    """Return the requests in all parts, and why the rest is none."""
    parser = Parser()
    found: list[Request] = []
    try:
        for part in parts:
            fed(parser, part, found)
    except MalformedError as fault:
        return found, str(fault)
    return found, ""


def test_a_pipeline_is_the_same_at_every_place_where_a_read_may_split_it() -> None:
    assert parsed(PIPELINE) == (REQUESTS, "")
    for at in range(len(PIPELINE) + 1):
        assert parsed(PIPELINE[:at], PIPELINE[at:]) == (REQUESTS, ""), at


def test_a_pipeline_is_the_same_byte_by_byte_and_split_twice_anywhere() -> None:
    assert parsed(*(PIPELINE[at : at + 1] for at in range(len(PIPELINE)))) == (REQUESTS, "")
    chance = random.Random(1)
    for _ in range(2000):
        cuts = sorted(chance.choices(range(len(PIPELINE) + 1), k=2))
        parts = [PIPELINE[one:other] for one, other in pairwise([0, *cuts, len(PIPELINE)])]
        assert parsed(*parts) == (REQUESTS, ""), cuts


def test_a_parser_is_between_requests_only_when_nothing_of_one_is_there() -> None:
    parser = Parser()
    for byte in packed("INCR", "a")[:-1]:
        assert fed(parser, bytes([byte])) == []
        assert not parser.between
    assert fed(parser, b"\n") == [[b"INCR", b"a"]]
    assert parser.between


def test_only_whole_requests_stand_in_a_row() -> None:
    parser, incr, element = Parser(), packed("INCRBY", "a", 1), b"$1\r\n1\r\n"
    assert fed(parser, incr.removesuffix(element)) == []
    assert fed(parser, element * 2) == [[b"INCRBY", b"a", b"1"], [b"$1"], [b"1"]]
    parser.feed(b"\n" + incr * 3 + packed("INCR", "a") * 2 + b"PING\n")
    assert (parser.next(), parser.times, parser.between) == ([b"INCRBY", b"a", b"1"], 3, False)
    assert (parser.next(), parser.times, parser.more) == ([b"INCR", b"a"], 2, True)
    assert (parser.next(), parser.times, parser.more, parser.between) == ([b"PING"], 0, False, True)


def test_only_a_short_read_is_remembered() -> None:
    parser, incr = Parser(), packed("INCR", "a")
    most = FREE // len(incr)
    for times in (most, most + 1):
        assert parser.is_row(incr * times) == (times == most)
        assert (parser.same, parser.same_times) == (incr * most, most)


_INCR, _MULTI, _EXEC = packed("INCR", "a"), packed("MULTI"), packed("EXEC")


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (_INCR, (1, False)),
        (packed("incr", "a") * 3, (3, False)),
        (packed("INCRBY", "a", 1) * 2, (2, False)),
        (_MULTI + _INCR * 16 + _EXEC, (16, True)),
        (packed("multi") + packed("incrby", "a", 1) + packed("exec"), (1, True)),
        (_INCR * 2 + packed("INCR", "b"), None),
        (_INCR + _INCR[:-1], None),
        (_INCR.replace(b"$1", b"$2"), None),
        (packed("INCRBY", "a", 2), None),
        (packed("GET", "a"), None),
        (_MULTI + _EXEC, None),
        (_MULTI + _INCR, None),
        (_INCR + _EXEC, None),
        (_MULTI + packed("INCR", "b") + _INCR + _EXEC, None),
        (_MULTI + _INCR + _EXEC + _MULTI + _INCR + _EXEC, None),
    ],
)
def test_a_row_is_equal_incrs_and_nothing_else_or_a_transaction_of_them(
    data: bytes, row: tuple[int, bool] | None
) -> None:
    parser = Parser()
    for _ in range(2):
        assert parser.is_row(data) == (row is not None)
        if row is not None:
            assert (parser.same_request, parser.same_times, parser.same_multi) == ([b"INCR", b"a"], *row)


def test_a_row_is_what_its_requests_are_one_by_one() -> None:
    chance, rows = random.Random(3), 0
    pieces = [_INCR, _INCR, _INCR, _MULTI, _EXEC, packed("INCRBY", "a", 1), packed("PING"), b"INCR a\n", b"$1\r\na\r\n"]
    for _ in range(20_000):
        data, parser = b"".join(chance.choices(pieces, k=chance.randrange(1, 6))), Parser()
        if parser.is_row(data):
            rows += 1
            around = ([[b"MULTI"]], [[b"EXEC"]]) if parser.same_multi else ([], [])
            assert parsed(data) == (around[0] + [parser.same_request] * parser.same_times + around[1], ""), data
    assert rows > 1000


LARGEST = b"*16\r\n" + (b"$%d\r\n" % BULK_MOST + b"x" * BULK_MOST + b"\r\n") * 16


@pytest.mark.parametrize(
    ("data", "requests"),
    [
        (packed("ECHO", b"x" * BULK_MOST), 1),
        (packed(*["x"] * ELEMENTS_MOST), 1),
        (b"x" * LINE_MOST + b"\n", 1),
        (LARGEST, 1),
    ],
    ids=["bulk", "elements", "line", "request"],
)
def test_the_largest_that_is_taken_is_taken(data: bytes, requests: int) -> None:
    found, fault = parsed(data)
    assert (len(found), fault) == (requests, "")
    half = len(data) // 2
    assert parsed(data[:half], data[half:]) == (found, "")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"*1\r\n$%d\r\n" % (BULK_MOST + 1), "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$" + b"1" * 16, "invalid bulk length"),
        (b"*%d\r\n" % (ELEMENTS_MOST + 1), "invalid multibulk length"),
        (b"*2000000000\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*" + b"0" * 20, "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n\0", "expected '$', got '\\x00'"),
        (b"*1\r\n$1\r\nabc", "expected a line break after a bulk string"),
        (b"x" * (LINE_MOST + 1), "too big inline request"),
        (b"x " * ELEMENTS_MOST + b"x\n", "too many words in an inline request"),
        (b'incr "a\r\n', "unbalanced quotes in request"),
        (b"incr 'a\r\n", "unbalanced quotes in request"),
        (b'incr "a"b\r\n', "unbalanced quotes in request"),
        (LARGEST.replace(b"*16", b"*17", 1) + b"$1\r\n", "too big request"),
    ],
)
def test_what_is_no_request_or_too_big_is_a_fault_after_what_came_before_it(data: bytes, fault: str) -> None:
    assert parsed(packed("PING") + data) == ([[b"PING"]], fault)
    assert parsed(packed("PING") + data, b"PING\r\n") == ([[b"PING"]], fault)


def test_an_array_takes_no_memory_before_its_elements_are_there() -> None:
    parser = Parser()
    assert fed(parser, b"*1024\r\n") == []
    assert parser._arguments == []
    assert parser.held == 0
    assert fed(parser, b"$1\r\nx\r\n" * 1000) == []
    assert parser.held > 1000 * sys.getsizeof(b"x")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  \t ", []),
        (b"a  b\r", [b"a", b"b"]),
        (b"a ''", [b"a", b""]),
        (b'"a b" c', [b"a b", b"c"]),
        (b'"\\x41\\xff\\n\\r\\t\\b\\a\\"\\\\\\q"', [b'A\xff\n\r\t\b\a"\\q']),
        (b"'\\n\\''", [b"\\n'"]),
        (b'x"y"', [b"xy"]),
    ],
)
def test_a_line_is_split_as_redis_does_it(line: bytes, words: list[bytes]) -> None:
    assert split(line) == words


_PIECES = [
    b"*1\r\n", b"*2\r\n", b"*3\r\n", b"*0\r\n", b"*-1\r\n", b"*1025\r\n", b"$4\r\nINCR\r\n", b"$1\r\na\r\n",
    b"$0\r\n\r\n", b"$2\r\n\r\n\r\n", b"$5\r\n", b"$-1\r\n", b"\r\n", b"\n", b"\r", b"INCR a\r\n", b"'", b'"',
    b" ", b"\0", b"\xff", b"*", b"$", b":1\r\n", b"%1\r\n", b"99999999999999999999",
]  # fmt: skip


def soup(chance: random.Random) -> bytes:
    """Return bytes that are half requests and half anything."""
    parts = [
        chance.choice(_PIECES) if chance.random() < 0.9 else chance.randbytes(chance.randrange(8))
        for _ in range(chance.randrange(1, 12))
    ]
    return b"".join(parts)


def never_minds_splits(seed: int, cases: int) -> None:
    chance = random.Random(seed)
    for case in range(cases):
        data = soup(chance)
        whole = parsed(data)
        cut = chance.randrange(len(data) + 1)
        assert parsed(data[:cut], data[cut:]) == whole, (seed, case, data, cut)
        assert all(1 <= len(request) <= ELEMENTS_MOST for request in whole[0])
        assert sum(len(word) for request in whole[0] for word in request) <= min(len(data), REQUEST_MOST)


def test_random_bytes_are_parsed_alike_however_they_are_split() -> None:
    never_minds_splits(1, 5000)


@pytest.mark.soak
def test_a_million_random_inputs_are_parsed_alike_however_they_are_split() -> None:
    never_minds_splits(seeded(2), 1_000_000)
