"""The formula of docs/operate/sizing.md beside the points that were measured: costs fitted to them, and a picture."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from tests.bench.charts import Curve, Panel, charts

PAGE = (Path(__file__).resolve().parents[2] / "docs/operate/sizing.md").read_text(encoding="utf-8")

#: The costs that the page lists, by name.
COSTS = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE)}

#: So many tags that it does not use does a process keep in memory.
KEPT = 5000

#: The measured points of each curve.
Curves = dict[str, list[tuple[float, float]]]

#: A part by which a measured point may differ from the model.
TOLERANCE = 0.3

#: What the model says of each curve.
MODEL: Mapping[str, Callable[[float], float]] = {
    "redis_us_by_tags": lambda _: COSTS["redis_draw_us"],
    "redis_us_by_batch": lambda numbers: COSTS["redis_draw_us"] / numbers,
    "redis_bytes_by_tags": lambda tags: tags * COSTS["redis_tag_bytes"],
    "bound_by_masters_hot": lambda _: 1e6 / COSTS["redis_draw_us"],
    "bound_by_masters_many": lambda masters: masters * 1e6 / COSTS["redis_draw_us"],
    "replicated_by_take": lambda numbers: COSTS["replicated_bytes"] / numbers,
    "process_us_by_processes": lambda _: COSTS["process_draw_us"],
    "process_us_by_lease": lambda numbers: COSTS["process_lease_us"] / numbers + COSTS["process_number_us"],
    "process_bytes_by_tags": lambda tags: (
        min(tags, KEPT) * COSTS["process_tag_bytes"] + max(0, tags - KEPT) * COSTS["forgotten_tag_bytes"]
    ),
    "sqlite_bytes_by_tags": lambda tags: tags * COSTS["sqlite_tag_bytes"],
}

_BLUE, _ORANGE, _GREEN = "#1864ab", "#d9480f", "#2b8a3e"


def fitted(curves: Curves) -> dict[str, float]:
    """Return the costs of the model as these points give them, with two digits."""
    at = {name: dict(points) for name, points in curves.items()}
    draw = median(at["redis_us_by_tags"].values())
    lease, in_use = at["process_us_by_lease"], _slope(at["process_bytes_by_tags"], 100, 1000)
    process, visit = median(at["process_us_by_processes"].values()), at["process_us_by_visit"]
    slope = (lease[10] - lease[1000]) / (1 / 10 - 1 / 1000)
    found = {
        "redis_draw_us": draw,
        "redis_segment_us": at["redis_us_by_segment"][1000] - draw,
        "redis_look_us": at["redis_us_by_look"][1],
        "redis_tag_bytes": _slope(at["redis_bytes_by_tags"], 1000, max(at["redis_bytes_by_tags"])),
        "network_bytes": at["received_by_take"][1] + at["sent_by_take"][1],
        "replicated_bytes": at["replicated_by_take"][1],
        "process_draw_us": process,
        "process_lease_us": slope,
        "process_number_us": lease[1000] - slope / 1000,
        "process_segment_us": at["process_us_by_segment"][1000],
        "process_visit_us": visit[0] - process,
        "process_first_us": visit[1] - visit[0],
        "process_tag_bytes": in_use,
        "sqlite_read_us": at["sqlite_us_by_read"][1],
        "sqlite_tag_bytes": _slope(at["sqlite_bytes_by_tags"], 1000, max(at["sqlite_bytes_by_tags"])),
        "sqlite_entry_bytes": at["sqlite_bytes_by_reservation"][1],
        "mongo_tag_bytes": at["mongo_bytes_by_tags"][1],
        "mongo_entry_bytes": at["mongo_bytes_by_segments"][1],
    }
    return {name: float(f"{value:.2g}") for name, value in found.items()}


def _slope(points: Mapping[float, float], first: float, last: float) -> float:
    return (points[last] - points[first]) / (last - first)


def picture(curves: Curves) -> str:
    """Return the picture of docs/operate/sizing.md."""

    def curve(name: str, color: str, key: str) -> Curve:
        return Curve(name, color, [(x, y) for x, y in curves[key]], MODEL.get(key))

    tags, processes, masters, batches = (100, 1000, 10_000, 100_000), range(1, 9), range(1, 4), (1, 10, 100, 1000)
    return charts(
        "Measured (circles), and the formula (lines)",
        [
            Panel("CPU time of a draw, us", "tags in Redis", [curve("Redis", _BLUE, "redis_us_by_tags")], tags),
            Panel(
                "CPU time of a strict number, us", "processes, with a caller each",
                [curve("Redis", _BLUE, "redis_us_by_processes"), curve("process", _ORANGE, "process_us_by_processes")],
                processes,
            ),
            Panel(
                "CPU time of a number, us", "numbers per command",
                [curve("Redis", _BLUE, "redis_us_by_batch"), curve("process, lease", _ORANGE, "process_us_by_lease")],
                batches, logarithmic=True,
            ),
            Panel(
                "Bytes of all tags", "tags",
                [
                    curve("Redis", _BLUE, "redis_bytes_by_tags"), curve("process", _ORANGE, "process_bytes_by_tags"),
                    curve("SQLite", _GREEN, "sqlite_bytes_by_tags"),
                ],
                tags, logarithmic=True,
            ),
            Panel(
                "Numbers per second when a master is full", "masters of a Cluster",
                [curve("3000 tags", _BLUE, "bound_by_masters_many"), curve("one tag", _ORANGE, "bound_by_masters_hot")],
                masters,
            ),
            Panel(
                "Numbers per second, two cores for all", "processes, with a caller each",
                [curve("strict", _BLUE, "rate_by_processes")], processes,
            ),
        ],
    )  # fmt: skip
