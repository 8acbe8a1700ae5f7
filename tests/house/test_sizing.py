"""docs/operate/sizing.md: its costs are those that were measured, and its formula computes with them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from issuer.operations.registry import RESTING_MOST
from issuer_persistence.ledger import LEDGER_KEPT
from issuer_persistence.records import DEFAULT_MAX_STEP, DEFAULT_STEP
from tests.bench.model import COSTS, KEPT, MODEL, PAGE, TOLERANCE, fitted, picture

ROOT = Path(__file__).resolve().parents[2]
CURVES = json.loads((ROOT / "tests/bench/sizing.json").read_text(encoding="utf-8"))
FIGURES = (ROOT / "docs/explain/figures.md").read_text(encoding="utf-8")

#: What is not of the tags is most of a few tags' memory: the model counts from so many tags on.
FEW = 1000
DAY = 86_400


def needs(*given: float, **more: float) -> dict[str, Any]:
    """Compute with the program of the page."""
    names: dict[str, Any] = {}
    exec(PAGE.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102 - a page of ours
    found: dict[str, Any] = names["needs"](*given, **more)
    return found


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


def test_the_page_has_the_picture_of_the_points_and_the_numbers_of_the_product() -> None:
    assert f"within {TOLERANCE * 100:g} %" in PAGE
    assert (ROOT / "docs/operate/sizing.svg").read_text(encoding="utf-8") == picture(CURVES)
    assert (KEPT, LEDGER_KEPT, DEFAULT_STEP, DEFAULT_MAX_STEP) == (RESTING_MOST, 90 * DAY * 1000, 1000, 1_000_000)
    assert re.search(f"KEPT, LEDGER = 86_400, {KEPT}, 90 ", PAGE)


@pytest.mark.covers("N.13")
def test_a_million_tags_and_a_billion_numbers_a_day() -> None:
    found, rate = needs(10**6, 10**9, tags_per_process=5000), 10**9 / DAY * 3
    assert found["numbers per second at the peak"] == pytest.approx(rate)
    # 600 times the rate of a tag is 21, so the step is the smallest one.
    assert (found["step"], found["segments per second"]) == (1000, pytest.approx(rate / 1000))
    assert found["MB in Redis"] == pytest.approx(COSTS["redis_tag_bytes"])
    assert found["MB in a process"] == pytest.approx(5000 * COSTS["process_tag_bytes"] / 1e6)
    assert found["reads of the store per second"] == 0
    strict, lease = found["strict"], found["lease"]
    assert (strict["commands per second"], lease["commands per second"]) == pytest.approx((rate, rate / 1000))
    besides = rate / 1000 * COSTS["redis_segment_us"] + rate * COSTS["redis_look_us"]
    assert strict["cores of Redis"] == pytest.approx((rate * COSTS["redis_draw_us"] + besides) / 1e6)
    process = rate / 1000 * COSTS["process_segment_us"] + rate * COSTS["process_visit_us"]
    assert strict["cores of processes"] == pytest.approx((rate * COSTS["process_draw_us"] + process) / 1e6)
    each = COSTS["process_lease_us"] / 1000 + COSTS["process_number_us"]
    assert lease["cores of processes"] == pytest.approx((rate * each + process) / 1e6)
    assert strict["MB per second to Redis and back"] == pytest.approx(rate * COSTS["network_bytes"] / 1e6)
    assert strict["MB per second to each replica"] == pytest.approx(rate * COSTS["replicated_bytes"] / 1e6)
    entries = 90 * 10**6
    for name, store in (("GB of disk in SQLite", "sqlite"), ("GB of data in MongoDB", "mongo")):
        size = 10**6 * COSTS[f"{store}_tag_bytes"] + entries * COSTS[f"{store}_entry_bytes"]
        assert found[name] == pytest.approx(size / 1e9)
    busy = rate / 1000 * COSTS["sqlite_reservation_ms"] / 1e3
    assert found["share of SQLite's time"] == pytest.approx(busy)


def test_a_process_that_uses_more_tags_than_it_keeps_reads_them_again() -> None:
    few, many = (needs(10**6, 10**9, tags_per_process=tags) for tags in (RESTING_MOST, 4 * RESTING_MOST))
    rate = few["numbers per second at the peak"]
    assert many["reads of the store per second"] == pytest.approx(rate * 3 / 4)
    more = 3 * RESTING_MOST * COSTS["forgotten_tag_bytes"] / 1e6
    assert many["MB in a process"] == pytest.approx(few["MB in a process"] + more)
    cores = rate * 3 / 4 * COSTS["process_first_us"] / 1e6
    assert many["strict"]["cores of processes"] - few["strict"]["cores of processes"] == pytest.approx(cores)
    assert many["strict"]["commands per second"] == pytest.approx(rate * 7 / 4)
    # Of a lease, 4 numbers in 3 visits are used, and then it is returned.
    assert many["lease"]["commands per second"] == pytest.approx(rate * 3 / 4 + rate * 3 / 4 * 2)
    busy = rate / 1000 * COSTS["sqlite_reservation_ms"] / 1e3 + rate * 3 / 4 * COSTS["sqlite_read_us"] / 1e6
    assert many["share of SQLite's time"] == pytest.approx(busy)


def test_a_busy_tag_has_a_larger_step() -> None:
    assert needs(1, 10**10)["step"] == 1_000_000
    assert needs(1, 5_000_000)["step"] == 104_167
