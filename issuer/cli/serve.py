"""`issuer serve`: HTTP and Redis's protocol for programs in any language."""

from __future__ import annotations

import sys

import click

from issuer.cli.session import Session


@click.command(
    short_help="Serve numbers over HTTP and Redis's protocol.",
    epilog="""\b
    Examples:
      issuer serve       HTTP on 127.0.0.1:8000, without any server beneath
      issuer --redis redis://localhost serve --resp 127.0.0.1:6380 --workers 2
      issuer serve --http 0.0.0.0:8000 --tokens tokens.toml
    """,
)
@click.option("--http", metavar="HOST:PORT", help="Where to serve HTTP; 127.0.0.1:8000 without it. none: nowhere.")
@click.option("--resp", metavar="HOST:PORT", help="Where to serve Redis's protocol; nowhere without it.")
@click.option("--workers", metavar="N", type=int, help="How many processes serve; 1 without it.")
@click.option(
    "--tokens", metavar="FILE", type=click.Path(dir_okay=False), help="Serve callers with a token of this file alone."
)
@click.option("--open", "open_", is_flag=True, default=None, help="Serve other machines without tokens.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A name of this server that HTTP is asked by, beside localhost and addresses; may be repeated.",
)
@click.option(
    "--drain-delay",
    metavar="SECONDS",
    type=float,
    help="How long to go on serving after SIGTERM, as not ready; 1 without it.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How to log; text without it.")
@click.option("-v", "--verbose", is_flag=True, help="Log more, each request too.")
@click.pass_obj
def serve(
    session: Session,
    *,
    http: str | None,
    resp: str | None,
    workers: int | None,
    tokens: str | None,
    open_: bool | None,
    allowed_hosts: tuple[str, ...],
    drain_delay: float | None,
    log_format: str | None,
    verbose: bool,
) -> None:
    """Serve numbers to programs in any language, until SIGTERM or Ctrl-C.

    Each option is a setting as well: http in issuer.toml, ISSUER_HTTP, and so on. Without tokens only this machine is
    served. Every tag is extended in time, as by `issuer keeper`. Logs go to stderr.
    """
    from issuer.server.options import ServerOptions
    from issuer.server.run import serve as serve_

    given = {
        "http": http,
        "resp": resp,
        "workers": workers,
        "tokens": tokens,
        "open": open_,
        "allowed_hosts": list(allowed_hosts) or None,
        "drain_delay": drain_delay,
        "log_format": log_format,
    }
    sys.exit(serve_(ServerOptions.of(session.settings(given), session.given, verbose=verbose)))
