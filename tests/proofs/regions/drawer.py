"""A process of a region: python -m tests.proofs.regions.drawer REDIS STORE RATE

It draws from the tag `strict`, and from `trend`, each at this rate in a thread, until its stdin ends. For each number
it prints a line: the tag, the number, and when the call began and ended. For each error, it prints a line, too.
"""

import sys
import threading
import time

import issuer
from tests.audit import drawn

TAGS = ("strict", "trend")

#: Seconds that a call waits while the region's Redis is restarted, on a machine that others keep busy.
PATIENCE = 60.0


def draw(ids: issuer.Issuer, tag: str, rate: float, ended: threading.Event) -> None:
    due = time.monotonic()
    while not ended.is_set():
        try:
            one = drawn(lambda: ids.next(tag))
        except issuer.IssuerError as error:
            print(f"error {tag} {error!r}".replace("\n", " "), flush=True)
        else:
            print(f"{tag} {one.number} {one.began} {one.ended}", flush=True)
        due = max(due + 1 / rate, time.monotonic() - 1)
        ended.wait(max(0.0, due - time.monotonic()))


def main(redis: str, store: str, rate: str) -> None:
    ended = threading.Event()
    with issuer.connect(redis=redis, store=store, timeout=PATIENCE, store_timeout=2, redis_timeout=2) as ids:
        threads = [threading.Thread(target=draw, args=(ids, tag, float(rate), ended)) for tag in TAGS]
        for each in threads:
            each.start()
        sys.stdin.read()
        ended.set()
        for each in threads:
            each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
