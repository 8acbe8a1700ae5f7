"""`issuer create`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from issuer.care.inspection import Inspection
from issuer.cli.options import Sectioned
from issuer.cli.scheme_flags import described, given
from issuer.cli.session import Session
from issuer.cli.setting_flags import tag_options
from issuer.cli.sheet import settings_of, stands
from issuer.core.scheme_record import last_value
from issuer.errors import UnknownTag
from issuer.terminal import plain, say
from issuer.views import counts
from issuer_persistence.records import PACING, Tag, now_ms

SECTION = "Tags"


@click.command(
    cls=Sectioned,
    short_help="Create a tag.",
    epilog="""\b
    Examples:
      issuer create invoices --start 100000 --step 5000 --description "since 2026"
      issuer create web --limit js           # the integers of JavaScript
      issuer create events --order trend --step 10000 --lease 1000
      issuer create orders --step 5000 --ahead 8
      issuer create bills --restart yearly --format 'B{date:%Y}-{seq:05d}{check}'
      issuer create coupons --order trend --start 100000 --scramble k1
      issuer create vienna --stride 2 --offset 1
      issuer create users --shards app=17
      issuer create events2 --strategy snowflake --option epoch=2026-01-01
    """,
)
@click.argument("tag")
@tag_options(new=True)
@click.option(
    "--exist-ok",
    is_flag=True,
    help="Succeed if the tag exists and has the same order, limit and scheme. The tag isn't changed.",
)
@click.pass_obj
def create(session: Session, /, *, tag: str, exist_ok: bool, **said: Any) -> None:
    """Create TAG. `issuer import` creates many tags, from a file.

    A deleted tag can be created again. It then starts after its old numbers, with the settings given now.
    """
    issuer = session.connect(makes_store=True)
    before = None
    with suppress(UnknownTag):
        before = issuer.inspect(tag, deleted=True)
    began = now_ms()
    made = issuer.create(tag, exist_ok=exist_ok, **given(said))
    if made.created < began:
        say(f"{plain(made.tag)} exists already: {stands(made)}{settings_of(made)}")
        return
    say(f"made {plain(made.tag)}: {_begins(made)}{made.order}{settings_of(made)}")
    if before is not None and (dropped := _dropped(before, made)):
        say(f"the deleted tag of this name had other settings: {dropped}; use `issuer configure` to set them again")


def _begins(made: Tag) -> str:
    """Return the first number of the new tag, if it is known, and the step, as text that ends with a comma."""
    scheme = made.scheme
    if not counts(made.scheme):
        return ""
    step = f"step {made.step}, "
    if "shards" in scheme:
        return step
    first = scheme["stride"][0]["first"] if "stride" in scheme else made.max + 1
    return f"scrambled from {first} on, {step}" if "scramble" in scheme else f"first number {first}, {step}"


def _dropped(before: Inspection, made: Tag) -> str:
    """Return, as text, the settings of the deleted tag (`before`) that differ from the new tag's settings (`made`)."""
    had: dict[str, object] = {"order": before.order, "limit": before.limit, "lease": before.lease}
    has: dict[str, object] = {"order": made.order, "limit": last_value(made.scheme, made.limit), "lease": made.lease}
    for name in ("step", *PACING):
        had[name], has[name] = getattr(before.store, name), getattr(made, name)
    had["description"], has["description"] = before.description, made.description
    had |= dict(described(before.scheme))
    has |= dict(described(made.scheme))
    return ", ".join(
        f"{name} {plain(str(value))}" for name, value in had.items() if value not in (has.get(name), None, "")
    )
