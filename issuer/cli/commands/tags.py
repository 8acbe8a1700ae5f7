"""`issuer tags`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import click

from issuer.cli.exits import check_json, json_lines_option, json_option
from issuer.cli.scheme_flags import summed_up
from issuer.cli.session import Session
from issuer.core.parts import has_parts, parents
from issuer.core.scheme_record import counted
from issuer.gateway.keys import has_blanks
from issuer.terminal import Column, ago, numbered, say, screen_width, show, show_json, show_json_line, table
from issuer.views import counts, view
from issuer_persistence.records import Tag, now_ms

SECTION = "Tags"


@click.command(
    short_help="List the tags of the store.",
    epilog="""\b
    Examples:
      issuer tags
      issuer tags --all --json
      issuer tags --json-lines | jq -r 'select(.halted) | .tag'
    """,
)
@click.option("--all", "everything", is_flag=True, help="Also list the parts of tags, for example orders#17.")
@json_option("Print JSON, with the parts.")
@json_lines_option
@click.pass_obj
def tags(session: Session, *, everything: bool, as_json: bool, as_lines: bool) -> None:
    """List the tags of the store with their settings.

    A tag with shards consists of one part for each shard. A keyed tag consists of one part for each key. Each part is a
    tag of its own.
    """
    check_json(as_json=as_json, as_lines=as_lines)
    issuer = session.connect()
    if as_lines:
        for page in issuer.engine.care.tag_pages(None):
            for tag in page:
                show_json_line(view(tag))
        return
    found = issuer.tags()
    belongs = parents(found)
    if as_json:
        show_json([view(tag) for tag in found])
    elif not found:
        say("no tags yet: create one with `issuer create`")
    else:
        shown = [tag for tag in found if everything or tag.tag not in belongs]
        show(_listing(shown, Counter(belongs.values())))
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
    # Omit a flexible column if it is empty for all tags.
    kept = [at for at, column in enumerate(columns) if not column.flexible or any(row[at] for row in rows)]
    return table([columns[at] for at in kept], [[row[at] for at in kept] for row in rows], screen_width())


def _max(tag: Tag, parts: Mapping[str, int]) -> str:
    if has_parts(tag):
        return numbered(parts.get(tag.tag, 0), "part")
    return counted(tag.max, tag.scheme) if counts(tag.scheme) else ""
