"""Numbers as people want them, by hand: made, shown, drawn, decoded, changed and deleted on the command line."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from issuer_persistence.records import now_ms
from tests.cli.conftest import Cli, shown
from tests.cli.terminal import answered


@pytest.mark.covers("U.7")
def test_a_format_is_set_shown_drawn_peeked_decoded_changed_and_taken_away(direct: Cli) -> None:
    made = direct("create", "inv", "--start", "98", "--format", "INV-{seq:03d}")
    assert made.err == "made inv: first number 98, step 1000, trend, format INV-{seq:03d}\n"
    assert direct("peek", "inv").out == "INV-098\n"
    assert direct("next", "inv", "--text", "-n", "2").out == "INV-098\nINV-099\n"
    assert shown(direct("inspect", "inv"))["format"] == "INV-{seq:03d}"
    assert direct("inspect", "inv", "--json").json()["scheme"] == {"format": "INV-{seq:03d}"}
    by_text = direct("decode", "inv", "INV-098", "--json").json()
    assert (by_text["value"], by_text["counter"], by_text["state"]) == (98, 98, "reserved")
    (entry,) = direct("who", "inv", "98", "--json").json()["entries"]
    assert by_text["reserved"] == [entry]
    assert direct("decode", "inv", "98", "--json").json() == by_text  # no text of this format is all digits
    assert shown(direct("who", "inv", "INV-098"))["state"] == "reserved"
    direct("configure", "inv", "--format", "I{seq:02d}")
    assert direct("next", "inv", "--text", "--json").code == 1  # too many digits
    assert json.loads(direct("next", "inv", "--text", "--json").err)["error"] == "FormatOverflow"
    direct("configure", "inv", "--format", "")
    assert direct("next", "inv", "--text").out == "102\n"
    assert "scheme" not in direct("inspect", "inv", "--json").json()


def test_a_text_that_could_be_a_number_is_read_as_a_text_unless_told(direct: Cli) -> None:
    direct("create", "dig", "--format", "{seq:04d}{check}")
    assert direct("next", "dig", "--text").out == "00018\n"
    assert shown(direct("decode", "dig", "00018"))["value"] == "1"
    mistyped = direct("decode", "dig", "00019", "--json")
    assert mistyped.code == 2
    assert "check digit" in mistyped.err
    assert "--number" in mistyped.err
    assert shown(direct("decode", "dig", "1", "--number"))["counter"] == "1"
    unreserved = direct("decode", "dig", "99", "--number", "--json").json()
    assert unreserved["state"] == "not reserved yet, as the store's max is 1"
    for value in ("0", "9223372036854775808", "x", "\uff11"):
        ended = direct("decode", "dig", "--number", "--json", "--", value)
        assert (ended.code, json.loads(ended.err)["error"]) == (2, "NotDecodable")


@pytest.mark.covers("1.12")
def test_a_stride_is_set_shown_drawn_and_decoded(direct: Cli) -> None:
    made = direct("create", "a", "--stride", "3", "--offset", "2", "--limit", "100", "--step", "5")
    assert made.err == "made a: first number 2, step 5, trend, stride 3: 2, 5, 8, ...\n"
    assert direct("next", "a", "-n", "3").out == "2\n5\n8\n"
    sheet = shown(direct("inspect", "a"))
    assert (sheet["stride"], sheet["order"]) == ("3: 2, 5, 8, ...", "trend, limit 100")
    assert shown(direct("decode", "a", "8"))["counter"] == "3"
    found = shown(direct("who", "a", "8"))
    assert (found["counter"], found["segment"]) == ("3 of a", "1..3")
    assert direct("decode", "a", "9").code == direct("who", "a", "9").code == 2
    changed = direct("configure", "a", "--stride", "10", "--offset", "1", "--above", "40", "--yes")
    assert (changed.code, "limit 100" in changed.err) == (0, True)  # as it was set, though the counter has another
    assert direct("inspect", "a", "--json").json()["limit"] == 100
    assert direct("next", "a", "-n", "6").out == "41\n51\n61\n71\n81\n91\n"
    ended = direct("next", "a")
    assert (ended.code, "91 of 100 are reserved" in ended.err) == (1, True)


@pytest.mark.covers("3.3")
def test_keys_are_named_and_never_shown(direct: Cli) -> None:
    made = direct("create", "c", "--start", "100000", "--scramble", "k1")
    assert made.err.startswith("made c: scrambled from 100000 on, step 1000, trend, scramble key k1, fingerprint ")
    number = direct("next", "c").out.strip()
    assert (len(number), number == "100000") == (6, False)
    assert shown(direct("decode", "c", number))["counter"] == "100000"
    assert direct("configure", "c", "--scramble", "100000=k1", "--scramble", "1000000=k2").code == 0
    sheet = direct("inspect", "c")
    assert re.search(r"^scramble     key k1, fingerprint [0-9a-f]{16}$", sheet.out, re.MULTILINE)
    assert re.search(r"^scramble     from 1000000 on key k2, fingerprint [0-9a-f]{16}$", sheet.out, re.MULTILINE)
    for command in (("inspect", "c"), ("inspect", "c", "--json"), ("tags", "--json")):
        assert "0123456789abcdef" not in direct(*command).out
    without = direct("next", "c", env={})
    assert without.code == 2
    assert without.err.startswith("error: scramble: this process has no key 'k1', none at all: ")
    assert json.loads(direct("next", "c", "--json", env={}).err)["setting"] == "scramble"
    short = direct("next", "c", env={"ISSUER_KEYS": "k1=short"})
    assert short.err.startswith("error: keys: key 'k1' is too short: 5 bytes of at least 16 (from ISSUER_KEYS); ")


@pytest.mark.covers("4.4", "4.7")
def test_shards_are_hidden_behind_their_tag_and_changed_and_recovered_with_it(direct: Cli) -> None:
    made = direct("create", "users", "--shards", "shard_bits=2", "--shards", "app=0", "--step", "10")
    assert made.err == "made users: step 10, trend, shards 4, app 0; 2 and 8 bits\n"
    listed = direct("tags")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["TAG", "users"]
    assert ("4 parts" in listed.out, listed.err) == (True, "not shown: 4 parts; --all shows them\n")
    everything = direct("tags", "--all")
    assert (len(everything.out.splitlines()), everything.err) == (6, "")
    assert shown(direct("inspect", "users"))["parts"] == "4; `issuer tags --all` lists them"
    assert direct("inspect", "users", "--json").json()["parts"] == 4
    ended = direct("next", "users")
    assert (ended.code, "--shard-key is required" in ended.err) == (2, True)
    key = ("--shard-key", "alice@example.com")
    told = direct("next", "users", *key, "--json").json()[0]
    part = f"users#{told['shard']}"
    found = direct("decode", "users", str(told["value"]), "--json").json()
    assert [found[name] for name in ("shard", "app", "counter", "part")] == [told["shard"], 0, 1, part]
    assert shown(direct("who", "users", str(told["value"])))["counter"] == f"1 of {part}"

    assert direct("configure", "users", "--step", "7").code == 0
    assert [tag["step"] for tag in direct("tags", "--json").json()] == [7] * 5
    for option, problem in (
        (
            ("--above", "5", "--yes"),
            "cannot be set for a tag with shards or a keyed tag, because each part has its own",
        ),
        (("--limit", "5"), "cannot be changed: its shards have already issued numbers without it"),
        (("--stride", "2"), "cannot be changed: its shards have already issued numbers without it"),
    ):
        ended = direct("configure", "users", *option)
        assert (ended.code, ended.err) == (2, f"error: {option[0].removeprefix('--')}: {problem}\n")
    assert direct("halt", "users", "--yes").code == 0
    assert direct("next", "users", *key).code == 4
    assert direct("verify", "users").err == "users: no problem found\n"
    planned = direct("recover", "users", "--dry-run", "--json").json()
    assert [each["tag"] for each in planned] == ["users", *(f"users#{shard}" for shard in range(4))]
    assert direct("recover", "users", "--at-least", "5", "--yes").code == 2
    assert direct("recover", part, "--at-least", "5000", "--yes").code == 0
    assert len(direct("recover", "--all", "--yes", "--json").json()) == 5
    assert direct("next", "users", *key, "--json").json()[0]["counter"] == 5001
    assert direct("delete", "users", "--yes").code == 0
    assert direct("tags", "--json").json() == []


@pytest.mark.covers("U.6")
def test_a_keyed_tag_has_a_series_for_each_key(cli: Cli) -> None:
    cli("create", "cust", "--keyed", "--format", "{key}-{seq:04d}", "--step", "20", "--order", "trend")
    acme = ("--restart-key", "acme")
    assert cli("peek", "cust", *acme).out == "acme-0001\n"
    assert cli("next", "cust", *acme, "-n", "2", "--text").out == "acme-0001\nacme-0002\n"
    assert cli("next", "cust", "--restart-key", "zeta#1", "--text").out == "zeta#1-0001\n"
    assert shown(cli("inspect", "cust"))["series"] == "by restart key"
    assert cli("inspect", "cust", "--json").json()["parts"] == 2
    assert [line.split()[0] for line in cli("tags").out.splitlines()[1:]] == ["cust"]
    assert shown(cli("who", "cust", "acme-0002"))["counter"] == "2 of cust#acme"
    ended = cli("who", "cust", "2", "--number")
    assert (ended.code, "give the text" in ended.err) == (2, True)
    # Also where tags are made at their first use: a series is like its tag, and looking makes none.
    for command in (("peek", "typo"), ("decode", "typo", "5"), ("who", "typo", "5"), ("inspect", "typo")):
        assert cli(*command).code == 3
    assert [tag["step"] for tag in cli("tags", "--json").json()] == [20] * 3


@pytest.mark.covers("N.3")
def test_a_period_is_shown_with_its_numbers(with_redis: Cli) -> None:
    year = f"{datetime.now(UTC):%Y}"
    made = with_redis("create", "inv", "--restart", "yearly", "--format", "INV-{date:%Y}-{seq:04d}", "--step", "50")
    assert made.err == (
        "made inv: first number 1, step 50, strict, format INV-{date:%Y}-{seq:04d}, restart yearly in UTC\n"
    )
    assert with_redis("peek", "inv").out == f"INV-{year}-0001\n"
    assert with_redis("next", "inv", "--text", "--key", "order-778").out == f"INV-{year}-0001\n"
    assert with_redis("next", "inv").out == "2\n"
    assert with_redis("next", "inv", "--key", "order-778", "--ttl", "60").out == "1\n"
    assert with_redis("next", "inv", "--key", "order-778", "-n", "2").code == 2
    sheet = shown(with_redis("inspect", "inv"))
    assert (sheet["period"], sheet["restart"]) == (year, "yearly in UTC")
    assert sheet["order"] == "strict, limit 2^40-1 in each period"
    assert sheet["redis"] == f"cur    2 of {year}"
    assert f"\nbuffer 1     3..50 of {year}, 48 left, extends at 10\n" in with_redis("inspect", "inv").out
    assert with_redis("inspect", "inv", "--json").json()["period"] == year
    assert f"50 of {year}" in with_redis("tags").out
    found = with_redis("decode", "inv", f"INV-{year}-0002", "--json").json()
    assert (found["value"], found["period"], found["date"]) == (2, year, f"{year}-01-01")
    assert shown(with_redis("who", "inv", f"INV-{year}-0002"))["state"] == "reserved; issued, or lost in a gap"
    bare = with_redis("who", "inv", "2")
    assert (bare.code, "which contains the period" in bare.err) == (2, True)
    assert "counter   unknown: each period has this number; give the text" in with_redis("decode", "inv", "2").out
    # As number and period beside the counter.
    planned = with_redis("recover", "inv", "--dry-run").out
    assert (f"50 of {year}" in planned, planned.split()[-1]) == (True, "48")
    (each,) = with_redis("recover", "inv", "--dry-run", "--json").json()
    assert each["new_in_period"] == each["old_in_period"] == f"50 of {year}"
    assert each["new"] == each["old"] == int(year) << 40 | 50
    assert with_redis("recover", "inv", "--yes").code == 0
    assert with_redis("next", "inv", "--text").out == f"INV-{year}-0051\n"


def test_a_snowflake_number_says_when_and_where_it_was_made_and_by_whom(with_redis: Cli) -> None:
    made = with_redis(
        *("create", "snow", "--strategy", "snowflake", "--option", "epoch=2026-01-01"),
        *("--option", "machine_bits=6", "--option", "sequence_bits=16"),
    )
    assert made.err.startswith("made snow: trend, strategy snowflake, ")
    number = with_redis("next", "snow").out.strip()
    sheet = shown(with_redis("inspect", "snow"))
    assert (sheet["layout"], sheet["order"]) == ("41 bits time, 6 machine, 16 sequence", "trend")
    assert (sheet["epoch"], sheet["ends"][:10]) == ("2026-01-01", "2095-09-07")
    assert not {"step", "lease", "store max", "redis"} & sheet.keys()
    as_json = with_redis("inspect", "snow", "--json").json()
    assert as_json["layout"]["ends"] == as_json["layout"]["epoch"] + 2**41
    listed = with_redis("tags", "--json").json()[0]
    counters = {"max", "step", "step_mode", "limit", "lease", "ahead"}
    assert not counters & (as_json.keys() | as_json["store"].keys() | listed.keys())
    assert with_redis("tags").out.splitlines()[1].split()[:3] == ["snow", "trend", "snowflake"]
    changed = with_redis("configure", "snow", "--description", "flakes").err
    assert changed.startswith("changed snow: trend, strategy snowflake, ")
    found = with_redis("decode", "snow", number, "--json").json()
    assert abs(found["timestamp"] / 1000 - datetime.now(UTC).timestamp()) < 60
    assert (0 <= found["machine"] < 64, found["sequence"] >= 0) == (True, True)
    assert re.fullmatch(r"issuer\.0\.\d+", found["holder"])
    sheet = shown(with_redis("decode", "snow", number))
    assert (sheet["time"][:8], sheet["holder"]) == (f"{datetime.now(UTC):%Y-%m-}", found["holder"])
    for command in (("peek", "snow"), ("who", "snow", number), ("next", "snow", "--key", "k")):
        assert with_redis(*command).code == 2
    assert with_redis("doctor").code == with_redis("verify").code == 0
    assert with_redis("decode", "snow", str(2**63 - 1)).code == 0, "41 + 6 + 16 bits are 63"


def test_a_snowflake_machine_is_the_stores_or_fixed_or_it_is_said_that_there_is_none(direct: Cli, home: Path) -> None:
    assert direct("create", "stored", "--strategy", "snowflake", "--option", "machine=store").code == 0
    number = direct("next", "stored").out.strip()
    assert re.fullmatch(r"\S+, pid \d+", shown(direct("decode", "stored", number))["holder"])
    env = {"ISSUER_MACHINE": "0", "ISSUER_MACHINE_FILES": str(home)}
    assert direct("create", "fixed", "--strategy", "snowflake", env=env).code == 0
    found = direct("decode", "fixed", direct("next", "fixed", env=env).out.strip(), "--json").json()
    assert (found["machine"], found.get("holder")) == (0, None)
    assert re.search(r"^machine +0 +ISSUER_MACHINE$", direct("config", env=env).out, re.MULTILINE)
    made = direct("create", "snow", "--strategy", "snowflake", "--option", "machine=redis")
    drawn = direct("next", "snow")
    assert (made.code, drawn.code, drawn.out) == (0, 2, "")
    assert made.err.startswith("warning: tag 'snow' was created, but this process cannot issue its numbers: ")
    for way in ("no Redis is configured", "set its URL", "machine=store", "ISSUER_MACHINE", "machine=fixed"):
        assert way in made.err
        assert way in drawn.err


def test_a_snowflake_text_is_read_back_and_a_limit_is_shown(direct: Cli) -> None:
    new = ("create", "snow", "--strategy", "snowflake", "--format", "{date:%Y%m%dT%H%M%S.%L}-{machine}-{sequence}")
    refused = direct(*new, "--limit", "js")
    assert (refused.code, refused.out) == (2, "")
    assert "machine_bits=5" in refused.err
    assert direct(*new, "--limit", "js", "--option", "machine_bits=5", "--option", "sequence_bits=7").code == 0
    text = direct("next", "snow", "--text").out.strip()
    sheet = shown(direct("decode", "snow", text))
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}\.\d{{3}}-{sheet['machine']}-{sheet['sequence']}", text)
    assert shown(direct("inspect", "snow"))["order"] == f"trend, limit {2**53 - 1}"
    changed = direct("configure", "snow", "--limit", "int64")
    assert changed.err.startswith("changed snow: trend, strategy snowflake, ")
    assert shown(direct("inspect", "snow"))["order"] == "trend"


KEY = "issuer:machines:{events}"
TEN_DAYS = 10 * 86_400_000


def test_the_future_is_shown_and_left_by_a_yes_that_knows_what_it_costs(
    with_redis: Cli, redis_client: redis.Redis, redis_url: str, store: str
) -> None:
    def put_ahead() -> int:
        """Return until when the machine numbers were used: a clock was ten days ahead."""
        assert with_redis("next", "events").code == 0
        last = now_ms() + TEN_DAYS
        fields: Any = redis_client.hkeys(KEY)
        for name in (name for name in fields if name.endswith(b":last")):
            redis_client.hset(KEY, name, last)
        assert with_redis("next", "events").code == 5
        return last

    with_redis("create", "events", "--strategy", "snowflake", "--option", "machine_bits=4")
    last = put_ahead()
    shown = with_redis("machines", "events")
    assert shown.code == 0
    assert re.search("9 days 23 h|10 days", shown.out)
    (used,) = with_redis("machines", "events", "--json").json()["used"]
    assert (used["last"], used["held"], used["ahead"] > TEN_DAYS - 600_000) == (last, False, True)
    until = f"{datetime.fromtimestamp(last / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    question = f"Set aside 1 machine number of events until {until}? Then 15 of 16 are left, and until then new numbers"
    line = ("--redis", redis_url, "--store", store, "machines", "events", "--set-aside")
    for answer, code, after in (("n\n", 1, 5), ("y\n", 0, 0)):
        assert answered(question, answer, *line) == code
        assert with_redis("next", "events").code == after
    assert max(each["last"] for each in with_redis("machines", "events", "--json").json()["used"]) == last
    # A script says yes and gets a list.
    put_ahead()
    assert with_redis("machines", "events", "--set-aside").code == 2
    assert with_redis("next", "events").code == 5
    done = with_redis("machines", "events", "--set-aside", "--yes", "--json")
    assert (done.code, len(done.json())) == (0, 2)
    assert with_redis("next", "events").code == 0
