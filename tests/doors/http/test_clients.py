"""Clients that people have, on a real server: curl, httpx, Node's fetch; and bytes that no client sends."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.doors.http.doors import tokens
from tests.programs import PIPE, Program
from tests.servers.absent import needed
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.live

Serve = Callable[..., str]

#: Seconds: others may keep the machine busy.
PATIENCE = 120.0
post = partial(httpx.post, timeout=PATIENCE)

TAGS = ["orders", "a/b", "%41", "é {} #?", "..a"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server over an SQLite file, or over what is named; return its URL."""
    running: list[Program] = []

    def start(redis: str = "none", *more: str) -> str:
        port = free_port()
        store = f"sqlite:///{tmp_path / 'store.db'}"
        program = Program("-m", "tests.doors.http.server", str(port), redis, store, *more, stdout=PIPE)
        running.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "serving\n"
        url = f"http://127.0.0.1:{port}"
        until(lambda: httpx.get(f"{url}/livez", timeout=PATIENCE).status_code == 200, ignoring=(httpx.TransportError,))
        return url

    yield start
    for each in running:
        each.terminate()
    codes = [each.wait(PATIENCE) for each in running]
    for each in running:
        each.__exit__()
    assert codes == [0] * len(running)


def curl(*arguments: str) -> tuple[int, str]:
    """Return status and body."""
    program = needed("curl")
    done = subprocess.run(
        [program, "-sS", "-w", "\n%{http_code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def node(script: str) -> Any:
    """Run a module of JavaScript; return what it prints, as JSON."""
    program = needed("node")
    done = subprocess.run(
        [program, "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return json.loads(done.stdout)


def test_curl_makes_tags_and_draws(serve: Serve) -> None:
    url = serve()
    for tag in TAGS:
        made = json.dumps({"tag": tag})
        status, _ = curl("-X", "POST", f"{url}/v1/tags", "-H", "Content-Type: application/json", "-d", made)
        assert status == 201
        path = f"{url}/v1/tags/{quote(tag, safe='')}"
        drawn = [curl("-X", "POST", f"{path}/next") for _ in range(3)]
        assert [(status, json.loads(body)) for status, body in drawn] == [
            (200, {"tag": tag, "number": number}) for number in (1, 2, 3)
        ]
        assert curl("-X", "POST", f"{path}/next", "-H", "Accept: text/plain") == (200, "4")
    assert curl("-X", "POST", f"{url}/v1/tags/-/next?tag=orders", "-H", "Accept: text/plain") == (200, "5")
    assert curl("--path-as-is", "-X", "POST", f"{url}/v1/tags/./../next")[0] == 404
    assert curl(f"{url}/v1/tags/orders/next")[0] == 405, "a GET draws nothing"
    assert curl("-X", "POST", f"{url}/v1/tags/orders/next", "-d", "n=5")[0] == 415, "what curl -d sends is a form"
    assert curl("-X", "POST", f"{url}/v1/tags/orders/next", "-H", "Host: evil.example")[0] == 403
    chunked = ("-H", "Transfer-Encoding: chunked", "-H", "Content-Type: application/json", "-d", "{}")
    assert json.loads(curl("-X", "POST", f"{url}/v1/tags/orders/next", *chunked)[1])["number"] == 6
    assert curl("-I", f"{url}/v1/tags/orders")[0] == 200
    large = ("-H", "Content-Type: application/json", "-d", "x" * 70_000)
    assert curl("-X", "POST", f"{url}/v1/tags/orders/next", *large)[0] == 413


def test_httpx_draws_from_many_threads_and_no_number_comes_twice(serve: Serve, redis_url: str) -> None:
    url = serve(redis_url)
    with httpx.Client(base_url=url, timeout=PATIENCE) as client, ThreadPoolExecutor(8) as pool:
        assert client.post("/v1/tags", json={"tag": "a"}).json()["order"] == "strict"

        def draw(at: int) -> list[int]:
            if at % 3 == 0:
                return [int(client.post("/v1/tags/a/next").json()["number"])]
            if at % 3 == 1:
                return [int(client.post("/v1/tags/a/next?as=string", json={"timeout": 25}).json()["number"])]
            return [int(each) for each in client.post("/v1/tags/a/take?as=string", json={"n": 7}).json()["numbers"]]

        numbers = [number for drawn in pool.map(draw, range(300)) for number in drawn]
        assert sorted(numbers) == list(range(1, 901))
        with client.stream("POST", "/v1/tags/a/take", json={"n": 50_000}, headers={"Accept": "text/plain"}) as reply:
            assert [int(line) for line in reply.iter_lines()] == list(range(901, 50_901))
        assert client.get("/readyz").json()["ready"] is True


#: Asks the server at `url`, and returns the status and the body.
ASK = """
    const ask = async (method, path, body) => {
        const reply = await fetch(url + path, { method, body: body && JSON.stringify(body),
            headers: body ? { 'content-type': 'application/json' } : {} });
        return [reply.status, await reply.text()];
    };
"""


@pytest.mark.covers("U.9")
def test_below_the_limit_that_javascript_knows_each_number_is_exact_there(serve: Serve) -> None:
    url = serve()
    found = node(f"""
        const url = '{url}', out = [];
        {ASK}
        await ask('POST', '/v1/tags', {{ tag: 'safe', above: Number.MAX_SAFE_INTEGER - 3, limit: 2 ** 53 - 1 }});
        for (let at = 0; at < 4; at++) {{
            const [status, body] = await ask('POST', '/v1/tags/safe/next');
            const number = JSON.parse(body).number;
            out.push([status, Number.isSafeInteger(number) && String(number)]);
        }}
        console.log(JSON.stringify(out));
    """)
    assert found == [*([200, str(2**53 - 1 - left)] for left in (2, 1, 0)), [409, False]]


@pytest.mark.covers("U.9")
def test_node_draws_numbers_that_it_can_hold(serve: Serve) -> None:
    url = serve()
    found = node(f"""
        const url = '{url}', out = [];
        {ASK}
        for (const tag of {json.dumps([*TAGS, "."])}) {{
            out.push(await ask('POST', '/v1/tags', {{ tag, above: '9007199254740993' }}));
            const path = tag === '.' ? '/v1/tags/-/next?as=string&tag=.' :
                '/v1/tags/' + encodeURIComponent(tag) + '/next?as=string';
            out.push(await ask('POST', path), await ask('POST', path));
        }}
        console.log(JSON.stringify(out));
    """)
    for at, tag in enumerate([*TAGS, "."]):
        made, *drawn = found[3 * at : 3 * at + 3]
        assert made[0] == 201, made
        assert [(status, json.loads(body)) for status, body in drawn] == [
            (200, {"tag": tag, "number": str(9007199254740993 + number)}) for number in (1, 2)
        ]


def test_a_page_of_another_site_is_refused_by_a_real_server(serve: Serve) -> None:
    url = serve()
    post(f"{url}/v1/tags", json={"tag": "a"}).raise_for_status()
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        assert post(f"{url}/v1/tags/a/next", headers=headers).status_code == 403
    assert post(f"{url}/v1/tags/a/next").json()["number"] == 1


def test_tokens_are_asked_for_by_a_real_server(serve: Serve, tmp_path: Path) -> None:
    _, made = tokens(tmp_path, it=(["admin"], ["*"]), drawing=(["issue"], ["a"]))
    url = serve("none", str(tmp_path / "tokens.toml"))
    admin, drawing = ({"Authorization": f"Bearer {made[name]}"} for name in ("it", "drawing"))
    assert post(f"{url}/v1/tags", json={"tag": "a"}, headers=drawing).status_code == 403
    assert post(f"{url}/v1/tags", json={"tag": "a"}, headers=admin).status_code == 201
    for number in (1, 2, 3):
        assert post(f"{url}/v1/tags/a/next").status_code == 401
        assert post(f"{url}/v1/tags/a/next", headers=drawing).json()["number"] == number


def test_bytes_that_are_no_request_end_their_connection_alone(serve: Serve) -> None:
    url = serve()
    port = int(url.rpartition(":")[2])
    post(f"{url}/v1/tags", json={"tag": "a"}).raise_for_status()
    head = b"POST /v1/tags/a/next HTTP/1.1\r\nHost: localhost\r\n"
    rubbish = [
        b"\x00" * 100, b"GET\r\n\r\n", b"POST /v1/tags/\xff\xfe/next HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n", head + b"X" * 1000,
        head.replace(b"Host: localhost\r\n", b"Host: a\r\nHost: b\r\n") + b"\r\n",
    ]  # fmt: skip
    for each in rubbish:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            answer = b""
            with suppress(OSError):  # the server may have ended it already
                connection.sendall(each)
                connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(65536):
                    answer += chunk
        assert answer == b"" or answer.split()[1] in (b"400", b"403", b"404", b"408", b"415"), (each, answer)
    assert post(f"{url}/v1/tags/a/next").json() == {"tag": "a", "number": 1}
