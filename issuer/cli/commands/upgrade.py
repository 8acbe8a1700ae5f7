"""`issuer upgrade`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.errors import ConfigurationError
from issuer.terminal import say, show, show_json

SECTION = "Checks"


@click.command(
    short_help="Upgrade the schema of a store, or print its tables.",
    epilog="""\b
    Examples:
      issuer upgrade
      issuer --store postgresql://host/database upgrade --sql > tables.sql

    \b
    Exit codes: 0 the schema is up to date, or the statements were printed,
    2 a newer version wrote the store, or it is not in an SQL database,
    5 the store is unavailable.
    """,
)
@click.option("--sql", is_flag=True, help="Print the statements that create the tables; change nothing.")
@json_option("Print the schema before and after as JSON; messages go to stderr.")
@click.pass_obj
def upgrade(session: Session, *, sql: bool, as_json: bool) -> None:
    """Upgrade the schema of a store to the schema of this version. Only a store in SQLite needs it.

    The first reservation also upgrades the schema. With this command, you choose the moment. After the upgrade,
    programs of older versions reject the file. For this reason, upgrade all programs first. Running the command twice
    is safe.

    In PostgreSQL, MySQL and MariaDB, the first reservation creates the tables. With --sql, a database administrator can
    create them, so that the issuer's login needs only the rights SELECT, INSERT, UPDATE and DELETE on the tables. No
    connection is made.
    """
    if sql:
        store = session.connect(makes_store=True).engine.config.store
        statements = store.definitions()
        if not statements:
            raise ConfigurationError(f"{store.url} is not in an SQL database, so it has no tables to create")
        show("\n".join(f"{statement};" for statement in statements))
        return
    done = session.connect().upgrade()
    if as_json:
        show_json({"before": done.before, "after": done.after})
    elif done.before == done.after:
        say(f"schema {done.after}: nothing to do")
    else:
        say(f"schema {done.before} -> {done.after}")
