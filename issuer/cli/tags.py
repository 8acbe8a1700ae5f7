"""Commands that show, make, change and retire tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from issuer.api.blocking import Issuer
from issuer.care.inspection import Inspection
from issuer.cli.completion import tag_argument
from issuer.cli.exits import UNREACHABLE, complain, json_option
from issuer.cli.options import Sectioned, asked, check_askable
from issuer.cli.scheme_flags import described, given, scheme_options, summed_up
from issuer.cli.session import Session
from issuer.cli.setting_flags import setting_options
from issuer.cli.sheet import sheet
from issuer.core.parts import has_parts, parents
from issuer.core.scheme_record import counted, last_value
from issuer.errors import InvalidArgument, UnknownTag
from issuer.gateway.keys import has_blanks
from issuer.terminal import Column, ago, numbered, plain, say, screen_width, show_json, table
from issuer.terminal import show as show_data
from issuer.views import counts, view
from issuer_persistence.records import HIGHEST, Tag, now_ms


def _settings(tag: Tag) -> str:
    """Return the tag's other settings, to stand after its order or its limit."""
    ahead = "" if tag.ahead == 1 or not counts(tag.scheme) else f", ahead {tag.ahead}"
    lease = "" if tag.lease is None or not counts(tag.scheme) else f", lease {tag.lease}"
    return ahead + lease + "".join(f", {name} {plain(value)}" for name, value in described(tag.scheme))


def _begins(made: Tag) -> str:
    """Say what its numbers begin with, if that can be said, and its step."""
    scheme = made.scheme
    if not counts(made.scheme):
        return ""
    step = f"step {made.step}, "
    if "shards" in scheme:
        return step
    first = scheme["stride"][0]["first"] if "stride" in scheme else made.max + 1
    return f"scrambled from {first} on, {step}" if "scramble" in scheme else f"first number {first}, {step}"


# ---------------------------------------------------------------------- reading


@click.command(
    short_help="List the tags of the store.",
    epilog="""\b
    Examples:
      issuer tags
      issuer tags --all --json
    """,
)
@click.option("--all", "everything", is_flag=True, help="Also list the parts of tags, for example orders#17.")
@json_option("Print JSON, with the parts.")
@click.pass_obj
def tags(session: Session, *, everything: bool, as_json: bool) -> None:
    """List the tags of the store with their settings.

    A tag with shards consists of one part for each shard. A keyed tag consists of one part for each key. Each part is a
    tag of its own.
    """
    found = session.connect().tags()
    belongs = parents(found)
    if as_json:
        show_json([view(tag) for tag in found])
    elif not found:
        say("no tags yet: create one with `issuer create`")
    else:
        shown = [tag for tag in found if everything or tag.tag not in belongs]
        show_data(_listing(shown, Counter(belongs.values())))
        if any(has_blanks(tag.tag) for tag in shown):
            say("no number is issued of a tag with blanks around its name: see `issuer doctor`")
        if len(shown) < len(found):
            say(f"not shown: {numbered(len(found) - len(shown), 'part')}; --all shows them")


def _listing(found: list[Tag], parts: Mapping[str, int]) -> str:
    columns = [
        Column("TAG", flexible=True),
        Column("MAX", "right"),
        Column("STEP", "right"),
        Column("ORDER"),
        Column("NUMBERS", flexible=True),
        Column("CHANGED"),
        Column("DESCRIPTION", flexible=True),
    ]
    now = now_ms()
    rows = [
        (
            repr(tag.tag) if has_blanks(tag.tag) else tag.tag,
            _max(tag, parts),
            tag.step if counts(tag.scheme) else "",
            f"{tag.order}, halted" if tag.halted else tag.order,
            summed_up(tag),
            ago(tag.timestamp, now),
            tag.description,
        )
        for tag in found
    ]
    # A column that no tag has anything for is left out.
    kept = [at for at, column in enumerate(columns) if not column.flexible or any(row[at] for row in rows)]
    return table([columns[at] for at in kept], [[row[at] for at in kept] for row in rows], screen_width())


def _max(tag: Tag, parts: Mapping[str, int]) -> str:
    if has_parts(tag):
        return numbered(parts.get(tag.tag, 0), "part")
    return counted(tag.max, tag.scheme) if counts(tag.scheme) else ""


@click.command(
    short_help="Show the settings and the state of a tag.",
    epilog="""\b
    Examples:
      issuer show orders
      issuer show orders --json
      issuer show orders --deleted

    \b
    Exit codes: 0 the tag was shown, 3 the tag does not exist, 5 Redis or the
    store is unavailable.
    """,
)
@tag_argument()
@click.option("--deleted", is_flag=True, help="Show the tag as it was when it was deleted.")
@json_option()
@click.pass_context
def show(context: click.Context, *, tag: str, deleted: bool, as_json: bool) -> None:
    """Show the settings and the state of TAG, as the store and Redis have them. Nothing is changed.

    If the tag has a stride, a scramble key or a cycle, its max and the numbers in Redis are counter values, not the
    numbers that users see. If Redis is unavailable, the command shows only the state in the store, and the exit code
    is 5.
    """
    session = Session.of(context)
    seen = _deleted(session.connect(), tag) if deleted else session.connect().inspect(tag)
    if as_json:
        show_json(view(seen))
    else:
        direct = session.settings().redis_url.value == "none"
        if deleted:
            say(
                f"{plain(tag)} was deleted {ago(seen.store.timestamp, now_ms())}. If it is created again, it starts "
                "after max"
            )
        show_data(sheet(seen, direct=direct, now=now_ms(), room=screen_width()))
    if seen.redis_error is not None:
        complain(seen.redis_error)
        context.exit(UNREACHABLE)


def _deleted(issuer: Issuer, tag: str) -> Inspection:
    try:
        return issuer.inspect(tag, deleted=True)
    except UnknownTag as error:
        raise InvalidArgument(f"no deleted tag is called {tag!r}", tag=tag, value=tag) from error


# ---------------------------------------------------------------------- changing


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
      issuer create users --shards --app 17
      issuer create events2 --strategy snowflake --option epoch=2026-01-01
    """,
)
@click.argument("tag")
@setting_options(new=True)
@click.option(
    "--exist-ok",
    is_flag=True,
    help="Succeed if the tag exists and has the same order, limit and scheme. The tag isn't changed.",
)
@scheme_options(new=True)
@click.pass_obj
def create(session: Session, /, *, tag: str, exist_ok: bool, **said: Any) -> None:
    """Create TAG.

    A deleted tag can be created again. It then starts after its old numbers, with the settings given now.
    """
    issuer, before = session.connect(makes_store=True), None
    with suppress(UnknownTag):
        before = issuer.inspect(tag, deleted=True)
    began = now_ms()
    made = issuer.create(tag, exist_ok=exist_ok, **given(said))
    if made.created < began:
        say(f"{plain(made.tag)} exists already: {_stands(made)}{_settings(made)}")
        return
    say(f"made {plain(made.tag)}: {_begins(made)}{made.order}{_settings(made)}")
    if before is not None and (dropped := _dropped(before, made)):
        say(f"the deleted tag of this name had other settings: {dropped}; use `issuer set` to set them again")


def _dropped(before: Inspection, made: Tag) -> str:
    """Return the settings of a deleted tag that it hasn't got again."""
    had: dict[str, object] = {"order": before.order, "limit": before.limit, "lease": before.lease}
    has: dict[str, object] = {"order": made.order, "limit": last_value(made.scheme, made.limit), "lease": made.lease}
    had |= {"step": before.store.step, "ahead": before.store.ahead, "description": before.description}
    has |= {"step": made.step, "ahead": made.ahead, "description": made.description}
    had |= dict(described(before.scheme))
    has |= dict(described(made.scheme))
    return ", ".join(
        f"{name} {plain(str(value))}" for name, value in had.items() if value not in (has.get(name), None, "")
    )


@click.command(
    cls=Sectioned,
    short_help="Change the settings of a tag.",
    epilog="""\b
    Examples:
      issuer set orders --step 5000
      issuer set orders --above 123456       # skip the numbers up to 123456
      issuer set bills --format 'B{date:%Y}-{seq:06d}{check}'
      issuer set coupons --scramble 100000=k1 --scramble 1000000=k2
      issuer set vienna --stride 3 --offset 1 --stride-above 5000000
    """,
)
@tag_argument()
@setting_options(new=False)
@scheme_options(new=False)
@click.option("--yes", is_flag=True, help="Don't ask for confirmation before numbers are skipped.")
@click.pass_obj
def set(session: Session, /, *, tag: str, yes: bool, **said: Any) -> None:
    """Change settings of TAG, also while it is in use. Every process applies the change at its next reservation.

    Every process applies a new --lease within a minute.

    --start and --above skip numbers. Skipped numbers are never issued, so the command asks for confirmation. A tag
    never goes back to lower numbers. A process that holds numbers of a trend tag can still issue some of them: leased
    numbers for a second or two, and in direct mode the numbers of at most two segments.
    """
    changes = given(said)
    if not changes:
        raise click.UsageError(
            "nothing to change: give --step, --limit, --start, --above, --lease, --ahead, --description, or one of the "
            "options of its scheme"
        )
    issuer = session.connect()
    below: int | None = changes["above"] if "above" in changes else changes["start"] - 1 if "start" in changes else None
    if below is not None:
        _ask_to_skip(issuer, tag, below, yes=yes)
    now = issuer.configure(tag, **changes)
    if below is not None and not now.scheme and below < now.max:
        say(f"no number is skipped: the numbers up to {now.max} are reserved already")
    say(f"changed {plain(now.tag)}: {_stands(now)}{_settings(now)}")


#: The question for a jump over more segments than this shows what it costs.
_FAR = 1000


def _ask_to_skip(issuer: Issuer, tag: str, below: int, *, yes: bool) -> None:
    """Ask before the numbers up to there are skipped, which can't be undone; not if they are reserved already."""
    try:
        found = issuer.inspect(tag)
    except UnknownTag:  # the change itself tells more: of whose hash it is, say
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


def _stands(now: Tag) -> str:
    """Say how far it has come, and how far it can go."""
    if not counts(now.scheme):
        return now.order
    last = last_value(now.scheme, now.limit)
    ends = "" if last == HIGHEST or "cycle" in now.scheme else f", limit {last}"
    return f"max {counted(now.max, now.scheme)}, step {now.step}{ends}"


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
    check_askable(yes=yes)
    issuer = session.connect()
    asked(f"Delete {plain(tag)}{'' if yes else _and_parts(issuer, tag)}?", yes=yes)
    issuer.delete(tag)
    say(f"deleted {plain(tag)}")


def _and_parts(issuer: Issuer, tag: str) -> str:
    try:
        parts = issuer.inspect(tag).parts
    except UnknownTag:  # deleted, perhaps, but not yet in Redis: the error comes when that is done
        return ""
    return f" and its {numbered(parts, 'part')}" if parts else ""
