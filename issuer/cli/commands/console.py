"""`issuer console`."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from dataclasses import replace

import click

from issuer.cli.session import Session
from issuer.clock import monotonic, sleep
from issuer.terminal import say

SECTION = "Servers"

#: Seconds that the browser waits for the server.
_PATIENCE = 10.0


@click.command(
    short_help="Show the console in the browser.",
    epilog="""\b
    Examples:
      issuer console
      issuer console --changes --port 8081 --no-browser
    """,
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine. Default: any free port.")
@click.option(
    "--changes", is_flag=True, help="Also allow changes of tags. Every program on this machine could make them."
)
@click.option("--browser/--no-browser", default=True, help="Whether to open the browser.")
@click.pass_obj
def console(session: Session, /, *, port: int, changes: bool, browser: bool) -> None:
    """Show the console in the browser, until Ctrl-C.

    The console shows the tags, their rates and the time until they run out, the ledger, the servers, and what
    operators changed. It serves only this machine, needs no server of its own, and draws and loads no numbers. For a
    team, use `issuer serve --console` with tokens.
    """
    from issuer.doors.server.options import ServerOptions
    from issuer.doors.server.run import serve

    with socket.create_server(("127.0.0.1", port)) as free:  # `serve` binds the port again, a moment later
        port = free.getsockname()[1]
    given = {"http": f"127.0.0.1:{port}", "resp": "none", "tokens": "", "open": False, "workers": 1}
    settings = session.settings(given | {"console": True, "console_changes": changes})
    url = f"http://127.0.0.1:{port}/console/"
    say(f"The console is at {url} until Ctrl-C.")
    if browser:
        threading.Thread(target=_open, args=(url, port), daemon=True).start()
    options = ServerOptions.of(settings, session.given, verbose=False)
    sys.exit(serve(replace(options, console_only=True)))


def _open(url: str, port: int) -> None:
    """Open the browser when the server answers."""
    end = monotonic() + _PATIENCE
    while monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            sleep(0.1)
        else:
            webbrowser.open(url)
            return
