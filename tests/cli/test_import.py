"""`issuer import`: from each layout, the first number here is the first one that the source has not given."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from issuer.cli.commands import import_
from issuer.doors.access import Access
from tests.cli.conftest import altered
from tests.cli.sources import ALLOC, LAYOUTS, LEAF, TINYID, Sources, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

pytestmark = pytest.mark.live


@pytest.mark.covers("U.13")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_number_here_is_the_first_that_the_source_has_not_given(
    direct: Cli, sources: Sources, layout: str
) -> None:
    table, rows, more, promised = LAYOUTS[layout]
    source = sources(layout)
    source.insert(*table, *rows)
    line = ["import", "--from", source.url, "--layout", layout, *more]
    dry = direct(*line, "--dry-run")
    assert (dry.code, shown(dry)) == (0, promised), dry.err
    assert "Stop the source" in dry.err
    assert direct("tags", "--json").json() == []
    ended = direct(*line)
    assert (ended.code, ended.out) == (0, dry.out), ended.err
    assert f"created {len(promised)} tag" in ended.err
    again = direct(*line)
    assert (again.code, again.out) == (0, dry.out), again.err
    assert f"created 0 tags, raised {len(promised) if layout == 'id-alloc' else 0}, left" in again.err
    for tag, (_, first) in promised.items():
        if layout == "id-alloc":
            # The shard of a key is another one than there. Each number is above all numbers of all shards there.
            drawn = int(direct("next", tag, "--shard-key", "k").out)
            assert (drawn >> 14, drawn & 255) == (first >> 14, 17)
        else:
            assert direct("next", tag).out == f"{first}\n"
    after = direct(*line)
    assert {tag: last for tag, (last, _) in shown(after).items()} == {tag: last for tag, (last, _) in promised.items()}


@pytest.mark.parametrize("sources", ["postgres"], indirect=True)
def test_sequences_that_the_user_may_not_read_are_named_and_other_schemas_are_left_out(
    direct: Cli, sources: Sources
) -> None:
    source = sources("table")
    user = f"reader_{secrets.token_hex(4)}"
    for statement in (
        f"CREATE ROLE {user} LOGIN", "CREATE SEQUENCE readable", "CREATE SCHEMA hidden",
        "CREATE SEQUENCE hidden.readable", f"GRANT SELECT ON SEQUENCE readable TO {user}",
    ):  # fmt: skip
        source.run(statement)
    try:
        ended = direct("import", "--from", source.url.replace("tester", user), "--layout", "pgsequence", "--dry-run")
        assert ended.code == 4
        assert ended.out.splitlines()[1:] == ["readable           0           1"]
        assert "orders_id_seq is not imported: the user may not read it: GRANT SELECT ON SEQUENCE" in ended.err
        assert "with a dot" not in direct("import", "--from", source.url, "--layout", "pgsequence").err
    finally:
        source.run(f"DROP OWNED BY {user}")
        source.run(f"DROP ROLE {user}")


def test_a_source_without_tags_is_a_problem(direct: Cli, sources: Sources) -> None:
    source = sources("leaf")
    ended = direct("import", "--from", source.url, "--layout", "leaf", "--dry-run")
    assert (ended.code, ended.out, "the source has no tags: check --layout" in ended.err) == (4, "", True)


@pytest.mark.parametrize("sources", ["postgres"], indirect=True)
def test_sequences_of_postgresql(direct: Cli, sources: Sources) -> None:
    source = sources("table")
    for statement in (
        "CREATE SEQUENCE fresh",
        "CREATE SEQUENCE tens START 5 INCREMENT 10",
        "CREATE SEQUENCE used CACHE 20",
        "SELECT nextval('used')",
        "CREATE SEQUENCE small AS smallint",
        "CREATE SEQUENCE reset",
        "SELECT setval('reset', 40, false)",
        "CREATE SEQUENCE down INCREMENT -1",
        "CREATE SEQUENCE round MAXVALUE 9 CYCLE",
        "CREATE SEQUENCE full_ MAXVALUE 9",
        "SELECT setval('full_', 9)",
        "CREATE SCHEMA shop",
        'CREATE SEQUENCE shop."It""s %"',
        "INSERT INTO orders (name) VALUES ('a'), ('b')",
    ):
        source.run(statement)
    line = ["import", "--from", source.url, "--layout", "pgsequence"]
    ended = direct(*line)
    assert ended.code == 4
    columns = [each.rsplit(maxsplit=2) for each in ended.out.splitlines()[1:]]
    assert {tag: (int(last), int(first)) for tag, last, first in columns} == {
        "fresh": (0, 1), "tens": (0, 5), "used": (20, 21), "small": (0, 1), "reset": (39, 40), 'shop.It"s %': (0, 1),
        "orders_id_seq": (2, 3),
    }  # fmt: skip
    for problem in ("down is not imported: increment_by -1 is below 1", "round is not imported: the sequence has CYCLE",
                    "full_ is not imported: no number above 9 is left"):  # fmt: skip
        assert problem in ended.err
    assert [int(direct("next", tag).out) for tag in ("tens", "tens", "reset", "orders_id_seq")] == [5, 15, 40, 3]
    assert [each["limit"] for each in direct("tags", "--json").json() if each["tag"] == "small"] == [2**15 - 1]
    assert direct(*line, "reset", "--dry-run").out.splitlines()[1:] == ["reset          39          41"]


def test_a_counter_column_whose_highest_rows_were_deleted_goes_on_above_them(direct: Cli, sources: Sources) -> None:
    source = sources("table")
    for _ in range(9):
        source.run("INSERT INTO orders (name) VALUES ('a')")
    source.run("DELETE FROM orders WHERE id > 4")
    line = ["import", "--from", source.url, "--layout", "table", "--table", "orders", "--column"]
    assert shown(direct(*line, "id")) == {"orders": [9, 10]}
    ended = direct(*line, "name")
    assert (ended.code, "not a whole number" in ended.err) == (4, True)
    source.run("ALTER TABLE orders ADD COLUMN amount int")
    assert shown(direct(*line, "amount", "--dry-run")) == {"orders": [0, 10]}


@pytest.mark.parametrize("sources", ["postgres"], indirect=True)
def test_a_counter_that_the_column_does_not_own_or_that_was_set_counts(direct: Cli, sources: Sources) -> None:
    source = sources("table")
    for statement in (
        "CREATE SCHEMA shop",
        'CREATE SEQUENCE shop."a b"',
        """CREATE TABLE foreign_ (id bigint DEFAULT nextval('shop."a b"'))""",
        "CREATE TABLE shop.own (id bigint GENERATED BY DEFAULT AS IDENTITY)",
    ):
        source.run(statement)
    for table in ("foreign_", "shop.own"):
        for _ in range(9):
            source.run(f"INSERT INTO {table} DEFAULT VALUES")
        source.run(f"DELETE FROM {table} WHERE id > 4")  # noqa: S608 - ours
    line = ["import", "--from", source.url, "--layout", "table", "--column", "id", "--dry-run", "--table"]
    assert shown(direct(*line, "foreign_")) == {"foreign_": [9, 10]}
    assert shown(direct(*line, "shop.own")) == {"shop.own": [9, 10]}
    source.run("ALTER TABLE shop.own ALTER id RESTART WITH 50")
    assert shown(direct(*line, "shop.own")) == {"shop.own": [49, 50]}


@pytest.mark.parametrize("sources", ["mariadb"], indirect=True)
@pytest.mark.parametrize("cache", [0, 10])
def test_a_sequence_that_is_the_default_of_the_column_counts(direct: Cli, sources: Sources, cache: int) -> None:
    source = sources("table")
    source.run(f"""CREATE SEQUENCE "a b" START 5 INCREMENT 5 CACHE {cache}""")
    source.run("""CREATE TABLE foreign_ (id bigint PRIMARY KEY DEFAULT nextval("a b"), name varchar(20))""")
    for _ in range(5):
        source.run("INSERT INTO foreign_ () VALUES ()")
    source.run("DELETE FROM foreign_ WHERE id > 10")
    line = ["import", "--from", source.url, "--layout", "table", "--column", "id", "--table", "foreign_"]
    last = 5 * (cache or 5)  # all numbers that the server has in its cache may have been given
    assert shown(direct(*line)) == {"foreign_": [last, last + 1]}


UNCOUNTED = {
    "mariadb": ["(nextval(s) * 2)", "(uuid_short())"],
    "postgres": ["nextval('s') * 2", "nextval(('s'::text)::regclass)", "extract(epoch FROM now())::bigint"],
}


@pytest.mark.parametrize(
    ("sources", "default"), [(name, each) for name in UNCOUNTED for each in UNCOUNTED[name]], indirect=["sources"]
)
def test_a_default_whose_numbers_cannot_be_known_is_refused(direct: Cli, sources: Sources, default: str) -> None:
    source = sources()
    source.run("CREATE SEQUENCE s")
    source.run(f"CREATE TABLE orders (id bigint DEFAULT {default}, name varchar(20), n bigint DEFAULT -1)")
    line = ["import", "--from", source.url, "--layout", "table", "--table", "orders", "--column"]
    ended = direct(*line, "id")
    assert ended.code == 4
    assert "orders is not imported: id has the default" in ended.err
    assert direct(*line, "n").code == 0


#: Rows that cannot be imported, and what is said.
REFUSED: list[tuple[str, tuple[str, str], tuple[Any, ...], str]] = [
    ("leaf", LEAF, ("x", -1, 10, ""), "max_id -1 is below 0"),
    ("leaf", LEAF, ("x", 1, 0, ""), "step 0 is below 1"),
    ("leaf", LEAF, ("京" * 100, 1, 1, ""), "1 to 200 bytes, not 300"),
    ("leaf", LEAF, (" x", 1, 1, ""), "must not begin or end with blanks"),
    ("leaf", LEAF, ("x", 2**63 - 1, 1, ""), ""),
    ("tinyid", TINYID, (9, "x", 1, 10, 0, 0), "delta 0 is below 1"),
    ("tinyid", TINYID, (9, "x", 1, 10, 2, 2), "remainder 2 is not below delta 2"),
    ("tinyid", TINYID, (9, "x", 1, 10, 2, -1), "remainder -1 is below 0"),
    ("tinyid", TINYID, (9, "x", 1, 0, 1, 0), "step 0 is below 1"),
    ("tinyid", TINYID, (9, "x", 1, None, 1, 0), "step is None, not a whole number"),
    ("tinyid", TINYID, (9, "x", 2**63 - 1, 1, 1, 0), f"no number above {2**63 - 1} is left"),
    ("cosid", ("cosid", "name, last_max_id, last_fetch_time"), ("x", 2**63, 0), f"no number above {2**63} is left"),
    ("sequence", ('"sequence"', "seq_name, current_value, _increment"), ("x", -1, 1), "current_value -1 is below 0"),
    ("sequence", ('"sequence"', "seq_name, current_value, _increment"), ("x", 1, -1), "_increment -1 is below 1"),
    ("sequence-value", ("sequence_value", "Name, ID"), ("x", None), "ID is None"),
    ("sequence-value", ("sequence_value", "Name, ID"), (None, 5), "1 to 200 bytes, not 0"),
    ("id-alloc", ALLOC, (256, "x", 0, 1, 1, 0), "app_id 256 is above 255"),
    ("id-alloc", ALLOC, (-1, "x", 0, 1, 1, 0), "app_id -1 is below 0"),
    ("id-alloc", ALLOC, (1, "x", 64, 1, 1, 0), "shard_id 64 above 63"),
    ("id-alloc", ALLOC, (1, "x", 0, 5, 1, 5 << 14), "has reached max_limit_id"),
    ("id-alloc", ALLOC, (1, "x", 0, 1 << 49, 1, 0), "no number above"),
    ("id-alloc", ALLOC, (2, "y", 0, 1, 1, 0), "app_id 2 has another app_name"),
]  # fmt: skip


@pytest.mark.covers("U.13")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}: {case[3]}"[:50])
def test_what_cannot_be_imported_is_named_and_the_others_are_imported(
    direct: Cli, sources: Sources, case: tuple[str, tuple[str, str], tuple[Any, ...], str]
) -> None:
    layout, table, row, problem = case
    source = sources(layout)
    if source.kind == "postgresql" and row[:2] == ("x", 2**63):
        pytest.skip("its integers end below")
    good: dict[str, tuple[object, ...]] = {
        "leaf": ("ok", 5, 1, ""), "tinyid": (1, "ok", 5, 1, 1, 0), "cosid": ("ok", 5, 0), "sequence": ("ok", 5, 1),
        "sequence-value": ("ok", 5), "id-alloc": (2, "ok", 63, 5, 1, 6 << 14),
    }  # fmt: skip
    source.insert(*table, good[layout], row)
    more = ["--block", "1"] if layout == "sequence-value" else []
    ended = direct("import", "--from", source.url, "--layout", layout, *more)
    if not problem:
        assert (ended.code, shown(ended)["x"]) == (0, [2**63 - 2, 2**63 - 1])
        assert direct("next", "x").out == f"{2**63 - 1}\n"
        return
    assert (ended.code, problem in ended.err) == (4, True), ended.err
    named = [each["tag"] for each in direct("tags", "--json").json() if "#" not in each["tag"]]
    assert named == ([] if "another app_name" in problem else ["ok"])


@pytest.mark.covers("U.13")
def test_a_tag_that_exists_is_raised_and_never_lowered(with_redis: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("below", 500, 10, ""), ("above", 5000, 10, "")])
    for tag in ("below", "above"):
        with_redis("create", tag, "--start", "700", "--step", "1000")
        assert with_redis("next", tag).out == "700\n"
    line = ["import", "--from", source.url, "--layout", "leaf"]
    assert shown(with_redis(*line)) == {"below": [499, 701], "above": [4999, 5000]}
    assert [with_redis("next", tag).out for tag in ("below", "above")] == ["701\n", "5000\n"]
    source.insert(*LEAF, ("within", 900, 10, ""))
    with_redis("create", "within", "--step", "1000")
    assert with_redis("next", "within").out == "1\n"  # the numbers up to 1000 are in Redis now
    assert shown(with_redis(*line))["within"] == [899, 900]
    assert with_redis("next", "within").out == "900\n"


#: Settings of new tags, and what remains of them with --order strict --step 7.
_ADAPTED = {
    "order": "trend",
    "step": "auto",
    "min_step": 1000,
    "max_step": 10**6,
    "target": 600,
    "ahead": 1,
    "lease": "auto",
}
SETTINGS: dict[str, tuple[tuple[Any, ...], dict[str, object]]] = {
    "leaf": (("a", 11, 5, ""), {**_ADAPTED, "min_step": 5}),
    "tinyid": ((1, "a", 11, 5, 1, 0), {"order": "trend", "step": 5, "ahead": 10, "lease": "auto"}),
    "cosid": (("a", 11, 0), {**_ADAPTED, "target": 60, "ahead": 10}),
    "sequence": (("a", 11, 1), {**_ADAPTED, "order": "strict", "lease": None}),
}


@pytest.mark.covers("U.29")
@pytest.mark.parametrize("layout", SETTINGS)
def test_new_tags_go_on_as_the_source_did_and_what_was_chosen_is_said(
    with_redis: Cli, sources: Sources, layout: str
) -> None:
    row, promised = SETTINGS[layout]
    promised = {name: value for name, value in promised.items() if value is not None}
    source = sources(layout)
    source.insert(*LAYOUTS[layout][0], row)
    line = ["import", "--from", source.url, "--layout", layout]
    dry = with_redis(*line, "--dry-run", "--json").json()
    assert with_redis(*line, "--json").json() == dry
    [found] = dry
    assert (found["tag"], found["first_here"], found["settings"]) == ("a", found["last_there"] + 1, promised)
    [tag] = with_redis("tags", "--json").json()
    auto = promised["step"] == "auto"
    assert (tag["order"], tag["step_mode"], tag["ahead"]) == (
        promised["order"], "auto" if auto else "fixed", promised["ahead"],
    )  # fmt: skip
    assert tag["lease_mode"] == promised.get("lease", "set")
    assert tag["step"] == promised["min_step" if auto else "step"]
    again = with_redis(*line)
    assert "settings of" not in again.err  # an existing tag stays as it is
    with_redis("delete", "a", "--yes")
    ended = with_redis(*line, "--order", "strict", "--step", "7")
    assert f"settings of a: order=strict, step=7, ahead={promised['ahead']}\n" in ended.err
    assert "`issuer configure TAG` changes them" in ended.err


@pytest.mark.covers("U.29")
def test_import_leaves_a_step_that_a_user_has_set(with_redis: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("a", 11, 5, ""), ("large", 1, 2_000_000, "")])
    with_redis("create", "a", "--step", "700")
    [_, large] = with_redis("import", "--from", source.url, "--layout", "leaf", "--json").json()
    assert (large["settings"]["min_step"], large["settings"]["max_step"]) == (2_000_000, 2_000_000)
    tags = {each["tag"]: each for each in with_redis("tags", "--json").json()}
    assert (tags["a"]["step"], tags["a"]["step_mode"], tags["a"]["order"]) == (700, "fixed", "strict")


def test_a_store_that_is_below_the_source_is_raised_even_if_redis_is_above(
    with_redis: Cli, sources: Sources, home: Path
) -> None:
    source = sources("leaf", rows=[("orders", 1001, 10, "")])
    with_redis("create", "orders", "--start", "2000")
    assert with_redis("next", "orders").out == "2000\n"
    altered(home, "UPDATE tags SET max = 500")
    assert shown(with_redis("import", "--from", source.url, "--layout", "leaf")) == {"orders": [1000, 2001]}
    assert with_redis("tags", "--json").json()[0]["max"] == 1000


def test_shards_of_an_interrupted_import_are_raised(direct: Cli, sources: Sources, home: Path) -> None:
    source = sources("id-alloc", rows=[(17, "pay", 7, 100, 1000, 0)])
    line = ["import", "--from", source.url, "--layout", "id-alloc"]
    assert direct(*line).code == 0
    altered(home, "DELETE FROM tags WHERE tag = 'pay'")  # its shards are there, at index 100
    source.run("UPDATE id_alloc SET max_id = 500")
    assert "created 1 tag, raised 0" in direct(*line).err
    drawn = {int(direct("next", "pay", "--shard-key", key).out) for key in "abc"}
    assert min(drawn) >> 14 == 501


def test_a_tag_with_another_scheme_is_refused(direct: Cli, sources: Sources) -> None:
    source = sources("tinyid")
    source.insert(*TINYID, (1, "a", 10, 10, 1, 0), (2, "b", 10, 10, 2, 1), (3, "c", 10, 10, 1, 0),
                  (4, "d", 10, 10, 2, 0), (5, "e", 10, 10, 1, 0))  # fmt: skip
    direct("create", "a", "--stride", "2", "--offset", "1")
    direct("create", "b", "--stride", "2", "--offset", "2")
    direct("create", "c", "--order", "trend", "--scramble", "k1")
    direct("create", "d")
    direct("delete", "d", "--yes")
    direct("create", "e", "--start", "90")
    direct("delete", "e", "--yes")
    ended = direct("import", "--from", source.url, "--layout", "tinyid")
    assert ended.code == 4
    assert all(f"{tag} is not imported: the tag exists here" in ended.err for tag in "abc"), ended.err
    assert shown(ended) == {"e": [10, 90]}
    assert direct("next", "e").out == "90\n"
    assert "d is not imported: the tag was deleted here" in ended.err


@pytest.mark.covers("U.13")
def test_a_source_that_still_runs_is_noticed(direct: Cli, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    source = sources("leaf", rows=[("busy", 1, 10, ""), ("quiet", 1, 10, "")])
    done = import_._import
    monkeypatch.setattr(import_, "_import", lambda *given: (done(*given), source.leaf("busy")))
    line = ["import", "--from", source.url, "--layout", "leaf"]
    ended = direct(*line)
    assert (ended.code, "the source is running: busy moved" in ended.err) == (4, True)
    monkeypatch.undo()
    assert shown(direct(*line)) == {"busy": [10, 11], "quiet": [0, 1]}


def test_several_databases_of_tinyid_must_share_the_remainders(direct: Cli, sources: Sources) -> None:
    first, second = sources("tinyid"), sources("tinyid")
    first.insert(*TINYID, (1, "both", 100, 10, 2, 0), (2, "same", 1, 10, 2, 1), (3, "few", 1, 10, 3, 1))
    second.insert(*TINYID, (1, "both", 300, 10, 2, 1), (2, "same", 1, 10, 2, 1), (3, "few", 1, 10, 3, 2))
    ended = direct("import", "--from", first.url, "--from", second.url, "--layout", "tinyid")
    assert (ended.code, shown(ended)) == (4, {"both": [300, 301]})
    assert "same is not imported: two databases give the same numbers" in ended.err
    assert "few is not imported: delta is 3, but there are only 2 databases" in ended.err
    assert direct("next", "both", "-n", "2").out.split() == ["301", "302"]


@pytest.mark.covers("U.13")
def test_tokens_of_tinyid_open_the_same_tags(direct: Cli, sources: Sources, home: Path) -> None:
    source = sources("tinyid", "tokens")
    source.insert(*TINYID, (1, "orders", 1, 10, 1, 0))
    long = "0f673adf80504e2eaa552f5d791b644c"
    tokens = ("tiny_id_token", "id, token, biz_type")
    source.insert(*tokens, (1, long, "orders"), (2, long, "a*"), (3, "short", "orders"), (4, "", "orders"))
    line = ["import", "--from", source.url, "--layout", "tinyid", "--tokens", "tokens.toml"]
    assert "would add 2 tokens" in direct(*line, "--dry-run").err
    assert not (home / "tokens.toml").exists()
    ended = direct(*line)
    assert (ended.code, "added 2 tokens to tokens.toml" in ended.err) == (4, True)
    assert "token tinyid-3 has fewer than 16 characters" in ended.err
    assert "token tinyid-4 is not added: the token or a tag is empty" in ended.err
    text = (home / "tokens.toml").read_text()
    assert (long in text, (home / "tokens.toml").stat().st_mode & 0o777) == (False, 0o600)
    access = Access("tokens.toml")
    caller = access.identify(long)
    assert [caller.may("issue", tag) for tag in ("orders", "a*", "ab")] == [True, True, False]
    assert (caller.may("admin", "orders"), access.identify("short").name) == (False, "tinyid-3")
    assert "added 0 tokens" in direct(*line).err
    source.insert(*tokens, (9, long, "more"))
    assert "token tinyid-1 is in tokens.toml without more" in direct(*line).err
    assert (home / "tokens.toml").read_text() == text


def test_a_tag_with_a_dot_is_named(direct: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("order", 9, 1, ""), ("order.v2", 5, 1, "")])
    assert (
        "1 tag with a dot: order.v2. Leaf's HTTP calls cut"
        in direct("import", "--from", source.url, "--layout", "leaf", "--dry-run").err
    )


def test_wrong_usage_is_said(direct: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[("a", 1, 1, "")])
    there = ["--from", source.url, "--layout"]
    for arguments, problem in (
        ([*there, "table"], "requires --table and --column"),
        ([*there, "sequence-value"], "requires --block"),
        ([*there, "leaf", "--block", "5"], "excludes --block"),
        ([*there, "leaf", "--tokens", "t"], "excludes --tokens"),
        ([*there, "pgsequence", "--split", "5"], "cannot be split"),
        ([*there, "leaf", "--from", source.url], "several --from"),
        ([*there, "leaf", "b"], "the source has no tag 'b'"),
        ([*there, "cosid"], "a table is missing in"),
        (["--from", "sqlite:///x", "--layout", "leaf"], "--from must be the URL of a database"),
        (["--from", "mysql://a:b@h", "--layout", "leaf"], "the name of the database is missing"),
        ([*there, "table", "--table", "leaf_alloc", "--column", "none"], "none"),
    ):
        ended = direct("import", *arguments)
        assert (ended.code, problem in ended.err) == (2, True), ended.err


@pytest.mark.covers("U.13")
def test_ten_thousand_rows_twice(direct: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[*((f"t{at:05d}", at + 1, 1000, "") for at in range(10_000))])
    line = ["import", "--from", source.url, "--layout", "leaf"]
    first = direct(*line)
    assert (first.code, "created 10,000 tags, raised 0, left 0" in first.err) == (0, True)
    again = direct(*line)
    assert (again.code, again.out, "created 0 tags, raised 0, left 10,000" in again.err) == (0, first.out, True)
    assert direct("next", "t09999").out == "10000\n"


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_a_source_that_cannot_be_reached_is_said_without_its_password(direct: Cli, kind: str) -> None:
    ended = direct("import", "--from", f"{kind}://a:geheim@127.0.0.1:1/x", "--layout", "leaf")
    assert (ended.code, f"source: {kind}://***@127.0.0.1:1/x: " in ended.err) == (5, True)
    assert "geheim" not in ended.err


def test_a_store_in_the_database_of_the_source(cli: Cli, sources: Sources) -> None:
    source = sources("leaf", rows=[*((f"t{at}", at + 1, 10, "") for at in range(600))])
    line = ["--store", source.url, "import", "--from", source.url, "--layout", "leaf"]
    assert "created 600 tags" in cli(*line).err
    assert "left 600" in cli(*line).err
    source.run("UPDATE leaf_alloc SET max_id = max_id + 1000")
    assert "raised 600" in cli(*line).err
    assert cli("--store", source.url, "next", "t7").out == "1008\n"
