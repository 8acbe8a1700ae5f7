"""`issuer.contrib.fastapi` in TestClient and in the servers that run FastAPI, and `issuer.contrib.pydantic`."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter, ValidationError
from sqlalchemy.exc import StatementError
from starlette.routing import Mount

import issuer
from issuer.contrib.fastapi import Ids, error_reply, get_ids, lifespan
from issuer.contrib.pydantic import Number
from issuer.testing import Double, override
from tests.audit import repeats
from tests.contrib.fastapi_app import app
from tests.servers.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]

#: How to run the application with one worker and with two.
SERVERS = {
    "uvicorn": ["uvicorn", "{app}", "--port", "{port}"],
    "uvicorn-workers": ["uvicorn", "{app}", "--port", "{port}", "--workers", "2"],
    "gunicorn": ["gunicorn", "{app}", "--bind", "127.0.0.1:{port}", "--workers", "2", "--worker-class", "{worker}"],
}


@pytest.fixture
def double() -> Iterator[Double]:
    with override() as double:
        double.ids.create("orders")
        yield double


@pytest.fixture
def client(double: Double) -> Iterator[TestClient]:
    with double.connect(), TestClient(app) as client:
        yield client


@pytest.mark.covers("U.23")
def test_each_request_draws_from_the_issuer_of_the_loop_and_numbers_are_strings_in_json(client: TestClient) -> None:
    assert [client.post("/orders").json() for _ in range(3)] == [{"id": "1"}, {"id": "2"}, {"id": "3"}]
    again = {"Idempotency-Key": "a"}
    assert client.post("/orders", headers=again).json() == client.post("/orders", headers=again).json() == {"id": "4"}
    assert client.post("/rows").json() == {"id": "5"}
    assert client.get("/orders/9223372036854775807").json() == {"id": "9223372036854775807"}
    for wrong in ("9223372036854775808", "-1", "01", "1.0", "a"):
        assert client.get(f"/orders/{wrong}").status_code == 422


def test_the_openapi_document_says_that_a_number_is_a_string_of_digits(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    number = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
    assert found["components"]["schemas"]["Order"]["properties"]["id"].items() >= number.items()
    (parameter,) = found["paths"]["/orders/{number}"]["get"]["parameters"]
    assert parameter["schema"].items() >= number.items()


@pytest.mark.covers("U.23")
def test_an_error_has_the_status_of_issuer_serve_and_says_when_to_retry(client: TestClient, double: Double) -> None:
    unknown = client.post("/tags/unknown")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found", "code": "unknown_tag"})
    double.ids.create("few", limit=1)
    assert client.post("/tags/few").json() == "1"
    full = client.post("/tags/few")
    assert (full.status_code, full.json()["code"]) == (409, "limit_reached")
    with double.redis_away():
        away = client.post("/tags/orders", params={"timeout": 0.1})
        assert (away.status_code, away.json()) == (503, {"detail": "Service Unavailable", "code": "redis_unavailable"})
        assert int(away.headers["retry-after"]) >= 1
    double.ids.delete("orders")
    row = client.post("/rows")
    assert (row.status_code, row.json()["code"]) == (404, "unknown_tag")


@pytest.mark.parametrize(
    "error",
    [
        issuer.ConfigurationError("bad"),
        issuer.CorruptState("bad"),
        ValueError("bad"),
        issuer.SchemeError("bad", setting="format"),
        StatementError("bad", None, None, issuer.InvalidArgument("bad")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_program_is_not_made_one_of_the_client(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        asyncio.run(error_reply(None, error))  # type: ignore[arg-type]  # the request is not used
    assert raised.value is error


@pytest.mark.covers("U.23")
def test_the_health_routes_stay_well_while_redis_is_away_and_show_it(
    client: TestClient, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOK_FOR", 0.0), ("LOOK_WITHIN", 60.0), ("LOOK_WAITED_FOR", 60.0)):
        monkeypatch.setattr(f"issuer.doors.web.probe.{name}", value)
    well = {"ready": True, "store": None, "redis": None, "halted": 0}
    assert client.get("/livez").json() == {"status": "ok"}
    assert client.get("/readyz").json() == well
    double.ids.halt("orders")
    with double.redis_away():
        found = client.get("/readyz")
    assert (found.status_code, found.json()) == (200, {**well, "redis": "redis_unavailable", "halted": 1})


@pytest.mark.covers("U.23")
def test_the_lifespan_returns_what_the_issuer_held_also_within_another_lifespan(double: Double) -> None:
    began: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with lifespan(app):
            began.append("begun")
            yield {"mine": "kept"}

    double.ids.create("leased", order="trend", lease=100)
    inner = FastAPI()

    @inner.post("/{tag}")
    async def draw(tag: str, ids: Ids) -> int:
        return await ids.next(tag)

    outer = FastAPI(lifespan=own, routes=[Mount("/inner", inner)])
    for first in (1, 2, 3):
        with TestClient(outer) as client:
            assert client.post("/inner/leased").json() == first
    assert began == ["begun"] * 3
    assert double.ids.next("leased") == 4


def test_a_dependency_is_overridden_by_its_function(double: Double) -> None:
    class Fixed:
        async def next(self, *_: Any, **__: Any) -> int:
            return 7

    app.dependency_overrides[get_ids] = Fixed
    try:
        with TestClient(app) as client:
            assert client.post("/orders").json() == {"id": "7"}
    finally:
        del app.dependency_overrides[get_ids]
    assert double.ids.next("orders") == 1


def test_a_wrong_setting_ends_the_application_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_TIMEOUT", "soon")
    with issuer.set_adefault(None), pytest.raises(issuer.ConfigurationError, match="ISSUER_TIMEOUT"), TestClient(app):
        pass


def asked(url: str, method: str = "GET") -> Any:
    request = urllib.request.Request(url, method=method)  # noqa: S310 - our own, on loopback
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
        return json.load(answer)


@pytest.mark.live
@pytest.mark.covers("U.23")
@pytest.mark.parametrize("server", SERVERS)
def test_workers_repeat_nothing_and_return_what_they_held_when_the_server_ends(
    server: str, redis_url: str, tmp_path: Path
) -> None:
    store, port = f"sqlite:///{tmp_path / 'issuer.db'}", free_port()
    values = {"app": "tests.contrib.fastapi_app:app", "port": port, "worker": "uvicorn_worker.UvicornWorker"}
    line = [each.format(**values) for each in SERVERS[server]]
    environment = {**os.environ, "ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}
    with issuer.connect(redis=redis_url, store=store) as ids:
        # A lease that nobody uses a fifth of: a worker that fetches its next one returns that alone.
        ids.create("orders", order="trend", step=100_000, lease=10_000)
        process = subprocess.Popen([sys.executable, "-m", *line], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: asked(f"{url}/livez"), 240, ignoring=(OSError,))
            answers: list[dict[str, Any]] = []
            workers = 1 if server == "uvicorn" else 2

            def all_workers_answered() -> bool:
                with ThreadPoolExecutor(8) as pool:
                    answers.extend(pool.map(asked, [f"{url}/pid"] * 16))
                return len({each["pid"] for each in answers}) == workers

            until(all_workers_answered, 240)
            process.terminate()
            process.wait(120)
        finally:
            process.kill()
            process.wait()
        numbers = [number for each in answers for number in each["numbers"]]
        after = ids.next("orders")
    assert repeats([*numbers, after]) == []
    if workers == 1:
        assert after == max(numbers) + 1
    else:
        assert after in {
            max(each for a in answers if a["pid"] == pid for each in a["numbers"]) + 1
            for pid in {a["pid"] for a in answers}
        }


HIGHEST = 2**63 - 1


class Order(BaseModel):
    id: Number
    rows: list[Number] = []
    before: Number | None = None


@pytest.mark.parametrize("number", [0, 1, 2**53, 2**53 + 1, HIGHEST])
def test_a_number_is_exact_on_its_way_through_json(number: int) -> None:
    order = Order(id=number, rows=[number], before=number)
    text = order.model_dump_json()
    assert json.loads(text) == {"id": str(number), "rows": [str(number)], "before": str(number)}
    assert order.model_dump(mode="json") == json.loads(text)
    assert order.model_dump() == {"id": number, "rows": [number], "before": number}
    assert Order.model_validate_json(text) == order
    assert Order.model_validate({"id": number}) == Order.model_validate({"id": str(number)})
    assert Order.model_validate_json(f'{{"id": {number}}}').id == number


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        HIGHEST + 1,
        str(HIGHEST + 1),
        "-1",
        "+1",
        "01",
        "00",
        " 1",
        "1\n",
        "1_000",
        "1.0",
        "1e3",
        "٣",
        "",
        1.0,
        True,
        None,
        [1],
        b"1",
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Number).validate_python(wrong)


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_json_schema_is_that_of_a_string_of_digits(mode: Any) -> None:
    assert TypeAdapter(Number).json_schema(mode=mode) == {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
