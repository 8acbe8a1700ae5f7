"""Forks as C code does, without a word to Python, after everything was used; each process prints what it draws.

python -m tests.engine.c_fork_app REDIS STORE KIND CHILDREN EACH; KIND: strict, leased, direct, snowflake, stream, tasks
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
from itertools import islice
from types import SimpleNamespace

import issuer

redis, store, kind, children, each = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
# It holds the interpreter's lock. No other threads in the parent, so no scheduler, and what uWSGI's master says of
# itself: what the C library and Python note of threads can make a child that forgets none of it wait for ever (seen),
# whatever it imports.
libc = ctypes.PyDLL(None)
parent = os.getpid()
sys.modules["uwsgi"] = SimpleNamespace(worker_id=lambda: int(os.getpid() != parent))  # type: ignore[assignment]


async def opened() -> issuer.AsyncIssuer:
    return issuer.aconnect(redis=redis, store=store, scheduler=None, lease=500)


loop = asyncio.new_event_loop()
ids: issuer.Issuer | issuer.AsyncIssuer
if kind == "tasks":
    ids = loop.run_until_complete(opened())
else:
    ids = issuer.connect(redis=redis, store=store, scheduler=None, lease=0 if kind == "strict" else 500)
tag = "t"
stream = ids.stream(tag) if kind == "stream" and isinstance(ids, issuer.Issuer) else None


async def awaited(n: int) -> list[int]:
    assert isinstance(ids, issuer.AsyncIssuer)
    return [await ids.next(tag) for _ in range(n)]


def draw(n: int) -> list[int]:
    if isinstance(ids, issuer.AsyncIssuer):
        return loop.run_until_complete(awaited(n)) if n else []
    if stream is not None:
        return list(islice(stream, n))
    timeout = 30 if kind == "direct" else None  # a call with a timeout takes another way
    return [ids.next(tag, timeout=timeout) for _ in range(n)]


def finish() -> None:
    if isinstance(ids, issuer.AsyncIssuer):
        loop.run_until_complete(loop.shutdown_asyncgens())  # as `asyncio.run` does
    else:
        ids.close()


drawn = draw(10)
ends = []
for number in range(children + 1):
    own = each if number < children else 0  # the last one draws nothing, and must give nothing back at its end
    reading, writing = os.pipe()
    ends.append(reading)
    sys.stdout.flush()
    if libc.fork() == 0:
        signal.alarm(60)  # one that waits for what its parent has is seen at once, not when the test gives up
        with os.fdopen(writing, "w") as out:
            json.dump(draw(own), out)
            out.flush()
            finish()
        os._exit(0)
    os.close(writing)
    drawn += draw(own)
told = [drawn]
for end in ends:
    with os.fdopen(end) as child:
        told.append(json.load(child))
# Another program, before this process draws again: it would get what a child has given back.
with issuer.connect(redis=redis, store=store, scheduler=None) as other:
    told.append(other.take(tag, 20))
if ended := [status for _ in ends if (status := os.wait()[1])]:
    sys.exit(f"children ended with {ended}")
drawn += draw(each)
finish()
print(json.dumps(told))
