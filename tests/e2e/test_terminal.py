"""What a shell and a terminal make of it: pipes, Ctrl-C, colours, widths, completion."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from issuer.cli.numbers import CHUNK
from issuer.cli.text import Column, ago, duration, plain, shortened, stamp, table, width
from tests.e2e.conftest import PROGRAM, Cli, Program, Start
from tests.e2e.terminal import Terminal
from tests.waiting import until

ESCAPE = "\x1b["


# ------------------------------------------------------------------------------------------------ pipes and signals


FRESH = [sys.executable, *PROGRAM]


@pytest.mark.live
def test_a_reader_that_has_enough_ends_it_quietly(home: Path) -> None:
    with subprocess.Popen(
        [*FRESH, "next", "orders", "-n", "1000000"], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.stdout.close()
        assert process.stderr is not None
        assert re.fullmatch("warning: no Redis and no store are named, .*\n", process.stderr.read())


@pytest.mark.live
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_in_order_and_hands_the_tail_back(
    start: Start, program: Program, home: Path, number: signal.Signals, code: int
) -> None:
    """Nothing is lost of a segment but what was on its way to be printed."""
    program("create", "orders", "--step", str(10**9))
    process = start("next", "orders", "-n", "1000000000")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in (home / "talk").read_text()
    printed = [int(line) for line in ("".join(lines) + rest).split()]
    assert max(printed) < int(program("next", "orders").out) <= max(printed) + 1 + CHUNK


@pytest.mark.live
def test_a_hangup_that_is_ignored_ends_nothing(home: Path) -> None:
    """As under nohup."""
    printed = home / "printed"
    command = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *FRESH, "next", "orders", "-n", "1000000000")
    with printed.open("w") as file, subprocess.Popen(command, cwd=home, stdout=file) as process:
        until(lambda: printed.stat().st_size > 0, message="it prints")
        process.send_signal(signal.SIGHUP)
        size = printed.stat().st_size
        until(lambda: printed.stat().st_size > size + 1_000_000, message="it goes on")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


@pytest.mark.live
def test_a_long_draw_has_a_progress_bar_on_the_terminal_unless_the_numbers_go_there(home: Path) -> None:
    numbers = home / "numbers"
    with Terminal("next", "orders", "-n", "100000", out=numbers) as terminal:
        assert terminal.ends() == 0
        assert "100%" in terminal.text
    assert numbers.read_text().split() == [str(number) for number in range(1, 100001)]
    with Terminal("next", "orders", "-n", "3") as terminal:
        assert terminal.ends() == 0
        assert terminal.text == "100001\n100002\n100003\n"


# ------------------------------------------------------------------------------------------------ colours


@pytest.mark.live
def test_colours_are_for_terminals_that_want_them(cli: Cli) -> None:
    cli("next", "orders")
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        for command, code in (("tags", 0), ("show unknown", 3)):
            with Terminal(*command.split(), env=env) as terminal:
                assert terminal.ends() == code
                assert (ESCAPE in terminal.text) is coloured, env
    assert ESCAPE not in cli("tags").out + cli("show", "orders").out + cli("next", "").err


# ------------------------------------------------------------------------------------------------ widths


@pytest.mark.live
def test_tables_fit_the_terminal_and_a_pipe_gets_everything(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "订单" * 30, "--description", "长" * 60, "--start", str(2**63 - 5))
    cli("--store", store, "create", "short", "--description", "x" * 500)
    for columns, command in (
        (80, "tags"), (60, "tags"), (120, "tags"), (60, f"show {'订单' * 30}"), (80, "config"), (60, "lua"),
        (60, "recover --all --dry-run"),
    ):  # fmt: skip
        with Terminal("--store", store, *command.split(), columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ends() == 0
            lines = terminal.text.splitlines()
            assert max(width(line) for line in lines) <= columns, lines
            assert "�" not in terminal.text
    listed = cli("--store", store, "tags").out
    assert "订单" * 30 in listed
    assert "x" * 500 in listed
    assert cli("--store", store, "tags", env={"COLUMNS": "80"}).out == listed


@pytest.mark.live
def test_what_nothing_else_tells_is_wrapped_and_not_cut(cli: Cli, store: str) -> None:
    name, description = "q" * 30, "one for each of the parcels that leave the house, but none for those that come back"
    cli("--store", store, "create", name, "--description", description)
    for command in ("show", "tags"):
        with Terminal("--store", store, command, *([name] if command == "show" else []), columns=60) as terminal:
            assert terminal.ends() == 0
            assert terminal.text.count("q") == len(name)
            assert (description in " ".join(terminal.text.split())) is (command == "show")


def test_columns_line_up_whatever_the_letters_are_wide() -> None:
    text = table([Column("A", flexible=True), Column("N", "right")], [("订单", 5), ("e\u0301te", 12345)], None)
    assert text.splitlines() == ["\x1b[1mA\x1b[0m         \x1b[1mN\x1b[0m", "订单      5", "e\u0301te   12345"]


def test_text_is_cut_by_cells_and_never_within_a_wide_letter() -> None:
    for cut in ("abc 3 abc", "abcd 3 ab…", "订单号 5 订单…", "订单号 4 订…", "订单 4 订单"):
        text, cells, shown = cut.split()
        assert shortened(text, int(cells)) == shown
        assert width(shown) <= int(cells)
    assert shortened("", 3) == ""


def test_a_description_cannot_move_the_cursor_or_turn_the_line_around(cli: Cli, store: str) -> None:
    assert cli("--store", store, "create", "other", "--description", "a\x1b[2Jb\nc").code == 2
    cli("--store", store, "create", "orders", "--description", "c\u202ed")
    for shown in (cli("--store", store, "tags").out, cli("--store", store, "show", "orders").out):
        assert r"c\u202ed" in shown
    assert plain("zürich 订单 e\u0301") == "zürich 订单 e\u0301"


def test_a_length_of_time_is_told_in_its_largest_unit() -> None:
    lengths = (0.25, 59, 60, 7300, 90000, 9e6, float("inf"))
    assert [*map(duration, lengths)] == ["0.2 s", "59 s", "1 min", "2 h", "1 day", "104 days", "for ever"]


def test_times_of_other_clocks_and_impossible_ones_are_told_too() -> None:
    assert ago(1_000_000, 1_000_400) == "just now"
    assert ago(1_000_000, 1_180_000) == "3 min ago"
    assert ago(1_180_000, 1_000_000) == "in 3 min"
    assert stamp(2**63 - 1) == str(2**63 - 1)


# ------------------------------------------------------------------------------------------------ completion


def completed(cli: Cli, words: str) -> list[str]:
    env = {"_ISSUER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = cli(env=env)
    assert done.err == ""
    return [line.removeprefix("plain,") for line in done.out.split()]


def test_tab_completes_commands_and_the_tags_of_the_store(cli: Cli, store: str) -> None:
    for tag in ("orders", "order-lines", "users"):
        cli("--store", store, "create", tag)
    assert completed(cli, "issuer re") == ["recover"]
    assert completed(cli, f"issuer --store {store} next or") == ["order-lines", "orders"]
    assert completed(cli, f"issuer --store {store} show ") == ["order-lines", "orders", "users"]
    assert completed(cli, f"issuer --store {store} create or") == []


def test_tab_without_a_store_is_silent_and_leaves_nothing_behind(cli: Cli, home: Path) -> None:
    for store in ("", "--store ftp://x ", "--store sqlite:///none/ids.db "):
        assert completed(cli, f"issuer {store}next ") == []
    assert list(home.iterdir()) == []


@pytest.mark.live
def test_tab_in_a_process_of_its_own(program: Program) -> None:
    env = {"_ISSUER_COMPLETE": "bash_complete", "COMP_WORDS": "issuer re", "COMP_CWORD": "1"}
    assert program(env=env).out == "plain,recover\n"


def test_the_script_that_switches_completion_on_is_printed(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        ended = cli("completion", shell)
        assert (ended.code, "_ISSUER_COMPLETE" in ended.out) == (0, True)
        assert cli("completion", env={"SHELL": f"/bin/{shell}"}).out == ended.out
    assert cli("completion", env={"SHELL": "/bin/sh"}).code == cli("completion", "powershell").code == 2


@pytest.mark.live
def test_the_program_starts_without_what_only_some_commands_need(home: Path) -> None:
    code = "import sys; from issuer.cli import main; main(['--version'], standalone_mode=False); print(*sys.modules)"
    started = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, check=True)
    assert not {"pymongo", "sqlite3", "fakeredis", "issuer.cli.demo.story"} & set(started.stdout.split())
