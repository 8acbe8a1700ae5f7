"""A server that speaks MongoDB's wire protocol over an SQLite file, for machines without mongod.

Run by an interpreter of its own that has `mongoeco[wire]` (Python 3.13): wire_server.py FILE PORT. Prints "ready" when
it listens, on loopback only; ends on SIGTERM.
"""

import asyncio
import signal
import sys

from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.wire import AsyncMongoEcoProxyServer


async def serve(path: str, port: int) -> None:
    server = AsyncMongoEcoProxyServer(engine=SQLiteEngine(path), host="127.0.0.1", port=port)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        print("ready", flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
