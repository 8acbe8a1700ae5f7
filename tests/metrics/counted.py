"""A process that counts: draws, shows, forks, and ends as its standard input says, one JSON object a line."""

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

import issuer
from issuer.metrics import install


def draw(ids: issuer.Issuer, n: int) -> list[int]:
    """Draw that many numbers. Warm the tag first: if the store is slow, a first draw does not wait for its `lease`."""
    ids.warm("a")
    return ids.take("a", n)


def storm(ids: issuer.Issuer, metrics: Any, times: int) -> list[int]:
    """Fork again and again while threads count; return how the children ended, which count, too."""
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            ids.next("a")
            metrics.exposition()

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        return [_child(ids, metrics) for _ in range(times)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _child(ids: issuer.Issuer, metrics: Any) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # ends it where it waits for ever
        try:
            ids.take("a", 6)
            os._exit(0 if b'issuer_issued_total{tag="a"}' in metrics.exposition()[1] else 1)
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answer(ids: issuer.Issuer, metrics: Any, command: str, *words: str) -> object:
    """Do what a line says, and return what is printed."""
    match command:
        case "draw":
            return draw(ids, int(words[0]))
        case "show":
            return metrics.exposition()[1].decode()
        case "fork":  # the child draws, and says what it counts
            out, into = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(out)
                draw(ids, int(words[0]))
                with os.fdopen(into, "w") as pipe:
                    pipe.write(metrics.exposition()[1].decode())
                ids.close()
                os._exit(0)
            os.close(into)
            with os.fdopen(out) as pipe:
                shown = pipe.read()
            assert os.waitpid(child, 0)[1] == 0
            return shown
        case "storm":  # of forks, while threads count and show
            return storm(ids, metrics, int(words[0]))
        case "close":
            ids.close()
            return "closed"
    raise ValueError(command)


def main() -> None:
    redis, store, lease = sys.argv[1:]
    ids = issuer.connect(redis=redis, store=store, lease=int(lease), metrics=True)
    metrics = install(ids)
    for line in sys.stdin:
        print(json.dumps(answer(ids, metrics, *line.split())), flush=True)


if __name__ == "__main__":
    main()
