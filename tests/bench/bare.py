"""A Starlette route that does nothing, on the same server as `issuer serve` has: python -m tests.bench.bare.

It prints its port, and serves until it is killed.
"""

import asyncio
import socket

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import BACKLOG
from issuer.doors.server.worker import _Http, _loop_factory
from issuer.settings import load
from tests.bench.servers import TAG


async def number(_: Request) -> JSONResponse:
    return JSONResponse({"tag": TAG, "number": 1})


async def serve() -> None:
    app = Starlette(routes=[Route(f"/v1/tags/{TAG}/next", number, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listening:
        print(listening.getsockname()[1], flush=True)
        app.drain = lambda: None  # type: ignore[attr-defined]  # what it has of an application of the issuer
        options = ServerOptions(load(), {}, (), verbose=False)
        await _Http(app, listening, 10_000, options).task  # type: ignore[arg-type]  # the same


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())
