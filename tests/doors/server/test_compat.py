"""`issuer serve --compat`: clients of other servers as they speak, what is logged of them; and pages of other sites."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.doors.http.doors import tokens
from tests.doors.server.conftest import Serve, Served
from tests.house.site.browser import Browser, found
from tests.servers.absent import absent

pytestmark = pytest.mark.live

#: What the Java client of tinyid sends, apart from its two parameters.
JAVA = (
    "POST {prefix}/tinyid/id/nextSegmentIdSimple?token={token}&bizType={tag} HTTP/1.1\r\n"
    "User-Agent: Java/1.8.0_202\r\nHost: {host}\r\nAccept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2\r\n"
    "Connection: keep-alive\r\nContent-type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n\r\n"
)


def spoken(served: Served, *, token: str, tag: str, prefix: str = "", times: int = 1) -> list[tuple[str, str]]:
    """Speak as the Java client does, on one connection; return status and body of each reply."""
    found = []
    with socket.create_connection(("127.0.0.1", served.port()), timeout=120) as connection:
        for _ in range(times):
            host = f"127.0.0.1:{served.port()}"
            connection.sendall(JAVA.format(prefix=prefix, token=token, tag=tag, host=host).encode())
            with connection.makefile("rb") as answer:
                status = answer.readline().decode().split(" ")[1]
                length = 0
                while line := answer.readline().strip().decode().lower():
                    if line.startswith("content-length:"):
                        length = int(line.partition(":")[2])
                found.append((status, answer.read(length).decode()))
    return found


PATIENT = {"ISSUER_COMPAT_TIMEOUT": "60"}


@pytest.mark.covers("U.17")
def test_the_java_client_of_tinyid_gets_its_segments(serve: Serve, cli: Cli, store: str) -> None:
    cli("--store", store, "create", "order", "--order", "trend", "--step", "10000")
    served = serve("--compat", "tinyid", "--compat", "leaf", before=("--store", store), env=PATIENT)
    assert spoken(served, token="any", tag="order", times=3) == [
        ("200", "0,2000,10000,1,0"),
        ("200", "10000,12000,20000,1,0"),
        ("200", "20000,22000,30000,1,0"),
    ]
    assert spoken(served, token="any", tag="nope") == [("200", "")]
    assert served.http.get("/api/segment/get/order").text.isdecimal()
    assert served.http.get("/api/leaf?biz_tag=order").status_code == 404


def test_tokens_of_tinyid_stand_in_queries_and_are_in_no_log(serve: Serve, cli: Cli, store: str, home: Path) -> None:
    cli("--store", store, "create", "order", "--order", "trend", "--step", "10000")
    token = tokens(home, java=(["issue"], ["order"]))[1]["java"]
    env = {"ISSUER_COMPAT": "tinyid, leaf-go", "ISSUER_COMPAT_PREFIX": "/gateway/", "ISSUER_TOKENS": "tokens.toml"}
    served = serve("-v", before=("--store", store), env=PATIENT | env)
    assert spoken(served, token=token, tag="order", prefix="/gateway", times=2) == [
        ("200", "0,2000,10000,1,0"),
        ("200", "10000,12000,20000,1,0"),
    ]
    assert spoken(served, token=f"{token}x", tag="order", prefix="/gateway") == [("200", "")]
    assert spoken(served, token=token, tag="order") == [("404", served.http.get("/nope").text)]
    log = served.told("authentication failed over http")
    assert "POST /gateway/tinyid/id/nextSegmentIdSimple 200" in log
    assert token not in log
    assert "bizType" not in log


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
