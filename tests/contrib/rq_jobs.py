"""Jobs as docs/guide/celery.md shows them."""

import os
from pathlib import Path

from rq import get_current_job
from rq.timeouts import JobTimeoutException

import issuer


def note(*numbers: int) -> None:
    with Path(os.environ["DRAWN"]).open("ab", buffering=0) as file:
        file.write("".join(f"{each}\n" for each in numbers).encode())


def draw(n: int) -> int:
    note(*(issuer.next("orders") for _ in range(n)), *issuer.take("orders", n))
    return os.getpid()


def draw_until_the_timeout() -> None:
    try:
        while True:
            note(issuer.next("orders"))
    except JobTimeoutException:
        note(issuer.next("orders"))
        raise


def fail_once() -> int:
    job = get_current_job()
    assert job is not None
    number = issuer.next("orders", key=job.id)
    note(number)
    if len(Path(os.environ["DRAWN"]).read_text().split()) == 1:
        raise ValueError("the first time")
    return number


def die_once() -> int:
    job = get_current_job()
    assert job is not None
    number = issuer.next("orders", key=job.id)
    note(number)
    if len(Path(os.environ["DRAWN"]).read_text().split()) == 1:
        os.kill(os.getpid(), 9)
    return number
