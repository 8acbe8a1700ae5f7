"""Greenlets that draw, while their server stands still, too. Prints what they got, as JSON."""

# ruff: noqa: E402 - gevent patches first of all

from gevent import monkey

monkey.patch_all()

import json
import os
import signal
import sys
import time

import gevent

import issuer
from persistence.memory import MemoryStore

CALLERS, EACH = 50, 100


def drawn(ids: issuer.Issuer, tag: str) -> list[int]:
    """Draw EACH numbers in each of CALLERS greenlets at the same time."""
    greenlets = [gevent.spawn(lambda: [ids.next(tag) for _ in range(EACH)]) for _ in range(CALLERS)]
    gevent.joinall(greenlets, timeout=30)
    return [number for greenlet in greenlets for number in greenlet.get(block=False)]


def refused(ids: issuer.Issuer, deadline: float) -> tuple[str, float]:
    """Draw in vain; return the error's name, and how long it took to come."""
    began = time.monotonic()
    try:
        return str(ids.next("strict", timeout=deadline)), 0
    except issuer.IssuerError as error:
        return type(error).__name__, time.monotonic() - began


def rounds(pauses: list[float]) -> None:
    """Note how long the loop of all these greenlets doesn't come round."""
    while True:
        began = time.monotonic()
        gevent.sleep(0.01)
        pauses.append(time.monotonic() - began)


def main(url: str, server: int) -> None:
    """Draw as long as the server of that process id serves, while it is stopped, and when it is back."""
    pauses: list[float] = []
    found: dict[str, object] = {}
    with issuer.connect(redis=url, store=MemoryStore(), lease=20) as ids:
        for tag in ("strict", "trend"):
            ids.create(tag, order=tag, step=1000)
            found[tag] = drawn(ids, tag)
        os.kill(server, signal.SIGSTOP)
        try:
            gevent.spawn(rounds, pauses)
            calls = [gevent.spawn(refused, ids, deadline) for deadline in (0, 0.3, 1, 1, 1)]
            gevent.joinall(calls, timeout=20)
            found["refused"] = [call.get(block=False) for call in calls]
            found["pause"] = max(pauses)
        finally:
            os.kill(server, signal.SIGCONT)
        found["later"] = [ids.next("strict", timeout=10), *drawn(ids, "strict")]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
