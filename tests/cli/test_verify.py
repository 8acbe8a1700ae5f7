"""`issuer verify`, `issuer who` and `issuer halt`: what they print, and how they end."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, altered, shown
from tests.cli.terminal import Terminal, answered


@pytest.fixture
def orders(direct: Cli) -> Cli:
    """`cli` on a store whose tag `orders` has issued 1..25 in tens, and then 101."""
    direct("create", "orders", "--step", "10")
    for n in ("10", "10", "5"):
        direct("next", "orders", "-n", n)
    direct("configure", "orders", "--above", "100", "--yes")
    direct("next", "orders")
    direct("create", "users")
    return direct


def forge(home: Path, low: int, high: int, host: str = "intruder.example.org") -> None:
    """Write a ledger entry by hand, of 2001-09-09."""
    fields = "id, tag, low, high, reason, time, host, pid"
    values = (f"forged {low}", "orders", low, high, "load", 1_000_000_000_000, host, 99)
    altered(home, f"INSERT INTO segments ({fields}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)  # noqa: S608 - no input


@pytest.mark.covers("N.5")
def test_verify_ends_with_0_or_4_and_shows_who_and_when_of_an_overlap(orders: Cli, home: Path) -> None:
    for arguments, told in (((), "2 of 2 tags without a problem\n"), (("orders",), "orders: no problem found\n")):
        ended = orders("verify", *arguments)
        assert (ended.code, ended.out, ended.err) == (0, "", told)
        assert orders("verify", *arguments, "--json").json() == []
    forge(home, 5, 10)
    ended = orders("verify", "orders")
    assert ended.code == 4
    heading, intruder, other, advice = ended.out.splitlines()
    assert heading == "orders  overlap  6..10"
    assert intruder == "  2001-09-09T01:46:40Z  intruder.example.org pid 99, load, 6..10"
    assert other.endswith(", direct, 1..10")
    assert "Look for these numbers in your tables" in advice
    assert "`issuer recover orders --at-least N`" in advice
    (finding,) = orders("verify", "--all", "--json").json()
    assert list(finding) == ["tag", "kind", "first", "last", "message", "remedy", "entries"]
    assert (finding["tag"], finding["kind"], finding["first"], finding["last"]) == ("orders", "overlap", 6, 10)
    assert (finding["entries"][0]["host"], finding["entries"][0]["pid"]) == ("intruder.example.org", 99)
    assert orders("verify").err == "1 of 2 tags without a problem\n"
    # A tag that can't be read keeps no other from being verified.
    orders("next", "users")
    altered(home, "UPDATE segments SET high = 'x' WHERE low = 0 AND tag = 'users'")
    ended = orders("verify")
    assert ended.code == 4
    assert all(said in ended.out for said in ("users  damaged entry", "high must be", "orders  overlap  6..10"))


@pytest.mark.live
def test_findings_fit_the_terminal(orders: Cli, home: Path, store: str) -> None:
    host = "a-host-with-a-rather-long-name.in.some.domain.example.org"
    assert orders("verify").code == 0
    forge(home, 5, 2**63 - 1, host)
    with Terminal("--store", store, "verify", columns=40, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.ends() == 4
        lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= 40
    assert host in "".join("".join(lines).split())


def test_with_redis_away_an_agreement_of_ledger_and_store_is_told_and_is_no_pass(orders: Cli, home: Path) -> None:
    away = ("--redis", "redis://127.0.0.1:1")
    ended = orders(*away, "verify", "--json")
    assert ended.code == 5
    unseen = [("orders", "Redis not looked at"), ("users", "Redis not looked at")]
    assert [(each["tag"], each["kind"]) for each in ended.json()] == unseen
    # The same for both, and told once.
    assert ended.err.startswith("error: Redis was not checked: redis redis://127.0.0.1:1: ")
    assert ended.err.count("error: ") == 1
    agree = "ledger and store agree, but Redis was not checked: orders, users\n"
    assert ended.err.endswith(f"{agree}not checked in Redis: orders, users\n")
    assert "problem" not in ended.err
    forge(home, 5, 10)
    ended = orders(*away, "verify", "orders")
    assert (ended.code, ended.out.splitlines()[0]) == (4, "orders  overlap  6..10")
    assert "Redis was not checked" in ended.err


@pytest.mark.covers("N.5")
def test_who_names_host_process_service_time_and_segment_of_a_number(orders: Cli, home: Path) -> None:
    told = shown(orders("who", "orders", "7"))
    assert list(told) == ["orders", "state", "segment", "reserved", "service", "by", "for"]
    assert (told["orders"], told["segment"], told["for"]) == ("7", "1..10", "direct")
    content = orders("who", "orders", "7", "--json").json()
    assert (content["entries"][0]["low"], content["entries"][0]["high"], content["max"]) == (0, 10, 101)
    assert content["entries"][0]["utc"] == told["reserved"].partition(",")[0]
    orders("next", "users", env={"ISSUER_APPLICATION": "billing"})
    assert shown(orders("who", "users", "1"))["service"] == "billing"
    altered(home, "UPDATE segments SET application = NULL")  # entries of before
    assert "service" not in shown(orders("who", "users", "1"))
    forge(home, 5, 10)
    ended = orders("who", "orders", "7")
    assert (ended.code, "intruder.example.org, pid 99" in ended.out) == (4, True)
    assert "issuer verify orders" in ended.err


def test_who_says_why_a_number_may_be_in_no_entry(orders: Cli, home: Path) -> None:
    altered(home, "DELETE FROM segments WHERE low = 0")
    for number, why in (
        ("50", "a gap after 21..25 of"),
        ("102", "not reserved yet, as the store's max is 101"),
        ("3", "dropped after 90"),
    ):
        ended = orders("who", "orders", number)
        assert (ended.code, ended.out, why in ended.err) == (1, "", True)
        asked = orders("who", "orders", number, "--json")
        assert (asked.code, asked.json()["entries"], why in asked.json()["state"]) == (1, [], True)


def test_who_tells_what_redis_has_not_issued_yet(with_redis: Cli) -> None:
    with_redis("create", "orders", "--step", "10")
    with_redis("next", "orders", "-n", "4")
    for number, state in (("4", "reserved; issued, or lost in a gap"), ("5", "in Redis, not issued yet")):
        assert with_redis("who", "orders", number, "--json").json()["state"] == state


def test_who_knows_as_verify_does_that_the_store_is_behind(with_redis: Cli, home: Path) -> None:
    journal = {"ISSUER_JOURNAL": str(home / "journal")}
    with_redis("create", "orders", "--step", "10", env=journal)
    with_redis("next", "orders", "-n", "4", env=journal)
    altered(home, "UPDATE tags SET max = 2")
    altered(home, "DELETE FROM segments")
    for servers, env in (((), {}), (("--redis", "none"), journal)):
        state = with_redis(*servers, "who", "orders", "8", "--json", env=env).json()["state"]
        assert state.startswith("the store is behind: its max is 2, and numbers up to 10 are reserved"), servers
        state = with_redis(*servers, "who", "orders", "11", "--json", env=env).json()["state"]
        assert state.startswith("not reserved yet"), servers


@pytest.mark.live
def test_a_tag_that_is_halted_by_a_yes_gives_no_more_until_recover(orders: Cli, store: str) -> None:
    for answer, code in (("\n", 1), ("y\n", 0)):
        assert answered("Halt orders? [y/N]", answer, "--store", store, "halt", "orders") == code
        assert orders("tags", "--json").json()[0]["halted"] == (code == 0)
    ended = orders("halt", "orders", "--yes")
    assert (ended.code, ended.out, "issuer recover orders" in ended.err) == (0, "", True)
    assert "trend, halted" in orders("tags").out
    assert "HALTED" in orders("inspect", "orders").out
    stopped = orders("next", "orders")
    assert (stopped.code, stopped.out) == (4, "")
    assert "halted at max 101, by `halt`" in stopped.err
    assert "issuer recover orders" in stopped.err
    assert orders("next", "users").code == 0
    assert orders("halt", "--all", "--yes").code == 0
    assert [tag["halted"] for tag in orders("tags", "--json").json()] == [True, True]
    assert orders("recover", "--all", "--yes").code == 0
    assert orders("next", "orders").out == "102\n"


@pytest.mark.covers("U.11")
def test_show_has_rate_runway_last_extension_and_waste_as_a_table_and_as_json(with_redis: Cli) -> None:
    with_redis("create", "orders", "--step", "10")
    fresh = with_redis("inspect", "orders", "--json").json()
    assert (fresh["last_extension"], fresh["waste"]) == (None, None)
    for n in ("10", "10", "5"):
        with_redis("next", "orders", "-n", n)
    with_redis("configure", "orders", "--above", "100", "--yes")
    for n in ("10", "10", "5"):
        with_redis("next", "orders", "-n", n)
    lines = dict(line.split(maxsplit=1) for line in with_redis("inspect", "orders").out.splitlines() if " " in line)
    assert lines["rate"].endswith("per second")
    assert lines["runway"] != "unknown"
    assert "ago" in lines["extended"] or "just now" in lines["extended"]
    seen = with_redis("inspect", "orders", "--json").json()
    assert min(seen["rate"], seen["runway"]) > 0
    assert seen["store"]["created"] <= seen["waste"]["since"] <= seen["last_extension"]
    # 30 or 40 were reserved before the jump to 100, and all since then.
    assert seen["waste"]["numbers"] in {60, 70}
    assert seen["waste"]["of"] == seen["store"]["max"]
    assert lines["waste"].startswith(f"at least {seen['waste']['numbers']} of the last {seen['store']['max']}")


@pytest.mark.covers("U.19")
def test_as_json_lines_each_tag_has_a_line_as_soon_as_it_is_done(orders: Cli, home: Path) -> None:
    forge(home, 5, 10)
    ended = orders("verify", "--json-lines")
    first, second = map(json.loads, ended.out.splitlines())
    assert ended.code == 4
    assert (first["tag"], first["error"], second) == (
        "orders",
        None,
        {"tag": "users", "discrepancies": [], "error": None},
    )
    assert first["discrepancies"] == orders("verify", "--json").json()
    assert orders("verify", "--json", "--json-lines").code == 2
    assert [json.loads(line) for line in orders("tags", "--json-lines").out.splitlines()] == orders(
        "tags", "--json"
    ).json()


def test_a_damaged_record_is_an_entry_of_its_own_for_each_command(
    orders: Cli, cli: Cli, home: Path, store: str
) -> None:
    """The command does the rest, and does not exit with 0."""
    orders("create", "zeta")
    altered(home, "UPDATE tags SET step = 0 WHERE tag = 'users'")
    for arguments in (("tags",), ("tags", "--json"), ("tags", "--json-lines"), ("tags", "--usage"), ("export",)):
        ended = orders(*arguments)
        assert ended.code == 4, arguments
        assert all(tag in ended.out for tag in ("orders", "zeta")), arguments
        assert "users" not in ended.out, arguments
        assert ended.err.count("the record of tag 'users' in the store is damaged: step") == 1, arguments
    assert orders("halt", "users", "--yes").code == 4
    ended = orders("verify")
    assert ended.code == 4
    assert ended.out.startswith("users  damaged record\n  tag 'users': the record in the store: step must be")
    assert ended.err == "2 of 3 tags without a problem\n"
    for command, done in (("halt", "halted zeta"), ("recover", "zeta")):
        ended = orders(command, "--all", "--yes")
        assert ended.code == 4, command
        assert done in ended.out + ended.err, command
        assert "users" in ended.err, command
    altered(home, "UPDATE tags SET step = 0 WHERE tag IN ('orders', 'zeta')")
    ended = orders("tags")
    assert (ended.code, ended.out) == (4, "")
    assert "no tags yet" not in ended.err
    words = {"COMP_WORDS": f"issuer --store {store} verify u", "COMP_CWORD": "4"}
    assert cli(env={**words, "_ISSUER_COMPLETE": "bash_complete"}).out == "plain,users\n"
