"""A server of the application on granian, as `issuer serve` embeds it, for clients of every kind.

Arguments: the port, Redis, the store, and a file of tokens if there is one. It prints a line when it serves.
"""

import asyncio
import signal
import sys

from granian.constants import Interfaces
from granian.server.embed import Server

import issuer
from issuer.doors.access import Access
from issuer.doors.web.app import application


async def main(port: int, redis: str, store: str, tokens: str = "") -> None:
    # Others may keep the machine busy.
    async with issuer.aconnect(redis=redis, store=store, timeout=60, store_timeout=45, redis_timeout=30) as ids:
        app = application(ids, Access(tokens) if tokens else Access(None))
        server = Server(app, port=port, interface=Interfaces.ASGI, log_enabled=False)
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        serving = asyncio.create_task(server.serve())
        print("serving", flush=True)
        await ends.wait()
        server.stop()  # type: ignore[no-untyped-call]  # granian's
        await serving


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
