"""`issuer adopt`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.cli.sheet import say_supplied
from issuer.core.error_mapping import store_error
from issuer.terminal import numbered, say, show_json
from issuer.views import supplied
from issuer_persistence.errors import StoreError
from issuer_persistence.records import Tag

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
    recover`. Tags can be deleted then. Running the command twice is safe. The output has the settings of the tags.
    """
    engine = session.connect().engine
    store = engine.config.store
    try:
        count = store.adopt(timeout=LONGEST)
    except StoreError as error:
        raise store_error(error, None, store) from error
    tags = [each for page in engine.care.tag_pages(None) for each in page if isinstance(each, Tag)]
    if as_json:
        show_json({"tags": count, "settings": {each.tag: supplied(each) for each in tags}})
    else:
        say(f"adopted: {numbered(count, 'tag')}")
        say_supplied((each.tag, each) for each in tags)
