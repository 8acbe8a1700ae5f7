"""A run says how often each fault has struck, and what a process lacks that gets no numbers."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from issuer.cli.chaos.checker import Verdict
from issuer.cli.chaos.faults import Fault
from issuer.cli.chaos.play import play
from tests.chaos import __main__ as long_run
from tests.chaos.kinds import KINDS


class StillWorld:
    """Nothing is in it but what `play` asks for."""

    def more(self) -> None:
        pass

    def verdict(self) -> Verdict:
        return Verdict()


def test_a_turn_counts_when_the_fault_has_struck_and_numbers_came_after_it() -> None:
    def cannot(_: object) -> None:
        raise AssertionError("it could not be brought about")

    world: Any = StillWorld()
    fine, stuck = Fault("F1", "", lambda _: None), Fault("F2", "", cannot)
    total = Verdict()
    for plan in ([fine, fine], [fine, stuck, fine]):
        total.add(play(world, plan))
    assert total.turns == {"F1": 3}
    assert long_run.seldom(total, [fine, stuck], times=3) == ["F2 0"]
    assert long_run.seldom(total, [fine], times=4) == ["F1 3"]


@pytest.mark.live
def test_a_kind_that_is_left_out_misses_the_bar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_run, "KINDS", [replace(kind, here=lambda: False) for kind in KINDS])
    out = tmp_path / "chaos.json"
    monkeypatch.setattr(
        sys, "argv", ["chaos", "--faults", "F9d,F6c", "--times", "2", "--one-server", "--out", str(out)]
    )
    assert long_run.main() == 1
    said = "each fault 2 times (F6c 0, F9d 0)"
    assert said in json.loads(out.read_text())["missed"]
    assert said in capsys.readouterr().out
