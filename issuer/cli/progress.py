"""Progress bars for commands that check many tags."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from issuer.care import Outcome

T = TypeVar("T")

#: From this many tags on there is a progress bar.
MANY = 20


def progress_bar(label: str) -> Callable[[int, int], None]:
    """Return a function that shows a bar, with the time left, on a terminal. It takes the tags done and their total."""
    bar: Any = None

    def progress(done: int, of: int) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(
                length=of, label=label, file=sys.stderr, hidden=of < MANY or not sys.stderr.isatty()
            )
        bar.update(1)
        if done == of:
            bar.render_finish()

    return progress


def with_progress(outcomes: Iterator[Outcome[T]], label: str) -> Iterator[Outcome[T]]:
    """Yield the outcomes. If there are many, show a progress bar."""
    progress = None
    for done, outcome in enumerate(outcomes, 1):
        yield outcome
        if outcome.of >= MANY:
            progress = progress or progress_bar(label)
            progress(done, outcome.of)
