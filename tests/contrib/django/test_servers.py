"""The project behind real servers: gunicorn and uvicorn, with several processes that draw from one tag."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contrib.django.conftest import Shop
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

GUNICORN = "gunicorn --workers 2 --bind 127.0.0.1:{port} --worker-class {kind} wsgi:application"
SERVERS = {
    "sync": (f"{GUNICORN} --preload", "place"),
    "gthread": (f"{GUNICORN} --preload --threads 4", "place"),
    # Without --preload: Django's connections are bound to threads, which gevent replaces after Django was imported.
    "gevent": (GUNICORN, "place"),
    "uvicorn": ("uvicorn --workers 2 --port {port} asgi:application", "aplace"),
}
REQUESTS = 60


@pytest.mark.parametrize("kind", SERVERS)
def test_processes_of_a_server_draw_different_numbers(shop: Shop, redis_url: str, kind: str) -> None:
    shop.environment = {"SHOP_REDIS": redis_url, "SHOP_DEBUG": "0"}
    shop.manage("migrate", "--run-syncdb")
    line, view = SERVERS[kind]
    port = free_port()
    log = shop.folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *line.format(port=port, kind=kind).split()],
            cwd=shop.folder,
            env=shop.variables,
            stdout=output,
            stderr=output,
        )
    try:

        def request(n: int) -> dict[str, int]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{view}/{n}", timeout=60) as reply:
                found: dict[str, int] = json.load(reply)
                return found

        until(lambda: request(-1), 60, ignoring=(OSError,))
        with ThreadPoolExecutor(8) as threads:
            replies = [*threads.map(request, range(REQUESTS))]
        for name in ("order", "coupon"):
            assert len({reply[name] for reply in replies}) == REQUESTS
        assert max(reply["order"] for reply in replies) <= REQUESTS + 100
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(60)
    assert ended in (0, -signal.SIGTERM)
    assert "Traceback" not in log.read_text()
