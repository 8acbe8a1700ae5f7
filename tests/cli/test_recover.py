"""`issuer recover`: shows, asks, acts, and may be run again; and from journals, where the store is lost."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.core.record import sound
from issuer_persistence.records import TagSettings
from issuer_persistence.sqlite.store import SQLiteStore
from tests.cli.conftest import PROGRAM, Cli, altered
from tests.cli.terminal import Terminal, answered
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.stores.benches import TIMEOUT


@pytest.fixture
def behind(direct: Cli, home: Path) -> Cli:
    """`cli` on a store whose `orders` and `users` were put back to 5 after 20 numbers each."""
    for tag in ("orders", "users"):
        direct("create", tag)
        direct("next", tag, "-n", "20")
    altered(home, "UPDATE tags SET max = 5")
    return direct


def done(tag: str, old: int | None, new: int) -> dict[str, Any]:
    return {"tag": tag, "old": old, "new": new, "gap": new - (old or 0)}


@pytest.mark.covers("N.6")
def test_a_dry_run_shows_what_would_be_done_and_recover_twice_does_it_once(behind: Cli) -> None:
    before = behind("tags", "--json").json()
    shown = behind("recover", "orders", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert [line.split() for line in shown.out.splitlines()] == [
        ["TAG", "OLD", "NEW", "GAP"],
        ["orders", "5", "20", "15"],
    ]
    both = [done("orders", 5, 20), done("users", 5, 20)]
    assert behind("recover", "--all", "--dry-run", "--json").json() == both
    ended = behind("recover", "--all", "--json")  # with nobody to ask
    assert (ended.code, ended.out, "stdin is not a terminal" in ended.err) == (2, "", True)
    assert behind("tags", "--json").json() == before
    assert behind("recover", "--all", "--yes", "--json").json() == both
    assert behind("recover", "--all", "--yes", "--json").json() == [done("orders", 20, 20), done("users", 20, 20)]
    assert behind("next", "orders").out == "21\n"
    assert behind("recover", "users", "--yes", "--at-least", "500", "--json").json() == [done("users", 20, 500)]


def test_all_goes_on_over_a_tag_that_fails_and_ends_with_the_worst_code(behind: Cli, cli: Cli, home: Path) -> None:
    altered(home, "UPDATE segments SET reason = x'00' WHERE tag = 'orders'")
    ended = behind("recover", "--all", "--yes", "--json")
    failed, well = ended.json()
    assert (ended.code, ended.err.count("error: "), well) == (4, 1, done("users", 5, 20))
    assert (failed["tag"], failed["old"], failed["new"], failed["gap"]) == ("orders", None, None, None)
    assert "reason must be a str" in failed["error"]
    assert cli("recover", "--all", "--yes", "--json").json() == []  # a store without tags


@pytest.mark.live
def test_on_a_terminal_it_shows_the_plan_and_acts_on_a_yes_only(behind: Cli, store: str) -> None:
    for answer, code, maximum in (("n\n", 1, 5), ("y\n", 0, 20)):
        with Terminal("--store", store, "recover", "orders") as terminal:
            plan = terminal.shows("[y/N]")
            assert ["orders", "5", "20", "15"] in [line.split() for line in plan.splitlines()]
            terminal.types(answer)
            assert terminal.ends() == code
        assert behind("tags", "--json").json()[0]["max"] == maximum
    with Terminal("--store", store, "recover", "--all") as terminal:
        terminal.shows("Recover 2 tags? [y/N]")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.text
    assert [tag["max"] for tag in behind("tags", "--json").json()] == [20, 5]


def test_with_redis_away_a_dry_run_tells_the_rest_and_a_recovery_what_to_do(behind: Cli) -> None:
    away = ("--redis", f"redis://127.0.0.1:{free_port()}")
    before = behind("tags", "--json").json()
    planned = behind(*away, "recover", "orders", "--at-least", "500", "--dry-run")
    assert (planned.code, "Redis was not checked" in planned.err) == (5, True)
    assert planned.out.split()[-4:] == ["orders", "5", "500", "495"]
    (found,) = behind(*away, "recover", "orders", "--dry-run", "--json").json()
    assert (found["old"], found["new"], "127.0.0.1" in found["redis_error"]) == (5, 20, True)
    refused = behind(*away, "recover", "orders", "--at-least", "500", "--yes")
    assert (refused.code, refused.out, "Nothing was recovered" in refused.err) == (5, "", True)
    assert "issuer --redis none recover orders --at-least N" in refused.err
    assert behind("tags", "--json").json() == before
    assert behind("--redis", "none", "recover", "orders", "--at-least", "500", "--yes").code == 0
    assert behind("next", "orders").out == "501\n"


def test_the_nodes_that_were_asked_besides_the_master_and_those_that_were_not_are_told(
    direct: Cli, start_redis: Callable[..., RedisServer]
) -> None:
    master, replica, locked = start_redis(), start_redis(), start_redis()
    for each in (replica, locked):
        each.replicaof(master)
    with locked.client() as client:
        client.config_set("requirepass", "not ours")
    for command in ("create", "next"):
        direct("--redis", master.url, command, "orders")
    asked, unasked = f"127.0.0.1:{replica.port}", f"127.0.0.1:{locked.port}"
    for how in ("--dry-run", "--yes"):
        ended = direct("--redis", master.url, "recover", "--all", how)
        first, second = ended.err.splitlines()
        assert (ended.code, first) == (0, f"also checked: {asked}")
        assert second.startswith(f"warning: not checked: {unasked}: ")
    (told,) = direct("--redis", master.url, "recover", "--all", "--yes", "--json").json()
    assert (told["asked"], told["unasked"][0].startswith(f"{unasked}: ")) == ([asked], True)


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
    assert "1 tag without a visible problem: at most 70 numbers of these are skipped as well" in planned.err
    spared = with_redis("recover", "--all", "--spare-sound", "--yes", "--json")
    assert [each["tag"] for each in spared.json()] == ["halted", "lost", "moved"]
    assert "left as they are, because they have no visible problem: sound" in spared.err
    assert with_redis("next", "sound").out == "31\n"
    assert with_redis("recover", "sound", "--spare-sound", "--yes").code == 2
    assert [each["tag"] for each in with_redis("recover", "--all", "--yes", "--json").json()][-1] == "sound"
    assert int(with_redis("next", "sound").out) > 100


def test_what_nobody_but_the_store_vouches_for_is_named_before_the_question(
    with_redis: Cli, redis_client: redis.Redis, redis_url: str, store: str, home: Path
) -> None:
    with_redis("create", "orders")
    with_redis("next", "orders", "-n", "20")
    assert "only the store" not in with_redis("recover", "--all", "--yes").err
    redis_client.flushall()
    told = "warning: only the store has a record of 1 tag: orders."
    planned = with_redis("recover", "--all", "--dry-run", "--json")
    assert (told in planned.err, planned.json()[0]["unvouched"]) == (True, True)
    assert max(map(len, planned.err.splitlines())) < 200
    question = "Recover 1 tag, 1 tag from the record of the store alone? [y/N]"
    assert answered(question, "n\n", "--store", store, "--redis", redis_url, "recover", "--all") == 1
    assert redis_client.keys() == []
    journal = str(home / "journal")
    with issuer.connect(redis="none", store=store, scheduler=None, journal=journal) as ids:
        ids.create("others")
    for vouched in (["--at-least", "5000"], ["--from-journal", journal]):
        ended = with_redis("recover", "orders", "--dry-run", *vouched)
        assert (ended.code, ended.err) == (0, "")
    ended = with_redis("recover", "orders", "--yes")
    assert (ended.code, told in ended.err) == (0, True)


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
    (each,) = with_redis("recover", "--all", "--yes", "--json", env=env).json()
    assert (each.get("unvouched", False), each["new"]) == ((True, 5) if journal is None else (False, 1000))


@pytest.fixture
def journalled(direct: Cli, home: Path) -> Cli:
    """`cli` on a fresh store, with ISSUER_JOURNAL set, and two tags that 20 numbers were drawn of."""
    env = {"ISSUER_JOURNAL": str(home / "journal")}
    for tag in ("orders", "users"):
        direct("create", tag, "--limit", "5000", "--description", f"{tag} of the shop", env=env)
        direct("next", tag, "-n", "20", env=env)
    return lambda *arguments: direct(*arguments, env=env)


def _lose_the_store(home: Path) -> None:
    for each in home.glob("ids.db*"):
        each.unlink()


@pytest.mark.covers("3.29")
def test_a_store_that_is_lost_is_made_again_with_its_settings(journalled: Cli, direct: Cli, home: Path) -> None:
    other = {"ISSUER_JOURNAL": str(home / "of another machine")}
    direct("next", "orders", "-n", "5", env=other)
    before = journalled("tags", "--json").json()
    _lose_the_store(home)
    ended = journalled("create", "orders")  # the journal is not this store's
    assert (ended.code, ended.out, "give its journal to `recover`" in ended.err) == (2, "", True)
    old = str((home / "journal").rename(home / "old"))
    planned = journalled("recover", "--all", "--from-journal", old, "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert [line.split() for line in planned.out.splitlines()] == [
        ["TAG", "OLD", "NEW", "GAP"],
        ["orders", "lost", "20", "20"],
        ["users", "lost", "20", "20"],
    ]
    assert journalled("tags", "--json").json() == []
    files = ("--from-journal", old, "--from-journal", other["ISSUER_JOURNAL"])
    assert [each["new"] for each in journalled("recover", "orders", *files, "--yes", "--json").json()] == [25]
    assert [each["new"] for each in journalled("recover", "--all", *files, "--yes", "--json").json()] == [25, 20]
    names = ("tag", "step", "limit", "order", "description")
    after = journalled("tags", "--json").json()
    assert [[tag[name] for name in names] for tag in after] == [[tag[name] for name in names] for tag in before]
    assert journalled("next", "orders").out == "26\n"


def test_journals_that_cant_be_used_are_refused_once_and_nothing_is_recovered(
    journalled: Cli, direct: Cli, home: Path
) -> None:
    (home / "empty").touch()
    ours = str(home / "journal")
    elsewhere = ("--store", f"sqlite:///{home / 'other.db'}")
    direct(*elsewhere, "create", "a")
    before = journalled("tags", "--json").json(), direct(*elsewhere, "tags", "--json").json()
    for ended, said in (
        (journalled("recover", "--all", "--from-journal", "missing", "--yes"), "'missing' does not exist"),
        (journalled("recover", "orders", "--from-journal", ours, "--from-journal", "empty", "--yes"), "empty is empty"),
        (direct(*elsewhere, "recover", "--all", "--from-journal", ours, "--yes"), "journals of another store"),
    ):
        assert (ended.code, ended.out, ended.err.count("error: ")) == (2, "", 1)
        assert said in ended.err
    Path(ours).write_bytes(Path(ours).read_bytes().replace(b'"high":', b'"high":1', 1))
    ended = journalled("recover", "--all", "--from-journal", ours, "--yes")
    assert (ended.code, ended.out, ended.err.count("error: ")) == (4, "", 1)
    assert f"{ours}, line 3: the line was changed after it was written" in ended.err
    assert (journalled("tags", "--json").json(), direct(*elsewhere, "tags", "--json").json()) == before


@pytest.mark.covers("U.19")
def test_as_json_lines_each_tag_has_a_line_and_after_leaves_out_those_before(behind: Cli, home: Path) -> None:
    plan = behind("recover", "--all", "--dry-run", "--json-lines")
    assert [json.loads(line) for line in plan.out.splitlines()] == [done("orders", 5, 20), done("users", 5, 20)]
    later = behind("recover", "--all", "--yes", "--json-lines", "--after", "orders")
    assert [json.loads(line) for line in later.out.splitlines()] == [done("users", 5, 20)]
    assert [tag["max"] for tag in behind("tags", "--json").json()] == [5, 20]
    assert behind("recover", "--all", "--yes", "--after", "z").out == ""
    assert behind("recover", "orders", "--yes", "--after", "a").code == 2
    assert behind("recover", "--all", "--yes", "--json", "--json-lines").code == 2
    altered(home, "UPDATE segments SET reason = x'00' WHERE tag = 'orders'")
    ended = behind("recover", "--all", "--yes", "--json-lines")
    failed, well = map(json.loads, ended.out.splitlines())
    assert (ended.code, failed["tag"], "reason must be a str" in failed["error"]) == (4, "orders", True)
    assert well == done("users", 20, 20)


@pytest.mark.live
@pytest.mark.covers("U.19")
@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_a_recovery_of_all_tags_that_is_interrupted_says_where_to_go_on(home: Path, ends: signal.Signals) -> None:
    store = SQLiteStore(home / "many.db")
    names = [f"t{number:05}" for number in range(3000)]
    settings = TagSettings(above=7)
    made = 0
    while made < len(names):
        calls = [lambda store, left, name=name: store.create(name, settings, timeout=left) for name in names[made:]]
        made += len(store.batch(calls, timeout=TIMEOUT))
    recovery = ("--store", store.url, "--redis", "none", "recover", "--all", "--yes", "--json-lines")
    command, messages = [sys.executable, *PROGRAM, *recovery], home / "messages"
    with (
        messages.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        # The pipe holds some 1000 of the lines: the others wait until they are read.
        first = process.stdout.readline() + process.stdout.readline()
        process.send_signal(ends)
        lines = process.stdout.read()
    assert process.returncode == (130 if ends is signal.SIGINT else 143)
    whole = [json.loads(line)["tag"] for line in (first + lines).splitlines() if line.endswith("}")]
    last = messages.read_text().partition("--after=")[2].split()[0]
    assert last in whole[-2:]
    assert whole == names[: len(whole)]
    assert len(whole) < len(names)
    recovered = store.recover(last, at_least=0, timeout=TIMEOUT)
    assert recovered.max == 7
    rest = subprocess.run([*command, f"--after={last}"], capture_output=True, text=True, check=True)
    assert [json.loads(line)["tag"] for line in rest.stdout.splitlines()] == names[names.index(last) + 1 :]
    everything = map(sound, store.tags(count=10**6, timeout=TIMEOUT))
    created = {record.version for record in everything if record.timestamp == record.created}
    assert not created  # each was recovered
