"""Pages of another site in a real browser: over plain HTTP they cannot draw by the calls of other servers."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.cli.conftest import Cli
from tests.doors.server.conftest import Serve
from tests.house.site.browser import Browser, found
from tests.servers.absent import absent

pytestmark = pytest.mark.live

#: All ways in which a page can make a browser send a GET to another site.
PAGE = """<!doctype html>
<script>window.settled = 0; const settle = () => {{ window.settled += 1 }}</script>
<img src="{url}?by=img" onload="settle()" onerror="settle()">
<img src="{url}?by=silent" referrerpolicy="no-referrer" onload="settle()" onerror="settle()">
<script src="{url}?by=script" onload="settle()" onerror="settle()"></script>
<link rel="stylesheet" href="{url}?by=link" onload="settle()" onerror="settle()">
<iframe src="{url}?by=iframe" onload="settle()"></iframe>
<script>fetch("{url}?by=fetch", {{mode: "no-cors", headers: {{"Accept": "x/y"}}}}).then(settle, settle)</script>
"""
WAYS = 6


@contextmanager
def site(page: str) -> Iterator[int]:
    """Serve the page at 127.0.0.1, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = page.encode() if self.path == "/" else b""
            self.send_response(200 if content else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("told", [False, True], ids=["usual", "compat_any_page"])
def test_a_page_of_another_site_draws_only_if_the_server_was_told_so(
    serve: Serve, cli: Cli, store: str, told: bool
) -> None:
    cli("--store", store, "create", "order", "--order", "trend", "--step", "10000")
    env = {"ISSUER_COMPAT_TIMEOUT": "60", **({"ISSUER_COMPAT_ANY_PAGE": "true"} if told else {})}
    options = ("--compat", "leaf", "--open", "--allowed-host", "leaf.internal", "-v")
    served = serve(*options, before=("--store", store), env=env)
    url = f"http://leaf.internal:{served.port()}/api/segment/get/order"
    names = "--host-resolver-rules=MAP leaf.internal 127.0.0.1,MAP shop.example 127.0.0.1"
    with site(PAGE.format(url=url)) as port, Browser(found() or absent("Chromium", "chromium"), names) as browser:
        browser.open(f"http://shop.example:{port}/")
        assert browser.wait_for(f"window.settled >= {WAYS}")
    served.told("GET /api/segment/get/order", WAYS)
    statuses = re.findall(r"GET /api/segment/get/order (\d+)", served.log)
    assert statuses == ["200" if told else "403"] * WAYS
    # Clients of programs draw as before.
    assert served.http.get("/api/segment/get/order").text == str(WAYS + 1 if told else 1)
