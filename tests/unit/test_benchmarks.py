"""The benchmark's arithmetic, table and picture: what it prints is what was measured. No timing."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import report
from tests.benchmarks.__main__ import rows
from tests.benchmarks.figures import Bound, Figure, missing, percentile, ratio
from tests.benchmarks.inside import evalsha
from tests.benchmarks.picture import Series, histogram
from tests.benchmarks.rounds import alternate

TERMINAL = 80


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        (Bound(0.72, 0.60), 0.60, "goal"),
        (Bound(0.72, 0.60), 0.72, "pass"),
        (Bound(0.72, 0.60), 0.73, "short"),
        (Bound(6, 10, least=True), 10.0, "goal"),
        (Bound(6, 10, least=True), 6.0, "pass"),
        (Bound(6, 10, least=True), 5.9, "short"),
        (Bound(1), 1.0, "pass"),
    ],
)
def test_a_figure_reaches_its_goal_its_bar_or_is_short(bound: Bound, value: float, verdict: str) -> None:
    assert Figure("f", (value,), "x", bound).verdict == verdict


def test_contenders_take_turns_after_a_turn_that_does_not_count() -> None:
    turns: list[str] = []

    def contender(name: str) -> float:
        turns.append(name)
        return len(turns)

    rounds = alternate({"A": lambda: contender("A"), "B": lambda: contender("B")}, 2, "us")
    assert turns == ["A", "B"] * 3
    assert rounds.values == {"A": [3, 5], "B": [4, 6]}
    assert rounds.ratio("A", "B").values == (3 / 4, 5 / 6)


def test_a_round_is_the_mean_of_slices_that_take_turns_too() -> None:
    turns: list[str] = []

    def contender(name: str) -> float:
        turns.append(name)
        return len(turns)

    rounds = alternate({"A": lambda: contender("A"), "B": lambda: contender("B")}, 1, "us", slices=2)
    assert turns == ["A", "B"] * 3
    assert rounds.values == {"A": [(3 + 5) / 2], "B": [(4 + 6) / 2]}


def test_a_ratio_is_taken_round_by_round() -> None:
    figure = ratio("a / b", [1.0, 20.0, 3.0], [2.0, 40.0, 3.0])
    assert (figure.values, figure.median, figure.spread) == ((0.5, 0.5, 1.0), 0.5, 1.0)


def test_a_contender_that_is_not_there_says_why_and_is_not_short() -> None:
    figure = missing("PostgreSQL nextval", "no server")
    assert figure.verdict is None
    assert math.isnan(figure.median)
    assert report.line(figure) == "  PostgreSQL nextval: no server"


def test_a_percentile_is_a_value_that_was_seen() -> None:
    seen = [float(value) for value in range(1, 1001)]
    assert [percentile(seen, part) for part in (0.5, 0.999, 1)] == [500, 999, 1000]
    assert percentile([7.0], 0.5) == 7


@pytest.mark.parametrize("value", [0.00123, 0.5, 1.0, 12.34, 123.4, 1_234_567.8])
def test_a_line_fits_a_terminal_whatever_it_says(value: float) -> None:
    figure = Figure("a name that is much longer than the table has room for", (value,) * 2, "/s", Bound(0.002, 0.001))
    for line in (report.heading(), report.line(figure)):
        assert len(line) <= TERMINAL


def test_numbers_have_three_digits_that_mean_something() -> None:
    told = [report.number(value) for value in (0.001234, 1.234, 12.34, 123.4, 12345.6)]
    assert told == ["0.00123", "1.23", "12.3", "123", "12 346"]


def test_the_file_holds_every_round_and_what_was_asked(tmp_path: Path) -> None:
    target = tmp_path / "build" / "bench.json"
    figure = Figure("next / incr", (0.7, 0.5, 0.9), "x", Bound(0.72, 0.6))
    report.write(target, {"processor": "some"}, {"strict": [figure]}, {"leased": "not there"})
    content = json.loads(target.read_text(encoding="utf-8"))
    assert content["machine"] == {"processor": "some"}
    assert content["broken"] == {"leased": "not there"}
    (written,) = content["rows"]["strict"]
    assert written["rounds"] == [0.7, 0.5, 0.9]
    assert (written["median"], written["low"], written["high"], written["bar"]) == (0.7, 0.5, 0.9, 0.72)
    assert (written["goal"], written["better"], written["verdict"]) == (0.6, "lower", "pass")


def test_the_summary_names_what_is_short_and_what_broke() -> None:
    short = Figure("next / incr", (0.9,), "x", Bound(0.72, 0.6))
    fine = Figure("take / incr", (0.001,), "x", Bound(0.002, 0.001))
    lines = report.summary({"strict": [short], "take": [fine]}, {"leased": "not there"}).splitlines()
    assert lines[0] == "1 of 2 figures reach their bar, 1 their goal"
    assert lines[1:] == ["short: strict: next / incr is 0.9", "broke: leased: not there"]


def test_every_row_says_in_a_line_what_it_measures() -> None:
    for name, (told, _row) in rows(Path("border.svg")).items():
        assert told
        assert len(f"{name}: {told}") <= TERMINAL


def test_the_picture_shows_a_single_slow_call_among_many() -> None:
    series = [Series("slow", "#d9480f", [90.0] * 10_000 + [300_000.0]), Series("fast", "#1864ab", [90.0] * 10_000)]
    drawn = ET.fromstring(histogram("A <title>", series, across="time", up="calls"))  # noqa: S314 - our own
    bars = [part.get("fill") for part in drawn.iter("{http://www.w3.org/2000/svg}rect") if part.get("rx") is None]
    assert bars == ["#d9480f", "#d9480f", "#1864ab"]
    texts = {part.text for part in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"A <title>", "slow", "fast", "time", "calls", "100 µs", "1 s"} <= texts


def test_the_servers_own_count_is_read() -> None:
    info = (
        "# Commandstats\r\ncmdstat_info:calls=2,usec=50\r\ncmdstat_evalsha:calls=200,usec=1640,usec_per_call=8.20\r\n"
    )
    assert evalsha(info) == (200, 1640.0)
    assert evalsha("# Commandstats\r\n") == (0, 0.0)
