"""The command line and schemes: what is refused, and how it looks on a terminal."""

import json
from pathlib import Path

import pytest

from issuer.cli import main
from persistence.sqlite import SQLiteStore
from tests.e2e.conftest import KEYS, Cli, shown
from tests.e2e.terminal import Terminal

# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ("--restart daily --format {date:%Y%m%d}-{seq}", "restart"),  # Redis decides when a period ends
        ("--timezone Mars/Olympus", "timezone"),
        ("--format {nothing}", "format"),
        ("--format {seq:06d}{key}", "format"),
        ("--scramble k9", "scramble"),
        ("--stride 0", "stride"),
        ("--stride 2 --offset 3", "offset"),
        ("--offset 3", "offset"),
        ("--shards --shard-bits 40", "shards"),
        ("--shards --app 256", "app"),
        ("--app 5", "app"),
        ("--app 0", "app"),
        ("--shard-bits 4", "--shard-bits"),
        ("--app-bits 4", "--app-bits"),
        ("--shards --stride 2", "shards"),
        ("--shards --limit 5", "limit"),
        ("--cycle", "cycle"),
        ("--cycle --limit 5 --stride 2", "cycle"),
        ("--strategy nope", "strategy"),
        ("--strategy=", "strategy"),
        ("--strategy snowflake --limit js", "limit"),
        ("--strategy snowflake --order strict", "order"),
        ("--strategy snowflake --option colour=red", "options"),
        ("--strategy snowflake --option time_bits=60", "options"),
        ("--strategy snowflake --option epoch=2999-01-01", "options"),
        ("--strategy snowflake --option machine=guessed", "options"),
        ("--strategy snowflake --stride 2", "strategy"),
        ("--limit int33", None),
        ("--option a", None),
        ("--scramble x=k1", None),
        ("--restart hourly", None),
    ],
)
def test_a_setting_that_makes_no_sense_is_named_and_makes_no_tag(
    direct: Cli, options: str, setting: str | None
) -> None:
    ended = direct("create", "a", *options.split())
    assert ended.code == 2
    assert "Traceback" not in ended.err
    if setting is not None:
        assert ended.err.startswith(f"error: {setting}: ")
    assert direct("tags", "--json").json() == []


@pytest.mark.parametrize("command", [("create", "a", "--scramble", "k1"), ("next", "a")])
def test_a_key_that_is_too_short_is_named_with_where_it_is_from(direct: Cli, command: tuple[str, ...]) -> None:
    ended = direct(*command, env={"ISSUER_KEYS": "k1=short"})
    assert ended.code == 2
    assert ended.err.startswith("error: keys: key 'k1' is too short: 5 bytes of at least 16 (from ISSUER_KEYS); ")


@pytest.mark.parametrize("option", ["--restart daily", "--keyed", "--shards", "--cycle", "--strategy snowflake"])
def test_what_a_tag_has_for_good_is_refused_by_name(direct: Cli, option: str) -> None:
    direct("create", "a")
    ended = direct("set", "a", *option.split())
    assert ended.code == 2
    assert ended.err.startswith(f"error: {option.split(maxsplit=1)[0].removeprefix('--')}: can't be changed")
    assert option.split(maxsplit=1)[0] not in direct("set", "-h").out


@pytest.mark.parametrize("made", ["", "--stride 2 --offset 1", "--scramble k1"])
@pytest.mark.parametrize(("option", "other"), [("--stride-above 9", "stride"), ("--scramble-strict", "scramble")])
def test_a_change_that_would_do_nothing_is_refused_by_name(direct: Cli, made: str, option: str, other: str) -> None:
    assert direct("create", "a", *made.split()).code == 0
    before = direct("tags", "--json").json()
    ended = direct("set", "a", *option.split())
    assert (ended.code, ended.err) == (2, f"error: {option.split(maxsplit=1)[0]}: says nothing without {other}\n")
    assert direct("tags", "--json").json() == before


def test_a_number_that_nobody_has_reserved_says_so(direct: Cli) -> None:
    direct("create", "a")
    direct("next", "a")
    assert shown(direct("decode", "a", "1"))["state"] == "reserved"
    assert shown(direct("decode", "a", "99"))["state"] == "not reserved yet, as the store's max is 1"
    assert direct("decode", "a", "99", "--json").json()["state"].startswith("not reserved yet")
    for value, problem in (("0", "0 is below 1"), ("9" * 20, f"{'9' * 20} is above 2^63-1")):
        for number in ((), ("--number",)):
            assert problem in direct("decode", "a", value, *number).err


@pytest.mark.parametrize("value", ["0", "-1", "9223372036854775808", "x", "1.5", "\uff11"])
def test_what_is_no_number_of_the_tag_doesn_t_decode(direct: Cli, value: str) -> None:
    direct("create", "a")
    ended = direct("decode", "a", "--json", "--", value)
    assert ended.code == 2
    assert (json.loads(ended.err)["error"], json.loads(ended.err)["tag"]) == ("NotDecodable", "a")


def test_the_setting_that_is_wrong_is_in_the_json(direct: Cli, home: Path) -> None:
    direct("create", "a", "--scramble", "k1")
    ended = direct("next", "a", "--json", env={})
    assert json.loads(ended.err)["setting"] == "scramble"
    assert (home / "ids.db").exists()


def test_a_store_knows_a_scheme_that_another_program_reads(direct: Cli, home: Path) -> None:
    direct("create", "a", "--stride", "2", "--offset", "1", "--format", "A{seq}")
    store = SQLiteStore(str(home / "ids.db"))
    try:
        record = store.get("a", timeout=5)
    finally:
        store.close()
    assert record is not None
    assert record.scheme["format"] == "A{seq}"
    assert [dict(piece) for piece in record.scheme["stride"]] == [{"from": 1, "first": 1, "stride": 2}]


# ------------------------------------------------------------------------------------------------ the terminal


@pytest.mark.live
def test_before_a_tag_is_deleted_its_parts_are_counted(direct: Cli, store: str) -> None:
    direct("create", "users", "--shards", "--shard-bits", "1")
    direct("create", "plain")
    for tag, question in (("users", "Delete users and its 2 parts?"), ("plain", "Delete plain?")):
        with Terminal("--store", store, "delete", tag) as terminal:
            terminal.shows(question)
            terminal.types("n\n")
            assert terminal.ends() == 1
    assert len(direct("tags", "--json").json()) == 4


def test_a_series_begins_at_1(direct: Cli) -> None:
    ended = direct("create", "cust", "--keyed", "--start", "5")
    assert (ended.code, ended.err.startswith("error: keyed: ")) == (2, True)


@pytest.mark.parametrize("command", sorted(main.commands))
def test_the_help_fits_80_columns_and_has_its_options_under_headings(cli: Cli, command: str) -> None:
    text = cli(command, "-h", env={"COLUMNS": "80"}).out
    assert all(len(line) <= 80 for line in text.splitlines())
    if command in ("create", "set"):
        headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert headings[:4] == [
            *("Options:", "Texts and periods:", "Numbers that don't tell the volume:", "Sites and shards:")
        ]


@pytest.mark.live
def test_sheets_and_tables_fit_80_columns(direct: Cli, store: str) -> None:
    direct(
        "create",
        "a-tag-with-a-rather-long-name",
        "--stride",
        "4000000",
        "--offset",
        "7",
        "--format",
        "{seq:064d}" + "x" * 90,
    )
    direct("create", "users", "--shards", "--description", "the people who have registered with us since the beginning")
    direct("create", "coupons", "--scramble", "k1")
    names = ("a-tag-with-a-rather-long-name", "users", "users#1", "coupons")
    for command in (("tags",), ("tags", "--all"), *(("show", name) for name in names)):
        with Terminal("--store", store, *command, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ends() == 0
            assert all(len(line) <= 80 for line in terminal.text.splitlines()), command


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("create a --restart ", "monthly"),
        ("create a --timezone Europe/Vi", "Europe/Vienna"),
        ("create a --strategy s", "snowflake"),
        ("create a --scramble k", "k2"),
        ("set a --scramble 100=k", "100=k2"),
        ("create a --limit ", "int32"),
        ("next a --sh", "--shard-key"),
        ("create a --sha", "--shard-bits"),
    ],
)
def test_tab_completes_options_and_what_they_take(direct: Cli, words: str, offered: str) -> None:
    split = words.split(" ")
    env = {**KEYS, "_ISSUER_COMPLETE": "bash_complete", "COMP_WORDS": f"issuer {words}", "COMP_CWORD": str(len(split))}
    assert f"plain,{offered}" in direct(env=env).out.splitlines()
