"""Output of the demo: lines, and below them a progress bar if there is a terminal."""

from __future__ import annotations

import sys

import click

from issuer.clock import monotonic
from issuer.terminal import color, screen_width, shortened, width

#: Seconds between two updates of the bar.
REDRAW = 0.05

#: Largest width of the bar, in cells.
BAR = 30

_CLEAR = "\r\x1b[2K"


class Screen:
    """Writes lines to stdout and the bar to stderr. `goal`: the count at which the bar is full."""

    def __init__(self, goal: int) -> None:
        self._goal = goal
        self._begun = monotonic()
        self._drawn_at = 0.0
        self._shown = False

    def say(self, line: str = "", *, mark: str = " ", hue: str | None = None) -> None:
        """Write the seconds since the start, the mark and the line. `hue`: colour of the mark and the line."""
        self.write(f"{monotonic() - self._begun:5.1f} s {click.style(mark, fg=hue, bold=True)} "
                   f"{click.style(line, fg=hue)}")  # fmt: skip

    def write(self, line: str = "") -> None:
        self.clear()
        click.echo(line, color=color())
        sys.stdout.flush()

    def progress(self, count: int, note: str) -> None:
        if not sys.stderr.isatty() or monotonic() - self._drawn_at < REDRAW:
            return
        share = min(1.0, count / self._goal)
        text = f" {share:4.0%}  {note}"
        room = (screen_width() or 80) - 1
        size = max(5, min(BAR, room - width(text) - 2))
        full = round(size * share)
        bar = click.style("━" * full, fg="green") + click.style("─" * (size - full), dim=True)
        self.clear()
        click.echo(f"  {bar}{shortened(text, room - size - 2)}", err=True, nl=False, color=color())
        sys.stderr.flush()
        self._shown, self._drawn_at = True, monotonic()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = False
