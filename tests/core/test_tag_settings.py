"""A tag's settings are defined once: what is spelled out elsewhere, for readers and type checkers, says the same."""

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from issuer.numbers import limits
from issuer.numbers.scheme_options import SchemeOptions
from issuer.operations.tag_options import TAG_OPTIONS, ConfigureOptions, CreateOptions
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import HIGHEST, SETTINGS, StoredSettings, Tag, TagChanges, TagSettings, settings_of
from tests.colours import COLOURS, Connect
from tests.reference import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "operations.md"
CHANGED = {name for name, setting in SETTINGS.items() if setting.changes}
#: What callers say by several arguments of their own.
OF_CALLERS = SETTINGS.keys() - {"scheme", "step_mode"}
BEGINNING = {"start", "above"}


def listed(kind: type) -> list[str]:
    """Return the names that the docstring lists."""
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


@pytest.mark.parametrize("connect", COLOURS.values(), ids=COLOURS)
def test_a_name_that_no_call_knows_is_refused_with_the_name(connect: Connect) -> None:
    stp: dict[str, Any] = {"stp": 5}
    with connect(redis="none", store="memory://", scheduler=None) as ids:
        with pytest.raises(TypeError, match="'stp'"):
            ids.create("a", **stp)
        with pytest.raises(TypeError, match="'stp'"):
            ids.create_many({"a": stp})
        ids.create("a")
        wrong: dict[str, Any]
        for wrong in ({"stp": 5}, {"order": "trend"}, {"step": 5, "order": None}):
            with pytest.raises(TypeError, match=f"'{[*wrong][-1]}'"):
                ids.configure("a", **wrong)
    changes: list[dict[str, Any]] = [{"order": "trend"}, {"stp": 5}, {"above": 5}]
    for change in changes:
        with pytest.raises(TypeError, match=min(change)):
            TagChanges(**change)


@pytest.mark.parametrize("connect", COLOURS.values(), ids=COLOURS)
def test_both_faces_put_each_in_its_place(connect: Connect) -> None:
    def held(tag: Tag) -> tuple[object, ...]:
        return tag.max, tag.step, tag.limit, tag.order, tag.lease, tag.ahead, tag.refill_at, tag.description, tag.scheme

    shown, other = "A{seq}", "B{seq}"
    with connect(redis="none", store="memory://", scheduler=None) as ids:
        made = ids.create(
            "a",
            start=5,
            step=7,
            limit=99,
            order="trend",
            lease=3,
            ahead=2,
            refill_at=0.3,
            description="x",
            format=shown,
        )
        assert held(made) == (4, 7, 99, "trend", 3, 2, 0.3, "x", {"format": shown})
        assert ids.create("b", above=9).max == 9
        changed = ids.configure(
            "a", step=8, limit=98, above=20, lease=4, ahead=3, refill_at=1 / 3, description="y", format=other
        )
        assert held(changed) == (20, 8, 98, "trend", 4, 3, 0.333, "y", {"format": other})
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
    settings = TagSettings(
        above=7,
        step=5,
        step_mode="auto",
        limit=99,
        order="trend",
        lease=3,
        ahead=2,
        refill_at=0.8,
        description="x",
        scheme={"a": [1]},
    )
    made = Tag.made("orders", None, settings)
    assert made.settings == settings
    assert settings_of("orders", settings.kept()) == settings.kept()
    required = {name: value for name, value in settings.kept().items() if SETTINGS[name].required}
    plain = TagSettings(step=5, limit=99, order="trend", description="x").kept()
    assert settings_of("orders", required) == plain
    for name in required:
        with pytest.raises(Corrupt, match=name):
            settings_of("orders", {**required, name: None})
