"""`issuer recover`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import click

from issuer.care.recovery import Named, Recovery
from issuer.care.results import Outcome
from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, check_json, code_of, complain, json_lines_option, json_option
from issuer.cli.options import Whole, asked, check_askable
from issuer.cli.session import Session, with_progress
from issuer.core.error_mapping import store_error
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable
from issuer.terminal import Column, listed, numbered, plain, say, screen_width, show, show_json, show_json_line, table
from issuer.threads import finished
from issuer.views import said, view
from issuer_persistence.errors import StoreError
from issuer_persistence.journal import read

SECTION = "Checks"


@click.command(
    short_help="After a restore, skip numbers that may be issued.",
    epilog="""\b
    Examples:
      issuer recover orders --dry-run
      issuer recover --all --yes
      issuer recover --all --yes --json-lines > recovered.jsonl
      issuer recover orders --at-least 4711  # the highest in your own tables
      issuer recover --all --from-journal issuer.journal
    """,
)
@tag_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="Recover every tag of the store.")
@click.option("--dry-run", is_flag=True, help="Show what would be changed; change nothing.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--at-least", metavar="N", type=Whole(min=0), help="Also skip all numbers up to the counter value N.")
@click.option(
    "--from-journal",
    "paths",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Also read the reservations in this journal. Can be repeated.",
)
@click.option(
    "--spare-sound",
    is_flag=True,
    help="With --all: leave out tags without a problem. Do not use it after a restore of Redis.",
)
@click.option(
    "--after",
    metavar="TAG",
    default="",
    help="With --all: go on after TAG, where an earlier run was interrupted. Only if nothing was restored since.",
)
@json_option("Print a JSON list; messages go to stderr.")
@json_lines_option
@click.pass_obj
def recover(
    session: Session,
    *,
    tag: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    at_least: int | None,
    paths: tuple[str, ...],
    spare_sound: bool,
    after: str,
    as_json: bool,
    as_lines: bool,
) -> int:
    """Raise TAG above every number that may be issued already, so that no number is issued twice.

    Run the command after a store or a Redis server was restored from a backup. It also ends a halt. It looks for the
    highest number of the tag in the store, its ledger, Redis and the journals given. It also queries the replicas and
    former masters of Redis. Then it raises the store's max. The output shows the max before (OLD) and after (NEW), and
    how many numbers at most are skipped and never issued (GAP). The parts of a tag are recovered with it. The command
    is safe to run twice, on several machines at once, and while numbers are drawn.

    If Redis is unavailable, use --dry-run. The exit code of the dry run is then 5. The output names the servers that
    don't answer. If a journal contains a tag that the store has lost, the command creates the tag again, and prints
    "lost" in place of OLD.

    If only the store has a record of a tag, nothing confirms the store's max. If the store is out of date, numbers
    would be issued twice. The command names such tags and asks for confirmation. To be safe, recover them with
    --at-least N. N is a value of the tag's counter. If the tag has a stride, a scramble key or periods, `issuer decode`
    shows the counter value of a number or a text.

    For tags without a problem, the command also skips the numbers in Redis. The reason: if a snapshot of the machine
    was restored, Redis can have gone back in time, and nothing shows it. If no snapshot was restored, use
    --spare-sound. It leaves out a tag if the tag isn't halted, its Redis hash is from the current master's term, and
    the store's max is not lower than any number found.

    The tags are recovered in the order of their names, about 1,000 at once. If the run is interrupted, it prints the
    name of the last tag that is done. To go on there, repeat the command with --after.

    When the command has ended, Redis issues no number up to NEW. A process that holds numbers of a trend tag can still
    issue some of them: leased numbers for a second or two, and in direct mode the numbers of at most two segments.
    """
    check_json(as_json=as_json, as_lines=as_lines)
    _check_options(tag, everything=everything, at_least=at_least, spare_sound=spare_sound, after=after)
    if not (dry_run or yes):
        check_askable()
    issuer = session.connect(makes_store=bool(paths))
    journals = _read(paths) if paths else ()

    def recovered(label: str, *, changes: bool, spared: Collection[str] = ()) -> list[Outcome[Recovery]]:
        care = issuer.engine.care
        outcomes = finished(
            lambda: care.recovered(tag, at_least or 0, journals, dry_run=not changes, spared=spared, after=after)
        )
        reported = map(_reported, with_progress(outcomes, label))
        prints, changes_all = as_lines and changes is not dry_run, changes and everything
        found = _collected(reported, prints=prints, spare=spare_sound, changes_all=changes_all)
        if not (found or spared or after or as_lines):
            say("no tags in this store")
        return found

    failed: list[IssuerError] = []
    spared: set[str] = set()
    if dry_run or spare_sound or not yes:
        every = recovered("checking", changes=False)
        planned = _say_sound(every, spare=spare_sound) if everything else every
        failed = [each.error for each in planned if each.error is not None]
        sure = [each for each in planned if each.error is None]
        spared = {each.tag for each in every} - {each.tag for each in sure}
        if dry_run:
            _print(planned, as_json=as_json, as_lines=as_lines)
            _say_unvouched(planned)
        elif sure and not yes:
            _ask(planned, sure, everything=everything)
    if not dry_run:
        done = recovered("recovering", changes=True, spared=spared)
        failed += [each.error for each in done if each.error is not None]
        _print(done, as_json=as_json, as_lines=as_lines)
        if yes:  # without --yes, `_ask` has already called `_say_unvouched`, before the question
            _say_unvouched(done)
    return max(map(code_of, failed), default=OK)


def _collected(
    outcomes: Iterator[Outcome[Recovery]], *, prints: bool, spare: bool, changes_all: bool
) -> list[Outcome[Recovery]]:
    """Return the outcomes as a list, and print them if requested.

    If a run with `changes_all` is interrupted, it prints where to go on. If it also prints each outcome, the list
    contains only the outcomes that the caller still needs: errors, and tags of which only the store has a record.
    """
    found: list[Outcome[Recovery]] = []
    last = ""
    try:
        for each in outcomes:
            sound, unvouched = (each.result.sound, each.result.unvouched) if each.result is not None else (False, False)
            if prints and not (spare and sound):
                show_json_line(_content(each))
            if not (prints and changes_all) or unvouched or each.error is not None:
                found.append(each)
            last = each.tag
    except BaseException:
        if last and changes_all:
            say(
                f"interrupted after tag {plain(last)}: this tag and those before it are done, except those with an "
                f"error above. To go on, repeat the command with --after={shlex.quote(last)}"
            )
        raise
    return found


def _check_options(tag: str | None, *, everything: bool, at_least: int | None, spare_sound: bool, after: str) -> None:
    if (tag is None) is not everything:
        raise click.UsageError("give either a TAG or --all")
    if everything and at_least is not None:
        raise click.UsageError("--at-least requires a TAG, because each tag has its own numbers")
    if after and not everything:
        raise click.UsageError("--after requires --all")
    if spare_sound and not everything:
        raise click.UsageError("--spare-sound requires --all: a TAG that you name is always recovered")


def _read(paths: tuple[str, ...]) -> Named:
    try:
        return read(paths)
    except StoreError as error:
        raise store_error(error, None) from error


def _reported(outcome: Outcome[Recovery]) -> Outcome[Recovery]:
    """Print the error, if any. If Redis could not be queried, return RedisUnavailable. Raises ConfigurationError."""
    done = outcome.result
    if done is not None and done.redis_error:
        away = RedisUnavailable(f"Redis was not checked: {done.redis_error}", tag=done.tag)
        outcome = replace(outcome, error=away)
    if isinstance(outcome.error, ConfigurationError):
        # End the command: wrong settings of the servers or journals would cause the same error for all other tags.
        raise outcome.error
    if outcome.error is not None:
        complain(outcome.error)
    return outcome


def _ask(planned: list[Outcome[Recovery]], sure: list[Outcome[Recovery]], *, everything: bool) -> None:
    """`planned`: outcomes of the check of all tags. `sure`: those without an error. `everything`: --all is given."""
    say(_table(sure))
    _say_nodes(planned)
    one = len(sure) == 1 and not everything
    alone = _say_unvouched(planned)
    trusting = f", {numbered(alone, 'tag')} from the record of the store alone" if alone else ""
    what = plain(sure[0].tag) if one else numbered(len(sure), "tag")
    asked(f"Recover {what}{trusting}?", yes=False)


def _print(outcomes: list[Outcome[Recovery]], *, as_json: bool, as_lines: bool) -> None:
    if as_json:
        show_json([_content(outcome) for outcome in outcomes])
    elif not as_lines and any(outcome.result for outcome in outcomes):
        show(_table(outcomes))
        _say_nodes(outcomes)


def _say_sound(outcomes: list[Outcome[Recovery]], *, spare: bool) -> list[Outcome[Recovery]]:
    """Return the outcomes of the tags that will be recovered. If Redis could not be queried, no tag counts as sound."""
    sound = [each for each in outcomes if each.result is not None and each.result.sound]
    gap = sum(each.result.gap for each in sound if each.result is not None)
    if spare and sound:
        say(f"left as they are, because they have no visible problem: {listed([each.tag for each in sound])}")
        return [each for each in outcomes if each not in sound]
    if gap:
        say(
            f"{numbered(len(sound), 'tag')} without a visible problem: at most {gap:,} numbers of these are skipped as "
            "well. That is necessary if the data of Redis was put back to an earlier state. If it was not, --all "
            "--spare-sound leaves these tags as they are."
        )
    return outcomes


def _say_nodes(outcomes: list[Outcome[Recovery]]) -> None:
    """Report which replicas and former masters of Redis were checked, and which did not answer. Report each once."""
    done = [outcome.result for outcome in outcomes if outcome.result is not None]
    asked = dict.fromkeys(node for each in done for node in each.asked)
    if asked:
        say(f"also checked: {', '.join(map(plain, asked))}")
    unasked = {text.partition(": ")[0]: text for each in done for text in each.unasked}
    for text in unasked.values():
        say(f"{click.style('warning:', fg='yellow')} not checked: {plain(text)}")


def _say_unvouched(outcomes: list[Outcome[Recovery]]) -> int:
    """Report the tags of which only the store has a record, and what to do. Return how many such tags there are."""
    tags = [outcome.tag for outcome in outcomes if outcome.result is not None and outcome.result.unvouched]
    if tags:
        say(
            f"{click.style('warning:', fg='yellow')} only the store has a record of {numbered(len(tags), 'tag')}: "
            f"{listed(tags)}.\n"
            "  Redis and the journals given have none. If the store was restored from a backup, numbers issued since "
            "the backup would be issued twice.\n"
            "  To be safe, name the journals with --from-journal, or recover each tag with --at-least N, where N is "
            "the highest counter in your own tables."
        )
    return len(tags)


def _table(outcomes: list[Outcome[Recovery]]) -> str:
    columns = [Column("TAG", flexible=True), *(Column(heading, "right") for heading in ("OLD", "NEW", "GAP"))]
    rows: list[tuple[object, ...]] = []
    for outcome in outcomes:
        done = outcome.result
        if done is None:
            rows.append((outcome.tag, "failed", "", ""))
        else:
            old = "lost" if done.old is None else done.old_in_period or done.old
            rows.append((outcome.tag, old, done.new_in_period or done.new, f"{done.gap:,}"))
    return table(columns, rows, screen_width())


def _content(outcome: Outcome[Recovery]) -> dict[str, Any]:
    if outcome.result is not None:
        return view(outcome.result)
    return {"tag": outcome.tag, "old": None, "new": None, "gap": None, "error": said(outcome.error)}
