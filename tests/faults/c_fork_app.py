"""Forks as C code does, without a word to Python, after everything was used; each process prints what it draws.

python c_fork_app.py REDIS STORE KIND CHILDREN EACH; KIND: strict, leased, direct, snowflake, stream
"""

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

ids = issuer.connect(redis=redis, store=store, scheduler=None, lease=0 if kind == "strict" else 500)
tag = "t"
stream = ids.stream(tag) if kind == "stream" else None


def draw(n: int) -> list[int]:
    if stream is not None:
        return list(islice(stream, n))
    return [ids.next(tag) for _ in range(n)]


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
            ids.close()
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
ids.close()
print(json.dumps(told))
