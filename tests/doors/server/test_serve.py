"""`issuer serve` from start to end: what it serves, who supervises it, and how it ends."""

import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.gateway.commands import script
from tests import programs
from tests.cli.conftest import Cli
from tests.doors.http.doors import tokens
from tests.doors.server.conftest import PATIENT, Serve, Served, lines, lives
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

#: What was asked is not asked again.
NEVER = Retry(NoBackoff(), 0)


@pytest.fixture
def servers(redis_url: str, store: str) -> dict[str, str]:
    return {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}


@pytest.fixture
def beneath(server: RedisServer) -> RedisServer:
    """A Redis that the test pauses."""
    return server


@pytest.fixture
def above(beneath: RedisServer, store: str, cli: Cli) -> dict[str, str]:
    """The servers of an `issuer serve` on that Redis, with a tag `orders`."""
    servers = {"ISSUER_REDIS_URL": beneath.url, "ISSUER_STORE_URL": store}
    cli("create", "orders", env=servers)
    return servers


def test_in_an_empty_directory_it_serves_numbers_of_this_machine_and_gives_back_what_it_did_not_issue(
    serve: Serve, cli: Cli, home: Path
) -> None:
    server = serve()
    assert [server.next("orders") for _ in range(3)] == [1, 2, 3]
    log = server.told("no Redis and no store are configured")
    assert log.count("no Redis and no store are configured") == 1
    assert "serving http://127.0.0.1:" in log
    assert "with one worker" in log
    assert (home / "data" / "issuer" / "issuer.db").is_file()
    assert len(server.children()) == 1  # there is nothing to keep
    assert server.stop() == 0
    assert server.log.splitlines()[-1].endswith("stopped")
    assert cli("next", "orders").out == "4\n"


def test_both_protocols_give_numbers_of_one_sequence(serve: Serve, servers: dict[str, str], cli: Cli) -> None:
    cli("create", "orders", env=servers)
    server = serve("--resp", "127.0.0.1:0", env=servers)
    client = redis.Redis(port=server.port("redis"), socket_timeout=120)
    with client:
        drawn = [server.next("orders"), client.incr("orders"), server.next("orders"), client.incr("orders")]
        assert drawn == [1, 2, 3, 4]
    assert server.stop() == 0


def test_workers_keep_strict_order_among_them_and_repeat_nothing(
    serve: Serve, servers: dict[str, str], cli: Cli
) -> None:
    cli("create", "orders", "--step", "100", env=servers)
    server = serve("--workers", "2", "-v", "--log-format", "json", env=servers)
    calls: list[tuple[float, float, int]] = []

    def draw(count: int) -> None:
        with server.fresh() as client:
            for _ in range(count):
                began = time.monotonic()
                number = server.next("orders", client)
                calls.append((began, time.monotonic(), number))

    def shares() -> set[int]:
        """The workers that have answered, in rounds of fresh connections until both have."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(draw, [25] * 8))
        return {line["process"] for line in lines(server.log) if line["logger"] == "issuer.doors.server.requests"}

    until(lambda: len(shares()) == 2, message="both workers have answered")
    numbers = [number for *_, number in calls]
    assert len(set(numbers)) == len(numbers)
    # A call that began after another one had ended has the higher number.
    highest, ended = 0, sorted(calls, key=lambda call: call[1])
    for began, _, number in sorted(calls):
        while ended and ended[0][1] < began:
            highest = max(highest, ended.pop(0)[2])
        assert number > highest
    assert server.stop() == 0


def test_every_tag_of_the_store_is_extended_in_time_though_nothing_is_drawn_through_the_server(
    serve: Serve, servers: dict[str, str], cli: Cli, redis_client: redis.Redis
) -> None:
    def state() -> dict[str, int]:
        return dict(cli("inspect", "orders", "--json", env=servers).json()["redis"])

    cli("create", "orders", "--step", "100", env=servers)
    server = serve("--workers", "2", env=servers)
    draw = partial(redis_client.register_script(script("next").text), keys=["issuer:{orders}"], args=[30, -1])
    until(lambda: draw() == [b"ok", b"0", b"30"], message="the first segment, which a draw asks for")
    until(lambda: state()["next_max"] == 200, message="the next one, past the mark")
    assert len(server.children()) == 3
    assert server.log.count("keeping all tags") == 1
    # The keeper is replaced as a worker is.
    os.kill(server.children()[-1], signal.SIGKILL)
    server.told("keeping all tags", 2)
    assert server.stop() == 0


def test_a_worker_that_is_killed_is_replaced_and_meanwhile_nobody_is_refused(
    serve: Serve, servers: dict[str, str], cli: Cli
) -> None:
    cli("create", "orders", env=servers)
    server = serve(env=servers)
    assert server.next("orders") == 1
    worker = server.children()[0]
    for round in range(1, 4):
        os.kill(worker, signal.SIGKILL)
        with server.fresh() as client:
            assert server.next("orders", client) == round + 1
        server.told("ended by SIGKILL", round)
        assert not lives(worker)
        worker = max(server.children())
    pauses = [line.rpartition(" in ")[2] for line in server.log.splitlines() if "ended by SIGKILL" in line]
    assert pauses == ["0.1 s", "0.2 s", "0.4 s"]
    assert server.stop() == 0


def test_nothing_is_left_behind_by_a_supervisor_that_is_killed(serve: Serve, servers: dict[str, str], cli: Cli) -> None:
    cli("create", "orders", "--order", "trend", "--lease", "50", env=servers)
    server = serve("--workers", "2", env=servers)
    assert server.next("orders") == 1
    processes = server.children()
    assert len(processes) == 3
    server.process.kill()
    until(lambda: not any(map(lives, processes)), message="workers and keeper end with their supervisor")
    assert cli("next", "orders", env=servers).out == "2\n"  # in order, too: what was leased is back


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_under_way_be_answered_and_gives_unused_numbers_back(
    serve: Serve, beneath: RedisServer, above: dict[str, str], cli: Cli, number: signal.Signals
) -> None:
    cli("create", "leased", "--order", "trend", "--lease", "50", env=above)
    server = serve("--resp", "127.0.0.1:0", env=above)
    assert server.next("leased") == 1
    assert [server.next("orders") for _ in range(2)] == [1, 2]
    with ThreadPoolExecutor(8) as pool:
        beneath.pause()
        try:
            clients = [server.fresh() for _ in range(8)]
            drawn = [pool.submit(server.next, "orders", each) for each in clients]
            until(lambda: _callers(server, "orders") == 8, message="all of them wait for Redis")
            server.process.send_signal(number)
            server.told(f"received {number.name}: stopping")
        finally:
            beneath.resume()
        assert sorted(each.result() for each in drawn) == list(range(3, 11))
    assert server.process.wait(120) == 0
    assert "killed" not in server.log
    with pytest.raises(httpx.ConnectError):
        server.fresh().get("/livez")
    assert [cli("next", tag, env=above).out for tag in ("orders", "leased")] == ["11\n", "2\n"]
    assert cli("verify", env=above).code == 0


def _callers(server: Served, tag: str) -> int:
    """Return how many callers of the tag wait for a number."""
    text = server.fresh().get("/metrics").text
    shown = [line for line in text.splitlines() if line.startswith(f'issuer_callers_waiting{{tag="{tag}"}} ')]
    return sum(round(float(line.rpartition(" ")[2])) for line in shown)


def test_requests_that_would_wait_too_long_are_told_so_and_the_server_ends_in_order(
    serve: Serve, beneath: RedisServer, above: dict[str, str]
) -> None:
    times = {"supervisor.STOPPING": 300, "worker.DRAINING": 0.1, "worker.ANSWERING": 60}
    constants = tuple(f"issuer.doors.server.{name}={seconds}" for name, seconds in times.items())
    server = serve("--resp", "127.0.0.1:0", env=above, constants=constants)
    assert server.next("orders") == 1
    commands: list[tuple[object, ...]] = [("INCR", "orders"), ("INCRBY", "orders", 5), ("INCR", "orders")]
    beneath.pause()
    with ThreadPoolExecutor(4) as pool:
        try:
            clients = [redis.Redis(port=server.port("redis"), socket_timeout=240, retry=NEVER) for _ in commands]
            drawn = [pool.submit(client.execute_command, *each) for client, each in zip(clients, commands, strict=True)]
            asked = pool.submit(server.fresh().post, "/v1/tags/orders/next")
            until(lambda: _callers(server, "orders") == 3, message="two INCRs and the request wait for Redis")
            server.process.terminate()
            assert asked.result(60).status_code == 503
            for each in drawn:
                with pytest.raises(redis.ResponseError, match=r"^UNAVAILABLE .*; retry in "):
                    each.result(60)
            assert server.process.wait(240) == 0
        finally:
            beneath.resume()


def test_a_client_that_sends_half_a_request_or_none_is_not_waited_for_for_ever(serve: Serve) -> None:
    server = serve(constants=(*PATIENT, "issuer.doors.server.worker.IDLE=1", "issuer.doors.web.calls.PROGRESS=1"))
    assert server.next("a") == 1
    head = b"POST /v1/tags/a/take HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 8\r\n\r\n"

    def answer(sent: bytes) -> bytes:
        """What comes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", server.port()), timeout=120) as client:
            client.sendall(sent)
            return b"".join(iter(lambda: client.recv(65536), b""))

    assert answer(b"") == b""
    assert answer(head) == b""
    late = answer(head + body + b'{"n"')
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_late"' in late
    assert answer(head + body + b'{"n": 1}').startswith(b"HTTP/1.1 200 ")
    assert server.next("a") == 3


def test_a_second_signal_ends_it_at_once(serve: Serve, beneath: RedisServer, above: dict[str, str]) -> None:
    server = serve("--workers", "2", env=above)
    assert server.next("orders") == 1
    processes = server.children()
    beneath.pause()
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.fresh().post, "/v1/tags/orders/next")
            until(lambda: _callers(server, "orders") == 1, message="the request waits for Redis")
            server.process.terminate()
            server.told("stopping")
            assert any(map(lives, processes))
            assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
            assert isinstance(asked.exception(), httpx.TransportError)
    finally:
        beneath.resume()
    assert not any(map(lives, processes))


def test_ctrl_c_in_a_terminal_reaches_all_its_processes_and_ends_it_in_order(serve: Serve) -> None:
    server = serve("--workers", "2")
    assert server.next("orders") in {1, 1001}
    for each in server.children():
        os.kill(each, signal.SIGINT)
        os.kill(each, signal.SIGTERM)  # as systemd does
    assert server.stop(signal.SIGINT) == 0


def test_a_port_in_use_is_refused_at_once(serve: Serve, listening: socket.socket) -> None:
    taken = f"127.0.0.1:{listening.getsockname()[1]}"
    server = serve(http=taken)
    assert server.process.wait(120) == 2
    assert f"can't listen on http://{taken}: another program listens there" in server.log
    other = serve("--resp", taken)
    assert other.process.wait(120) == 2
    assert f"can't listen on redis://{taken}" in other.log
    first = serve()
    second = serve(http=f"127.0.0.1:{first.port()}")
    assert second.process.wait(120) == 2
    assert first.next("orders") == 1


def test_a_store_that_is_away_at_the_start_is_waited_for(serve: Serve) -> None:
    away = {"ISSUER_STORE_URL": f"mongodb://127.0.0.1:{free_port()}", "ISSUER_TIMEOUT": "0.2"}
    server = serve(env=away | {"ISSUER_STORE_TIMEOUT": "0.2"})
    answer = server.http.post("/v1/tags/orders/next")
    assert answer.status_code == 503
    assert answer.json()["code"] == "store_unavailable"
    assert "retry-after" in answer.headers
    server.told("the store does not answer yet")
    assert server.stop() == 0


def test_settings_that_no_worker_can_use_end_it_with_the_exit_code_of_the_command_line(
    serve: Serve, store: str, home: Path
) -> None:
    wrong = f"redis://127.0.0.1:{free_port()}/0?no_such_parameter=1"
    server = serve(before=("--redis", wrong, "--store", store))
    assert server.process.wait(120) == 2
    assert "parameter 1 of the URL" in server.log
    assert "Traceback" not in server.log
    (home / "no.db").mkdir()
    server = serve(env={"ISSUER_STORE_URL": f"sqlite:///{home}/no.db"})
    assert server.process.wait(120) in {2, 4, 5}
    assert "error: " in server.log


def test_the_settings_file_and_the_environment_say_where_and_an_option_wins(serve: Serve, home: Path) -> None:
    ports = [free_port() for _ in range(3)]
    (home / "issuer.toml").write_text(f'http = "127.0.0.1:{ports[0]}"\nworkers = 2\nlog_format = "json"\n')
    server = serve(http=None)
    assert server.port() == ports[0]
    assert lines(server.log)[-1]["message"].endswith("with 2 workers")
    server.stop()
    server = serve(http=None, env={"ISSUER_HTTP": f"127.0.0.1:{ports[1]}"})
    assert server.port() == ports[1]
    server.stop()
    server = serve("--workers", "1", env={"ISSUER_HTTP": f"127.0.0.1:{ports[1]}"}, http=f"127.0.0.1:{ports[2]}")
    assert server.port() == ports[2]
    assert "with one worker" in server.log
    assert server.stop() == 0


def test_a_client_library_that_is_missing_is_told_with_what_to_install(home: Path) -> None:
    for name in ("granian", "prometheus_client"):
        code = f"import sys; sys.modules[{name!r}] = None\nfrom issuer.cli import main\nmain()"
        done = programs.run("-c", code, "serve", "--http", "127.0.0.1:0", cwd=home)
        assert (done.returncode, done.stdout) == (2, "")
        assert f'{name} is missing: pip install ".[server]" in a checkout' in done.stderr


def test_logs_are_json_with_a_line_for_each_request_and_no_number_and_no_token_in_them(
    serve: Serve, servers: dict[str, str], cli: Cli, home: Path
) -> None:
    _, made = tokens(home, a=(["issue"], ["orders"]), b=(["admin"], ["*"]))
    token, admin = made.values()
    cli("create", "orders", "--start", "7310001", "--step", "100", env=servers)
    server = serve("--tokens", "tokens.toml", "--log-format", "json", "-v", "--resp", "127.0.0.1:0", env=servers)
    bearer, all_of_it = ({"Authorization": f"Bearer {each}"} for each in (token, admin))
    answers = [server.http.post("/v1/tags/orders/next", headers=bearer) for _ in range(120)]
    assert [each.json()["number"] for each in answers] == list(range(7310001, 7310121))
    asked = [
        server.http.post("/v1/tags/orders/next"),
        server.http.post("/v1/tags/orders/next", headers={"Authorization": f"Bearer {token}x"}),
        server.http.post("/v1/tags/other/next", headers=bearer),
        server.http.get("/v1/tags/orders/decode/7310001", headers=all_of_it),
        server.http.get("/v1/tags/orders/who/7310001", headers=all_of_it),
    ]
    assert [each.status_code for each in asked] == [401, 401, 403, 200, 200]
    with redis.Redis(port=server.port("redis"), password=token, socket_timeout=120) as client:
        assert client.incr("orders") == 7310121
    with (
        redis.Redis(port=server.port("redis"), password=token + "x", socket_timeout=120) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.incr("orders")
    # Counted, and without -v logged as well.
    shown = server.http.get("/metrics", headers=all_of_it).text
    assert 'issuer_resp_commands_total{command="INCR"} 1.0' in shown
    assert 'issuer_authentication_failures_total{protocol="resp"}' in shown
    assert 'issuer_http_requests_total{route="next",status="200",token="a"} 120.0' in shown
    assert re.search(r'issuer_connections\{protocol="resp"\} [0-9]', shown)
    assert "authentication failed over resp, from 127.0.0.1, connection " in server.log
    assert "authentication failed over http, from 127.0.0.1, request " in server.log
    server.told("/who/")
    assert server.stop() == 0
    found = lines(server.log)
    assert all(set(line) == {"time", "level", "message", "logger", "process"} for line in found)
    requests = [line["message"] for line in found if line["logger"] == "issuer.doors.server.requests"]
    assert sum(each.startswith("POST /v1/tags/orders/next 200 ") for each in requests) == 120
    assert sum(each.startswith("POST /v1/tags/orders/next 401 ") for each in requests) == 2
    assert sum(each.startswith("GET /v1/tags/orders/who/... 200 ") for each in requests) == 1
    digests = [line.split('"')[1].partition(":")[2] for line in (home / "tokens.toml").read_text().splitlines()]
    for secret in ("73100", "73101", token, admin, token[7:], *digests):
        assert secret not in server.log


@pytest.mark.parametrize(
    ("arguments", "env", "code", "told"),
    [
        (("--http", "TAKEN"), {}, 2, "can't listen on http://"),
        (("--workers", "many"), {}, 2, "'many' is not a valid integer"),
        (("--wrokers", "2"), {}, 2, "No such option"),
        (("--workers", "0"), {}, 2, "workers from argument: must be 1..256"),
        (("--tokens", "missing.toml"), {}, 2, "missing.toml"),
        ((), {"ISSUER_STORE_URL": "nothing://x"}, 2, "nothing"),
    ],
    ids=["listen", "type", "option", "setting", "tokens", "store"],
)
@pytest.mark.parametrize("variable", [False, True], ids=["by option", "by variable"])
def test_what_ends_the_server_at_its_start_is_a_line_of_json_too(
    serve: Serve, listening: socket.socket, variable: bool, *, arguments: Any, env: Any, code: int, told: str
) -> None:
    given = [each.replace("TAKEN", f"127.0.0.1:{listening.getsockname()[1]}") for each in arguments]
    server = serve(
        *(() if variable else ("--log-format", "json")),
        *given,
        http=None if "--http" in given else "127.0.0.1:0",
        env=env | ({"ISSUER_LOG_FORMAT": "json"} if variable else {}),
    )
    assert server.process.wait(120) == code
    found = lines(server.log)
    assert found[-1]["level"] == "error"
    assert told in found[-1]["message"]


def test_a_server_that_logs_in_json_by_its_settings_file_ends_with_a_line_of_it(
    serve: Serve, home: Path, listening: socket.socket
) -> None:
    (home / "issuer.toml").write_text('log_format = "json"\n')
    server = serve(http=f"127.0.0.1:{listening.getsockname()[1]}")
    assert server.process.wait(120) == 2
    assert lines(server.log)[-1]["level"] == "error"


def test_without_verbose_no_request_is_logged(serve: Serve) -> None:
    server = serve()
    server.next("orders")
    assert server.stop() == 0
    assert "orders" not in server.log


def test_tokens_are_read_again_by_each_worker(serve: Serve, home: Path) -> None:
    file = home / "tokens.toml"
    token = tokens(home, a=(["issue"], ["orders"]))[1]["a"]
    line = file.read_text()
    file.write_text("")
    server = serve("--tokens", "tokens.toml", "--workers", "2")

    def answers() -> set[int]:
        bearer = {"Authorization": f"Bearer {token}"}
        with ExitStack() as ends:
            clients = [ends.enter_context(server.fresh()) for _ in range(6)]
            return {each.post("/v1/tags/orders/next", headers=bearer).status_code for each in clients}

    assert answers() == {401}
    file.write_text(line)
    until(lambda: answers() == {200}, message="each worker has read it again")
    file.write_text("a = {")
    until(
        lambda: answers() == {200} and "the tokens that were read before stay valid" in server.log,
        message="still in force",
    )
    # Also for workers that are started now.
    for pid in server.children()[:2]:
        os.kill(pid, signal.SIGKILL)
    server.told("starting a new one", 2)
    assert answers() == {200}
    file.write_text("# revoked\n")
    until(lambda: answers() == {401}, message="each worker has revoked it")
    assert server.stop() == 0


def test_a_rate_is_of_all_workers_and_both_protocols(serve: Serve, home: Path) -> None:
    # Its next call is due in a quarter of an hour.
    _, made = tokens(home, **dict.fromkeys(("slow", "other"), (["issue"], ["*"], 0.001)))
    server = serve("--tokens", "tokens.toml", "--workers", "3", "--resp", "127.0.0.1:0")
    for token in made.values():
        found = []
        for _ in range(8):
            with server.fresh() as client:
                answer = client.post("/v1/tags/orders/next", headers={"Authorization": f"Bearer {token}"})
                found.append(answer.status_code == 200)
            with (
                redis.Redis(port=server.port("redis"), password=token, socket_timeout=120) as client,
                suppress(redis.ResponseError),
            ):
                client.execute_command("INCR", "orders")
                found.append(True)
        assert sum(found) == 1
    assert server.stop() == 0


def test_metrics_are_those_of_all_processes(serve: Serve, servers: dict[str, str], cli: Cli) -> None:
    cli("create", "orders", "--step", "100", env=servers)
    server = serve("--workers", "2", env=servers)
    for _ in range(10):
        with server.fresh() as client:
            server.next("orders", client)

    def issued() -> float:
        text = server.fresh().get("/metrics").text
        shown = [line for line in text.splitlines() if line.startswith("issuer_issued_total") and '"orders"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in shown)

    until(lambda: issued() == 10.0, message="what both workers have issued")
    assert server.stop() == 0
