"""The recipes of docs/operate/serving.md for what stands before `issuer serve`: each is taken from it, and runs."""

import http.client
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.doors.server.conftest import Serve, Served
from tests.servers.absent import needed
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.live

PAGE = (Path(__file__).resolve().parents[3] / "docs/operate/serving.md").read_text(encoding="utf-8")
NAME = "numbers.example.com"

#: Of a machine that stands still for seconds: none of these is what a recipe is for.
PATIENT = {"timeout connect 2s": "timeout connect 60s", "proxy_connect_timeout 2s": "proxy_connect_timeout 60s"}


def recipe(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def with_ports(text: str, listening: str, port: int, places: Sequence[str]) -> str:
    """Return the recipe, for servers at these places, and on that port in place of 80."""
    for at, place in zip(("10.0.0.5:8000", "10.0.0.6:8000"), places, strict=True):
        assert text.count(at) == 1
        text = text.replace(at, place)
    for old, new in PATIENT.items():
        text = text.replace(old, new)
    assert text.count(listening) == 1
    return text.replace(listening, f"{listening.split(maxsplit=1)[0]} 127.0.0.1:{port}")


def places_of(servers: list[Served]) -> list[str]:
    return [f"127.0.0.1:{server.port()}" for server in servers]


def nginx(folder: Path, port: int, servers: list[Served], places: Sequence[str] = ()) -> list[str]:
    written = with_ports(recipe("nginx"), "listen 80", port, places or places_of(servers))
    kept = "".join(f"{each}_temp_path {folder};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    around = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
    path = folder / "nginx.conf"
    path.write_text(f"{around}http {{\naccess_log off;\n{kept}{written}}}\n", encoding="utf-8")
    return [needed("nginx"), "-c", str(path), "-p", str(folder), "-e", "stderr"]


def haproxy(folder: Path, port: int, servers: list[Served]) -> list[str]:
    path = folder / "haproxy.cfg"
    path.write_text(with_ports(recipe("haproxy"), "bind :80", port, places_of(servers)), encoding="utf-8")
    return [needed("haproxy"), "-db", "-f", str(path)]


Command = Callable[[Path, int, list[Served]], list[str]]
Proxy = Callable[[Command, list[Served]], int]


@pytest.fixture
def servers(redis_url: str, store: str, cli: Cli) -> dict[str, str]:
    """A Redis and a store with a tag `orders`, which several servers share."""
    servers = {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}
    cli("create", "orders", env=servers)
    return servers


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Start one before these servers; return its port."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(command: Command, servers: list[Served]) -> int:
        port = free_port()
        running.append(subprocess.Popen(command(tmp_path, port, servers)))

        def ready() -> bool:
            assert running[-1].poll() is None
            return asked(port, "GET", "/readyz")[0] == 200

        until(ready, ignoring=(OSError, http.client.HTTPException))
        return port

    yield begin
    for each in running:
        each.kill()
        each.wait()


def asked(port: int, method: str, path: str, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
        client.request(method, path, headers={"Host": f"{NAME}:{port}", **headers})
        answer = client.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("command", [nginx, haproxy])
def test_a_recipe_passes_requests_as_they_are_and_loses_none_when_a_server_stops(
    serve: Serve, proxy: Proxy, command: Command
) -> None:
    needed(command.__name__)
    (delay,) = re.findall(r"ISSUER_DRAIN_DELAY=(\d+)", PAGE)
    servers = [serve("--allowed-host", NAME, env={"ISSUER_DRAIN_DELAY": delay}) for _ in range(2)]
    port = proxy(command, servers)
    own = f"http://{NAME}:{port}"
    assert asked(port, "POST", "/v1/tags/a%2Fb/next", Origin=own)[1].startswith('{"tag":"a/b",')
    assert asked(port, "POST", "/v1/tags/-/next?tag=..", Origin=own)[1].startswith('{"tag":"..",')
    assert asked(port, "POST", "/v1/tags/a/next", Origin="http://elsewhere.example")[0] == 403
    assert asked(port, "POST", "/v1/tags/a/next", Host="elsewhere.example")[0] == 403

    with drawing(port, 8) as (more, lost, numbers):
        more(500)
        assert servers[0].stop() == 0
        more(500)
    assert lost == []
    assert set(numbers.values()) == {1}


@contextmanager
def drawing(port: int, clients: int) -> Iterator[tuple[Callable[[int], None], list[object], Counter[int]]]:
    """Let clients draw without a pause during a `with` block, each over a connection that it keeps. They retry nothing.

    The value is a function that waits for so many more numbers, what was lost, and the numbers.
    """
    numbers: Counter[int] = Counter()
    lost: list[object] = []
    enough = threading.Event()

    def draw() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
            while not (enough.is_set() or lost):
                try:
                    client.request("POST", "/v1/tags/orders/next", headers={"Host": NAME, "Accept": "text/plain"})
                    answer = client.getresponse()
                    body = answer.read()
                except (OSError, http.client.HTTPException) as error:
                    lost.append(error)
                    return
                if answer.status == 200:
                    numbers[int(body)] += 1
                else:
                    lost.append((answer.status, body))

    def more(count: int) -> None:
        wanted = numbers.total() + count
        until(lambda: numbers.total() >= wanted or lost, message="they draw")

    crowd = [threading.Thread(target=draw) for _ in range(clients)]
    for each in crowd:
        each.start()
    try:
        yield more, lost, numbers
    finally:
        enough.set()
        for each in crowd:
            each.join(120)


@pytest.mark.covers("U.24")
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_servers_behind_nginx_that_are_restarted_one_by_one_lose_nothing(
    serve: Serve, proxy: Proxy, home: Path, servers: dict[str, str], kind: str
) -> None:
    needed("nginx")
    ports = [free_port() for _ in range(2)]
    places = [f"127.0.0.1:{port}" if kind == "tcp" else f"unix:{home}/{port}.sock" for port in ports]

    (delay,) = re.findall(r"`drain_delay` to (\d) s", PAGE)

    def start(place: str) -> Served:
        server = serve("--allowed-host", NAME, http=place, env={**servers, "ISSUER_DRAIN_DELAY": delay})
        server.told("serving ")
        return server

    running = [start(place) for place in places]
    port = proxy(partial(nginx, places=places), running)
    with drawing(port, 64) as (more, lost, numbers):
        for at, place in enumerate(places):
            more(1000)
            assert running[at].stop() == 0
            running[at] = start(place)
        more(1000)
    assert lost == []
    assert set(numbers.values()) == {1}


def test_haproxy_takes_a_server_out_by_its_check_while_that_still_serves(serve: Serve, proxy: Proxy) -> None:
    needed("haproxy")
    servers = [serve(env={"ISSUER_DRAIN_DELAY": "3600"}) for _ in range(2)]
    port = proxy(haproxy, servers)
    servers[0].process.terminate()
    servers[1].process.terminate()
    # HAProxy answers itself, as no server is left.
    until(lambda: asked(port, "POST", "/v1/tags/orders/next", Host="localhost")[1].startswith("<html>"))
    for each in servers:
        assert each.next("orders") > 0
        each.process.terminate()


def test_probes_of_kubernetes_are_answered_as_it_asks(serve: Serve) -> None:
    text = recipe("yaml")
    (delay,), (grace,) = re.findall(r'DRAIN_DELAY, value: "(\d+)"', text), re.findall(r"PeriodSeconds: (\d+)", text)
    probes = re.findall(
        r"(\w+)Probe: {httpGet: {path: (\S+), port: 8000}, periodSeconds: (\d+),.* failureThreshold: (\d+)", text
    )
    (liveness, path, _, _), (readiness, ready_path, period, failures) = probes
    assert (liveness, readiness) == ("liveness", "readiness")
    assert int(grace) > int(delay) + 6 > int(period) * int(failures) + 6
    server = serve(env={"ISSUER_DRAIN_DELAY": "3600"})
    port = server.port()

    def probe(path: str) -> int:
        # The kubelet names the address of the pod as the host, and takes a connection of its own each time.
        return asked(port, "GET", path, Host=f"10.244.1.7:{port}", Connection="close", Accept="*/*")[0]

    assert (probe(path), probe(ready_path)) == (200, 200)
    server.process.terminate()
    until(lambda: probe(ready_path) == 503)
    assert probe(path) == 200
    assert server.next("orders") == 1
    server.process.terminate()
