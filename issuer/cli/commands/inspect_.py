"""`issuer inspect`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, UNREACHABLE, complain, json_option
from issuer.cli.session import Session
from issuer.cli.sheet import sheet
from issuer.errors import InvalidArgument, UnknownTag
from issuer.terminal import ago, plain, say, screen_width, show, show_json
from issuer.views import view
from issuer_persistence.records import now_ms

SECTION = "Tags"


@click.command(
    short_help="Show the settings and the state of a tag.",
    epilog="""\b
    Examples:
      issuer inspect orders
      issuer inspect orders --json
      issuer inspect orders --deleted

    \b
    Exit codes: 0 the tag was shown, 3 the tag does not exist, 5 Redis or the
    store is unavailable.
    """,
)
@tag_argument()
@click.option("--deleted", is_flag=True, help="Show the tag as it was when it was deleted.")
@json_option()
@click.pass_obj
def inspect(session: Session, *, tag: str, deleted: bool, as_json: bool) -> int:
    """Show the settings and the state of TAG, as the store and Redis have them. Nothing is changed.

    If the tag has a stride or a scramble key, its max and the numbers in Redis are values of the tag's counter. They
    are not the numbers that users see. If Redis is unavailable, the command shows only the state in the store, and the
    exit code is 5.
    """
    try:
        seen = session.connect().inspect(tag, deleted=deleted)
    except UnknownTag as error:
        if not deleted:
            raise
        raise InvalidArgument(f"no deleted tag is called {tag!r}", tag=tag, value=tag) from error
    if as_json:
        show_json(view(seen))
    else:
        settings = session.settings()
        direct = settings.redis_url == "none" and not settings.server
        if deleted:
            when = ago(seen.store.timestamp, now_ms())
            say(f"{plain(tag)} was deleted {when}. If it is created again, it starts after max")
        show(sheet(seen, direct=direct, now=now_ms(), room=screen_width()))
    if seen.redis_error is not None:
        complain(seen.redis_error)
        return UNREACHABLE
    return OK
