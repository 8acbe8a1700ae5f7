"""What each command answers, on a server without Redis; errors by their first word; the page of the reference."""

import ast
import re
import socket
from pathlib import Path
from typing import Any

import hiredis
import pytest

import issuer
from issuer.doors.budget import BYTES_MOST, PROGRESS, STRANGERS_SHARE
from issuer.doors.resp import catalogue
from issuer.doors.resp.commands import READING, REDIS_VERSION, SPECS
from issuer.doors.resp.connection import REFUSALS_MOST, UNREAD_MOST
from issuer.doors.resp.parsing import (
    BULK_MOST,
    ELEMENTS_MOST,
    LINE_MOST,
    REQUEST_MOST,
    STRANGERS_BYTES,
    STRANGERS_ELEMENTS,
)
from issuer.doors.resp.replies import MESSAGE_MOST, WORDS, failure
from issuer.doors.resp.server import IDLE
from issuer.doors.resp.transaction import COMMANDS_MOST
from issuer.doors.server.sockets import CONNECTIONS_MOST
from issuer.errors import CorruptState, IssuerError, StoreBehind
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.waiting import until


def test_incr_gives_the_next_number_in_the_order_of_the_pipeline(client: Raw) -> None:
    assert client.ask("INCR", "a") == 1
    client.send(packed("INCR", "a") * 3, packed("PING"), packed("incr", "a"), packed("INCR", "b"), packed("INCR", "a"))
    assert client.replies(5) == [2, 3, 4, b"PONG", 5]
    assert code(client.reply()) == "NOTAG"
    assert client.reply() == 6


def test_the_same_bytes_again_are_other_numbers(direct: Served, client: Raw) -> None:
    direct.create("b", order="trend")
    for tag, first in (("a", 1), ("a", 4), ("b", 1), ("a", 7)):
        client.send(packed("INCR", tag) * 3)
        assert client.replies(3) == [first, first + 1, first + 2]
    half = packed("INCR", "a")[:9]
    assert client.send(packed("INCR", "a"), half).reply() == 10
    assert client.send(packed("INCR", "a")[9:], packed("INCR", "a")).replies(2) == [11, 12]


@pytest.mark.parametrize(
    ("begin", "rest", "told"), [(b"INCR ", b"PING\n", []), (packed("INCR", "PING")[:-10], b"$4\r\nPING\r\n", ["ERR"])]
)
def test_the_rest_of_a_split_request_is_not_remembered_as_a_request(
    direct: Served, begin: bytes, rest: bytes, told: list[str]
) -> None:
    direct.create("PING", order="trend")
    with direct.client() as client, direct.client() as other:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.send(begin)
        until(lambda: any(not each._parser.between for each in direct.server.shared.connections))
        assert client.send(rest).reply() == 1
        assert [code(each) for each in client.send(rest).replies(len(told))] == told
        assert client.reply() == b"PONG"
        assert other.ask("INCR", "PING") == 2


def test_an_incr_in_the_content_of_another_command_draws_nothing(direct: Served) -> None:
    incr = packed("INCR", "a")
    with direct.client() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = packed("ECHO", incr)
        begin = echo[: -len(incr) - 2]
        client.send(begin)
        until(lambda: any(not each._parser.between for each in direct.server.shared.connections))
        client.send(incr)
        until(lambda: any(incr in each._parser._data for each in direct.server.shared.connections))
        assert client.send(b"\r\n").reply() == incr
        assert client.ask("INCR", "a") == 1


def test_incrby_gives_the_last_of_contiguous_numbers(client: Raw) -> None:
    assert [client.ask("INCRBY", "a", n) for n in (1, 10, 989)] == [1, 11, 1000]
    last = client.ask("INCRBY", "a", 5000)
    assert last >= 6000
    assert client.ask("INCR", "a") > 1000


@pytest.mark.parametrize("n", [0, -1, 1_000_001, "x", "", "1.5", "9" * 30, "٣"])
def test_incrby_refuses_what_is_no_number_of_numbers_and_draws_none(client: Raw, n: object) -> None:
    assert code(client.ask("INCRBY", "a", str(n))) == "ERR"
    assert client.ask("INCR", "a") == 1


SCHEMES: dict[str, dict[str, Any]] = {"stride": {"stride": 2, "offset": 1}, "snowflake": {"strategy": "snowflake"}}


@pytest.mark.parametrize("scheme", ["stride", "snowflake"])
def test_incrby_refuses_tags_whose_numbers_are_not_their_counter(serve: Serve, scheme: str) -> None:
    served = serve()
    served.create("s", order="trend", **SCHEMES[scheme])
    with served.client() as client:
        first = client.ask("INCR", "s")
        assert code(client.ask("INCRBY", "s", 2)) == "ERR"
        second = client.ask("INCR", "s")
        assert second - first == 2 if scheme == "stride" else second > first


def test_a_tag_in_parts_has_no_number_without_a_key(serve: Serve) -> None:
    served = serve()
    served.create("s", order="trend", shards=True)
    with served.client() as client:
        for request in (("INCR", "s"), ("INCRBY", "s", 2), ("GET", "s")):
            assert code(client.ask(*request)) == "ERR", request
        assert client.ask("EXISTS", "s") == 1


def test_get_is_the_highest_number_issued_and_null_before_the_first(client: Raw) -> None:
    assert client.ask("GET", "a") is None
    assert client.ask("GET", "never") is None
    client.ask("INCRBY", "a", 7)
    assert client.ask("GET", "a") == b"7"
    client.ask("HELLO", 3)
    assert client.ask("GET", "a") == b"7"
    assert client.send(packed("GET", "never")).socket.recv(99) == b"_\r\n"


def test_get_of_strides_is_the_number_that_users_see(serve: Serve) -> None:
    served = serve()
    served.create("s", order="trend", stride=10, offset=3)
    with served.client() as client:
        assert client.ask("INCR", "s") == int(client.ask("GET", "s"))


def test_exists_counts_tags_and_type_says_what_they_are(client: Raw) -> None:
    assert [client.ask("EXISTS", *tags) for tags in ("a", "x", ["a", "x", "a"])] == [1, 0, 2]
    assert [client.ask("TYPE", tag) for tag in ("a", "x")] == [b"string", b"none"]
    assert code(client.ask("INCR", "x")) == "NOTAG"  # looking at it has not made it


def test_commands_that_ask_wait_for_those_before_them_and_hold_up_those_after(client: Raw) -> None:
    client.send(*(packed(*words) for words in [("INCR", "a"), ("GET", "a"), ("INCRBY", "a", 9), ("INCR", "a")] * 50))
    assert client.replies(4) == [1, b"1", 10, 11]
    assert client.replies(196)[-4:] == [540, b"540", 549, 550]


@pytest.mark.parametrize("name", ["SUBSCRIBE", "SET", "DECR", "DEL", "HGET", "EVAL", "KEYS", "\xff\r\n", ""])
def test_everything_else_is_an_error_of_one_line(client: Raw, name: str) -> None:
    reply = client.ask(name, "a", "1")
    shown = name.replace("\r\n", "  ")
    assert str(reply).startswith(f"ERR '{shown}' is not supported here: ")
    assert client.ask("INCR", "a") == 1


def test_each_refusal_names_what_was_asked_and_what_to_use_instead(client: Raw) -> None:
    """Redisson sends a script again without end after an error that begins with ERR unknown command."""
    asked = [name for names in catalogue._TEXTS for name in names.split()]
    assert len(asked) == len({*asked})
    asked = [name.replace("_", " ") if name.startswith("CLIENT_") else name for name in asked]
    for words in [*asked, "client tracking", "CLIENT KILL", "COMMAND GETKEYS", "CONFIG SET", "HGET"]:
        if words not in SPECS:
            told, _, instead = str(client.ask(*words.split(), "x", "y")).partition("' is not supported here: ")
            assert told.upper() == f"ERR '{words.upper()}"
            assert instead in (*catalogue._TEXTS.values(), catalogue._OTHERWISE)
    for words, instead in (
        ("CLIENT TRACKING ON", "turn off the client-side cache"),
        ("CLIENT ID x", "use ID, GETNAME, "),
        ("CONFIG SET save x", "use CONFIG GET name"),
        ("EVALSHA x 0", "such as incrementAndGet"),
    ):
        assert instead in str(client.ask(*words.split()))


def test_wrong_numbers_of_arguments_are_errors(client: Raw) -> None:
    for words in (
        ["INCR"],
        ["INCR", "a", "b"],
        ["INCRBY", "a"],
        ["GET"],
        ["EXISTS"],
        ["ECHO"],
        ["AUTH"],
        ["RESET", "x"],
    ):
        assert str(client.ask(*words)).startswith("ERR wrong number of arguments for"), words
    for name, takes in (("ECHO", "1"), ("EXISTS", "1 or more"), ("AUTH", "1 to 2")):
        assert str(client.ask(name)).endswith(f"for '{name.lower()}' command: it takes {takes}")
    assert client.ask("INCR", "a") == 1


@pytest.mark.parametrize("tag", [b"\xff", b"", b"a\nb", b" a", b"x" * 201])
def test_a_tag_that_can_be_none_is_an_error(client: Raw, tag: bytes) -> None:
    client.send(packed("INCR", tag) * 2, packed("INCRBY", tag, 1))
    assert [code(reply) for reply in client.replies(3)] == ["ERR"] * 3
    # Again the very same bytes, which the server remembers of its clients.
    client.send(packed("INCR", tag) * 2)
    assert [code(reply) for reply in client.replies(2)] == ["ERR"] * 2


def test_hello_chooses_the_protocol_and_tells_of_the_server(client: Raw) -> None:
    flat = client.ask("HELLO")
    told = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (told[b"server"], told[b"proto"], told[b"role"]) == (b"segment-issuer", 2, b"master")
    assert told[b"version"].decode() == REDIS_VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", REDIS_VERSION)  # Jedis reads three numbers
    assert f"redis_version:{REDIS_VERSION}" in client.ask("INFO").decode().splitlines()
    assert told[b"segment_issuer_version"] == issuer.__version__.encode()
    told = client.ask("HELLO", 3, "AUTH", "default", "x", "SETNAME", "me")
    assert isinstance(told, dict)
    assert told[b"proto"] == 3
    assert client.ask("CLIENT", "GETNAME") == b"me"
    for words in (("HELLO", 4), ("HELLO", "x")):
        assert code(client.ask(*words)) == "NOPROTO"
    for options in (("AUTH", "x"), ("WHAT",), ("SETNAME", "a b")):
        assert code(client.ask("HELLO", 2, *options)) == "ERR"
    assert isinstance(client.ask("HELLO"), dict)  # a refused HELLO changes nothing
    assert client.ask("RESET") == b"RESET"
    assert isinstance(client.ask("HELLO"), list)
    assert client.ask("CLIENT", "GETNAME") is None


def test_what_clients_say_to_each_other_is_answered(client: Raw) -> None:
    assert client.ask("PING") == b"PONG"
    assert client.ask("PING", "hi") == b"hi"
    assert client.ask("ECHO", b"\0\r\n") == b"\0\r\n"
    assert client.ask("SELECT", 0) == b"OK"
    assert code(client.ask("SELECT", 1)) == "ERR"
    assert client.ask("AUTH", "anything") == b"OK"
    assert client.ask("AUTH", "user", "anything") == b"OK"
    assert client.ask("CLIENT", "SETNAME", "me") == b"OK"
    assert client.ask("CLIENT", "SETINFO", "LIB-NAME", "tests") == b"OK"
    assert client.ask("CLIENT", "SETINFO", "lib-ver", "1") == b"OK"
    number = client.ask("CLIENT", "ID")
    port = client.socket.getsockname()[1]
    told = f"id={number} addr=127.0.0.1:{port} name=me db=0 resp=2 lib-name=tests lib-ver=1\n"
    assert client.ask("CLIENT", "INFO").decode() == client.ask("CLIENT", "LIST").decode() == told
    for words in (["SETNAME", "a b"], ["SETINFO", "X", "y"], ["TRACKING", "on"], ["KILL", "x"], ["ID", "x"]):
        assert code(client.ask("CLIENT", *words)) == "ERR", words
    assert client.ask("CONFIG", "GET", "save") == [b"save", b""]
    assert client.ask("CONFIG", "GET", "maxmemory") == []
    assert code(client.ask("CONFIG", "SET", "save", "")) == "ERR"
    assert client.ask("QUIT") == b"OK"
    assert client.rest() == []


def test_commands_tell_of_themselves(client: Raw) -> None:
    every = client.ask("COMMAND")
    assert len(every) == client.ask("COMMAND", "COUNT") == len(client.ask("COMMAND", "LIST")) == len(SPECS)
    incr, none = client.ask("COMMAND", "INFO", "incr", "flushall")
    assert none is None
    assert incr[:6] == [b"incr", 2, [b"write", b"denyoom", b"fast"], 1, 1, 1]
    name, fields = client.ask("COMMAND", "DOCS", "INCRBY")
    assert (name, fields[0]) == (b"incrby", b"summary")
    client.ask("HELLO", 3)
    assert {*client.ask("COMMAND", "DOCS")} == {name.lower().encode() for name in SPECS}


def test_info_has_what_clients_look_for(direct: Served, client: Raw) -> None:
    lines = client.ask("INFO").decode().splitlines()
    for line in ("# Server", "redis_mode:standalone", f"tcp_port:{direct.port}", "loading:0", "role:master"):
        assert line in lines, line
    assert "connected_clients:1" in client.ask("INFO", "clients").decode().splitlines()
    assert b"role" not in client.ask("INFO", "server", "clients")


def test_lines_that_people_type_work(client: Raw) -> None:
    client.send(b"incr a\r\n\r\nINCR 'a'\nPING \"a\\tb\"\r\nquit\r\nINCR a\r\n")
    assert client.rest() == [1, 2, b"a\tb", b"OK"]


def test_a_client_that_stops_sending_still_gets_its_answers(client: Raw) -> None:
    client.send(b"INCR a\r\nINCRBY a 3\r\nGET a\r\n").socket.shutdown(1)
    assert client.rest() == [1, 4, b"4"]


@pytest.mark.parametrize("data", [b"*2\r\n:1\r\n", b"*1\r\n$65537\r\n", b"*1025\r\n", b"x" * 65_600, b'PING "x\r\n'])
def test_malformed_input_ends_that_connection_alone_and_says_why(direct: Served, data: bytes) -> None:
    with direct.client() as other, direct.client() as client:
        assert other.ask("INCR", "a") == 1
        replies = client.send(packed("INCR", "a"), packed("GET", "a"), data).rest()
        assert replies[:2] == [2, b"2"]
        assert str(replies[2]).startswith("ERR Protocol error: ")
        assert len(replies) == 3
        assert other.ask("INCR", "a") == 3


@pytest.mark.parametrize(
    "first", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n"], ids=["POST", "Host"]
)
def test_a_page_in_a_browser_can_not_draw(direct: Served, first: bytes) -> None:
    with direct.client() as page, direct.client() as client:
        page.send(first, b"Content-Type: text/plain\r\n\r\nINCR a\r\n")
        assert 1 not in page.rest()
        assert client.ask("INCR", "a") == 1


def test_every_error_of_the_library_has_its_word() -> None:
    def every(kind: type[IssuerError]) -> set[type[IssuerError]]:
        return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == "issuer.errors"))

    for kind in every(IssuerError):
        error = kind.__new__(kind)
        Exception.__init__(error, "wrong")
        error.__dict__.update(tag="a", argument="", setting="x", store=None, differences={}, retry_after=0.2)
        reply = failure(error).decode()
        word = next((word for root, word in WORDS if issubclass(kind, root)), kind.code.upper())
        assert reply.startswith(f"-{word} "), kind
        assert reply.endswith("; retry in 0.2 s\r\n") is issubclass(kind, issuer.Unavailable), kind
    assert failure(StoreBehind("a", max=1, taken=2)).startswith(b"-STORE_BEHIND the store is behind")
    assert failure(issuer.LimitReached("a", limit=1, value=1)).startswith(b"-LIMIT tag 'a' has reached")


def test_an_error_is_one_line_of_bounded_length() -> None:
    reply = failure(CorruptState("a\r\n+OK\r\n" + "x" * 5000 + "\ud800"))
    assert reply.count(b"\r\n") == 1
    assert len(reply) < MESSAGE_MOST + 10
    late = failure(issuer.RedisUnavailable("x" * 5000, retry_after=0.25))
    assert late.endswith(b"; retry in 0.25 s\r\n")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0.001"), (3.1e-05, "0.001"), (9.96, "10"), (123.4, "123"), (1e7, "10000000")]
)
def test_the_time_until_a_retry_is_a_plain_number(seconds: float, shown: str) -> None:
    assert failure(issuer.RedisUnavailable("a", retry_after=seconds)).endswith(f"; retry in {shown} s\r\n".encode())


def test_what_was_not_foreseen_is_an_internal_error_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        b"secret \xff".decode()
    assert failure(raised.value) == b"-ERR internal error\r\n"
    assert "UnicodeDecodeError" in caplog.text
    assert __file__ in caplog.text
    assert "secret" not in caplog.text


def test_a_limit_is_reached_with_its_last_number_and_an_error_for_the_rest(serve: Serve) -> None:
    served = serve()
    served.create("few", order="trend", limit=5)
    with served.client() as client:
        replies = client.send(packed("INCR", "few") * 8).replies(8)
        assert replies[:5] == [1, 2, 3, 4, 5]
        assert [code(reply) for reply in replies[5:]] == ["LIMIT"] * 3
        assert all(isinstance(reply, hiredis.ReplyError) for reply in replies[5:])
        assert code(client.ask("INCRBY", "few", 1)) == "LIMIT"
        assert client.ask("PING") == b"PONG"


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "redis-protocol.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].partition("|\n\n")[0].splitlines()
    table = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines if line.startswith("| ")]
    return table[1:]


def test_the_page_has_each_command_with_its_arguments() -> None:
    typed = [cells[0].strip("`").replace("\\|", "|") for cells in rows_below("Commands")]
    assert [line.split()[0] for line in typed] == list(SPECS)
    for line in typed:
        name, _, arguments = line.partition(" ")
        spec = SPECS[name]
        required = re.sub(r"\[.*\]", "", arguments).split()
        # CONFIG has one subcommand here, and it takes a name.
        assert len(required) == spec.least + (name == "CONFIG"), line
        assert ("[" in line) == (spec.most != spec.least), line
        if spec.most is not None:
            assert len(arguments.replace("[", "").replace("]", "").split()) == spec.most, line


def test_the_page_has_the_scopes_that_commands_need() -> None:
    words = {cells[0]: re.findall(r"`(\w+)`", cells[1]) for cells in rows_below("Authentication")}
    assert words == {"INCR, INCRBY": ["issue"], "GET, EXISTS, TYPE": list(READING), "all others": []}
    early = re.search(r"every command needs a token, except (.*?)\.", " ".join(PAGE.split()))
    assert early
    assert sorted(re.findall(r"[A-Z]+", early[1])) == sorted(name for name, spec in SPECS.items() if spec.early)


def test_the_page_has_each_first_word_of_an_error_reply() -> None:
    found = {word for _, word in WORDS}
    for file in (ROOT / "issuer" / "doors" / "resp").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "error":
                texts = [each for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                found |= {str(each.value).split()[0] for each in texts[:1] if re.match(r"[A-Z]{3,} ", str(each.value))}
    assert {cells[0].strip("`") for cells in rows_below("Errors")} == found | {"any other"}


def test_the_page_has_the_limits() -> None:
    kilo, mega = 1024, 1024**2
    limits = {cells[0]: cells[1] for cells in rows_below("Limits")}
    assert limits["argument"] == f"{BULK_MOST // kilo} KB"
    assert limits["line"] == f"{LINE_MOST // kilo} KB"
    assert limits["request"] == f"{REQUEST_MOST // mega} MB and {ELEMENTS_MOST} arguments"
    assert limits["transaction"] == f"{REQUEST_MOST // mega} MB and {COMMANDS_MOST // 1000} 000 commands"
    assert limits["replies that are not written yet, or not read"] == f"{UNREAD_MOST // kilo} KB"
    assert limits["idle time of a client"] == f"{IDLE:g} s"
    before = f"{STRANGERS_ELEMENTS} arguments, {STRANGERS_BYTES // kilo} KB each"
    assert limits["arguments before authentication, if tokens are required"] == before
    assert limits["time until authentication, if tokens are required"] == f"{PROGRESS:g} s"
    assert limits["time to complete a command, and to read replies"] == f"{PROGRESS:g} s"
    assert limits["commands without a valid token"] == f"{REFUSALS_MOST}"
    share = f"{STRANGERS_SHARE:.0%} of them before authentication"
    assert limits["bytes that all clients of a worker make it hold"] == f"{BYTES_MOST // mega} MB, {share}"
    assert limits["clients of a worker"].startswith(f"{CONNECTIONS_MOST * 4 // 5}, or fewer")
