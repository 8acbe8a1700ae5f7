"""Greenlets that draw, while their server stands still, too. Prints what they got, as JSON."""

# ruff: noqa: E402 - gevent patches first of all

from gevent import monkey

monkey.patch_all()

import json
import os
import signal
import sys

import gevent

import issuer
from issuer_persistence.memory import MemoryStore

CALLERS, EACH = 50, 100


def drawn(ids: issuer.Issuer, tag: str) -> list[int]:
    """Draw EACH numbers in each of CALLERS greenlets at the same time."""
    greenlets = [gevent.spawn(lambda: [ids.next(tag) for _ in range(EACH)]) for _ in range(CALLERS)]
    gevent.joinall(greenlets, timeout=120)
    return [number for greenlet in greenlets for number in greenlet.get(block=False)]


def main(url: str, server: int) -> None:
    """Draw as long as the server of that process id serves, while it is stopped, and when it is back."""
    found: dict[str, object] = {}
    with issuer.connect(redis=url, store=MemoryStore(), lease=20) as ids:
        for tag in ("strict", "trend"):
            ids.create(tag, order=tag, step=1000)
            found[tag] = drawn(ids, tag)
        os.kill(server, signal.SIGSTOP)
        try:
            patient = gevent.spawn(ids.next, "strict", timeout=50)
            calls = [gevent.spawn(ids.next, "strict", timeout=deadline) for deadline in (0, 0.3)]
            # These end by their deadlines, and the server goes on, only if no greenlet holds up the others.
            gevent.joinall(calls, timeout=30)
            found["refused"] = [type(call.exception).__name__ for call in calls]
            found["waiting"] = not patient.ready()
        finally:
            os.kill(server, signal.SIGCONT)
        found["later"] = [patient.get(timeout=50), *drawn(ids, "strict")]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
