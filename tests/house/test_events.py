"""docs/reference/events.md has every event as it is, and the log has a line for each, or none on purpose."""

import logging
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import issuer
from issuer.core.events import LINES, Event, line_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \|(.*?)\| ?(\w*) ?\|$", re.MULTILINE)
#: Not by `__subclasses__`, which also has each class as it was before it got its slots.
EVENTS: dict[str, type[Event]] = {
    name: each
    for name, each in vars(issuer.events).items()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}


def test_the_page_has_a_row_for_each_with_its_values_and_its_level_in_the_log() -> None:
    rows = ROW.findall(PAGE)
    assert sorted(name for name, *_ in rows) == sorted(EVENTS)
    for name, says, values, level in rows:
        line = LINES.get(EVENTS[name])
        assert says.strip()
        assert re.findall(r"`(\w+)`", values) == [each.name for each in fields(EVENTS[name])][1:], name
        assert level == ("" if line is None else logging.getLevelName(line[0]).lower()), name


def test_an_event_is_public_frozen_slotted_and_says_what_it_means() -> None:
    for name, each in EVENTS.items():
        assert not hasattr(each.__new__(each), "__dict__")
        assert not (each.__doc__ or "").startswith(f"{name}("), "dataclasses make one up"
    with pytest.raises(FrozenInstanceError):
        issuer.events.WentDirect("a").tag = "b"  # type: ignore[misc]  # what is tried


def test_what_is_logged_says_what_the_log_always_said() -> None:
    assert set(LINES) <= set(EVENTS.values())
    assert line_of(issuer.events.RedisBack("a", 1.0)) is None
    level, text, arguments = line_of(issuer.events.StoreBack("a", None)) or (0, "", ())
    assert (level, text % arguments) == (logging.WARNING, "tag 'a': segments are reserved again")
    silent = [line_of(issuer.events.StoreSilent("a", OSError("why"), scheduled)) for scheduled in (True, False)]
    assert [line is not None for line in silent] == [True, False]
