"""Numbers in a range, as options take them, with errors in people's words."""

from __future__ import annotations

import click


class Whole(click.IntRange):
    """A whole number; what isn't one is "not a valid integer", and not "integer range"."""

    name = "integer"


class Seconds(click.FloatRange):
    """A number of seconds, with or without a point."""

    name = "number of seconds"
