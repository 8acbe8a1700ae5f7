"""The application over an issuer, asked without a server: what a client sends, byte by byte."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import issuer
from issuer import AsyncIssuer
from issuer.doors.access import Access
from issuer.doors.tokens import line_for, new_token
from issuer.doors.web.app import application
from issuer.settings import Settings
from issuer_persistence.contract import Store
from tests.waiting import run

HOST = "localhost:8000"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the problem that it is, looked at."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["type"] == "about:blank"
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        return str(problem["code"])


class Door:
    """An application, and the issuer behind it."""

    def __init__(self, ids: AsyncIssuer, app: Any, token: str | None = None) -> None:
        self.ids, self.app, self.token = ids, app, token

    async def ask(
        self,
        method: str,
        target: str | bytes,
        body: Any = None,
        *,
        headers: Sequence[tuple[str, str]] = (),
        host: str | None = HOST,
        sent: bytes | None = None,
        pieces: Sequence[bytes] | None = None,
        token: str | None = None,
        **scope: Any,
    ) -> Answer:
        """Send a request. `body`: JSON; `sent`: its bytes; `pieces`: the same, in chunks and without a length."""
        raw, _, query = (target.encode() if isinstance(target, str) else target).partition(b"?")
        content = json.dumps(body).encode() if body is not None else sent or b""
        given = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if host is not None:
            given.append((b"host", host.encode()))
        if body is not None:
            given.append((b"content-type", b"application/json"))
        if pieces is not None:
            given.append((b"transfer-encoding", b"chunked"))
        elif content:
            given.append((b"content-length", b"%d" % len(content)))
        said = token if token is not None else self.token
        if said is not None:
            given.append((b"authorization", b"Bearer " + said.encode()))
        chunks = list(pieces) if pieces is not None else [content]
        messages: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not chunks:
                return {"type": "http.disconnect"}
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

        async def send(message: Any) -> None:
            messages.append(message)

        asked = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": raw.decode("latin-1"), "raw_path": raw, "query_string": query, "root_path": "", "headers": given,
            "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        await self.app(asked | scope, receive, send)
        start, *rest = messages
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        answer = Answer(start["status"], found, b"".join(each.get("body", b"") for each in rest))
        assert found["cache-control"] == "no-store"
        assert found["x-content-type-options"] == "nosniff"
        if "content-length" in found and method != "HEAD":
            assert int(found["content-length"]) == len(answer.body)
        return answer

    async def good(self, *request: Any, **options: Any) -> Any:
        """Send a request that goes well, and return its content."""
        answer = await self.ask(*request, **options)
        assert 200 <= answer.status < 300, answer
        return answer.json if answer.body else None

    async def refused(self, *request: Any, **options: Any) -> tuple[int, str]:
        """Send one that is refused; return status and code."""
        answer = await self.ask(*request, **options)
        return answer.status, answer.code


@asynccontextmanager
async def open_door(
    *tags: str,
    access: Access | None = None,
    redis: str = "none",
    store: str | Store = "memory://",
    settings: Mapping[str, Any] | None = None,
    limits: Settings | None = None,
    **options: Any,
) -> AsyncIterator[Door]:
    """Open one with these tags. `settings`: of the issuer; `limits`, `options`: of the application."""
    # A machine that others keep busy stands still for seconds.
    patient = {"timeout": 60.0, "store_timeout": 45.0, "redis_timeout": 30.0, **(settings or {})}
    async with issuer.aconnect(redis=redis, store=store, scheduler=None, **patient) as ids:
        for tag in tags:
            await ids.create(tag)
        yield Door(ids, application(ids, access or Access(None), settings=limits, **options))


def through(behave: Callable[[Door], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Open one and behave."""

    async def main() -> None:
        async with open_door(**options) as opened:
            await behave(opened)

    run(main())


def tokens(folder: Path, **given: tuple[Any, ...]) -> tuple[Access, dict[str, str]]:
    """Return the access by a file of tokens, and the tokens by name. `given`: scopes, patterns of tags, rate."""
    made = {name: new_token() for name in given}
    file = folder / "tokens.toml"
    file.write_text("".join(line_for(made[name], name, *given[name]) + "\n" for name in given))
    file.chmod(0o600)
    return Access(file), made
