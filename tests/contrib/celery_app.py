"""Tasks as docs/guide/celery.md shows them. The parent of the workers has drawn numbers before it forks."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_process_shutdown

import issuer

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True

BEFORE = issuer.take("orders", 10)
DRAWN = Path(os.environ["DRAWN"])


@worker_process_shutdown.connect
def close_issuer(**_: Any) -> None:
    issuer.close_default()


def note(*numbers: int) -> None:
    """Write the numbers to the file in one call, as the process can be killed at any time."""
    with DRAWN.open("ab", buffering=0) as file:
        file.write("".join(f"{each}\n" for each in numbers).encode())


note(*BEFORE)


@app.task
def draw(n: int) -> int:
    note(*(issuer.next("orders") for _ in range(n)), *issuer.take("orders", n))
    return os.getpid()


@app.task
def draw_until_the_limit() -> list[int]:
    """Draw until the soft time limit. Return how many draws there were, and the process id."""
    draws = 0
    try:
        while True:
            note(issuer.next("orders"))
            draws += 1
    except SoftTimeLimitExceeded:
        note(issuer.next("orders"))  # the issuer can still be used
        return [draws, os.getpid()]


@app.task
def draw_without_end() -> None:
    while True:
        note(*issuer.take("orders", 3))


@app.task
def wait_for_redis() -> str:
    try:
        return str(issuer.next("orders", timeout=600))
    except SoftTimeLimitExceeded:
        return "interrupted"


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def die_after_the_draw(self: Any) -> int:
    number = issuer.next("orders", key=self.request.id)
    note(number)
    if len(DRAWN.read_text().split()) == len(BEFORE) + 1:
        os.kill(os.getpid(), 9)
    return number


@app.task(bind=True, max_retries=None)
def retry_while_unavailable(self: Any) -> int:
    try:
        return issuer.next("orders", key=self.request.id, timeout=0.2)
    except issuer.Unavailable as error:
        time.sleep(0.01)
        raise self.retry(exc=error, countdown=error.retry_after) from error
