"""What a shell and a terminal make of it: pipes, Ctrl-C, colours, widths, completion."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

import issuer
from issuer.care.results import Outcome
from issuer.cli import exits, main
from issuer.cli.commands.next import CHUNK
from issuer.cli.session import MANY, with_progress
from issuer.terminal import (
    Column,
    ago,
    moment,
    plain,
    shortened,
    show_json,
    show_json_list,
    stamp_ms,
    stamp_utc,
    table,
    width,
)
from issuer.times import lasting, utc
from tests.cli.conftest import KEYS, PROGRAM, Cli, Program, Start
from tests.cli.terminal import Terminal, answered
from tests.reference import COMMANDS
from tests.waiting import until

ESCAPE = "\x1b["


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
        assert re.fullmatch("warning: no Redis and no store are configured, .*\n", process.stderr.read())
        assert process.wait(60) == 141  # as if SIGPIPE had ended it


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
    assert ("interrupted" in (home / "talk").read_text()) is (number == signal.SIGINT)
    printed = [int(line) for line in ("".join(lines) + rest).split()]
    assert max(printed) < int(program("next", "orders").out) <= max(printed) + 1 + CHUNK


@pytest.mark.live
def test_a_hangup_that_is_ignored_ends_nothing(home: Path) -> None:
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


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_progress_bar_that_is_interrupted_shows_the_cursor_again(
    monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def outcomes() -> Iterator[Outcome[int]]:
        for number in range(3):
            yield Outcome(f"t{number}", MANY, number, None)
        raise end

    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as seen, os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(end):
            list(with_progress(outcomes(), "verifying"))
        print("end", file=terminal, flush=True)
        text = ""
        while "end" not in text:
            text += seen.read(10_000).decode()
        _, hidden, after = text.rpartition(f"{ESCAPE}?25l")
        assert (hidden, f"{ESCAPE}?25h" in after) == (f"{ESCAPE}?25l", True)


@pytest.mark.live
def test_colours_are_for_terminals_that_want_them(cli: Cli) -> None:
    cli("next", "orders")
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        for command, code in (("tags", 0), ("inspect unknown", 3)):
            with Terminal(*command.split(), env=env) as terminal:
                assert terminal.ends() == code
                assert (ESCAPE in terminal.text) is coloured, env
    assert ESCAPE not in cli("tags").out + cli("inspect", "orders").out + cli("next", "").err


@pytest.mark.live
def test_tables_and_sheets_fit_the_terminal_and_a_pipe_gets_everything(direct: Cli, store: str) -> None:
    told = "one for each of the parcels that leave the house, but none for those that come back"
    direct("create", "订单" * 30, "--description", "长" * 60, "--start", str(2**63 - 5))
    direct("create", "short", "--description", "x" * 500)
    direct("create", "q" * 30, "--description", told)

    def seen(columns: int, *commands: str) -> str:
        text = ""
        for command in commands:
            with Terminal("--store", store, *command.split(), columns=columns, env={"NO_COLOR": "1"}) as terminal:
                assert terminal.ends() == 0
                text = terminal.text
            assert max(map(width, text.splitlines())) <= columns, text
            assert "�" not in text
        return text

    seen(60, "tags", f"inspect {'订单' * 30}", "recover --all --dry-run")
    sheet = seen(60, f"inspect {'q' * 30}")  # what nothing else tells is wrapped and not cut
    assert (sheet.count("q"), told in " ".join(sheet.split())) == (30, True)
    direct("create", "a" * 30, "--stride", "4000000", "--offset", "7", "--format", "{seq:064d}" + "x" * 90)
    direct("create", "users", "--shards", "shard_bits=1", "--description", told)
    direct("create", "coupons", "--scramble", "k1")
    for columns in (60, 80):
        seen(
            columns,
            "tags",
            "tags --all",
            "config",
            f"inspect {'a' * 30}",
            "inspect users#1",
            "inspect coupons",
            "chaos --list",
        )
    direct("create", "snow", "--strategy", "snowflake", "--option", "machine=store")
    direct("next", "short")
    direct("next", "snow", env={"ISSUER_APPLICATION": "billing-" * 8})
    for columns in (60, 80):
        seen(columns, "machines snow", "who short 1", "verify")
    listed = direct("tags").out
    assert "订单" * 30 in listed
    assert "x" * 500 in listed
    until(lambda: direct("tags", env={"COLUMNS": "80"}).out == direct("tags").out, 60, "both tell the same ages")


@pytest.mark.live
def test_before_a_tag_is_deleted_its_parts_are_counted(direct: Cli, store: str) -> None:
    direct("create", "users", "--shards", "shard_bits=1")
    direct("create", "plain")
    for tag, question in (("users", "Delete users and its 2 parts?"), ("plain", "Delete plain?")):
        assert answered(question, "n\n", "--store", store, "delete", tag) == 1
    assert len(direct("tags", "--json").json()) == 4


def test_the_help_fits_a_screen_and_names_every_command(cli: Cli) -> None:
    assert cli("--version").out.split() == ["issuer", issuer.__version__]
    text = cli("--help", env={"COLUMNS": "80"}).out
    assert len(text.splitlines()) <= 41
    assert len(COMMANDS) <= 26
    assert len([each for each in COMMANDS["create"].params if isinstance(each, click.Option)]) <= 26
    page = (Path(__file__).resolve().parents[2] / "docs/reference/command-line.md").read_text(encoding="utf-8")
    codes = {code for name, code in vars(exits).items() if name.isupper() and isinstance(code, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes
    for command in COMMANDS:
        assert re.search(rf"^  [A-Z ][a-z ]+  {command} ", text, re.MULTILINE), command
        if command in {"create", "configure"}:
            lines = cli(command, "-h").out.splitlines()
            headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
            assert headings[:4] == ["Options:", "Texts and periods:", "Scrambled numbers:", "Sites and shards:"]


@pytest.mark.parametrize("command", [*COMMANDS])
def test_a_help_fits_80_columns_on_any_terminal_and_has_two_examples_that_can_be_typed(
    cli: Cli, home: Path, command: str
) -> None:
    for file in ("issuer.journal", "tags.csv"):
        (home / file).touch()
    text = cli(command, "-h", env={"COLUMNS": "80"}).out
    assert text == cli(command, "-h", env={"COLUMNS": "200"}).out
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(r"^    (issuer .*)$", text.partition("  Examples:\n")[2], re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        _, *typed = takewhile(lambda word: word not in {"|", ">", ">>"}, shlex.split(example, comments=True))
        at, name = next((at, word) for at, word in enumerate(typed) if word in COMMANDS)
        assert command == name, example
        COMMANDS[name].make_context(name, typed[at + 1 :], parent=main.make_context("issuer", typed))


def test_a_row_that_is_too_wide_for_columns_is_a_block_of_lines() -> None:
    columns = [Column("TAG", flexible=True), Column("OLD", "right"), Column("NEW", "right"), Column("GAP", "right")]
    row = ("invoices" * 3, "9223372036854774807 in 2026-11-25", "9223372036854775807 in 2026-11-26", "1,000")
    assert click.unstyle(table(columns, [row, ("users", 1, 2, "1")], 60)).splitlines() == [
        "invoicesinvoicesinvoices", "  OLD  9223372036854774807 in 2026-11-25",
        "  NEW  9223372036854775807 in 2026-11-26", "  GAP  1,000", "users", *("  OLD  1", "  NEW  2", "  GAP  1"),
    ]  # fmt: skip


def test_a_list_is_the_same_json_whether_it_is_written_at_once_or_item_by_item(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for items in ([], [1], [{"a": "x\u2028y\nz\x85", "b": []}, {"c": {"d": [1, "\\n"]}}]):
        show_json(items)
        at_once = capsys.readouterr().out
        show_json_list(iter(items))
        assert capsys.readouterr().out == at_once


def test_columns_line_up_whatever_the_letters_are_wide() -> None:
    text = table([Column("A", flexible=True), Column("N", "right")], [("订单", 5), ("e\u0301te", 12345)], None)
    assert text.splitlines() == ["\x1b[1mA\x1b[0m         \x1b[1mN\x1b[0m", "订单      5", "e\u0301te   12345"]


def test_text_is_cut_by_cells_and_never_within_a_wide_letter() -> None:
    for cut in ("abc 3 abc", "abcd 3 ab…", "订单号 5 订单…", "订单号 4 订…", "订单 4 订单"):
        text, cells, shown = cut.split()
        assert shortened(text, int(cells)) == shown
        assert width(shown) <= int(cells)
    assert shortened("", 3) == ""


def test_a_description_cannot_turn_the_line_around(direct: Cli) -> None:
    direct("create", "orders", "--description", "c\u202ed")
    for shown in (direct("tags").out, direct("inspect", "orders").out):
        assert r"c\u202ed" in shown
    assert plain("zürich 订单 e\u0301") == "zürich 订单 e\u0301"


def test_times_are_told_in_their_largest_units_and_impossible_ones_too() -> None:
    lengths = (6e-5, 0.25, 9.96, 59.6, 3600, 7300, 90000, 9e6, 1795572528.956, float("inf"))
    told = ["0.001 s", "0.25 s", "10 s", "1 min", "1 h", "2 h 1 min", "1 day 1 h", "104 days 4 h", "56 years 342 days"]
    assert [*map(lasting, lengths)] == [*told, "for ever"]
    assert [lasting(each, 1) for each in lengths[5:8]] == ["2 h", "1 day", "104 days"]
    assert [utc(1795572528956), utc(2**63 - 1)] == ["2026-11-25T02:08:48Z", str(2**63 - 1)]
    ages = [ago(1_000_000, now) for now in (1_000_400, 1_180_000, 820_000)]
    assert ages == ["just now", "3 min ago", "in 3 min"]
    assert (ago(0, 1_000_000), moment(0, 1_000_000)) == ("never", "never")
    assert moment(1795572528956, 1795572528956) == "2026-11-25T02:08:48Z, just now"
    assert stamp_ms(1795572528056) == "2026-11-25T02:08:48.056Z"
    assert [stamp_utc(each) for each in (0, 1000, 2**63 - 1)] == [
        *("1970-01-01", "1970-01-01T00:00:01Z", "after the year 9999")
    ]


def completed(cli: Cli, words: str) -> list[str]:
    at = str(len(words.split(" ")) - 1)
    done = cli(env={**KEYS, "_ISSUER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": at})
    assert done.err == ""
    return [line.removeprefix("plain,") for line in done.out.split()]


def test_tab_completes_commands_tags_options_and_what_they_take(cli: Cli, store: str, home: Path) -> None:
    for tag in ("orders", "order-lines", "users"):
        cli("--store", store, "create", tag)
    before = list(home.iterdir())
    assert completed(cli, "issuer re") == ["recover"]
    assert completed(cli, f"issuer --store {store} next or") == ["order-lines", "orders"]
    assert completed(cli, f"issuer --store {store} next orders") == ["orders"]
    assert completed(cli, f"issuer --store {store} inspect ") == ["order-lines", "orders", "users"]
    assert completed(cli, f"issuer --store {store} create or") == []
    for words, offered in (
        ("create a --restart ", "monthly"),
        ("create a --timezone Europe/Vi", "Europe/Vienna"),
        ("create a --strategy s", "snowflake"),
        ("create a --scramble k", "k2"),
        ("configure a --scramble 100=k", "100=k2"),
        ("create a --limit ", "int32"),
        ("next a --sh", "--shard-key"),
    ):
        assert offered in completed(cli, f"issuer {words}")
    for nowhere in ("", "--store ftp://x ", "--store sqlite:///none/ids.db "):
        assert completed(cli, f"issuer {nowhere}next ") == []
    assert list(home.iterdir()) == before


@pytest.mark.live
def test_the_program_starts_without_what_only_some_commands_need(home: Path) -> None:
    code = "import sys; from issuer.cli import main; main(['--version'], standalone_mode=False); print(*sys.modules)"
    started = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, check=True)
    assert not {"pymongo", "sqlite3", "fakeredis", "issuer.chaos.demo"} & set(started.stdout.split())
