"""The command line and schemes: what is refused, and how it looks on a terminal."""

import json
from pathlib import Path

import pytest

from issuer.cli import main
from tests.e2e.conftest import KEYS, Cli, shown
from tests.e2e.terminal import Terminal

# ------------------------------------------------------------------------------------------------ what is refused


#: What is said of each setting is unit/numbers' and unit/test_settings'; here each is named as it is typed.
REFUSED: dict[str, str | None] = {
    "--restart daily --format {date:%Y%m%d}-{seq}": "restart",  # Redis decides when a period ends
    "--timezone Mars/Olympus": "timezone",
    "--format {nothing}": "format",
    "--scramble k9": "scramble",
    "--stride 0": "stride",
    "--stride 2 --offset 3": "offset",
    "--shards --shard-bits 40": "shards",
    "--shards --app 256": "app",
    "--app 0": "app",
    "--shard-bits 4": "--shard-bits",
    "--app-bits 4": "--app-bits",
    "--shards --limit 5": "limit",
    "--cycle": "cycle",
    "--keyed --start 5": "keyed",
    "--strategy nope": "strategy",
    "--strategy=": "strategy",
    "--strategy snowflake --limit js": "limit",
    "--strategy snowflake --order strict": "order",
    "--strategy snowflake --option colour=red": "options",
    "--strategy snowflake --stride 2": "strategy",
    "--limit int33": None,
    "--option a": None,
    "--scramble x=k1": None,
    "--restart hourly": None,
}


def test_a_setting_that_makes_no_sense_is_named_and_makes_no_tag(direct: Cli) -> None:
    for options, setting in REFUSED.items():
        ended = direct("create", "a", *options.split())
        assert (ended.code, "Traceback" in ended.err) == (2, False), options
        assert (f"error: {setting}: " if setting else "error: ") in ended.err, ended.err
    assert direct("tags", "--json").json() == []


def test_a_key_that_is_too_short_is_named_with_where_it_is_from(direct: Cli) -> None:
    for command in (("create", "a", "--scramble", "k1"), ("next", "a")):
        ended = direct(*command, env={"ISSUER_KEYS": "k1=short"})
        assert ended.code == 2
        assert ended.err.startswith("error: keys: key 'k1' is too short: 5 bytes of at least 16 (from ISSUER_KEYS); ")


def test_what_a_tag_has_for_good_is_refused_by_name(direct: Cli) -> None:
    direct("create", "a")
    offered = direct("set", "-h").out
    for options in ("--restart daily", "--keyed", "--shards", "--cycle", "--strategy snowflake"):
        ended, option = direct("set", "a", *options.split()), options.split(maxsplit=1)[0]
        assert ended.code == 2
        assert ended.err.startswith(f"error: {option.removeprefix('--')}: can't be changed")
        assert option not in offered


def test_a_change_that_would_do_nothing_is_refused_by_name(direct: Cli) -> None:
    for tag, made in (("a", ""), ("b", "--stride 2 --offset 1"), ("c", "--scramble k1")):
        assert direct("create", tag, *made.split()).code == 0
        before = direct("tags", "--json").json()
        for option, other in (("--stride-above 9", "stride"), ("--scramble-strict", "scramble")):
            ended = direct("set", tag, *option.split())
            said = f"error: {option.split(maxsplit=1)[0]}: says nothing without {other}\n"
            assert (ended.code, ended.err) == (2, said)
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
    for value in ("0", "-1", "9223372036854775808", "x", "1.5", "\uff11"):
        ended = direct("decode", "a", "--json", "--", value)
        assert ended.code == 2
        assert (json.loads(ended.err)["error"], json.loads(ended.err)["tag"]) == ("NotDecodable", "a")


def test_the_setting_that_is_wrong_is_in_the_json(direct: Cli, home: Path) -> None:
    direct("create", "a", "--scramble", "k1")
    ended = direct("next", "a", "--json", env={})
    assert json.loads(ended.err)["setting"] == "scramble"
    assert (home / "ids.db").exists()


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


def test_the_help_fits_80_columns_and_has_its_options_under_headings(cli: Cli) -> None:
    for command in main.commands:
        lines = cli(command, "-h", env={"COLUMNS": "80"}).out.splitlines()
        assert all(len(line) <= 80 for line in lines), command
        if command in ("create", "set"):
            headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
            assert headings[:4] == [
                *("Options:", "Texts and periods:", "Numbers that don't tell the volume:", "Sites and shards:")
            ]


@pytest.mark.live
def test_sheets_and_tables_fit_80_columns(direct: Cli, store: str) -> None:
    name = "a-tag-with-a-rather-long-name"
    direct("create", name, "--stride", "4000000", "--offset", "7", "--format", "{seq:064d}" + "x" * 90)
    direct("create", "users", "--shards", "--description", "the people who have registered with us since the beginning")
    direct("create", "coupons", "--scramble", "k1")
    for command in ("tags", "tags --all", f"show {name}", "show users#1", "show coupons"):
        with Terminal("--store", store, *command.split(), env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ends() == 0
            assert all(len(line) <= 80 for line in terminal.text.splitlines()), command


def test_tab_completes_options_and_what_they_take(direct: Cli) -> None:
    for words, offered in (
        ("create a --restart ", "monthly"),
        ("create a --timezone Europe/Vi", "Europe/Vienna"),
        ("create a --strategy s", "snowflake"),
        ("create a --scramble k", "k2"),
        ("set a --scramble 100=k", "100=k2"),
        ("create a --limit ", "int32"),
        ("next a --sh", "--shard-key"),
        ("create a --sha", "--shard-bits"),
    ):
        at = str(len(words.split(" ")))
        env = {**KEYS, "_ISSUER_COMPLETE": "bash_complete", "COMP_WORDS": f"issuer {words}", "COMP_CWORD": at}
        assert f"plain,{offered}" in direct(env=env).out.splitlines()
