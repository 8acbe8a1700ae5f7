"""`issuer adopt`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.core.error_mapping import store_error
from issuer.terminal import numbered, say, show_json
from issuer_persistence.errors import StoreError

SECTION = "Tools"

#: How long the command may take, in seconds.
LONGEST = 3600.0


@click.command(
    short_help="End the sharing of a table with Leaf or tinyid.",
    epilog="""\b
    Examples:
      issuer --store 'mysql://host/leaf?layout=leaf' adopt
      issuer --store 'mysql://host/tinyid?layout=tinyid' adopt --json

    \b
    Exit codes: 0 the table was adopted, 2 the store is not on the table of
    another program, 4 the row of a tag is damaged: the others were adopted,
    correct it and run the command again, 5 the store is unavailable.
    """,
)
@json_option()
@click.pass_obj
def adopt(session: Session, *, as_json: bool) -> None:
    """End the sharing of a table with Leaf, its Go port or tinyid. Stop the other program first.

    From then on, if another program draws from the table, the store refuses reservations of that tag until `issuer
    recover`. Tags can be deleted then. Running the command twice is safe.
    """
    store = session.connect().engine.config.store
    try:
        count = store.adopt(timeout=LONGEST)
    except StoreError as error:
        raise store_error(error, None, store) from error
    if as_json:
        show_json({"tags": count})
    else:
        say(f"adopted: {numbered(count, 'tag')}")
