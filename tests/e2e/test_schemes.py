"""Numbers as people want them, by hand: made, shown, drawn, decoded, changed and deleted on the command line."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.conftest import KEYS, Cli, Program, shown

# ------------------------------------------------------------------------------------------------ texts


@pytest.mark.covers("U.7")
def test_a_format_is_set_shown_drawn_peeked_decoded_changed_and_taken_away(direct: Cli) -> None:
    made = direct("create", "inv", "--start", "98", "--format", "INV-{seq:03d}")
    assert made.err == "made inv: first number 98, step 1000, trend, format INV-{seq:03d}\n"
    assert direct("peek", "inv").out == "INV-098\n"
    assert direct("next", "inv", "--format", "-n", "2").out == "INV-098\nINV-099\n"
    assert shown(direct("show", "inv"))["format"] == "INV-{seq:03d}"
    assert direct("show", "inv", "--json").json()["scheme"] == {"format": "INV-{seq:03d}"}
    by_text = direct("decode", "inv", "INV-098", "--json").json()
    assert (by_text["value"], by_text["counter"]) == (98, 98)
    (entry,) = direct("who", "inv", "98", "--json").json()["entries"]
    assert by_text["reserved"] == [entry]
    assert (entry["low"], by_text["state"]) == (97, "reserved")
    assert direct("decode", "inv", "98", "--json").json() == by_text  # no text of this format is all digits
    assert shown(direct("who", "inv", "INV-098"))["state"] == shown(direct("who", "inv", "98"))["state"] == "reserved"
    assert direct("set", "inv", "--format", "I{seq:05d}").code == 0
    assert direct("next", "inv", "--format").out == "I00100\n"
    assert direct("set", "inv", "--format", "").code == 0
    assert direct("next", "inv", "--format").out == "101\n"
    assert "scheme" not in direct("show", "inv", "--json").json()


def test_a_text_that_could_be_a_number_is_read_as_a_text_unless_told(direct: Cli) -> None:
    direct("create", "dig", "--format", "{seq:04d}{check}")
    assert direct("next", "dig", "--format").out == "00018\n"
    assert shown(direct("decode", "dig", "00018"))["value"] == "1"
    mistyped = direct("decode", "dig", "00019", "--json")
    assert mistyped.code == 2
    assert "check digit" in mistyped.err
    assert "--number" in mistyped.err
    assert shown(direct("decode", "dig", "1", "--number"))["counter"] == "1"
    assert direct("decode", "dig", "one", "--number").code == 2


def test_a_number_with_too_many_digits_is_an_error_that_names_the_tag(direct: Cli) -> None:
    direct("create", "a", "--start", "99", "--format", "N{seq:02d}")
    assert direct("next", "a", "--format").out == "N99\n"
    ended = direct("next", "a", "--format", "--json")
    assert ended.code == 1
    told = json.loads(ended.err)
    assert (told["error"], told["tag"]) == ("FormatOverflow", "a")


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.covers("1.12")
def test_a_stride_is_set_shown_drawn_and_decoded(direct: Cli) -> None:
    made = direct("create", "a", "--stride", "3", "--offset", "2", "--limit", "100", "--step", "5")
    assert made.err == "made a: first number 2, step 5, trend, stride 3: 2, 5, 8, ...\n"
    assert direct("next", "a", "-n", "3").out == "2\n5\n8\n"
    sheet = shown(direct("show", "a"))
    assert (sheet["stride"], sheet["order"]) == ("3: 2, 5, 8, ...", "trend, limit 100")
    assert shown(direct("decode", "a", "8"))["counter"] == "3"
    found = shown(direct("who", "a", "8"))
    assert (found["counter"], found["segment"]) == ("3 of a", "1..3")
    assert direct("who", "a", "8", "--json").json()["value"] == 8
    assert direct("decode", "a", "9").code == direct("who", "a", "9").code == 2
    assert direct("set", "a", "--stride", "10", "--offset", "1", "--stride-above", "40").code == 0
    assert direct("next", "a", "-n", "6").out == "41\n51\n61\n71\n81\n91\n"
    ended = direct("next", "a")
    assert (ended.code, "91 of 100 are reserved" in ended.err) == (1, True)


def test_limits_are_told_as_they_were_set_also_where_the_counter_has_another(direct: Cli) -> None:
    direct("create", "a", "--limit", "10", "--step", "5")
    direct("create", "b", "--step", "5")
    for tag in "ab":
        direct("next", tag)
        changed = direct("set", tag, "--stride", "2", "--offset", "1", "--stride-above", "6")
        assert changed.code == 0, changed.err
        assert ("limit 10" in changed.err, ", limit " in changed.err) == (tag == "a", tag == "a")
    for tag, limit in (("a", 10), ("b", 2**63 - 1)):
        assert direct("show", tag, "--json").json()["limit"] == limit
    assert shown(direct("show", "a"))["order"] == "trend, limit 10"
    assert shown(direct("show", "b"))["order"] == "trend, limit 2^63-1"
    ended = direct("next", "a", "-n", "50")
    assert "9 of 10 are reserved" in ended.err


@pytest.mark.covers("3.3")
def test_keys_are_named_and_never_shown(direct: Cli) -> None:
    made = direct("create", "c", "--start", "100000", "--scramble", "k1")
    assert made.err.startswith("made c: scrambled from 100000 on, step 1000, trend, scramble key k1, fingerprint ")
    number = direct("next", "c").out.strip()
    assert len(number) == 6
    assert number != "100000"
    assert shown(direct("decode", "c", number))["counter"] == "100000"
    assert direct("set", "c", "--scramble", "100000=k1", "--scramble", "1000000=k2").code == 0
    sheet = direct("show", "c")
    assert re.search(r"^scramble     key k1, fingerprint [0-9a-f]{16}$", sheet.out, re.MULTILINE)
    assert re.search(r"^scramble     from 1000000 on key k2, fingerprint [0-9a-f]{16}$", sheet.out, re.MULTILINE)
    for command in (("show", "c"), ("show", "c", "--json"), ("tags", "--json"), ("config",), ("config", "--json")):
        assert "0123456789abcdef" not in direct(*command).out
    without = direct("next", "c", env={})
    assert without.code == 2
    assert without.err.startswith("error: scramble: this process has no key 'k1', none at all: ")


def test_a_cycle_says_that_its_numbers_come_again(direct: Cli) -> None:
    direct("create", "a", "--limit", "3", "--cycle")
    assert direct("next", "a", "-n", "5", "--json").json() == [1, 2, 3, 1, 2]
    assert shown(direct("show", "a"))["cycle"] == "1..3, again and again"
    ended = direct("who", "a", "2")
    assert (ended.code, "come again" in ended.err) == (2, True)


# ------------------------------------------------------------------------------------------------ parts


@pytest.mark.covers("4.4", "4.7")
def test_shards_are_hidden_behind_their_tag(direct: Cli) -> None:
    made = direct("create", "users", "--shards", "--shard-bits", "2", "--app", "0", "--step", "10")
    assert made.err == "made users: step 10, trend, shards 4, app 0; 2 and 8 bits\n"
    direct("create", "plain")
    listed = direct("tags")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["TAG", "plain", "users"]
    assert listed.err == "not shown: 4 parts, which --all shows\n"
    assert "4 parts" in listed.out
    everything = direct("tags", "--all")
    assert (len(everything.out.splitlines()), everything.err) == (7, "")
    assert len(direct("tags", "--json").json()) == 6
    assert shown(direct("show", "users"))["parts"] == "4, as `issuer tags --all` lists them"
    assert direct("show", "users", "--json").json()["parts"] == 4
    ended = direct("next", "users")
    assert (ended.code, "needs a --shard-key" in ended.err) == (2, True)
    told = direct("next", "users", "--shard-key", "alice@example.com", "--json").json()[0]
    found = direct("decode", "users", str(told["value"]), "--json").json()
    assert (found["shard"], found["app"], found["counter"]) == (told["shard"], 0, 1)
    assert found["part"] == f"users#{told['shard']}"
    assert shown(direct("who", "users", str(told["value"])))["counter"] == f"1 of users#{told['shard']}"


def test_a_tag_in_parts_is_changed_halted_verified_recovered_and_deleted_with_them(direct: Cli) -> None:
    direct("create", "users", "--shards", "--shard-bits", "2")
    key = ("--shard-key", "bob")
    part = f"users#{direct('next', 'users', *key, '--json').json()[0]['shard']}"
    assert direct("set", "users", "--step", "7").code == 0
    assert [tag["step"] for tag in direct("tags", "--json").json()] == [7] * 5
    for option, problem in (
        (("--above", "5", "--yes"), "is each part's own: a keyed tag, or one with shards, is in parts"),
        (("--limit", "5"), "can't be changed: its shards have numbers already, made without it"),
        (("--stride", "2"), "can't be changed: its shards have numbers already, made without it"),
    ):
        ended = direct("set", "users", *option)
        setting = option[0].removeprefix("--")
        assert (ended.code, ended.err) == (2, f"error: {setting}: {problem}\n")
    assert direct("halt", "users", "--yes").code == 0
    assert direct("next", "users", *key).code == 4
    assert direct("verify", "users").err == "users is sound\n"
    planned = direct("recover", "users", "--dry-run", "--json").json()
    assert [each["tag"] for each in planned] == ["users", *(f"users#{shard}" for shard in range(4))]
    assert direct("recover", "users", "--at-least", "5", "--yes").code == 2
    assert direct("recover", part, "--at-least", "5000", "--yes").code == 0
    assert direct("recover", "--all", "--yes", "--json").json()[0]["tag"] == "users"
    assert len(direct("recover", "--all", "--dry-run", "--json").json()) == 5
    drawn = direct("next", "users", *key, "--json").json()[0]
    assert drawn["counter"] == 5001
    assert direct("delete", "users", "--yes").code == 0
    assert direct("tags", "--json").json() == []


@pytest.mark.covers("U.6")
def test_a_keyed_tag_has_a_series_for_each_key(direct: Cli) -> None:
    direct("create", "cust", "--keyed", "--format", "{key}-{seq:04d}", "--step", "20", "--order", "trend")
    acme = ("--restart-key", "acme")
    assert direct("peek", "cust", *acme).out == "acme-0001\n"
    assert direct("next", "cust", *acme, "-n", "2", "--format").out == "acme-0001\nacme-0002\n"
    assert direct("next", "cust", "--restart-key", "zeta#1", "--format").out == "zeta#1-0001\n"
    assert shown(direct("show", "cust"))["series"] == "by restart key"
    assert direct("show", "cust", "--json").json()["parts"] == 2
    assert [line.split()[0] for line in direct("tags").out.splitlines()[1:]] == ["cust"]
    assert shown(direct("who", "cust", "acme-0002"))["counter"] == "2 of cust#acme"
    ended = direct("who", "cust", "2", "--number")
    assert (ended.code, "give its text" in ended.err) == (2, True)


def test_the_first_number_of_a_series_is_like_its_tag_even_where_tags_are_made_at_their_first_use(cli: Cli) -> None:
    cli("create", "cust", "--keyed", "--step", "7")
    cli("next", "cust", "--restart-key", "acme")
    assert [tag["step"] for tag in cli("tags", "--json").json()] == [7, 7]


def test_looking_makes_no_tag(cli: Cli) -> None:
    for command in (("peek", "typo"), ("decode", "typo", "5"), ("who", "typo", "5"), ("show", "typo")):
        assert cli(*command).code == 3
    assert cli("tags", "--json").json() == []


# ------------------------------------------------------------------------------------------------ with Redis


@pytest.mark.live
def test_a_period_is_shown_with_its_numbers(both: Cli) -> None:
    year = f"{datetime.now(UTC):%Y}"
    made = both("create", "inv", "--restart", "yearly", "--format", "INV-{date:%Y}-{seq:04d}", "--step", "50")
    assert made.err == (
        "made inv: first number 1, step 50, strict, format INV-{date:%Y}-{seq:04d}, restart yearly in UTC\n"
    )
    assert both("peek", "inv").out == both("next", "inv", "--format").out == f"INV-{year}-0001\n"
    both("next", "inv")
    sheet = shown(both("show", "inv"))
    assert (sheet["period"], sheet["restart"]) == (f"{year} at present", "yearly in UTC")
    assert sheet["order"] == "strict, limit 2^40-1 in each period"
    assert sheet["redis"] == f"cur    2 of {year}"
    assert f"\nbuffer 1     3..50 of {year}, 48 left, extends at 10\n" in both("show", "inv").out
    assert both("show", "inv", "--json").json()["period"] == year
    assert f"50 of {year}" in both("tags").out
    found = both("decode", "inv", f"INV-{year}-0002", "--json").json()
    assert (found["value"], found["period"], found["date"]) == (2, year, f"{year}-01-01")
    assert shown(both("who", "inv", f"INV-{year}-0002"))["state"] == "reserved; issued, or lost in a gap"
    bare = both("who", "inv", "2")
    assert (bare.code, "which tells the period" in bare.err) == (2, True)
    assert "counter   unknown: each period has that number; give its text" in both("decode", "inv", "2").out
    assert both("set", "inv", "--timezone", "Europe/Vienna").code == 2
    assert both("verify", "--all").code == both("recover", "--all", "--yes").code == 0
    assert both("next", "inv", "--format").out == f"INV-{year}-0051\n"
    assert "tag-limit" not in both("doctor", "--json").out


@pytest.mark.live
@pytest.mark.covers("N.3")
def test_a_key_has_its_number_whenever_it_is_asked_for(both: Cli) -> None:
    both("create", "orders")
    assert both("next", "orders", "--key", "order-778").out == "1\n"
    assert both("next", "orders").out == "2\n"
    assert both("next", "orders", "--key", "order-778", "--ttl", "60").out == "1\n"
    assert both("next", "orders", "--key", "order-778", "-n", "2").code == 2


@pytest.mark.live
def test_a_snowflake_number_says_when_and_where_it_was_made(both: Cli) -> None:
    made = both(
        *("create", "snow", "--strategy", "snowflake", "--option", "epoch=2026-01-01"),
        *("--option", "machine_bits=6", "--option", "sequence_bits=16"),
    )
    assert made.code == 0, made.err
    number = both("next", "snow").out.strip()
    sheet = shown(both("show", "snow"))
    assert sheet["layout"] == "41 bits time, 6 machine, 16 sequence"
    assert (sheet["epoch"], sheet["ends"][:10]) == ("2026-01-01", "2095-09-07")
    assert "redis" not in sheet
    layout = both("show", "snow", "--json").json()["layout"]
    assert layout["ends"] == layout["epoch"] + 2**41
    found = both("decode", "snow", number, "--json").json()
    assert abs(found["timestamp"] / 1000 - datetime.now(UTC).timestamp()) < 60
    assert 0 <= found["machine"] < 64
    assert made.err.startswith("made snow: trend, strategy snowflake, ")
    assert sheet["order"] == "trend"
    assert not {"step", "lease", "store max"} & sheet.keys()
    counters = {"max", "step", "limit", "lease", "ahead"}
    as_json = both("show", "snow", "--json").json()
    assert not counters & (as_json.keys() | as_json["store"].keys() | both("tags", "--json").json()[0].keys())
    assert both("tags").out.splitlines()[1].split()[:3] == ["snow", "trend", "snowflake"]
    assert both("set", "snow", "--description", "flakes").err.startswith("changed snow: trend, strategy snowflake, ")
    assert found["sequence"] >= 0
    assert shown(both("decode", "snow", number))["time"].startswith(f"{datetime.now(UTC):%Y-%m-}")
    for command in (("peek", "snow"), ("who", "snow", number), ("next", "snow", "--key", "k")):
        assert both(*command).code == 2
    assert both("doctor", "--json").code == 0
    assert both("verify").code == 0
    refused = both("decode", "snow", str(2**63 - 1))
    assert refused.code == 0, "41 + 6 + 16 bits are 63"


@pytest.mark.live
@pytest.mark.parametrize(("machine", "holder"), [("redis", r"issuer\.0\.\d+"), ("store", r"\S+, pid \d+")])
def test_a_snowflake_number_says_who_has_its_machine_number(both: Cli, machine: str, holder: str) -> None:
    assert both("create", "snow", "--strategy", "snowflake", "--option", f"machine={machine}").code == 0
    number = both("next", "snow").out.strip()
    assert re.fullmatch(holder, shown(both("decode", "snow", number))["holder"])
    assert re.fullmatch(holder, both("decode", "snow", number, "--json").json()["holder"])


def test_a_snowflake_machine_may_be_fixed_and_number_0_is_shown(direct: Cli, home: Path) -> None:
    env = {**KEYS, "ISSUER_MACHINE": "0", "ISSUER_MACHINE_FILES": str(home)}
    assert direct("create", "snow", "--strategy", "snowflake", env=env).code == 0
    number = direct("next", "snow", env=env).out.strip()
    found = direct("decode", "snow", number, "--json").json()
    assert (found["machine"], found.get("holder")) == (0, None)
    assert re.search(r"^machine +0 +ISSUER_MACHINE$", direct("config", env=env).out, re.MULTILINE)
    assert re.search(r"^machine +none +default$", direct("config").out, re.MULTILINE)


def test_a_snowflake_tag_that_finds_no_machine_numbers_says_so_when_it_is_made(program: Program, store: str) -> None:
    made = program("--store", store, "create", "snow", "--strategy", "snowflake", "--option", "machine=redis")
    drawn = program("--store", store, "next", "snow")
    assert (made.code, drawn.code, drawn.out) == (0, 2, "")
    assert made.err.startswith("warning: tag 'snow' is made, but this process can give no number of it: ")
    for said in (made.err, drawn.err):
        assert all(
            way in said for way in ("none is set", "name Redis", "machine=store", "ISSUER_MACHINE", "machine=fixed")
        )
    # Where nothing is said, they come from where they can.
    assert program("--store", store, "create", "plain", "--strategy", "snowflake").err.startswith("made plain")
    assert program("--store", store, "next", "plain").code == 0
