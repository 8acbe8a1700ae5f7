"""What `issuer serve` shows at /metrics has the form that Prometheus and its dashboards expect."""

import shutil
import subprocess

import pytest

from issuer.tally import WITHIN
from tests.cli.conftest import Cli
from tests.doors.server.conftest import Serve, cli, home, serve, store
from tests.metrics.shown import Shown

__all__ = ["cli", "home", "serve", "store"]

pytestmark = pytest.mark.live


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
