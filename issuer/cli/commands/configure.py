"""`issuer configure`."""

from __future__ import annotations

from typing import Any

import click

from issuer.api.blocking import Issuer
from issuer.cli.completion import tag_argument
from issuer.cli.options import Sectioned, asked
from issuer.cli.scheme_flags import given
from issuer.cli.session import Session
from issuer.cli.setting_flags import tag_options
from issuer.cli.sheet import settings_of, stands
from issuer.errors import UnknownTag
from issuer.terminal import plain, say

SECTION = "Tags"


@click.command(
    cls=Sectioned,
    short_help="Change the settings of a tag.",
    epilog="""\b
    Examples:
      issuer configure orders --step 5000
      issuer configure orders --above 123456       # skip the numbers up to 123456
      issuer configure bills --format 'B{date:%Y}-{seq:06d}{check}'
      issuer configure coupons --scramble 100000=k1 --scramble 1000000=k2
      issuer configure vienna --stride 3 --offset 1 --above 5000000
    """,
)
@tag_argument()
@tag_options(new=False)
@click.option("--yes", is_flag=True, help="Don't ask for confirmation before numbers are skipped.")
@click.pass_obj
def configure(session: Session, /, *, tag: str, yes: bool, **said: Any) -> None:
    """Change settings of TAG, also while it is in use. Processes apply changes when they next reserve a segment.

    A new --lease is applied by every process within a minute.

    --start and --above skip numbers. Skipped numbers are never issued, so the command asks for confirmation. A tag
    never goes back to lower numbers. A process that holds numbers of a trend tag can still issue some of them: leased
    numbers for a second or two, and in direct mode the numbers of at most two segments.
    """
    changes = given(said)
    if not changes:
        raise click.UsageError(
            "nothing to change: give --step, --limit, --start, --above, --lease, --ahead, --refill-at, --description, "
            "or one of the options of its scheme"
        )
    issuer = session.connect()
    below: int | None = changes["above"] if "above" in changes else changes["start"] - 1 if "start" in changes else None
    if below is not None:
        _ask_to_skip(issuer, tag, below, yes=yes)
    now = issuer.configure(tag, **changes)
    if below is not None and not now.scheme and below < now.max:
        say(f"no number is skipped: the numbers up to {now.max} are reserved already")
    say(f"changed {plain(now.tag)}: {stands(now)}{settings_of(now)}")


#: If more than this many segments would be skipped, the question to the user also says how many numbers these are.
_FAR = 1000


def _ask_to_skip(issuer: Issuer, tag: str, below: int, *, yes: bool) -> None:
    """Do not ask if the tag has no scheme and all numbers up to `below` are reserved: then nothing is skipped."""
    try:
        found = issuer.inspect(tag)
    except UnknownTag:  # `configure` then raises an error with more details
        return
    skipped = below - found.store.max
    if skipped <= 0 and not found.scheme:
        return
    cost = ""
    segment = found.store.step * found.store.ahead
    if skipped > _FAR * segment and not found.scheme:
        share = min(100, skipped * 100 // max(1, found.limit - found.store.max))
        cost = f": {skipped:,} numbers ({skipped // segment:,} segments, {share} % of all that are left)"
    asked(f"Skip the numbers of {plain(tag)} up to {below} for ever{cost}?", yes=yes)
