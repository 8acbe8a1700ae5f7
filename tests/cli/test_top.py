"""`issuer top`: the table for a script, and live on a terminal."""

import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

import issuer
from issuer.board.file import BoardFile
from issuer.board.rows import TagRow, TailEntry
from issuer.care.chronicle import Happening, line_of
from issuer.cli import main
from issuer.cli.commands import top
from issuer.cli.commands.top import ENTER, LEAVE, Board
from issuer.gateway.keys import chronicle_key
from issuer.terminal import width
from issuer_persistence.records import now_ms
from tests.cli.conftest import Cli, Ended, altered
from tests.cli.terminal import Terminal
from tests.doors.http.doors import tokens
from tests.doors.server.conftest import Serve, serve
from tests.servers.redis import RedisServer
from tests.waiting import until

__all__ = ["serve"]


def frame(terminal: Terminal) -> list[str]:
    """Return the lines of the newest complete frame, without styles. [] if there is none."""
    for each in reversed(terminal.text.split("\x1b[H")):
        lines = click.unstyle(each).split("\n")
        if each.endswith("\x1b[K") and lines[-1].startswith("q quit"):
            return lines
    return []


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Redis and the store answer late: a machine may stand still for seconds."""
    monkeypatch.setattr(top, "WITHIN", 60.0)


def shows(terminal: Terminal, text: str) -> list[str]:
    """Wait until a frame has this text, and return the lines of the frame."""

    def look() -> list[str]:
        lines = frame(terminal)
        assert text in "\n".join(lines), lines
        return lines

    return until(look, ignoring=(AssertionError,))


def listed(lines: list[str]) -> list[str]:
    """Return the tags in the table of a frame."""
    heading = next(at for at, line in enumerate(lines) if line.startswith("TAG"))
    return [line.split()[0] for line in lines[heading + 1 : -1] if line]


def resized(terminal: Terminal, columns: int, height: int) -> list[str]:
    """Resize the terminal, and return the lines of the first frame of this size."""
    terminal.resizes(columns, height)
    until(lambda: len(frame(terminal)) == height, message=f"{height} lines")
    return frame(terminal)


def happens(client: redis.Redis, text: str, *tags: str) -> None:
    """Put an event into the chronicle."""
    event = Happening(now_ms(), "FenceTripped", tags, 1, text, "host", 1, "")
    client.lpush(chronicle_key("issuer", "events"), line_of(event))


@pytest.fixture
def filled(with_redis: Cli) -> Cli:
    """`cli` with three tags, one of them halted."""
    with_redis("create", "orders", "--step", "100")
    with_redis("create", "users", "--order", "trend", "--step", "200", "--description", "All PEOPLE")
    with_redis("create", "stopped")
    with_redis("next", "orders", "-n", "10")
    with_redis("next", "users", "-n", "30")
    with_redis("halt", "stopped", "--yes")
    return with_redis


def test_once_prints_whether_numbers_are_issued_and_the_tags(filled: Cli, redis_client: redis.Redis) -> None:
    happens(redis_client, "Redis went back", "orders")
    keys = {*redis_client.keys()}
    ended = filled("top", "--once")
    assert (ended.code, ended.err) == (0, "")
    assert {*redis_client.keys()} == keys
    verdict, counts, heading, *rows, _, event = ended.out.splitlines()
    assert verdict.startswith("RISK: Numbers are being issued, but some tags need an operator: 1 halted. Read ")
    assert counts == "3 tags · 1 halted · 2 ok"
    assert " ".join(heading.split()) == "TAG STATE RUNS OUT IN LEFT RATE ORDER STEP RESERVED"
    assert [row.split()[0] for row in rows] == ["stopped", "orders", "users"]
    assert re.search(r"^orders +ok .* █+. +90 .* strict +100  (.+ ago|just now)$", rows[1])
    assert re.search(r" trend +200 ", rows[2])
    assert re.fullmatch(r".+  FenceTripped orders: Redis went back", event)


def test_once_sorts_and_selects(filled: Cli) -> None:
    def tags(*options: str) -> list[str]:
        return [each["tag"] for each in filled("top", "--json", *options).json()["tags"]]

    assert tags("--sort", "name") == ["orders", "stopped", "users"]
    assert tags("--sort", "name", "--limit", "1") == ["orders"]
    assert tags("--state", "halted") == ["stopped"]
    assert tags("--search", "people") == ["users"]
    assert " · 1 chosen" in filled("top", "--once", "--search", "people").out
    assert filled("top", "--sort", "size").code == 2


def test_json_has_the_rows_of_the_board_and_the_health(filled: Cli) -> None:
    found = filled("top", "--json", "--limit", "2").json()
    assert (found["level"], found["total"], found["health"]["complete"]) == ("risk", 3, True)
    assert found["verdict"].startswith("Numbers are being issued, but")
    rows = [TagRow(**each) for each in found["tags"]]
    assert [(row.tag, row.state, row.remaining) for row in rows] == [("stopped", "halted", 0), ("orders", "ok", 90)]
    assert [tuple(each)[1:] for each in rows[1].tail] == [(0, 100)]


def test_once_without_redis_or_store_has_an_exit_code(filled: Cli) -> None:
    without = filled("--redis", "redis://127.0.0.1:1", "top", "--once")
    assert (without.code, without.err) == (5, "")
    assert without.out.startswith("DOWN: Redis does not answer.")
    assert " redis_unavailable since " in without.out
    assert "users" in without.out
    away = ("--redis", "none", "--store", "mongodb://127.0.0.1:1", "top", "--json")
    ended = filled(*away, env={"ISSUER_STORE_TIMEOUT": "0.1"})
    assert (ended.code, ended.out, json.loads(ended.err)["error"]) == (5, "", "StoreUnavailable")


def test_a_board_says_that_not_all_tags_were_read_yet(store: str) -> None:
    with issuer.connect(store=store, redis="none", scheduler=None) as ids, closing(BoardFile("")) as file:
        ids.create_many({f"t{number:04}": {} for number in range(1500)})
        board = Board(ids, file, sort="runway", state=None, search="", limit=2000)
        assert click.unstyle(board.lines(80, 24)[0]) == "RISK: No tags were read yet."
        assert not board.look().complete
        lines = [click.unstyle(line) for line in board.lines(80, 24)]
        assert lines[1] == "1,000 tags so far, not all were read yet · 1,000 unused"
        assert len(lines) < 24
        assert board.look().complete
        assert click.unstyle(board.lines()[1]) == "1,500 tags · 1,500 unused"
        assert len(board.lines()) > 1500


def test_a_bar_and_a_sparkline_show_the_share_and_the_rate(store: str) -> None:
    tail = [TailEntry(4000, 300, 400), TailEntry(3000, 200, 300), TailEntry(1000, 100, 200), TailEntry(0, 0, 100)]
    row = TagRow(tag="t", kind="counter", state="ok", cur=250, end=300, next_cur=300, next_end=400, tail=tail)
    with issuer.connect(store=store, redis="none", scheduler=None) as ids, closing(BoardFile("")) as file:
        file.put([row], 1)
        *_, line = Board(ids, file, sort="name", state=None, search="", limit=9).lines()
        assert "  ████▌  " in line  # 150 of 200 are left
        assert "  █▅█  " in line  # 100 a second, 50, 100


@pytest.mark.live
def test_keys_change_what_is_shown_until_q(filled: Cli, redis_url: str, store: str) -> None:
    assert filled("tags").code == 0
    with Terminal("--redis", redis_url, "--store", store, "top") as terminal:
        lines = shows(terminal, "1 halted")
        assert not terminal.echoes
        assert (len(lines), max(map(width, lines)) <= 80) == (24, True)
        assert "sort: runway" in lines[-1]
        terminal.types("n")
        lines = shows(terminal, "sort: name")
        assert listed(lines) == ["orders", "stopped", "users"]
        terminal.types("x\x1b[Ct")
        shows(terminal, "sort: runway")
        assert "RESERVED" in "\n".join(resized(terminal, 200, 50))
        terminal.types("q")
        assert terminal.ends() == 0
        assert terminal.text.count(ENTER) == terminal.text.count(LEAVE) == 1
        assert terminal.text.endswith(LEAVE)
        assert terminal.echoes


@pytest.mark.live
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_restores_the_terminal(store: str, number: signal.Signals, code: int) -> None:
    with Terminal("--redis", "none", "--store", store, "top") as terminal:
        shows(terminal, "q quit")
        terminal.process.send_signal(number)
        assert terminal.ends() == code
        assert LEAVE in terminal.text
        assert "Traceback" not in terminal.text
        assert terminal.echoes


@pytest.mark.live
def test_a_dumb_terminal_gets_the_table_once(filled: Cli, redis_url: str, store: str) -> None:
    assert filled("tags").code == 0
    with Terminal("--redis", redis_url, "--store", store, "top", env={"TERM": "dumb"}) as terminal:
        assert terminal.ends() in (0, 5)  # on a machine that stands still, Redis may answer too late
        assert "\x1b" not in terminal.text
        assert max(map(width, terminal.text.splitlines())) <= 80
        assert "orders" in terminal.text


@pytest.mark.live
def test_without_colours_it_is_live_all_the_same(filled: Cli, redis_url: str, store: str) -> None:
    assert filled("tags").code == 0
    with Terminal("--redis", redis_url, "--store", store, "top", env={"NO_COLOR": "1"}) as terminal:
        shows(terminal, "orders")
        terminal.types("q")
        assert terminal.ends() == 0
        assert not re.search("\x1b\\[[0-9;]*m", terminal.text)


@pytest.mark.live
def test_names_and_texts_of_others_do_not_break_the_screen(
    with_redis: Cli, redis_url: str, redis_client: redis.Redis, store: str, home: Path
) -> None:
    for tag in ("订单" * 20, "x" * 190, "broken"):
        with_redis("create", tag)
    altered(home, "UPDATE tags SET tag = ? WHERE tag = 'broken'", "evil\x1b[2J\r\n\t\x9b")
    happens(redis_client, "\x1b]0;title\x07\n订单" + "y" * 200, "z" * 100)
    with Terminal("--redis", redis_url, "--store", store, "top") as terminal:
        shows(terminal, "FenceTripped")
        for columns, height in ((80, 24), (33, 9), (10, 4), (200, 50)):
            lines = resized(terminal, columns, height)
            assert max(map(width, lines)) <= columns
        terminal.types("q")
        assert terminal.ends() == 0
        assert "\x1b[2J" not in terminal.text
        assert "\x07" not in terminal.text


@pytest.mark.live
def test_while_redis_is_away_the_last_values_are_shown(
    direct: Cli, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    direct("--redis", server.url, "create", "orders", "--step", "100")
    direct("--redis", server.url, "next", "orders", "-n", "10")
    with Terminal("--redis", server.url, "--store", store, "top", env={"ISSUER_REDIS_TIMEOUT": "1"}) as terminal:
        shows(terminal, "OK: Numbers are being issued.")
        server.kill()
        lines = shows(terminal, "DOWN: Redis does not answer.")
        assert re.search(r"redis_unavailable\s+since\s", "\n".join(lines))
        assert any(re.search(r"^orders +ok .* 90 ", line) for line in lines)
        server.start()
        shows(terminal, "OK: Numbers are being issued.")
        terminal.types("q")
        assert terminal.ends() == 0
        assert "Traceback" not in terminal.text


@pytest.mark.live
def test_over_a_server_it_shows_what_the_token_allows(
    filled: Cli, serve: Serve, home: Path, redis_url: str, store: str
) -> None:
    """The names of the tags do not fit into one request."""
    assert filled("tags").code == 0
    given: dict[str, Any] = {"reader": ["read"], "region": ["reserve"], "drawer": ["issue"]}
    _, known = tokens(home, **{name: (scopes, ["*"]) for name, scopes in given.items()})
    served = serve("--tokens", "tokens.toml", before=("--redis", redis_url, "--store", store))
    url = f"http://127.0.0.1:{served.port()}"

    def seen(name: str) -> Ended:
        return cli_over("top", "--json", "--limit", "1000", env={"ISSUER_TOKEN": known[name]})

    def cli_over(*arguments: str, env: dict[str, str]) -> Ended:
        done = CliRunner().invoke(main, ["--server", url, *arguments], env=env)
        return Ended(done.exit_code, done.stdout, done.stderr)

    env = {"ISSUER_TOKEN": known["reader"]}
    for command in (("tags",), ("inspect", "orders"), ("verify",)):
        assert cli_over(*command, env=env).code == 0, command
    assert "no scope issue" in cli_over("next", "orders", env=env).err
    with issuer.connect(store=store, redis=redis_url, scheduler=None) as ids:
        ids.create_many({"t" * 190 + str(number): {} for number in range(300)})
    found = seen("reader").json()
    assert (found["total"], found["level"]) == (303, "risk")
    rows = {each["tag"]: each for each in found["tags"]}
    assert (rows["orders"]["remaining"], rows["users"]["remaining"]) == (90, 170)
    assert all(each["hashed"] for each in found["tags"])
    found = seen("region").json()
    assert (found["total"], found["tags"][0]["remaining"]) == (303, None)
    assert "unknown: token 'region' has no scope read" in found["verdict"]
    assert (seen("drawer").code, "no scope read or reserve" in seen("drawer").err) == (1, True)
    with Terminal("--server", url, "top", "--search", "orders", env=env) as terminal:
        lines = shows(terminal, " 90 ")
        assert "303 tags" in "\n".join(lines)
        served.stop()
        lines = shows(terminal, "DOWN: Redis and the store do not answer.")
        assert any(" 90 " in line for line in lines)
        terminal.types("q")
        assert terminal.ends() == 0
