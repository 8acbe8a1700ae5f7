"""The snippets of docs/snowflake.md run, and what its table says of defaults is so."""

import re
from pathlib import Path
from typing import Any

import pytest

from issuer.strategies import Layout, known, registry, stored
from issuer.strategies.machines import LEASE, MARGIN
from issuer.strategies.snowflake import MAX_WAIT, OPTIONS, SOURCES
from tests.strategies import Desk

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "snowflake.md").read_text(encoding="utf-8")


@pytest.mark.covers("3.6")
def test_the_snippets_run_and_the_strategy_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    snippets = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(snippets) == 3
    names: dict[str, Any] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(snippet, names)  # noqa: S102 - what users are told to run
    assert capsys.readouterr().out.strip() in TEXT
    assert known() == ["evens", "segment", "snowflake"]
    with Desk("evens", {"above": 10}) as desk:
        assert [desk.next(), *desk.take(2)] == [12, 14, 16]


def test_every_option_stands_in_the_table_with_its_default() -> None:
    table = TEXT.partition("| option |")[2].partition("\n\n")[0]
    rows = {line.split("|")[1]: line for line in table.splitlines()[2:]}
    assert {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} == set(OPTIONS)
    assert f"| {LEASE:g}; {stored.LEASE:g} with `store` |" in rows[" `lease` "]
    assert f"| {MAX_WAIT} |" in rows[" `max_wait` "]
    assert all(f"`{source}`" in rows[" `machine` "] for source in SOURCES)
    assert f"until {Layout().exhausted:%Y-%m-%d}" in rows[" `time_bits` "]
    assert f"{MARGIN:g} s" in TEXT
