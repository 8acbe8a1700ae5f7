"""Tags are created, alone or many at once, again and again; their settings are defined once."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import issuer
from issuer import ForeignHash, InvalidArgument, IssuerError, SchemeError, TagDiffers, TagExists, UnknownTag
from issuer.numbers import limits
from issuer.numbers.scheme_options import SchemeOptions
from issuer.operations.tag_options import TAG_OPTIONS, ConfigureOptions, CreateOptions
from issuer.strategies import Instance
from issuer_persistence.errors import Corrupt
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST, SETTINGS, StoredSettings, Tag, TagChanges, TagSettings, settings_of
from tests.colours import BOTH, Connect
from tests.days import DAILY
from tests.reference import COMMANDS
from tests.refusals import refused
from tests.schemes import Make

pytestmark = pytest.mark.colours("blocking")

SMALL = {"shard_bits": 2, "app_bits": 8}

#: Settings of all kinds, by the name of the tag.
ASKED: dict[str, dict[str, Any]] = {
    "z": {"start": 1000, "step": 5},
    "a": {},
    "bills": {"limit": "js", "order": "trend", "lease": 3, "ahead": 2, "description": "京"},
    "coupons": {"order": "trend", "scramble": "k1", "limit": 9999},
    "users": {"shards": SMALL},
    "days": DAILY,
    "cust": {"keyed": True},
    "vienna": {"stride": 2, "offset": 1},
    "flakes": {"strategy": "snowflake"},
}


@pytest.mark.covers("U.20")
@BOTH
def test_each_tag_is_as_create_makes_it_and_issues(make: Make) -> None:
    many, single = make(), make(store=MemoryStore(), prefix="single")
    made = many.create_many(ASKED)
    assert [each.tag for each in made] == [*ASKED]
    alone = [single.create(tag, **settings) for tag, settings in ASKED.items()]

    def kept(tag: Tag) -> object:
        scheme = {name: value for name, value in tag.scheme.items() if name != "id"}
        return tag.tag, tag.max, tag.step, tag.step_mode, tag.limit, tag.order, tag.lease, tag.ahead, scheme

    assert [*map(kept, made)] == [*map(kept, alone)]
    assert [*map(kept, many.tags())] == [*map(kept, single.tags())]
    assert (many.next("z"), many.next("a"), many.issue("users", shard_key="x").counter) == (1000, 1, 1)
    assert many.next("flakes") > 0
    assert many.create_many({}) == []


BAD: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("there", {}, TagExists),
    ("users#1", {}, ForeignHash),
    ("used", {"limit": 5}, issuer.LimitReached),
    ("x", {"step": 0}, InvalidArgument),
    ("x", {"start": 5, "above": 4}, InvalidArgument),
    ("x", {"order": "strict", "lease": 5}, InvalidArgument),
    ("x", {"restart": "daily"}, SchemeError),
    ("x", {"offset": 2}, SchemeError),
    ("x", {"strategy": "nobody's"}, IssuerError),
    ("", {}, InvalidArgument),
    (" x", {}, InvalidArgument),
    ("users#2", {}, InvalidArgument),
    ("x", {"colour": "red"}, TypeError),
]


@pytest.mark.covers("U.20")
@BOTH
@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("bad", BAD)
def test_if_one_cannot_be_created_none_is(
    make: Make, store: MemoryStore, bad: tuple[str, dict[str, Any], type[Exception]], place: int
) -> None:
    ids, (tag, settings, error) = make(), bad
    if error is ForeignHash:
        other = make(store=MemoryStore())
        other.create("users#1")
        other.next("users#1")
    ids.create("there")
    ids.create("used", start=9)
    ids.delete("used")
    before = store.snapshot()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("a", {}),
        ("b", {"start": 7}),
        ("users", {"shards": SMALL}),
        ("flakes", {"strategy": "snowflake"}),
    ]
    if error is ForeignHash:
        del asked[2]
    asked.insert(place, (tag, settings))
    with pytest.raises(error) as caught:
        ids.create_many(dict(asked))
    if isinstance(caught.value, IssuerError):
        assert caught.value.tag in (tag, None if tag == "" else tag, "users" if tag == "users#2" else tag)
    assert store.snapshot() == before


@pytest.mark.covers("U.20")
def test_with_exist_ok_what_exists_stays_and_what_differs_is_an_error(make: Make, store: MemoryStore) -> None:
    ids = make()
    first = ids.create_many({"a": {"step": 5}, "users": {"shards": SMALL}, "flakes": {"strategy": "snowflake"}})
    ids.next("a")
    made = ids.create_many({"b": {}, first[0].tag: {}, "c": {"start": 5}}, exist_ok=True)
    assert [(each.tag, each.max, each.step) for each in made] == [("b", 0, 1000), ("a", 5, 5), ("c", 4, 1000)]
    before = store.snapshot()
    caught = refused(TagDiffers, "", ids.create_many, {"d": {}, "a": {"limit": 7}, "b": {}}, exist_ok=True)
    assert (caught.tag, set(caught.differences)) == ("a", {"limit"})
    exists = refused(TagExists, "", ids.create_many, {"d": {}, "users": {"shards": SMALL}})
    assert exists.tag == "users"
    assert store.snapshot() == before


@pytest.mark.covers("U.20")
def test_what_several_processes_create_at_once_is_there_once(connect: Connect, redis_url: str, tmp_path: Path) -> None:
    asked: dict[str, dict[str, Any]] = {f"t{number}": {"step": 5} for number in range(30)} | {
        "users": {"shards": SMALL}
    }
    url = f"sqlite:///{tmp_path}/store.db"
    with ExitStack() as ends, ThreadPoolExecutor(4) as pool:
        everybody = [ends.enter_context(connect(redis=redis_url, store=url)) for _ in range(4)]
        made = list(pool.map(lambda ids: ids.create_many(asked, exist_ok=True), everybody))
        assert all(each == made[0] for each in made)
        everybody[0].delete("t3")
        refused(UnknownTag, "", everybody[0].next, "t3")
        assert everybody[1].create_many({"t3": {}})[0].max == 0


#: Settings of a tag, and others that aren't the same, by the name that the error has for them.
DIFFERENT: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    ({}, {"limit": {"limit": "js"}, "order": {"order": "trend"}, "above": {"start": 10**6}}),
    ({}, {"format": {"format": "A{seq}"}}),
    ({"order": "trend", "lease": 50}, {"keyed": {"keyed": True, "format": "{key}/{seq}"}}),
    (
        {"start": 100, "limit": 10_000},
        {"above": {"start": 9000, "limit": 10_000}, "limit": {"start": 100, "limit": 999}},
    ),
    ({"stride": 2, "offset": 1}, {"stride": {"stride": 3, "offset": 1}}),
    ({"start": 1000, "limit": 9999, "scramble": "k1", "order": "trend"}, {"scramble": {}}),
    (DAILY, {"restart": {**DAILY, "restart": "weekly"}, "timezone": {**DAILY, "timezone": "UTC"}}),
    ({"shards": {"shard_bits": 1, "app_bits": 1, "app": 1}}, {"shards": {"shards": {"shard_bits": 2, "app_bits": 1}}}),
    ({"strategy": "snowflake", "options": {"epoch": "2026-01-01"}}, {"options": {"strategy": "snowflake"}}),
]


@BOTH
@pytest.mark.parametrize(("settings", "others"), DIFFERENT)
def test_the_same_settings_give_the_tag_as_it_is_and_others_an_error_that_names_them(
    make: Make, store: MemoryStore, settings: dict[str, Any], others: dict[str, dict[str, Any]]
) -> None:
    ids, other = make(), make()
    made = ids.create("a", exist_ok=True, **settings)
    for _ in range(2):
        before = store.tags(count=1000, timeout=5)
        assert other.create("a", exist_ok=True, **settings) == made
        for name, different in others.items():
            caught = refused(TagDiffers, f"{name} is .*not", other.create, "a", exist_ok=True, **different)
            assert name in caught.differences
            assert isinstance(caught, TagExists)
        assert store.tags(count=1000, timeout=5) == before
        if "shards" not in settings:
            ids.issue("a")
            made = ids.create("a", exist_ok=True, **settings)
    refused(TagExists, "", other.create, "a", **settings)


@BOTH
def test_what_is_not_said_is_as_it_is(make: Make) -> None:
    ids = make()
    ids.create("a", step=10, order="trend", lease=5, description="x", limit=500)
    ids.configure("a", step=20)
    assert ids.create("a", exist_ok=True).step == 20
    caught = refused(TagDiffers, "", ids.create, "a", exist_ok=True, order="strict", limit=400)
    assert caught.differences == {"order": ("strict", "trend"), "limit": (400, 500)}
    assert "order is 'trend', not 'strict', limit is 500, not 400" in str(caught)


@BOTH
def test_what_operators_change_while_programs_run_lets_these_start_again(make: Make) -> None:
    ids = make()
    said: dict[str, Any] = {"order": "trend", "step": 10, "lease": 5, "ahead": 2, "description": "x"}
    ids.create("a", exist_ok=True, **said)
    changed = ids.configure("a", step=20, lease=7, ahead=3, description="y")
    assert ids.create("a", exist_ok=True, **said) == changed
    for wrong in ({"step": 0}, {"ahead": 1001}, {"lease": -1}, {"description": "x" * 1001}):
        refused(InvalidArgument, "", ids.create, "a", exist_ok=True, **{**said, **wrong})


@BOTH
def test_a_part_is_not_taken_for_a_tag_of_the_callers(make: Make) -> None:
    ids = make()
    ids.create("a", shards={"shard_bits": 1, "app_bits": 1, "app": 1})
    refused(TagDiffers, "part_of", ids.create, "a#1", exist_ok=True)


@BOTH
def test_where_machine_numbers_come_from_is_as_the_first_process_has_settled_it(make: Make) -> None:
    for ids in (make(redis="none", instance=Instance(machine=machine)) for machine in (3, None)):
        made = ids.create("a", exist_ok=True, strategy="snowflake")
        assert made.scheme["options"] == {"machine": "fixed"}
    refused(TagDiffers, "options", ids.create, "a", exist_ok=True, strategy="snowflake", options={"machine": "store"})


@BOTH
def test_all_that_come_at_once_get_the_tag_and_it_is_made_once(make: Make) -> None:
    ids = make(redis="none")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.create("a", exist_ok=True, step=7), range(16)))
    assert len({each.version for each in made}) == 1


PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "operations.md"
CHANGED = {name for name, setting in SETTINGS.items() if setting.changes}

#: What callers say by several arguments of their own.
OF_CALLERS = SETTINGS.keys() - {"lease_mode", "scheme", "step_mode"}
BEGINNING = {"start", "above"}


def listed(kind: type) -> list[str]:
    return re.findall(r"^        (\w+): ", kind.__doc__ or "", re.MULTILINE)


def test_the_options_of_calls_are_those_that_are_defined() -> None:
    assert {*get_type_hints(CreateOptions)} == TAG_OPTIONS.keys()
    assert {*get_type_hints(ConfigureOptions)} == TAG_OPTIONS.keys() - {"order"}
    own = TAG_OPTIONS.keys() - {*get_type_hints(SchemeOptions)}
    assert own == OF_CALLERS | BEGINNING
    base: type = object
    for kind in (SchemeOptions, ConfigureOptions, CreateOptions):
        assert listed(kind) == [name for name in get_type_hints(kind) if name not in get_type_hints(base)]
        base = kind
    assert listed(StoredSettings) == [*SETTINGS]


@BOTH
def test_a_name_that_no_call_knows_is_refused_with_the_name(make: Make) -> None:
    stp: dict[str, Any] = {"stp": 5}
    ids = make()
    refused(TypeError, "'stp'", ids.create, "a", **stp)
    refused(TypeError, "'stp'", ids.create_many, {"a": stp})
    ids.create("a")
    wrong: dict[str, Any]
    for wrong in ({"stp": 5}, {"order": "trend"}, {"step": 5, "order": None}):
        refused(TypeError, f"'{[*wrong][-1]}'", ids.configure, "a", **wrong)
    for wrong in ({"order": "trend"}, {"stp": 5}, {"above": 5}):
        refused(TypeError, min(wrong), TagChanges, **wrong)


@BOTH
def test_both_faces_put_each_in_its_place(make: Make) -> None:
    def held(tag: Tag) -> tuple[object, ...]:
        return tag.max, tag.step, tag.limit, tag.order, tag.lease, tag.ahead, tag.refill_at, tag.description, tag.scheme

    ids = make()
    first: dict[str, Any] = {"step": 7, "limit": 99, "lease": 3, "ahead": 2, "refill_at": 0.3, "description": "x"}
    made = ids.create("a", start=5, order="trend", format="A{seq}", **first)
    assert held(made) == (4, 7, 99, "trend", 3, 2, 0.3, "x", {"format": "A{seq}"})
    assert ids.create("b", above=9).max == 9
    then: dict[str, Any] = {"step": 8, "limit": 98, "lease": 4, "ahead": 3, "refill_at": 1 / 3, "description": "y"}
    changed = ids.configure("a", above=20, format="B{seq}", **then)
    assert held(changed) == (20, 8, 98, "trend", 4, 3, 0.333, "y", {"format": "B{seq}"})
    assert ids.configure("b", start=30).max == 29


def test_the_command_line_has_an_option_for_every_setting() -> None:
    for command, names in (("create", OF_CALLERS), ("configure", OF_CALLERS & CHANGED)):
        options = [each.name for each in COMMANDS[command].params]
        assert {*options} >= names | BEGINNING


def test_the_table_in_the_docs_has_every_setting_with_its_range_and_default() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## Settings of a tag")[2].partition("\n## ")[0]
    rows = {
        name: (values, default)
        for name, values, default in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    }
    assert [*rows] == [name for name in SETTINGS if name in OF_CALLERS]
    said = {name: setting.default for name, setting in SETTINGS.items()}
    for name, (values, default) in rows.items():
        setting = SETTINGS[name]
        if (bounds := setting.range or setting.share) is not None:
            lowest, highest = bounds
            assert values.startswith(f"{lowest}..{'2^63-1' if highest == HIGHEST else highest}")
        assert {*setting.words} <= {*re.findall(r"`(\w+)`", values)}
        if said[name] is not None:  # else what each process is set to
            shown = "2^63-1" if said[name] == HIGHEST else str(said[name])
            assert default.replace("`", "").startswith(shown or "empty")
    assert limits.NAMES.keys() <= {*re.findall(r"`(\w+)`", rows["limit"][0])}


def test_what_a_record_holds_comes_back_as_it_was_and_what_is_missing_is_as_it_was_before() -> None:
    rest: dict[str, Any] = {"refill_at": 0.8, "description": "x", "scheme": {"a": [1]}}
    settings = TagSettings(above=7, step=5, step_mode="auto", limit=99, order="trend", lease=3, ahead=2, **rest)
    made = Tag.made("orders", None, settings)
    assert made.settings == settings
    assert settings_of("orders", settings.kept()) == settings.kept()
    required = {name: value for name, value in settings.kept().items() if SETTINGS[name].required}
    plain = TagSettings(step=5, limit=99, order="trend", description="x").kept()
    assert settings_of("orders", required) == plain
    for name in required:
        refused(Corrupt, name, settings_of, "orders", {**required, name: None})
