"""`issuer demo`: the main job, before one's eyes, on servers of its own."""

from __future__ import annotations

import click

from issuer.cli.exits import PROBLEM


@click.command(short_help="Watch four processes and a rollback of Redis.")
@click.pass_context
def demo(context: click.Context) -> None:
    """Show four processes drawing numbers while Redis is killed and rolled back.

    Runs a redis-server of its own on loopback, behind a proxy, and an SQLite store in a temporary folder, and leaves
    nothing behind. The server is the redis-server or valkey-server on PATH, else the one that the extra `demo` brings.
    Everything shown is measured; the exit code is 4 if a number came twice, above the store's max, or out of order.
    """
    # Its parts are loaded for it alone: the other commands should start fast.
    from issuer.chaos.demo.story import play

    if not play():
        context.exit(PROBLEM)
