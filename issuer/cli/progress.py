"""Progress bars of commands that look at many tags."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import click

from issuer.care import Outcome

T = TypeVar("T")

#: From this many tags on there is a progress bar.
MANY = 20


class Progress:
    """A progress bar on a terminal, with the rate and the time left. Call it with the tags done and their total."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def __call__(self, done: int, of: int) -> None:
        """Show that a tag more is done."""
        if self._bar is None:
            hidden = of < MANY or not sys.stderr.isatty()
            self._bar = click.progressbar(length=of, label=self._label, file=sys.stderr, hidden=hidden)
        self._bar.update(1)
        if done == of:
            self._bar.render_finish()


def with_progress(outcomes: Iterator[Outcome[T]], label: str) -> Iterator[Outcome[T]]:
    """Yield the outcomes, and show how many there are yet to come."""
    progress = Progress(label)
    for done, outcome in enumerate(outcomes, 1):
        yield outcome
        progress(done, outcome.of)
