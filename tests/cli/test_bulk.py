"""`issuer import --from FILE` and `issuer export`: tags from a file, and to a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from issuer.cli import tag_files
from issuer.cli.exits import PROBLEM
from issuer.cli.tag_files import COLUMNS
from tests.cli.conftest import KEYS, Cli

pytestmark = pytest.mark.covers("U.20")

MANY = 10_000

#: Layout of 53 bits.
NARROW = {"machine_bits": 5, "sequence_bits": 7}

#: Lines as `export` writes them, sorted by name.
LINES: list[dict[str, Any]] = [
    {"tag": '"', "order": "trend"},
    {"tag": "#a, b", "order": "trend", "description": 'say "a", b; 京 end'},
    {"tag": "bits", "order": "trend", "shards": {"shard_bits": 1, "app_bits": 3, "app": 2}},
    {"tag": "coupons", "start": 100, "limit": 9999, "order": "trend", "scramble": "k1"},
    {"tag": "coupons2", "limit": 9999, "order": "trend", "scramble": [[1, "k1"], [1000, "k2"]]},
    {"tag": "cust", "order": "trend", "format": "{key}/{seq}", "keyed": True},
    {"tag": "fast", "step": 5, "order": "trend", "lease": 0, "ahead": 8, "refill_at": 0.5},
    {"tag": "flakes", "strategy": "snowflake", "options": {"epoch": "2026-01-01", "machine": "store"}},
    {"tag": "flakes-js", "limit": 2**53 - 1, "strategy": "snowflake", "options": {"machine": "store", **NARROW}},
    {"tag": "held", "order": "trend", "drain": False},
    {"tag": "js", "start": 2**53 - 2, "limit": 2**53 - 1, "order": "trend"},
    {"tag": "night", "target": 300, "min_step": 5, "max_step": 50, "order": "trend", "survive": 3600},
    {"tag": "vienna", "start": 50, "order": "trend", "stride": 3, "offset": 2},
    {"tag": "wien", "start": 1001, "order": "trend", "stride": 3, "offset": 2},
    {"tag": "zone", "order": "trend", "format": "{date:%Y}-{seq}", "timezone": "Europe/Vienna"},
]

Written = Callable[[list[dict[str, Any]], str], str]


def as_json(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)


def as_csv(lines: list[dict[str, Any]]) -> str:
    """Write it by hand: each field that needs it in quotes."""

    def field(value: object) -> str:
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        return '"' + text.replace('"', '""') + '"' if {*',"\n\r'} & {*text} else text

    rows = [",".join(field(each.get(name)) for name in COLUMNS) + "\n" for each in lines]
    return "".join([",".join(COLUMNS) + "\n", *rows])


WRITERS = {"csv": as_csv, "jsonl": as_json}
OPTIONS = {"csv": (), "jsonl": ("--json-lines",)}


@pytest.mark.parametrize("form", WRITERS)
def test_what_is_exported_creates_the_same_tags_and_the_same_file(cli: Cli, home: Path, form: str) -> None:
    def on(store: str, *arguments: str, input: str | None = None) -> Any:
        return cli("--redis", "none", "--store", f"sqlite:///{store}", *arguments, input=input, env=KEYS)

    text = WRITERS[form](LINES)
    (home / f"tags.{form}").write_text(text, encoding="utf-8")
    made = on("a.db", "import", "--from", f"tags.{form}")
    assert (made.code, made.out) == (0, ""), made.err
    assert f"imported {len(LINES)} tags in" in made.err
    assert on("a.db", "export", *OPTIONS[form]).out == text
    again = on("b.db", "import", "--from", "-", input=text)
    assert (again.code, on("b.db", "export", *OPTIONS[form]).out) == (0, text)
    dry = on("b.db", "import", "--from", f"tags.{form}", "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert f"0 new, {len(LINES)} the same, 0 differ, 0 wrong" in dry.err
    other = "jsonl" if form == "csv" else "csv"
    assert on("a.db", "export", *OPTIONS[other]).out == WRITERS[other](LINES)
    # Its numbers go on above those of the old store.
    for tag, first in (("vienna", "50"), ("fast", "1"), ("js", str(2**53 - 2)), ("wien", "1001")):
        assert on("a.db", "next", tag).out == f"{first}\n"
    moved = on("a.db", "export", *OPTIONS[form])
    assert (moved.code, moved.err) == (0, "")
    on("c.db", "import", "--from", "-", input=moved.out)
    fast, wien = on("c.db", "next", "fast").out, on("c.db", "next", "wien").out
    assert int(fast) > 1
    assert int(wien) > 1001
    assert int(wien) % 3 == 2


def test_tags_that_another_store_would_repeat_are_left_out(direct: Cli, home: Path) -> None:
    (home / "tags.jsonl").write_text(as_json(LINES), encoding="utf-8")
    assert direct("import", "--from", "tags.jsonl", env=KEYS).code == 0
    assert direct("create", "unused", "--keyed", "--format", "{key}/{seq}").code == 0
    for arguments in (["coupons"], ["coupons2"], ["bits", "--shard-key", "x"], ["cust", "--restart-key", "x"]):
        assert direct("next", *arguments, env=KEYS).code == 0
    ended = direct("export", "--json-lines", env=KEYS)
    names = [json.loads(line)["tag"] for line in ended.out.splitlines()]
    left_out = {"coupons", "coupons2", "bits", "cust"}
    assert names == sorted(({each["tag"] for each in LINES} | {"unused"}) - left_out)
    assert (ended.code, "4 tags left out" in ended.err, "bits, coupons, coupons2, cust" in ended.err) == (4, True, True)


@pytest.mark.parametrize("form", WRITERS)
def test_ten_thousand_tags(direct: Cli, home: Path, form: str) -> None:
    lines = [
        {"tag": f"c{number:05d}", "start": 7 * number + 2, "step": number % 9 + 1, "order": "trend"}
        for number in range(MANY)
    ]
    text = WRITERS[form](lines)
    (home / f"tags.{form}").write_text(text, encoding="utf-8")
    assert f"{MANY:,} new, 0 the same" in direct("import", "--from", f"tags.{form}", "--dry-run").err
    assert f"imported {MANY:,} tags" in direct("import", "--from", f"tags.{form}").err
    assert direct("export", *OPTIONS[form]).out == text
    assert direct("next", "c09999").out == f"{7 * 9999 + 2}\n"


#: Lines that are wrong, as JSON and as CSV with the columns tag, start, step, order and shards; and the problem.
WRONG = [
    ('{"tag": "x", "step": 0}', "x,,0,,", "step must be"),
    ('{"tag": "x", "step": "many"}', "x,,many,,", "step must be"),
    ('{"tag": "x", "order": "wild"}', "x,,,wild,", "order must be"),
    ('{"tag": "x", "start": "5"}', "x,five,,,", "start must not be"),
    ('{"tag": "x", "shards": [1]}', "x,,,,[1]", "shards must not be"),
    ('{"tag": "x", "shards": true', 'x,,,,"{"', "not valid"),
    ('{"tag": " x"}', " x,,,,", "blanks"),
    ('{"tag": null, "start": 5}', ",5,,,", "the name of the tag is missing"),
    ('{"tag": "t3"}', "t3,,,,", "is also in line"),
    ('{"tag": "there", "start": 9}', "there,9,,,", "above is 0"),
    ('{"tag": "x", "colour": "red"}', "x,,,,,red", "colour|more than 5 fields"),
    ("[]", 'x,,,,"a"b', "not a JSON object|not valid CSV"),
]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_names_its_line_and_its_page_creates_nothing(
    direct: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, form: str, wrong: tuple[str, str, str]
) -> None:
    page = 20
    monkeypatch.setattr(tag_files, "PAGE", page)
    direct("create", "there")
    bad, problem = wrong[form == "csv"], wrong[2]
    lines = [f"t{at},,,," if form == "csv" else json.dumps({"tag": f"t{at}"}) for at in range(page + 10)]
    lines.insert(page + 5, bad)
    if form == "csv":
        lines.insert(0, "tag,start,step,order,shards")
    (home / f"tags.{form}").write_text("\n".join(lines), encoding="utf-8")
    before = direct("tags", "--json").json()
    line = page + 5 + 1 + (form == "csv")
    if problem == "above is 0":
        dry = direct("import", "--from", f"tags.{form}", "--dry-run")
        assert (dry.code, f"{page + 10:,} new, 0 the same, 1 differ" in dry.err) == (PROBLEM, True)
    ended = direct("import", "--from", f"tags.{form}")
    assert (ended.code > 0, f"error: line {line}: " in ended.err) == (True, True), ended.err
    assert any(each in ended.err for each in problem.split("|")), ended.err
    assert f"{page} tags of the lines before were imported" in ended.err
    after = [each for each in direct("tags", "--json").json() if each["tag"] != "there"]
    assert sorted(each["tag"] for each in after) == sorted(f"t{at}" for at in range(page))
    assert before == [each for each in direct("tags", "--json").json() if each["tag"] == "there"]


@pytest.mark.parametrize("form", WRITERS)
def test_a_dry_run_compares_what_comes_before_a_line_that_cannot_be_read(direct: Cli, home: Path, form: str) -> None:
    direct("create", "a", "--step", "5")
    text = 'tag,step\na,7\n"b"x,1\n' if form == "csv" else '{"tag": "a", "step": 7}\n[]\n'
    (home / f"tags.{form}").write_text(text, encoding="utf-8")
    ended = direct("import", "--from", f"tags.{form}", "--dry-run")
    line = 1 + (form == "csv")
    assert (ended.code, f"line {line}: a: step is 5, not 7" in ended.out) == (2, True)
    assert f"error: line {line + 1}: " in ended.err


def test_a_dry_run_shows_what_differs_and_changes_nothing(direct: Cli, home: Path) -> None:
    direct("create", "a", "--step", "5", "--description", "old")
    direct("create", "b", "--limit", "js")
    (home / "tags.csv").write_text(
        "tag,step,limit,description\na,7,,new\nb,,100,\nc,,,\nd,0,,\nb2,,js,\n", encoding="utf-8"
    )
    before = direct("tags", "--json").json()
    ended = direct("import", "--from", "tags.csv", "--dry-run")
    assert ended.out.splitlines() == [
        "line 2: a: step is 5, not 7",
        "line 2: a: description is 'old', not 'new'",
        f"line 3: b: limit is {2**53 - 1}, not 100",
    ]
    assert "line 5: step must be" in ended.err
    assert "2 new, 0 the same, 2 differ, 1 wrong" in ended.err
    assert ended.code == 2
    assert direct("tags", "--json").json() == before
    assert direct("import", "--from", "tags.csv").code > 0
    assert direct("tags", "--json").json() == before
    (home / "tags.csv").write_text("tag,step\na,7\n", encoding="utf-8")
    assert direct("import", "--from", "tags.csv", "--dry-run").code == PROBLEM


def test_wrong_usage_is_said(direct: Cli, home: Path) -> None:
    (home / "tags.txt").write_bytes(b"\xff\xfe")
    for arguments, problem in (
        (["import", "--from", "tags.txt", "--step", "5"], "a file excludes all options but --dry-run"),
        (["import", "a", "--from", "tags.txt"], "a file excludes all options but --dry-run"),
        (["import", "--from", "mysql://localhost/leaf"], "requires --layout"),
        (["import", "--from", "tags.txt", "--from", "tags.txt"], "requires --layout"),
        (["import", "--from", "tags.txt"], "tags.txt is not UTF-8"),
        (["import", "--from", "none.csv"], "does not exist"),
    ):
        ended = direct(*arguments)
        assert (ended.code, problem in ended.err) == (2, True), ended.err
