"""`issuer delete`."""

from __future__ import annotations

import click

from issuer.api.blocking import Issuer
from issuer.cli.completion import tag_argument
from issuer.cli.options import asked, check_askable
from issuer.cli.session import Session
from issuer.errors import UnknownTag
from issuer.terminal import numbered, plain, say

SECTION = "Tags"


@click.command(
    short_help="Delete a tag.",
    epilog="""\b
    Examples:
      issuer delete orders
      issuer delete orders --yes
    """,
)
@tag_argument()
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@click.pass_obj
def delete(session: Session, *, tag: str, yes: bool) -> None:
    """Delete TAG and its parts. From then on, no caller gets a number of the tag.

    If the tag is created again, it starts after its old numbers.
    """
    if not yes:
        check_askable()
    issuer = session.connect()
    asked(f"Delete {plain(tag)}{'' if yes else _and_parts(issuer, tag)}?", yes=yes)
    issuer.delete(tag)
    say(f"deleted {plain(tag)}")


def _and_parts(issuer: Issuer, tag: str) -> str:
    try:
        parts = issuer.inspect(tag).parts
    except UnknownTag:
        # The store has no such tag. Still call `delete`: it removes what an interrupted `delete` left, then
        # raises UnknownTag.
        return ""
    return f" and its {numbered(parts, 'part')}" if parts else ""
