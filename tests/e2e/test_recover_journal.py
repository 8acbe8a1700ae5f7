"""`issuer recover --from-journal`: a restored store, a lost one, and journals that can't be used."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, Ended

Run = Callable[..., Ended]


@pytest.fixture
def journalled(cli: Cli, store: str, home: Path) -> Run:
    """`cli` on a fresh store, with ISSUER_JOURNAL set, and two tags that 20 numbers were drawn of."""

    def run(*arguments: str) -> Ended:
        return cli("--store", store, *arguments, env={"ISSUER_JOURNAL": str(home / "journal")})

    for tag in ("orders", "users"):
        run("create", tag, "--limit", "5000", "--description", f"{tag} of the shop")
        run("next", tag, "-n", "20")
    return run


def _lose_the_store(home: Path) -> str:
    for each in home.glob("ids.db*"):
        each.unlink()
    return str((home / "journal").rename(home / "old"))


@pytest.mark.covers("3.29")
def test_a_store_that_is_lost_is_made_again_with_its_settings(journalled: Run, home: Path) -> None:
    before = journalled("tags", "--json").json()
    assert journalled("config", "--json").json()["journal"]["source"] == "ISSUER_JOURNAL"
    old = _lose_the_store(home)
    planned = journalled("recover", "--all", "--from-journal", old, "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert [line.split() for line in planned.out.splitlines()] == [
        ["TAG", "OLD", "NEW", "GAP"],
        ["orders", "lost", "20", "20"],
        ["users", "lost", "20", "20"],
    ]
    assert journalled("tags", "--json").json() == []
    done = journalled("recover", "--all", "--from-journal", old, "--yes", "--json")
    assert done.json()[0] == {"tag": "orders", "old": None, "new": 20, "gap": 20}
    names = ("tag", "max", "step", "limit", "order", "description")
    after = journalled("tags", "--json").json()
    assert [[tag[name] for name in names] for tag in after] == [[tag[name] for name in names] for tag in before]
    assert journalled("recover", "--all", "--from-journal", old, "--yes", "--json").json()[0]["gap"] == 0
    assert journalled("next", "orders").out == "21\n"


def test_one_tag_of_several_journals(journalled: Run, cli: Cli, store: str, home: Path) -> None:
    other = {"ISSUER_JOURNAL": str(home / "of another machine")}
    cli("--store", store, "next", "orders", "-n", "5", env=other)
    old = _lose_the_store(home)
    files = ("--from-journal", old, "--from-journal", other["ISSUER_JOURNAL"])
    done = journalled("recover", "orders", *files, "--yes", "--json").json()
    assert [(each["tag"], each["new"]) for each in done] == [("orders", 25)]
    assert [tag["tag"] for tag in journalled("tags", "--json").json()] == ["orders"]


def test_a_store_that_is_not_the_journals_is_found_out_at_once(journalled: Run, home: Path) -> None:
    for each in home.glob("ids.db*"):
        each.unlink()
    ended = journalled("create", "orders")
    assert (ended.code, ended.out) == (2, "")
    assert "--from-journal" in ended.err
    assert journalled("tags", "--json").json() == []


def test_a_damaged_line_is_named_and_nothing_is_changed(journalled: Run, home: Path) -> None:
    path = home / "journal"
    path.write_bytes(path.read_bytes().replace(b'"high":1000', b'"high":1001'))
    ended = journalled("recover", "--all", "--from-journal", str(path), "--at-least", "7", "--yes")
    assert ended.code == 2
    ended = journalled("recover", "--all", "--from-journal", str(path), "--yes")
    assert (ended.code, ended.out) == (4, "")
    assert f"{path}, line 3: it is not as it was written" in ended.err
    assert ended.err.count("error: ") == 1


def test_journals_that_cant_be_used_are_refused_once_and_nothing_is_recovered(
    journalled: Run, cli: Cli, home: Path
) -> None:
    (home / "empty").touch()
    before, ours = journalled("tags", "--json").json(), str(home / "journal")
    elsewhere = ("--store", f"sqlite:///{home / 'other.db'}")
    for tag in ("a", "b"):
        cli(*elsewhere, "create", tag)
    others = cli(*elsewhere, "tags", "--json").json()
    for ended, said in (
        (journalled("recover", "--all", "--from-journal", "missing", "--yes"), "'missing' does not exist"),
        (journalled("recover", "orders", "--from-journal", ours, "--from-journal", "empty", "--yes"), "empty is empty"),
        (journalled("recover", "--all", "--from-journal", "empty", "--yes"), "journal empty is empty"),
        (cli(*elsewhere, "recover", "--all", "--from-journal", ours, "--dry-run"), "journals of another store"),
        (cli(*elsewhere, "recover", "--all", "--from-journal", ours, "--yes"), "journals of another store"),
    ):
        assert (ended.code, ended.out, ended.err.count("error: ")) == (2, "", 1)
        assert said in ended.err
    assert (journalled("tags", "--json").json(), cli(*elsewhere, "tags", "--json").json()) == (before, others)
