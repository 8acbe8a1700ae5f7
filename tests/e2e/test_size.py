"""`issuer size`: its costs are those that were measured, its answers follow from them, and its page says the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from issuer.cli.sizing import COSTS, plan
from issuer.operations.registry import RESTING_MOST
from tests.benchmarks.model import MODEL, TOLERANCE, fitted, picture
from tests.e2e.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
CURVES = json.loads((ROOT / "tests/benchmarks/sizing.json").read_text(encoding="utf-8"))
FIGURES = (ROOT / "docs/explain/figures.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/operate/sizing.md").read_text(encoding="utf-8")

#: What is not of the tags is most of a few tags' memory: the model counts from so many tags on.
FEW = 1000


def test_each_cost_is_the_one_that_was_measured() -> None:
    measured = fitted(CURVES)
    assert measured == {name: value for name, value in COSTS.items() if name in measured}
    # These are figures of other rows of `make bench`.
    assert {name: COSTS[name] for name in COSTS.keys() - measured.keys()} == {
        "forgotten_tag_bytes": 150, "sqlite_reservation_ms": 2.7,
    }  # fmt: skip
    assert "| 0.15 KB |" in FIGURES
    assert "1.7 to 2.7 ms on the disk" in FIGURES


@pytest.mark.parametrize("name", MODEL)
def test_the_model_gives_each_measured_point_again(name: str) -> None:
    points = {x: y for x, y in CURVES[name] if "bytes_by_tags" not in name or x >= FEW}
    assert len(points) >= 2
    assert {x: y for x, y in points.items() if not abs(MODEL[name](x) / y - 1) <= TOLERANCE} == {}


def test_the_page_has_each_cost_and_the_picture_of_the_points() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert {name: float(value) for name, value in rows.items()} == COSTS
    assert f"within {TOLERANCE * 100:g} %" in PAGE
    assert (ROOT / "docs/operate/sizing.svg").read_text(encoding="utf-8") == picture(CURVES)


@pytest.mark.covers("N.13")
def test_a_million_tags_and_a_billion_numbers_a_day(cli: Cli) -> None:
    ended = cli("size", "--tags", "1000000", "--per-day", "1000000000", "--tags-per-process", "5000", "--json")
    found = ended.json()
    assert (ended.code, ended.err) == (0, "")
    assert (found["tags"], found["per_day"], found["peak"], found["tags_per_process"]) == (10**6, 10**9, 3, 5000)
    rate = 10**9 / 86_400 * 3
    assert found["numbers_per_second"] == pytest.approx(rate)
    # 600 times the rate of a tag is 21, so the step is the smallest one.
    assert (found["step"], found["reservations_per_second"]) == (1000, pytest.approx(rate / 1000))
    assert found["redis_bytes"] == 10**6 * COSTS["redis_tag_bytes"]
    assert (found["process_bytes"], found["store_reads_per_second"]) == (5000 * COSTS["process_tag_bytes"], 0)
    strict, lease = found["strict"], found["lease"]
    assert (strict["commands_per_second"], lease["commands_per_second"]) == pytest.approx((rate, rate / 1000))
    besides = rate / 1000 * COSTS["redis_segment_us"] + rate * COSTS["redis_look_us"]
    assert strict["redis_cores"] == pytest.approx((rate * COSTS["redis_draw_us"] + besides) / 1e6)
    assert (strict["masters"], lease["masters"]) == (2, 1)
    entries = 90 * 10**6
    assert found["sqlite_bytes"] == 10**6 * COSTS["sqlite_tag_bytes"] + entries * COSTS["sqlite_entry_bytes"]
    assert found["years"] == pytest.approx(2**63 / 1000 / 365)


def test_a_process_that_uses_more_tags_than_it_keeps_reads_them_again() -> None:
    few, many = (plan(10**6, 10**9, 3, 1000, tags) for tags in (RESTING_MOST, 4 * RESTING_MOST))
    rate = few.numbers_per_second
    assert many.store_reads_per_second == pytest.approx(rate * 3 / 4)
    assert many.process_bytes == few.process_bytes + 3 * RESTING_MOST * COSTS["forgotten_tag_bytes"]
    more = rate * 3 / 4 * COSTS["process_first_us"] / 1e6
    assert many.strict.process_cores - few.strict.process_cores == pytest.approx(more)
    assert many.strict.commands_per_second == pytest.approx(rate * 7 / 4)
    # Of a lease, 4 numbers in 3 visits are used, and then it is returned.
    assert many.lease.commands_per_second == pytest.approx(rate * 3 / 4 + rate * 3 / 4 * 2)


def test_a_tag_is_on_one_master(cli: Cli) -> None:
    one = plan(1, 10**10, 3, 1000, 1)
    assert (one.step, one.strict.masters, one.lease.masters) == (1_000_000, None, 1)
    assert one.strict.most_per_second_of_a_tag < one.numbers_per_second < one.lease.most_per_second_of_a_tag
    many = plan(1000, 10**10, 3, 1000, 1000)
    assert many.strict.redis_cores == pytest.approx(one.strict.redis_cores, rel=0.01)
    assert many.strict.masters is not None
    assert many.strict.masters >= 2 * many.strict.redis_cores
    printed = cli("size", "--tags", "1", "--per-day", str(10**10))
    assert re.search(r"^Redis masters +no number is enough +1$", printed.out, re.MULTILINE)
    assert "more masters do not make one tag faster" in printed.err


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"--tags": "1"}, r"^step of a tag +104,167: a segment lasts 10 min$"),
        ({"--tags": "10", "--lease": "50"}, r"^commands per second +174 +3.5$"),
        ({"--tags": "10", "--peak": "1"}, r"^numbers per second +58 at the peak, 1 x the mean$"),
        ({"--tags": "1", "--per-day": "10000000000000"}, r"^SQLite +too slow; "),
        ({"--tags": "10000", "--tags-per-process": "100000"}, r"^memory of a process +32.8 MB, with 10,000 tags$"),
        ({"--tags": "1", "--per-day": "1"}, r"^64-bit numbers last +over a million years$"),
    ],
)
def test_what_is_printed_follows_the_options(cli: Cli, given: dict[str, str], shown: str) -> None:
    options = {"--per-day": "5000000", **given}
    ended = cli("size", *(word for pair in options.items() for word in pair))
    assert ended.code == 0
    assert re.search(shown, ended.out, re.MULTILINE), ended.out


@pytest.mark.parametrize(
    "wrong", [("--tags", "0"), ("--per-day", "0"), ("--peak", "0"), ("--peak", "nan"), ("--lease", "0")]
)
def test_what_is_out_of_range_is_named(cli: Cli, wrong: tuple[str, str]) -> None:
    given: dict[str, Any] = {"--tags": "1", "--per-day": "1", **dict([wrong])}
    ended = cli("size", *(word for pair in given.items() for word in pair))
    assert (ended.code, ended.out) == (2, "")
    assert wrong[0] in ended.err
