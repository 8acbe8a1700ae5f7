"""`issuer recover`: shows, asks, acts, and may be run again."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import issuer
from tests.e2e.conftest import Cli, altered
from tests.e2e.terminal import Terminal
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer


@pytest.fixture
def behind(direct: Cli, home: Path) -> Cli:
    """`cli` on a store whose `orders` and `users` were put back to 5 after 20 numbers each."""
    for tag in ("orders", "users"):
        direct("create", tag)
        direct("next", tag, "-n", "20")
    altered(home, "UPDATE tags SET max = 5")
    return direct


def test_a_dry_run_shows_old_new_and_gap_and_changes_nothing(behind: Cli) -> None:
    before = behind("tags", "--json").json()
    shown = behind("recover", "orders", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert [line.split() for line in shown.out.splitlines()] == [
        ["TAG", "OLD", "NEW", "GAP"],
        ["orders", "5", "20", "15"],
    ]
    assert behind("recover", "--all", "--dry-run", "--json").json() == [
        {"tag": "orders", "old": 5, "new": 20, "gap": 15},
        {"tag": "users", "old": 5, "new": 20, "gap": 15},
    ]
    assert behind("tags", "--json").json() == before


@pytest.mark.covers("N.6")
def test_recover_twice_changes_the_max_once(behind: Cli) -> None:
    assert behind("recover", "--all", "--yes", "--json").json()[0] == {"tag": "orders", "old": 5, "new": 20, "gap": 15}
    assert behind("recover", "--all", "--yes", "--json").json() == [
        {"tag": "orders", "old": 20, "new": 20, "gap": 0},
        {"tag": "users", "old": 20, "new": 20, "gap": 0},
    ]
    assert behind("next", "orders").out == "21\n"


def test_what_the_user_knows_counts(behind: Cli) -> None:
    recovered = behind("recover", "orders", "--yes", "--at-least", "500", "--json").json()
    assert recovered == [{"tag": "orders", "old": 5, "new": 500, "gap": 495}]
    assert behind("next", "orders").out == "501\n"


def test_with_nobody_to_ask_it_does_nothing_and_says_so(behind: Cli) -> None:
    for command in (["recover", "orders"], ["recover", "--all", "--json"]):
        ended = behind(*command)
        assert (ended.code, ended.out) == (2, "")
        assert "stdin is no terminal" in ended.err
    assert {tag["max"] for tag in behind("tags", "--json").json()} == {5}


def test_all_goes_on_over_a_tag_that_fails_and_ends_with_the_worst_code(behind: Cli, home: Path) -> None:
    altered(home, "UPDATE segments SET reason = x'00' WHERE tag = 'orders'")
    ended = behind("recover", "--all", "--yes", "--json")
    assert ended.code == 4
    failed, done = ended.json()
    assert (failed["tag"], failed["old"], failed["new"], failed["gap"]) == ("orders", None, None, None)
    assert "reason must be a str" in failed["error"]
    assert done == {"tag": "users", "old": 5, "new": 20, "gap": 15}
    assert ended.err.count("error: ") == 1


def test_a_store_without_tags_has_nothing_to_recover(cli: Cli) -> None:
    ended = cli("recover", "--all", "--yes", "--json")
    assert (ended.code, ended.json()) == (0, [])


@pytest.mark.live
def test_on_a_terminal_it_shows_the_plan_and_acts_on_a_yes_only(behind: Cli, store: str) -> None:
    for answer, code, maximum in (("\n", 1, 5), ("n\n", 1, 5), ("y\n", 0, 20)):
        with Terminal("--store", store, "recover", "orders") as terminal:
            plan = terminal.shows("[y/N]")
            assert ["orders", "5", "20", "15"] in [line.split() for line in plan.splitlines()]
            assert behind("tags", "--json").json()[0]["max"] == 5
            terminal.types(answer)
            assert terminal.ends() == code
        assert behind("tags", "--json").json()[0]["max"] == maximum


@pytest.mark.live
def test_ctrl_c_at_the_question_changes_nothing(behind: Cli, store: str) -> None:
    with Terminal("--store", store, "recover", "--all") as terminal:
        terminal.shows("Recover 2 tags? [y/N]")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.text
    assert {tag["max"] for tag in behind("tags", "--json").json()} == {5}


@pytest.mark.covers("N.6")
def test_recover_with_redis_skips_what_its_buffers_hold(with_redis: Cli) -> None:
    with_redis("create", "orders", "--step", "100")
    with_redis("next", "orders", "-n", "120")
    seen = with_redis("show", "orders", "--json").json()
    top = seen["store"]["max"]
    assert with_redis("recover", "orders", "--yes", "--json").json() == [
        {"tag": "orders", "old": top, "new": top, "gap": seen["remaining"]}
    ]
    assert with_redis("recover", "orders", "--yes", "--json").json()[0]["gap"] == 0
    assert with_redis("next", "orders").out == f"{top + 1}\n"


def test_with_redis_away_a_dry_run_tells_the_rest_and_a_recovery_what_to_do(behind: Cli) -> None:
    away = ("--redis", f"redis://127.0.0.1:{free_port()}")
    before = behind("tags", "--json").json()
    planned = behind(*away, "recover", "orders", "--at-least", "500", "--dry-run")
    assert (planned.code, "Redis was not asked" in planned.err) == (5, True)
    assert planned.out.split()[-4:] == ["orders", "5", "500", "495"]
    (found,) = behind(*away, "recover", "orders", "--dry-run", "--json").json()
    assert (found["old"], found["new"], "127.0.0.1" in found["redis_error"]) == (5, 20, True)
    refused = behind(*away, "recover", "orders", "--at-least", "500", "--yes")
    assert (refused.code, refused.out) == (5, "")
    assert "Nothing was recovered" in refused.err
    assert "issuer --redis none recover orders --at-least N" in refused.err
    assert behind("tags", "--json").json() == before
    assert behind("--redis", "none", "recover", "orders", "--at-least", "500", "--yes").code == 0
    assert behind("next", "orders").out == "501\n"


def test_the_nodes_that_were_asked_besides_the_master_and_those_that_were_not_are_told(
    cli: Cli, store: str, start_redis: Callable[..., RedisServer]
) -> None:
    master, replica, locked = start_redis(), start_redis(), start_redis()
    for each in (replica, locked):
        each.replicaof(master)
    with locked.client() as client:
        client.config_set("requirepass", "not ours")
    at = ("--redis", master.url, "--store", store)
    cli(*at, "create", "orders")
    cli(*at, "create", "users")
    cli(*at, "next", "orders")
    cli(*at, "next", "users")
    asked, unasked = f"127.0.0.1:{replica.port}", f"127.0.0.1:{locked.port}"
    for ended in (cli(*at, "recover", "--all", "--dry-run"), cli(*at, "recover", "--all", "--yes")):
        first, second = ended.err.splitlines()
        assert (ended.code, first) == (0, f"asked as well: {asked}")
        assert second.startswith(f"warning: not asked: {unasked}: ")
    for each in cli(*at, "recover", "--all", "--yes", "--json").json():
        assert each["asked"] == [asked]
        assert each["unasked"][0].startswith(f"{unasked}: ")


def test_sound_tags_are_spared_if_asked_and_what_they_would_lose_is_told(
    with_redis: Cli, redis_client: redis.Redis
) -> None:
    for tag in ("halted", "lost", "moved", "sound"):
        with_redis("create", tag, "--step", "100")
        with_redis("next", tag, "-n", "30")
    with_redis("halt", "halted", "--yes")
    redis_client.delete("issuer:{lost}")
    redis_client.hset("issuer:{moved}", "fence", "f" * 40)
    planned = with_redis("recover", "--all", "--dry-run")
    assert "nothing that can be seen is wrong with 1 tag, which lose at most 70 numbers by this" in planned.err
    spared = with_redis("recover", "--all", "--spare-sound", "--yes", "--json")
    assert [each["tag"] for each in spared.json()] == ["halted", "lost", "moved"]
    assert "left alone, as nothing that can be seen is wrong with them: sound" in spared.err
    assert with_redis("next", "sound").out == "31\n"
    assert with_redis("recover", "sound", "--spare-sound", "--yes").code == 2
    assert [each["tag"] for each in with_redis("recover", "--all", "--yes", "--json").json()][-1] == "sound"
    assert int(with_redis("next", "sound").out) > 100


def test_what_nobody_but_the_store_vouches_for_is_named_before_the_question(
    with_redis: Cli, redis_client: redis.Redis, redis_url: str, store: str, home: Path
) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders", "-n", "20")
    assert "vouches" not in with_redis("recover", "--all", "--yes").err
    redis_client.flushall()
    told = "warning: nobody but the store vouches for 1 tag: orders."
    planned = with_redis("recover", "--all", "--dry-run", "--json")
    assert told in planned.err
    assert planned.json()[0]["unvouched"] is True
    with Terminal("--store", store, "--redis", redis_url, "recover", "--all", columns=200) as terminal:
        before = terminal.shows("Recover 1 tag, 1 tag by the store's word alone? [y/N]")
        assert told.removeprefix("warning: ") in before
        terminal.types("n\n")
        assert terminal.ends() == 1
    assert redis_client.keys() == []
    for vouched in (["--at-least", "5000"], ["--from-journal", journal_of(home, store)]):
        ended = with_redis("recover", "orders", "--dry-run", *vouched)
        assert (ended.code, ended.err) == (0, "")
    ended = with_redis("recover", "orders", "--yes")
    assert (ended.code, told in ended.err) == (0, True)


def journal_of(home: Path, store: str) -> str:
    """Return a journal of that store, begun just now."""
    path = str(home / "journal")
    with issuer.connect(redis="none", store=store, scheduler=None, journal=path) as ids:
        ids.create("others")
    return path


@pytest.mark.parametrize("journal", [None, "journal"])
def test_a_journal_that_is_kept_beside_the_store_vouches_too(
    with_redis: Cli, home: Path, redis_client: redis.Redis, journal: str | None
) -> None:
    env = {} if journal is None else {"ISSUER_JOURNAL": str(home / journal)}
    with_redis("create", "orders", env=env)
    with_redis("next", "orders", env=env)
    redis_client.flushall()
    altered(home, "UPDATE tags SET max = 5")
    altered(home, "DELETE FROM segments")
    (done,) = with_redis("recover", "--all", "--yes", "--json", env=env).json()
    assert (done.get("unvouched", False), done["new"]) == ((True, 5) if journal is None else (False, 1000))


def test_a_tag_with_periods_is_told_as_number_and_period_beside_the_counter(with_redis: Cli) -> None:
    with_redis("create", "bills", "--restart", "yearly", "--format", "{date:%Y}-{seq}", "--step", "10")
    with_redis("next", "bills")
    year = with_redis("show", "bills", "--json").json()["period"]
    shown = with_redis("recover", "bills", "--dry-run").out
    assert f"10 of {year}" in shown
    assert shown.split()[-1] == "9"
    (found,) = with_redis("recover", "bills", "--dry-run", "--json").json()
    assert found["new_in_period"] == found["old_in_period"] == f"10 of {year}"
    assert found["new"] == found["old"] == int(year) << 40 | 10
