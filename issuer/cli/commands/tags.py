"""`issuer tags`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import click

from issuer import Issuer
from issuer.care.inspection import Inspection
from issuer.cli.exits import check_json, json_lines_option, json_option
from issuer.cli.scheme_flags import summed_up
from issuer.cli.session import Session
from issuer.cli.sheet import rounded
from issuer.core.parts import has_parts, parents
from issuer.core.scheme_record import counted
from issuer.gateway.keys import has_blanks
from issuer.terminal import Column, ago, numbered, plain, say, screen_width, show, show_json, show_json_line, table
from issuer.times import lasting
from issuer.views import counts, said, view
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
@click.option("--usage", is_flag=True, help="Also show the rate of use, the runway and the waste of each tag.")
@json_option("Print JSON, with the parts. With --usage, each tag is shown as by `issuer inspect --json`.")
@json_lines_option
@click.pass_obj
def tags(session: Session, *, everything: bool, usage: bool, as_json: bool, as_lines: bool) -> None:
    """List the tags of the store with their settings.

    A tag with shards consists of one part for each shard. A keyed tag consists of one part for each key. Each part is a
    tag of its own.

    RUNWAY is the time for which the numbers in Redis last at the present rate. WASTE is the share of the numbers of the
    newest 100 reservations that nobody gets, because they were skipped or could not be returned.
    """
    check_json(as_json=as_json, as_lines=as_lines)
    issuer = session.connect()
    if as_lines:
        for page in issuer.engine.care.tag_pages(None):
            for each in _inspected(issuer, page) if usage else page:
                show_json_line(view(each))
        return
    found = issuer.tags()
    belongs = parents(found)
    if as_json:
        show_json([view(each) for each in (_inspected(issuer, found) if usage else found)])
    elif not found:
        say("no tags yet: create one with `issuer create`")
    else:
        shown = [tag for tag in found if everything or tag.tag not in belongs]
        seen = {each.tag: each for each in _inspected(issuer, shown)} if usage else {}
        show(_listing(shown, Counter(belongs.values()), seen))
        if any(has_blanks(tag.tag) for tag in shown):
            say("no number is issued of a tag with blanks around its name: see `issuer doctor`")
        if len(shown) < len(found):
            say(f"not shown: {numbered(len(found) - len(shown), 'part')}; --all shows them")


def _inspected(issuer: Issuer, found: list[Tag]) -> Iterator[Inspection]:
    """Inspect these tags and yield the results. If a tag cannot be inspected, print the error and leave the tag out."""
    for each in issuer.engine.care.inspected([tag.tag for tag in found], None):
        if each.result is None:
            say(f"{plain(each.tag)}: {said(each.error)}")
        else:
            yield each.result


def _listing(found: list[Tag], parts: Mapping[str, int], seen: Mapping[str, Inspection]) -> str:
    columns = [
        Column("TAG", flexible=True),
        Column("MAX", "right"),
        Column("STEP", "right"),
        Column("PER SECOND", "right", flexible=True),
        Column("RUNWAY", "right", flexible=True),
        Column("WASTE", "right", flexible=True),
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
            *_usage(seen.get(tag.tag)),
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


def _usage(seen: Inspection | None) -> tuple[str, str, str]:
    """Return the rate, the runway and the waste of a tag as texts, "" if unknown."""
    if seen is None:
        return "", "", ""
    rate = "" if seen.rate is None else rounded(seen.rate)
    runway = "" if seen.runway is None else lasting(seen.runway, 1)
    waste = "" if seen.waste is None or not seen.waste.of else f"{seen.waste.numbers / seen.waste.of:.1%}"
    return rate, runway, waste


def _max(tag: Tag, parts: Mapping[str, int]) -> str:
    if has_parts(tag):
        return numbered(parts.get(tag.tag, 0), "part")
    return counted(tag.max, tag.scheme) if counts(tag.scheme) else ""
