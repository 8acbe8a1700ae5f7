"""A tag's settings are defined once: what is spelled out elsewhere, for readers and type checkers, says the same."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from issuer.api.aio import AsyncIssuer
from issuer.api.blocking import Issuer
from issuer.numbers import limits
from issuer.operations.tag_options import TagOptions
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import HIGHEST, SETTINGS, Tag, TagChanges, TagSettings, settings_of
from tests.colours import COLOURS, Connect
from tests.reference import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "operations.md"
CHANGED = {name for name, setting in SETTINGS.items() if setting.changes}
#: What callers say by several arguments of their own.
OF_CALLERS = SETTINGS.keys() - {"scheme", "step_mode"}
BEGINNING = {"start", "above"}


def defaults(kind: type) -> dict[str, Any]:
    return {each.name: each.default for each in fields(kind)}


def test_the_values_and_the_record_hold_every_setting_with_the_same_default() -> None:
    assert defaults(TagSettings).keys() == SETTINGS.keys() | {"above"}
    assert set(defaults(TagChanges).values()) == {None}
    assert defaults(TagChanges).keys() == CHANGED | {"raise_to", "seen"}
    held, given = defaults(Tag), defaults(TagSettings)
    assert held.keys() >= SETTINGS.keys()
    shared = SETTINGS.keys() - {"scheme", "step"}  # made by a factory; without a default, as a record always has one
    assert {name: held[name] for name in shared} == {name: given[name] for name in shared}
    assert TagSettings().scheme == {}
    assert defaults(TagOptions).keys() == OF_CALLERS | BEGINNING | {"given"}


@pytest.mark.parametrize("face", [Issuer, AsyncIssuer])
def test_both_faces_take_every_setting(face: type[Issuer | AsyncIssuer]) -> None:
    def taken(call: Callable[..., object]) -> set[str]:
        return {*inspect.signature(call).parameters} - {"self", "tag", "exist_ok", "timeout"}

    assert taken(face.create) == OF_CALLERS | BEGINNING | {"given"}
    assert taken(face.configure) == (OF_CALLERS & CHANGED) | BEGINNING | {"given"}


@pytest.mark.parametrize("connect", COLOURS.values(), ids=COLOURS)
def test_both_faces_put_each_in_its_place(connect: Connect) -> None:
    """They pass them on by position."""

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
    said = defaults(TagSettings)
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
