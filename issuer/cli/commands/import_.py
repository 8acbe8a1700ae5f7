"""`issuer import`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from issuer.api.blocking import Issuer
from issuer.care.importing.database import ImportDatabase
from issuer.care.importing.layouts import LAYOUTS, Choice, ImportedTag
from issuer.care.importing.plan import ImportPlan, plan, raise_existing
from issuer.cli import tag_files
from issuer.cli.exits import OK, PROBLEM, complain, json_option
from issuer.cli.options import Whole
from issuer.cli.session import Session
from issuer.cli.sheet import say_supplied
from issuer.cli.tinyid_tokens import add_tokens
from issuer.errors import ConfigurationError, InvalidArgument, LimitReached
from issuer.terminal import Column, listed, numbered, plain, say, screen_width, show, show_json, table
from issuer.threads import finished
from issuer.views import said, supplied

SECTION = "Tags"

#: How many tags are compared, created or raised at once.
PAGE = 500

#: Options that belong to one layout.
_ONLY = {"--table and --column": "table", "--block": "sequence-value", "--tokens": "tinyid"}

_STOP = (
    "Stop the source before you draw here, or split the numbers with --split: a source that runs gives the numbers "
    "above LAST THERE, too."
)


@click.command(
    "import",
    short_help="Take over tags from Leaf, tinyid, a table or a file.",
    epilog="""\b
    Examples:
      issuer import --from mysql://leaf@db/leaf --layout leaf --dry-run
      issuer import --from mysql://leaf@db/leaf --layout leaf
      issuer import --from mysql://leaf@db/leaf --layout leaf --split 1000000
      issuer import --from mysql://tiny@db/tinyid --layout tinyid --tokens t.toml
      issuer import --from postgresql://db/shop --layout pgsequence orders_id_seq
      issuer import --from mysql://db/s --layout table --table orders --column id
      issuer import --from tags.csv --dry-run
    """,
)
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option("--from", "urls", metavar="URL|FILE", multiple=True, required=True, help="Database of the source. Can be "
              "repeated for tinyid, if a tag is in several databases. Or a file from `issuer export`; - is "
              "stdin.")  # fmt: skip
@click.option("--layout", metavar="NAME", type=click.Choice([*LAYOUTS]), help="Kind of the database: "
              f"{', '.join(LAYOUTS)}.")  # fmt: skip
@click.option("--table", "table_name", metavar="NAME", default="", help="Table, for the layout table. It is the tag.")
@click.option("--column", metavar="NAME", default="", help="Column with the numbers, for the layout table.")
@click.option("--block", metavar="N", type=Whole(min=1), help="Numbers that a process takes at once, for the layout "
              "sequence-value.")  # fmt: skip
@click.option("--step", metavar="N", type=Whole(min=1), help="Size of a step of new tags, in numbers, which then "
              "does not adapt. Default: as in the source, or auto.")  # fmt: skip
@click.option("--order", type=click.Choice(["strict", "trend"]), help="Order of new tags, for as long as they exist. "
              "Default: trend for Leaf, tinyid and CosId, and without Redis; else strict.")  # fmt: skip
@click.option("--split", metavar="N", type=Whole(min=1), help="Take N numbers of each tag out of the source, which "
              "goes on above them.")  # fmt: skip
@click.option("--tokens", metavar="FILE", type=click.Path(dir_okay=False), help="File of tokens to which the tokens of "
              "tinyid are added.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option("Print JSON: the numbers of each tag, and the settings of new tags.")
@click.pass_obj
def import_(session: Session, *, tags: tuple[str, ...], urls: tuple[str, ...], layout: str | None, table_name: str,
            column: str, block: int | None, step: int | None, order: str | None, split: int | None,
            tokens: str | None, dry_run: bool, as_json: bool) -> int:  # fmt: skip
    """Create the tags of another issuer here, or raise them, so that no number is issued twice.

    For each TAG, or for all tags, the output shows the highest number that the source may have given (LAST THERE), and
    the first number that is issued here (FIRST HERE). A tag that exists here is raised, and never lowered. So the
    command can be run again, with the same result. A tag that cannot be imported is named, with the reason. The others
    are imported, and the exit code is 4.

    New tags continue as the source did: one from Leaf or CosId has an adapted step, and in Leaf's case that of the row
    is the lowest. One from tinyid keeps its step, with ten steps per segment. The output has their settings.

    The numbers are right only if the source is stopped. The command reads it again at the end, and reports tags that
    have moved. If the source cannot be stopped yet, use --split N. Then the source skips N numbers of each tag, and the
    tag here has these numbers and a limit. Once the source is stopped, run the command without --split: it raises the
    tag to the source's last number, and removes the limit.

    A file has a line for each tag, as CSV or JSON lines. `issuer export` writes such a file. The columns are the
    settings of a tag by their names in Python, and `tag`. A tag that exists and has the same order, limit and scheme is
    not changed. Of each 500 lines, all tags are created or none. The first line with an error ends the command.
    """
    if layout is None:
        _check_file(urls, tags, table_name, column, block, step, order, split, tokens, as_json)
        return tag_files.import_file(session.connect(makes_store=True), urls[0], dry_run=dry_run)
    chosen = LAYOUTS[layout]
    needs = {"--table and --column": table_name and column, "--block": block, "--tokens": tokens}
    _check_options(layout, needs, several=len(urls) > 1, split=split is not None)
    choice = Choice(table_name, column, block or 0)
    own = {name: value for name, value in {"step": step, "order": order}.items() if value is not None}
    given = {**chosen.settings, **own}
    databases = [ImportDatabase(url) for url in urls]

    def read() -> list[ImportedTag]:
        rows = (row for each in databases for row in each.rows(chosen.read, choice))
        return _wanted(chosen.tags(rows, choice), tags)

    issuer = session.connect(makes_store=True)
    found = read()
    if not found:
        complain("the source has no tags: check --layout, the database in --from, and the rights of its user")
        return PROBLEM
    if not dry_run:
        issuer.upgrade()  # each look at a tag takes long in a database that has no tables yet
    plans, refused = _planned(issuer, found, split, given)
    if split is not None and plans and not dry_run:
        found = databases[0].split(chosen, choice, split, {each.source.tag for each in plans})
        plans, moved = _planned(issuer, found, split, given)
        refused |= moved
    _show(plans, split=split is not None, as_json=as_json)
    for tag, problem in sorted(refused.items()):
        complain(f"{plain(tag)} is not imported: {problem}")
    _say_notes(plans, leaf=layout.startswith("leaf"))
    say_supplied((each.source.tag, each.settings) for each in plans if each.settings is not None)
    if not dry_run:
        _import(issuer, plans)
    code = PROBLEM if refused else OK
    if tokens is not None:
        code = max(code, add_tokens(databases, tokens, dry_run=dry_run))
    if split is None:
        say(_STOP)
        code = _still(plans, read()) or code
    return code


def _wanted(found: Sequence[ImportedTag], tags: Sequence[str]) -> list[ImportedTag]:
    if unknown := {*tags} - {each.tag for each in found}:
        raise InvalidArgument(f"the source has no tag {min(unknown)!r}", value=min(unknown))
    return [each for each in found if not tags or each.tag in tags]


def _still(plans: Sequence[ImportPlan], found: Sequence[ImportedTag]) -> int:
    """Return the exit code: a problem if a tag has moved since it was planned. `found`: the source now."""
    now = {each.tag: each.stored for each in found}
    moving = [each.source.tag for each in plans if now.get(each.source.tag) != each.source.stored]
    if not moving:
        return OK
    complain(f"the source is running: {listed(moving)} moved in the meantime. Numbers would be issued twice. "
             "Stop the source, and run the command again before you draw here")  # fmt: skip
    return PROBLEM


def _check_file(urls: Sequence[str], *others: object) -> None:
    """Raise a usage error unless --from is one file, and no option for databases is given."""
    if len(urls) > 1 or "://" in urls[0]:
        raise click.UsageError("--from with the URL of a database requires --layout")
    if any(others):
        raise click.UsageError("a file excludes all options but --dry-run: its lines have the settings")


def _check_options(layout: str, given: Mapping[str, object], *, several: bool, split: bool) -> None:
    """Raise a usage error if options do not fit together. `given`: options of single layouts. `several`: databases."""
    for option, value in given.items():
        if value and layout != _ONLY[option]:
            raise click.UsageError(f"--layout {layout} excludes {option}")
        if not value and layout == _ONLY[option] and option != "--tokens":
            raise click.UsageError(f"--layout {layout} requires {option}")
    if several and (layout != "tinyid" or split):
        raise click.UsageError("only --layout tinyid without --split can have several --from")
    if split and not LAYOUTS[layout].update:
        raise click.UsageError(f"--layout {layout} cannot be split: stop the source, and import without --split")


def _planned(
    issuer: Issuer, found: Sequence[ImportedTag], split: int | None, given: Mapping[str, Any]
) -> tuple[list[ImportPlan], dict[str, str]]:
    """Return the plans, and the reasons of the tags that cannot be imported, by name. Nothing is changed."""
    refused = {each.tag: each.refusal for each in found if each.refusal}
    good = [each for each in found if not each.refusal]
    plans: list[ImportPlan] = []
    for first in range(0, len(good), PAGE):
        config = issuer.engine.config
        steps = {each.tag: plan(each, config, split=split, given=given) for each in good[first : first + PAGE]}
        batch = finished(lambda: issuer.engine.care.ended(steps, None))  # noqa: B023 - called at once
        for tag, error in batch.errors.items():
            if not isinstance(error, (InvalidArgument, ConfigurationError, LimitReached)):
                raise error
            refused[tag] = said(error)
        plans += [batch.results[tag] for tag in steps if tag in batch.results]
    return plans, refused


def _import(issuer: Issuer, plans: Sequence[ImportPlan]) -> None:
    new = {each.source.tag: each.options for each in plans if each.options is not None}
    old = [each for each in plans if each.options is None and each.raises]
    for first in range(0, len(new), PAGE):
        issuer.create_many(dict([*new.items()][first : first + PAGE]))
    # Shards can be left over from an interrupted run, at lower numbers.
    raised = old + [each for each in plans if each.options is not None and each.source.app is not None]
    for first in range(0, len(raised), PAGE):
        steps = {each.source.tag: raise_existing(each, issuer.engine.config) for each in raised[first : first + PAGE]}
        for error in finished(lambda: issuer.engine.care.ended(steps, None)).errors.values():  # noqa: B023 - called at once
            raise error
        finished(lambda: issuer.engine.chronicle.act("configure", dict.fromkeys(steps, "above the source")))  # noqa: B023 - called at once
    same = len(plans) - len(new) - len(old)
    say(f"created {numbered(len(new), 'tag')}, raised {len(old):,}, left {same:,} that are above the source already")


def _show(plans: Sequence[ImportPlan], *, split: bool, as_json: bool) -> None:
    if as_json:
        show_json([
            {"tag": each.source.tag, "last_there": each.source.highest, "first_here": each.first,
             "last_here": each.limit, "settings": each.settings and supplied(each.settings)} for each in plans
        ])  # fmt: skip
        return
    headings = ("LAST THERE", "FIRST HERE", *(("LAST HERE",) if split else ()))
    columns = [Column("TAG", flexible=True), *(Column(heading, "right") for heading in headings)]
    rows = [(each.source.tag, each.source.highest, each.first, each.limit)[: len(columns)] for each in plans]
    show(table(columns, rows, screen_width()))


def _say_notes(plans: Sequence[ImportPlan], *, leaf: bool) -> None:
    for each in plans:
        if each.source.note:
            say(f"note: {plain(each.source.tag)}: {each.source.note}")
        if each.changes is not None:
            say(f"note: {plain(each.source.tag)}: its limit here becomes {each.changes}")
    if leaf and (dotted := [each.source.tag for each in plans if "." in each.source.tag]):
        say(f"note: {numbered(len(dotted), 'tag')} with a dot: {listed(dotted)}. Leaf's HTTP calls cut the last dot "
            "and what follows: /api/segment/get/order.v2 draws from the tag order")  # fmt: skip
