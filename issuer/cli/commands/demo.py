"""`issuer demo`."""

from __future__ import annotations

import click

from issuer.cli.exits import OK, PROBLEM

SECTION = "Tools"


@click.command(
    short_help="Watch four processes draw while Redis is rolled back.",
    epilog="""\b
    Examples:
      issuer demo
      issuer demo > demo.txt                 # the lines without the progress bar

    \b
    Exit codes: 0 every promise was kept, 4 a number was issued twice, above the
    store's max, or out of order.
    """,
)
def demo() -> int:
    """Show four processes that draw numbers while Redis is killed and rolled back.

    The demo starts its own Redis server on loopback and creates an SQLite store in a temporary folder. It removes both
    at the end and doesn't touch your servers. It runs the redis-server or valkey-server on PATH. If there is none, it
    runs the server that the extra `demo` installs. All figures are measured while you watch.
    """
    # This module is imported here, so that the other commands start fast.
    from issuer.chaos.demo import play

    return OK if play() else PROBLEM
