"""Metrics, their page, the alerts, the dashboard and the runbook agree; /metrics has the form of Prometheus."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from issuer.core.events import Event
from issuer.metrics.counting import COUNTS
from issuer.metrics.definitions import DEFINITIONS
from issuer.tally import WITHIN
from tests.cli.conftest import Cli
from tests.doors.server.conftest import Serve, cli, home, serve, store
from tests.house.test_docs import EVENTS
from tests.metrics.shown import Shown

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "issuer.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "issuer.json"
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "operate" / "runbook.md").read_text(encoding="utf-8")
KNOWN = {each.shown: each for each in DEFINITIONS}
SECONDS = r"[0-9]+[smhd]"


def alerts() -> list[dict[str, Any]]:
    content = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    assert set(content) == {"groups"}
    return [rule for group in content["groups"] for rule in group["rules"]]


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that an expression names; those of a histogram by its own name."""
    found = re.findall(r"\bissuer_\w+", re.sub(r'"[^"]*"', "", expression))
    return {name if name in KNOWN else re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def labels_of(expression: str) -> set[tuple[str, str]]:
    """Return each metric that is named with the labels that it is chosen by."""
    return {
        (re.sub(r"_(bucket|sum|count)$", "", name), label)
        for name, chosen in re.findall(r"\b(issuer_\w+)\{([^}]*)\}", expression)
        for label in re.findall(r'(\w+)\s*(?:=|!=|=~|!~)\s*"', chosen)
    }


def expressions_of_the_board() -> list[str]:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return targets + [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]


def test_the_page_has_a_row_for_each_metric_with_its_kind_labels_and_help() -> None:
    rows = re.findall(r"^\| `(issuer_\w+)` \| (\w+) \| ?(.*?) \| (.+) \|$", PAGE, re.MULTILINE)
    assert [name for name, *_ in rows] == list(KNOWN)
    for name, kind, labels, help in rows:
        each = KNOWN[name]
        assert (kind, tuple(re.findall(r"`(\w+)`", labels)), help) == (each.kind, each.labels, each.help), name


def test_names_have_base_units_and_gauges_say_how_processes_are_put_together() -> None:
    for each in DEFINITIONS:
        assert re.fullmatch(r"issuer_[a-z_]+", each.name)
        assert not re.search(r"_(ms|millis|minutes|percent)\b", each.name)
        assert (each.joined is None) == (each.kind != "gauge")
        assert set(each.labels) <= {"tag", "reason", "result", "cause", "code", "work", "version", "python"} | {
            *("route", "status", "token", "command", "protocol")
        }


def test_each_event_is_counted() -> None:
    kinds: set[type[Event]] = set(EVENTS.values())
    assert set(COUNTS) == kinds


@pytest.mark.covers("U.12")
def test_there_are_alerts_for_what_has_to_be_known_before_it_is_too_late() -> None:
    names = {alert["alert"] for alert in alerts()}
    assert {"IssuerRunwayShort", "IssuerExtensionsLate", "IssuerFenceTripped", "IssuerLimitNear"} <= names
    named = set().union(*(metrics_of(alert["expr"]) for alert in alerts()))
    assert {"issuer_runway_seconds", "issuer_extensions_late_total", "issuer_fence_trips_total"} <= named
    assert {"issuer_limit_ratio", "issuer_store_silent", "issuer_redis_silent", "issuer_kept_tags"} <= named


def test_alerts_name_metrics_and_labels_that_there_are_and_are_well_formed() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}, alert
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(SECONDS, alert.get("for", "0s"))
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}
        assert metrics_of(alert["expr"]), alert
        assert metrics_of(alert["expr"]) <= set(KNOWN), alert["expr"]
        for name, label in labels_of(alert["expr"]):
            assert label in KNOWN[name].labels, alert["expr"]
        assert alert["expr"].count("(") == alert["expr"].count(")")
        shown = re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values()))
        kept = re.findall(r"by \(([\w, ]+)\)", alert["expr"])
        assert set(shown) <= {label for each in kept for label in each.split(", ")}, alert["alert"]


def test_promtool_takes_the_rules_where_there_is_one() -> None:
    """Elsewhere the test above has looked at what promtool would: structure, names, labels, durations."""
    tool = shutil.which("promtool")
    if tool is None:
        assert alerts()
        return
    done = subprocess.run([tool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts())} rules found" in done.stdout


def test_each_alert_has_a_runbook_entry_that_says_what_it_means_what_users_notice_and_what_to_do() -> None:
    entries = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    assert [*entries] == [*dict.fromkeys(entries)]
    assert set(entries) == {alert["alert"] for alert in alerts()}
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/operate/runbook.md#{alert['alert'].lower()}"
        entry = entries[alert["alert"]]
        means, users, do = (f"**{each}.**" for each in ("What it means", "What users notice", "What to do"))
        assert entry.index(means) < entry.index(users) < entry.index(do)


def test_the_dashboard_names_metrics_and_labels_that_there_are_and_shows_each() -> None:
    named: set[str] = set()
    for expression in expressions_of_the_board():
        assert metrics_of(expression) <= set(KNOWN), expression
        named |= metrics_of(expression)
        for name, label in labels_of(expression):
            assert label in (*KNOWN[name].labels, "job"), expression
    assert named == set(KNOWN)


def test_the_panels_of_the_dashboard_are_told_apart_and_do_not_overlap() -> None:
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


__all__ = ["cli", "home", "serve", "store"]


@pytest.mark.live
@pytest.mark.parametrize("several", [False, True], ids=["one process", "several processes"])
def test_latencies_are_histograms_and_the_linter_of_prometheus_takes_all_metrics(
    serve: Serve, cli: Cli, redis_url: str, store: str, several: bool
) -> None:
    env = {"ISSUER_REDIS_URL": redis_url if several else "none", "ISSUER_STORE_URL": store}
    cli("create", "orders", "--step", "1000", env=env)
    server = serve(env=env)
    for _ in range(10):
        server.next("orders")
    text = server.http.get("/metrics").raise_for_status().text
    shown = Shown(text)
    buckets = [shown.value("http_request_seconds_bucket", route="next", le=str(each)) for each in WITHIN]
    counts = [each for each in buckets if each is not None]
    assert len(counts) == len(WITHIN)
    assert counts == sorted(counts)
    assert shown.value("http_request_seconds_bucket", route="next", le="+Inf") == 10
    assert shown.value("http_request_seconds_count", route="next") == 10
    assert (shown.value("http_request_seconds_sum", route="next") or 0) > 0
    assert shown.value("reservation_seconds_bucket", reason="load" if several else "direct", result="done", le="+Inf")
    # What promtool looks at, where there is none.
    assert "# TYPE issuer_http_request_seconds histogram" in text
    for name, samples in shown.samples.items():
        assert not name.endswith("_created"), name
        assert all(("le" in dict(labels)) == name.endswith("_bucket") for labels in samples), name
    if (tool := shutil.which("promtool")) is not None:
        done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
