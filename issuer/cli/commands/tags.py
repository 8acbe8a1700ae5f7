"""`issuer tags`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import click

from issuer import Issuer
from issuer.care.inspection import Inspection
from issuer.cli.exits import OK, UNREACHABLE, check_json, code_of, complain, json_lines_option, json_option
from issuer.cli.scheme_flags import summed_up
from issuer.cli.session import Session
from issuer.core.error_mapping import store_error
from issuer.core.parts import has_parts, parents
from issuer.core.scheme_record import counted
from issuer.gateway.keys import has_blanks
from issuer.terminal import (
    Column,
    PagedTable,
    ago,
    numbered,
    plain,
    say,
    screen_width,
    show,
    show_json_line,
    show_json_list,
)
from issuer.times import lasting, rounded
from issuer.views import counts, said, view
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag, now_ms

SECTION = "Tags"

#: Columns of the table. A flexible column is omitted as long as it is empty.
COLUMNS = (
    Column("TAG", flexible=True),
    Column("RESERVED", "right"),
    Column("STEP", "right"),
    Column("PER SECOND", "right", flexible=True),
    Column("RUNWAY", "right", flexible=True),
    Column("WASTE", "right", flexible=True),
    Column("ORDER"),
    Column("NUMBERS", flexible=True),
    Column("CHANGED"),
    Column("DESCRIPTION", flexible=True),
)


@click.command(
    short_help="List the tags of the store.",
    epilog="""\b
    Examples:
      issuer tags
      issuer tags --all --json
      issuer tags --json-lines | jq -r 'select(.halted) | .tag'

    \b
    Exit codes: 0 the tags were shown, 4 the data of a tag is damaged, and the
    others were shown. With --usage: 5 Redis is unavailable.
    """,
)
@click.option("--all", "everything", is_flag=True, help="Also list the parts of tags, for example orders#17.")
@click.option("--usage", is_flag=True, help="Also show the rate of use, the runway and the waste of each tag.")
@json_option("Print JSON, with the parts. With --usage, each tag is shown as by `issuer inspect --json`.")
@json_lines_option
@click.pass_obj
def tags(session: Session, *, everything: bool, usage: bool, as_json: bool, as_lines: bool) -> int:
    """List the tags of the store with their settings.

    A tag with shards consists of one part for each shard. A keyed tag consists of one part for each key. Each part is a
    tag of its own.

    The tags are read and shown by pages of 1000. If a page needs more space than the pages before, its columns are
    wider.

    RESERVED is the highest number that was reserved for callers, or the number of parts. RUNWAY is the time for which
    the numbers in Redis last at the present rate. WASTE is the share of the numbers of the newest 100 reservations that
    nobody gets, because they were skipped or could not be returned.
    """
    check_json(as_json=as_json, as_lines=as_lines)
    issuer = session.connect()
    pages = issuer.engine.care.tag_pages(None)
    codes = {OK}
    sound = (_sound(page, codes) for page in pages)
    views = (view(each) for page in sound for each in (_inspected(issuer, page, codes) if usage else page))
    if as_json:
        show_json_list(views)
    elif as_lines:
        for each in views:
            show_json_line(each)
    else:
        _show_tables(issuer, sound, codes, everything=everything, usage=usage)
    return max(codes)


def _show_tables(issuer: Issuer, pages: Iterable[list[Tag]], codes: set[int], *, everything: bool, usage: bool) -> None:
    """Show the tags as a table. If a column is first needed on a later page, a new table begins there."""
    listing = _Listing()
    parts: Counter[str] | None = None
    count = hidden = 0
    blanks = False
    for page in pages:
        belongs = {} if everything else parents(page)
        shown = [tag for tag in page if tag.tag not in belongs]
        if parts is None and any(map(has_parts, shown)):  # the parts of a tag may be on later pages
            every = (each for other in issuer.engine.care.tag_pages(None) for each in other if isinstance(each, Tag))
            parts = Counter(parents(every).values())
        seen = {each.tag: each for each in _inspected(issuer, shown, codes)} if usage else {}
        listing.show(shown, parts or {}, seen)
        count, hidden = count + len(page), hidden + len(belongs)
        blanks = blanks or any(has_blanks(tag.tag) for tag in shown)
    if not count and codes == {OK}:
        say("no tags yet: create one with `issuer create`")
    if blanks:
        say("no number is issued of a tag with blanks around its name: see `issuer doctor`")
    if hidden:
        say(f"not shown: {numbered(hidden, 'part')}; --all shows them")


def _sound(page: list[Tag | Corrupt], codes: set[int]) -> list[Tag]:
    """Return the records that are not damaged. Print the errors of the others, and add their exit code to `codes`."""
    for each in page:
        if isinstance(each, Corrupt):
            complain(error := store_error(each, each.tag))
            codes.add(code_of(error))
    return [each for each in page if isinstance(each, Tag)]


def _inspected(issuer: Issuer, found: list[Tag], codes: set[int]) -> Iterator[Inspection]:
    """If a tag cannot be inspected, print the error, add its exit code to `codes`, and leave the tag out."""
    for each in issuer.engine.care.inspected(found, None):
        if each.error is not None:
            say(f"{plain(each.tag)}: {said(each.error)}")
            codes.add(code_of(each.error))
        elif each.result is not None:
            if each.result.redis_error is not None and UNREACHABLE not in codes:
                complain(each.result.redis_error)
                codes.add(UNREACHABLE)
            yield each.result


class _Listing:
    """A table of tags that is shown by pages."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._table = PagedTable((), None)

    def show(self, found: list[Tag], parts: Mapping[str, int], seen: Mapping[str, Inspection]) -> None:
        """Show the tags of a page. `parts`: how many parts the tags have. `seen`: the usage of the tags."""
        rows = _rows(found, parts, seen)
        if not rows:
            return
        needed = [at for at, column in enumerate(COLUMNS) if not column.flexible or any(row[at] for row in rows)]
        if not set(needed) <= set(self._kept):
            if self._kept:
                show("")
            self._kept = sorted({*self._kept, *needed})
            self._table = PagedTable([COLUMNS[at] for at in self._kept], screen_width())
        show(self._table.page([[row[at] for at in self._kept] for row in rows]))


def _rows(found: list[Tag], parts: Mapping[str, int], seen: Mapping[str, Inspection]) -> list[tuple[object, ...]]:
    now = now_ms()
    return [
        (
            repr(tag.tag) if has_blanks(tag.tag) else tag.tag,
            _max(tag, parts),
            f"{tag.step:,}" if counts(tag.scheme) else "",
            *_usage(seen.get(tag.tag)),
            f"{tag.order}, halted" if tag.halted else tag.order,
            summed_up(tag),
            ago(tag.timestamp, now),
            tag.description,
        )
        for tag in found
    ]


def _usage(seen: Inspection | None) -> tuple[str, str, str]:
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
