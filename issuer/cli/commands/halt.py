"""`issuer halt`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, code_of, complain
from issuer.cli.options import asked, check_askable
from issuer.cli.session import Session
from issuer.errors import IssuerError
from issuer.terminal import numbered, plain, say

SECTION = "Checks"


@click.command(
    short_help="Stop reservations of a tag until `issuer recover`.",
    epilog="""\b
    Examples:
      issuer halt orders
      issuer halt --all --yes
    """,
)
@tag_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="Halt every tag of the store.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@click.pass_obj
def halt(session: Session, *, tag: str | None, everything: bool, yes: bool) -> int:
    """Stop the reservations of TAG in every process until `issuer recover` has run.

    Use the command if you don't trust the state of the store, or before you restore the store from a backup. Numbers
    that are reserved already are still issued: those in Redis and those that processes hold. When these are used up,
    callers get an error that names `issuer recover`. Running the command twice is safe.
    """
    if (tag is None) is not everything:
        raise click.UsageError("give either a TAG or --all")
    if not yes:
        check_askable()
    issuer = session.connect()
    pages = issuer.engine.care.tag_pages(None)
    names = [record.tag for page in pages for record in page] if tag is None else [tag]
    if not names:
        say("no tags in this store")
        return OK
    asked(f"Halt {numbered(len(names), 'tag')}?" if everything else f"Halt {plain(names[0])}?", yes=yes)
    codes = [OK]
    for name in names:
        try:
            issuer.halt(name)
        except IssuerError as error:
            complain(error)
            codes.append(code_of(error))
        else:
            say(f"halted {plain(name)}: no reservations until `issuer recover {plain(name)}`")
    return max(codes)
