"""`issuer schema`."""

from __future__ import annotations

import click

from issuer.cli.session import Session
from issuer.errors import ConfigurationError
from issuer.terminal import show

SECTION = "Tools"


@click.command(
    short_help="Print the tables of an SQL store.",
    epilog="""\b
    Examples:
      issuer --store postgresql://host/database schema
      issuer schema | psql postgresql://admin@host/database

    \b
    Exit codes: 0 the statements were printed, 2 the store is not in an SQL
    database.
    """,
)
@click.pass_obj
def schema(session: Session) -> None:
    """Print the SQL statements that create the tables of a store in PostgreSQL, MySQL or MariaDB.

    The first reservation also creates the tables. With this command, a database administrator can create them, so that
    the issuer's login needs only the rights SELECT, INSERT, UPDATE and DELETE on the tables. No connection is made.
    """
    store = session.connect(makes_store=True).engine.config.store
    statements = store.definitions()
    if not statements:
        raise ConfigurationError(f"{store.url} is not in an SQL database, so it has no tables to create")
    show("".join(f"{statement};\n" for statement in statements).rstrip("\n"))
