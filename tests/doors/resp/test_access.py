"""Tokens: what each may do, and that none shows anywhere."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from issuer.doors.access import Access
from issuer.doors.resp.commands import SPECS
from issuer.doors.resp.connection import REFUSALS_MOST
from issuer.doors.tokens import line_for, new_token
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import Raw, Served, code, packed
from tests.waiting import until

ISSUE, READ, ADMIN, SLOW = (new_token() for _ in range(4))
LINES = [
    line_for(ISSUE, "billing", ["issue"], ["a", "b-*"]),
    line_for(READ, "dashboard", ["read"], ["*"]),
    line_for(ADMIN, "operator", ["admin"], ["*"]),
    line_for(SLOW, "slow", ["issue"], ["*"], rate=3),
]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    written(path, LINES)
    return path


def written(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o600)


@pytest.fixture
def access(tokens: Path) -> Access:
    return Access(tokens)


@pytest.fixture
def guarded(serve: Serve, access: Access) -> Served:
    served = serve(access=access)
    for tag in ("a", "b-1", "c"):
        served.create(tag, order="trend")
    return served


@pytest.fixture
def client(guarded: Served) -> Iterator[Raw]:
    """A client that has not authenticated."""
    with guarded.client() as made:
        yield made


EVERY: list[tuple[str | int, ...]] = [
    ("INCR", "a"), ("INCRBY", "a", 2), ("GET", "a"), ("EXISTS", "a"), ("TYPE", "a"), ("PING",), ("ECHO", "x"),
    ("SELECT", 0), ("CLIENT", "ID"), ("COMMAND",), ("CONFIG", "GET", "save"), ("INFO",), ("FLUSHALL",),
]  # fmt: skip


def test_without_a_token_nothing_but_the_way_in_and_out_is_answered(client: Raw) -> None:
    for words in EVERY:
        assert str(client.ask(*words)) == "NOAUTH Authentication required.", words
    client.send(packed("INCR", "a") * 3)
    assert [code(reply) for reply in client.replies(3)] == ["NOAUTH"] * 3
    assert client.ask("RESET") == b"RESET"
    assert client.ask("HELLO", 2)[0] == b"server"
    assert client.ask("AUTH", ISSUE) == b"OK"
    assert client.ask("INCR", "a") == 1
    assert client.ask("RESET") == b"RESET"
    assert code(client.ask("INCR", "a")) == "NOAUTH"
    assert client.ask("QUIT") == b"OK"


@pytest.mark.parametrize(
    "words",
    [("AUTH", ISSUE), ("AUTH", "anybody", ISSUE), ("HELLO", 3, "AUTH", "default", ISSUE)],
    ids=["auth", "auth-user", "hello"],
)
def test_a_token_lets_in_whichever_way_it_is_said(client: Raw, words: tuple[str, ...]) -> None:
    assert code(client.ask(*words)) == ""
    assert client.ask("INCR", "a") == 1


@pytest.mark.parametrize(
    "token",
    ["", "x", ISSUE[:-1], ISSUE + "x", b"\xff\xfe", ISSUE.upper()],
    ids=["empty", "wrong", "shorter", "longer", "no text", "capitals"],
)
def test_a_wrong_or_empty_token_lets_nobody_in(client: Raw, token: str | bytes) -> None:
    for words in (("AUTH", token), ("AUTH", "user", token), ("HELLO", 3, "AUTH", "user", token, "SETNAME", "me")):
        assert code(client.ask(*words)) == "NOAUTH"
        assert code(client.ask("INCR", "a")) == "NOAUTH"
    assert isinstance(client.ask("HELLO"), list)  # not even the protocol's version is taken
    client.ask("AUTH", READ)
    assert client.ask("CLIENT", "GETNAME") is None


@pytest.mark.parametrize(
    ("token", "refused"),
    [
        (ISSUE, {("INCR", "c"), ("INCRBY", "c", 2), ("GET", "c"), ("EXISTS", "a", "c"), ("TYPE", "c")}),
        (READ, {("INCR", "a"), ("INCR", "c"), ("INCRBY", "c", 2), ("INCR", "b-1")}),
        (ADMIN, set()),
    ],
    ids=["issue", "read", "admin"],
)
def test_each_scope_has_its_commands_and_tags(client: Raw, token: str, refused: set[tuple[str, ...]]) -> None:
    requests: list[tuple[str | int, ...]] = [
        ("INCR", "a"), ("INCR", "b-1"), ("INCR", "c"), ("INCRBY", "c", 2), ("GET", "c"), ("GET", "a"), ("EXISTS", "a"),
        ("EXISTS", "a", "c"), ("TYPE", "c"), ("PING",), ("INFO",),
    ]  # fmt: skip
    client.ask("AUTH", token)
    for words in requests:
        assert code(client.ask(*words)) == ("NOPERM" if words in refused else ""), words


def test_one_tag_of_a_pipeline_that_is_refused_keeps_no_other_from_its_number(client: Raw) -> None:
    client.ask("AUTH", ISSUE)
    client.send(packed("INCR", "a"), packed("INCR", "c") * 2, packed("INCR", "a"))
    replies = client.replies(4)
    assert (replies[0], replies[3]) == (1, 2)
    assert [code(reply) for reply in replies[1:3]] == ["NOPERM"] * 2


def test_a_token_that_is_revoked_ends_on_connections_that_are_open(
    guarded: Served, access: Access, tokens: Path
) -> None:
    with guarded.client() as client, guarded.client() as other:
        client.ask("AUTH", ISSUE)
        other.ask("AUTH", ADMIN)
        assert client.ask("INCR", "a") == 1
        written(tokens, LINES[1:])
        for _ in range(2):
            access.look()
        assert code(client.ask("INCR", "a")) == "NOAUTH"
        assert code(client.ask("PING")) == "NOAUTH"
        assert code(client.ask("GET", "a")) == "NOAUTH"
        assert code(other.ask("INCR", "a")) == ""


def test_beyond_its_rate_a_token_is_told_when_to_ask_again(client: Raw) -> None:
    client.ask("AUTH", SLOW)
    client.send(packed("INCR", "c") * 200)
    replies = client.replies(200)
    numbers = [reply for reply in replies if not code(reply)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 3 <= len(numbers) < 200
    refused = [str(reply) for reply in replies if code(reply)]
    assert all(text.startswith("UNAVAILABLE ") and "; retry in 0." in text for text in refused)


def test_numbers_of_one_command_count_for_the_rate_as_those_of_many_do(client: Raw) -> None:
    client.ask("AUTH", SLOW)
    assert "may draw up to 3 numbers at once by its rate, not 4" in str(client.ask("INCRBY", "c", 4))
    until(lambda: client.ask("INCRBY", "c", 3) == 3)
    # Sent at once: on a machine that stands still between two commands the rate would grant each.
    client.send(packed("INCRBY", "c", 3) * 50)
    assert "UNAVAILABLE" in [code(reply) for reply in client.replies(50)]


def test_no_token_shows_in_a_log_or_a_reply(
    serve: Serve, tokens: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(access=Access(tokens))
    with served.client() as client:
        said = [client.ask(*words) for words in (("AUTH", ISSUE), ("AUTH", ISSUE + "x"), ("CLIENT", "INFO"), ("INFO",))]
        said.append(client.ask("HELLO", 3, "AUTH", "default", ISSUE + "y"))

        def fails(*_: object) -> bytes:
            raise RuntimeError(ISSUE)

        monkeypatch.setitem(SPECS, "ECHO", replace(SPECS["ECHO"], run=fails))
        said.append(client.ask("ECHO", ISSUE))
        assert str(said[-1]) == "ERR internal error"
        assert ISSUE not in repr(said) + repr(client) + caplog.text
        assert ISSUE[8:] not in caplog.text
        (connection,) = served.server.shared.connections
        assert ISSUE not in repr(connection._session)


def test_a_client_of_any_kind_may_say_it_in_a_line(guarded: Served) -> None:
    with Raw(guarded.port) as client:
        client.send(f"auth {ISSUE}\r\nincr a\r\nquit\r\n".encode())
        assert client.rest() == [b"OK", 1, b"OK"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (packed("EXISTS", *["a"] * 10), "unauthenticated multibulk length"),
        (packed("ECHO", b"x" * 16_385), "unauthenticated bulk length"),
        (b"x" * 16_385, "too big inline request"),
    ],
    ids=["arguments", "bytes", "line"],
)
def test_before_it_has_authenticated_a_client_may_send_little(guarded: Served, sent: bytes, why: str) -> None:
    with guarded.client() as client:
        assert [str(reply) for reply in client.send(sent).rest()] == [f"ERR Protocol error: {why}"]
    with guarded.client() as client:
        assert client.ask("AUTH", ADMIN) == b"OK"
        assert client.ask("EXISTS", *["a"] * 10) == 10
        assert client.ask("ECHO", b"x" * 16_385) == b"x" * 16_385
        assert client.ask("RESET") == b"RESET"
        assert [str(reply) for reply in client.send(sent).rest()] == [f"ERR Protocol error: {why}"]


def test_a_client_that_does_not_authenticate_is_closed_soon(serve: Serve, access: Access) -> None:
    guarded, free = serve(access=access, progress=0.2), serve(progress=0.2)
    with guarded.client() as known, free.client() as anybody:
        assert known.ask("AUTH", ADMIN) == b"OK"
        for sent in (b"", b"QUI"):
            with guarded.client() as stranger:
                why = stranger.send(sent).rest()
            assert [str(reply) for reply in why] == ["NOAUTH no token was sent within 0.2 s"]
        until(lambda: guarded.server.shared.ticks > 10)
        assert known.ask("PING") == anybody.ask("PING") == b"PONG"


def test_a_client_without_a_token_gets_a_few_refusals_and_is_closed(guarded: Served, access: Access) -> None:
    """Each refusal costs as much as a number, and who has no token could ask for thousands in one read."""
    last = f"NOAUTH {REFUSALS_MOST} commands came without a valid token"
    for sent in (b"A\n" * 30_000, b"INCR a\nINCR b\n" * 4000, packed("AUTH", "x") * 2000):
        before = access.tally.failures["resp"]
        with guarded.client() as stranger:
            replies = [str(reply) for reply in stranger.send(sent).rest()]
        assert replies[-1] == last
        assert {each.partition(" ")[0] for each in replies} == {"NOAUTH"}
        assert len(replies) == REFUSALS_MOST + 1
        assert access.tally.failures["resp"] - before == REFUSALS_MOST


def test_a_revoked_token_gets_a_few_refusals_and_is_closed(client: Raw, access: Access, tokens: Path) -> None:
    client.ask("AUTH", ISSUE)
    assert client.ask("INCR", "a") == 1
    written(tokens, LINES[1:])
    for _ in range(2):
        access.look()
    assert [code(client.ask("INCR", "a")) for _ in range(REFUSALS_MOST)] == ["NOAUTH"] * REFUSALS_MOST
    assert str(client.reply()).startswith(f"NOAUTH {REFUSALS_MOST} commands")
    assert client.rest() == []
