"""`issuer serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import click

from issuer.cli.exits import FAILED, USAGE, code_of
from issuer.cli.options import given_settings, settings_options
from issuer.cli.session import Session
from issuer.errors import IssuerError

SECTION = "Servers"

#: The option for the format of logs.
_FORMAT: Final = "--log-format"


class _Serve(click.Command):
    """The command `serve`. If the log format is JSON, usage errors are logged as JSON too."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> click.Context:
        as_json = f"{_FORMAT}=json" in args or (_FORMAT, "json") in pairwise(args)
        with _logging_errors("json" if as_json else os.environ.get("ISSUER_LOG_FORMAT", "")):
            return super().make_context(info_name, args, *rest, **options)


@contextmanager
def _logging_errors(log_format: str) -> Iterator[None]:
    """If an error ends the `with` block and the log format is JSON, log the error as JSON, and exit."""
    try:
        yield
    except Exception as error:
        if log_format != "json" or isinstance(error, click.exceptions.Exit):  # --help ends with an Exit
            raise
        from issuer.doors.server import logs

        logs.begin("json", verbose=False)
        if isinstance(error, click.UsageError):
            logs.log.error("%s", error.format_message())
            sys.exit(USAGE)
        if isinstance(error, IssuerError):
            logs.log.error("%s", error)
            sys.exit(code_of(error))
        logs.log.error("the server failed", exc_info=error)
        sys.exit(FAILED)


@click.command(
    cls=_Serve,
    short_help="Serve numbers over HTTP and the Redis protocol.",
    epilog="""\b
    Examples:
      issuer serve                           # HTTP on 127.0.0.1:8000
      issuer --redis redis://localhost serve --resp 127.0.0.1:6380 --workers 2
      issuer serve --http 0.0.0.0:8000 --tokens tokens.toml
    """,
)
@settings_options("serve")
@click.option("-v", "--verbose", is_flag=True, help="Log more, including each request.")
@click.pass_obj
def serve(session: Session, /, *, verbose: bool, **given: Any) -> None:
    """Serve numbers to programs in any language, until SIGTERM or Ctrl-C.

    If there are no tokens, only programs on this machine can connect. Like `issuer keeper`, the server loads the next
    segment of every tag before it is needed. Logs go to stderr. Each option can also be set in issuer.toml or in the
    environment. For example, --http has the name http in issuer.toml, and ISSUER_HTTP in the environment.
    """
    with _logging_errors(given["log_format"] or os.environ.get("ISSUER_LOG_FORMAT", "")):
        from issuer.doors.server.options import ServerOptions
        from issuer.doors.server.run import serve as serve_
        from issuer.doors.server.systemd import passed_sockets

        settings = session.settings(given_settings(given))
    with _logging_errors(settings.log_format):
        code = serve_(ServerOptions.of(settings, session.given, verbose=verbose, passed=passed_sockets()))
    sys.exit(code)
