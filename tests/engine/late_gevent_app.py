"""A process that has drawn forks, and gevent patches the child: `gunicorn --preload -k gevent` in one file.

With MongoDB the process has only connected, and draws in the child: pymongo's threads leave weak proxies in it whose
objects have gone, and gevent's patch ends at them for good.
"""

import gc
import json
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress

import issuer

TAGS, CALLERS, EACH = "abcdefgh", 10, 50


def patch() -> None:
    """Patch all that gevent can, though it looks at every object, and ends at a weak proxy whose object has gone.

    A second `patch_all` takes it all for done (gevent 26), and leaves sockets, queues and sleeps as they were: then the
    first greenlet that waits stops all others (seen: 1 of 250 runs, until the alarm).
    """
    from gevent import monkey

    try:
        monkey.patch_all()
    except ReferenceError:
        for part in ("os", "thread", "time", "socket", "select", "ssl", "subprocess", "builtins", "signal", "queue"):
            for _ in range(10):
                gc.collect()
                with suppress(ReferenceError):
                    getattr(monkey, f"patch_{part}")()
                    break
            else:
                raise


def drawn_by_greenlets(ids: issuer.Issuer) -> dict[str, list[int]]:
    """Draw EACH numbers of each tag in each of CALLERS greenlets, all at the same time."""
    warnings.simplefilter("ignore")  # gevent's own: that it patches so late
    import gevent

    patch()

    gevent.reinit()
    greenlets = {tag: [gevent.spawn(ids.take, tag, 1) for _ in range(CALLERS)] for tag in TAGS}
    greenlets |= {
        tag: [*first, *(gevent.spawn(lambda tag=tag: [ids.next(tag) for _ in range(EACH)]) for _ in first)]
        for tag, first in greenlets.items()
    }
    gevent.joinall([each for row in greenlets.values() for each in row], timeout=180)
    return {tag: [n for each in row for n in each.get(block=False)] for tag, row in greenlets.items()}


def main(redis: str, store: str, lease: int) -> None:
    """Draw, fork, and let the child print what it drew, as JSON."""
    ids = issuer.connect(redis=redis, store=store, lease=lease)
    if not store.startswith("mongodb:"):
        ids.next("a")
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        ids.close()
        sys.exit(os.waitstatus_to_exitcode(status))
    signal.alarm(200)  # a process whose greenlets all stand still would stay for ever
    try:
        found = drawn_by_greenlets(ids)
        ids.close()
        print(json.dumps(found), flush=True)
    except BaseException:  # noqa: BLE001 - nothing of the parent may go on here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
