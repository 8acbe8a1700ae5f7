"""`issuer recover`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from issuer.api.blocking import Issuer
from issuer.cli.completion import tag_argument
from issuer.cli.exits import OK, code_of, complain, json_option, said
from issuer.cli.options import MANY, Whole, asked, check_askable
from issuer.cli.session import Session
from issuer.core.error_mapping import store_error
from issuer.core.recovery import Recovery
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable
from issuer.terminal import Column, numbered, plain, say, screen_width, show, show_json, table
from issuer.views import view
from issuer_persistence.errors import StoreError
from issuer_persistence.journal import Journals, read

SECTION = "Checks and recovery"

#: Up to this many tags whose store is their only witness are named; of more only the count is shown.
NAMED = 20


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome for one tag: a recovery, or an error; both where a dry run could not ask Redis."""

    tag: str
    recovery: Recovery | None
    error: IssuerError | None = None

    def row(self) -> tuple[object, ...]:
        if self.recovery is None:
            return (self.tag, "failed", "", "")
        return (
            self.tag,
            "lost" if self.recovery.old is None else self.recovery.old_in_period or self.recovery.old,
            self.recovery.new_in_period or self.recovery.new,
            f"{self.recovery.gap:,}",
        )

    def content(self) -> dict[str, Any]:
        if self.recovery is None:
            return {"tag": self.tag, "old": None, "new": None, "gap": None, "error": said(self.error)}
        return view(self.recovery)


@click.command(
    short_help="After a restore: skip numbers that may be issued already.",
    epilog="""\b
    Examples:
      issuer recover orders --dry-run
      issuer recover --all --yes
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
@json_option("Print a JSON list; messages go to stderr.")
@click.pass_context
def recover(
    context: click.Context,
    *,
    tag: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    at_least: int | None,
    paths: tuple[str, ...],
    spare_sound: bool,
    as_json: bool,
) -> None:
    """Raise TAG above every number that may be issued already, so that no number is issued twice.

    Run it after a store or a Redis server was restored from a backup. It also ends a halt. The command looks for the
    highest number of the tag in the store, its ledger, Redis and the journals given. In Redis it also queries replicas
    and former masters. Then it raises the store's max from OLD to NEW. At most GAP numbers are skipped and never
    issued. The parts of a tag are recovered with it. The command is safe to run twice, on several machines at once, and
    while numbers are drawn.

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

    When the command has ended, Redis issues no number up to NEW. A process that holds numbers of a trend tag can still
    issue some of them: leased numbers for a second or two, and in direct mode the numbers of at most two segments.
    """
    _check_options(tag, everything=everything, at_least=at_least, spare_sound=spare_sound)
    if not dry_run:
        check_askable(yes=yes)
    issuer = Session.of(context).connect(makes_store=bool(paths))
    journals = _read(paths)
    names = sorted({*_tags_of(journals), *(each.tag for each in issuer.tags())}) if tag is None else [tag]
    if not names:
        say("no tags in this store")
    failed: list[_Outcome] = []
    if dry_run or spare_sound or not yes:
        planned = list(_each(issuer, names, at_least or 0, journals, dry_run=True))
        planned = _say_sound(planned, spare=spare_sound) if everything else planned
        failed = [outcome for outcome in planned if outcome.error is not None]
        names = [outcome.tag for outcome in planned if outcome.error is None]
        if dry_run:
            _print(planned, as_json=as_json)
            _say_unvouched(planned)
        elif names and not yes:
            say(_table([outcome for outcome in planned if outcome.error is None]))
            _say_nodes(planned)
            one = len(names) == 1 and not everything
            alone = _say_unvouched(planned)
            trusting = f", {numbered(alone, 'tag')} from the record of the store alone" if alone else ""
            what = plain(names[0]) if one else numbered(len(names), "tag")
            asked(f"Recover {what}{trusting}?", yes=False)
    if not dry_run:
        done = list(_each(issuer, names, at_least or 0, journals, dry_run=False))
        failed += [outcome for outcome in done if outcome.recovery is None]
        _print(done, as_json=as_json)
        if yes:  # else it was said before
            _say_unvouched(done)
    context.exit(max((code_of(outcome.error) for outcome in failed if outcome.error), default=OK))


def _check_options(tag: str | None, *, everything: bool, at_least: int | None, spare_sound: bool) -> None:
    if (tag is None) is not everything:
        raise click.UsageError("give either a TAG or --all")
    if everything and at_least is not None:
        raise click.UsageError("--at-least requires a TAG, because each tag has its own numbers")
    if spare_sound and not everything:
        raise click.UsageError("--spare-sound requires --all: a TAG that you name is always recovered")


def _read(paths: tuple[str, ...]) -> Journals:
    try:
        return read(paths)
    except StoreError as error:
        raise store_error(error, None) from error


def _tags_of(journals: Journals) -> set[str]:
    return {name for tags in journals.stores.values() for name in tags}


def _each(issuer: Issuer, names: list[str], at_least: int, journals: Journals, *, dry_run: bool) -> Iterator[_Outcome]:
    """Recover one tag after the other; one that fails is reported and doesn't keep the others waiting."""
    hidden = len(names) < MANY or not sys.stderr.isatty()
    label = "checking" if dry_run else "recovering"
    done: set[str] = set()
    with click.progressbar(names, label=label, file=sys.stderr, hidden=hidden) as bar:
        for name in bar:
            if name in done:  # as a part of a tag that came before it
                continue
            try:
                for each in issuer.recover(name, at_least=at_least, from_journal=journals, dry_run=dry_run):
                    done.add(each.tag)
                    away = each.redis_error and RedisUnavailable(
                        f"Redis was not checked: {each.redis_error}", tag=each.tag
                    )
                    if away:
                        complain(away)
                    yield _Outcome(each.tag, each, away or None)
            except ConfigurationError:
                # It is about the servers or the journals as a whole: the other tags would tell it again.
                raise
            except IssuerError as error:
                complain(error)
                yield _Outcome(name, None, error)


def _print(outcomes: list[_Outcome], *, as_json: bool) -> None:
    if as_json:
        show_json([outcome.content() for outcome in outcomes])
    elif any(outcome.recovery for outcome in outcomes):
        show(_table(outcomes))
        _say_nodes(outcomes)


def _say_sound(outcomes: list[_Outcome], *, spare: bool) -> list[_Outcome]:
    """Say what the recovery of tags that look sound costs, or that they are spared; return the outcomes that are left.

    A dry run that could not ask Redis knows of no tag that it is sound.
    """
    sound = [each for each in outcomes if each.recovery is not None and each.recovery.sound]
    gap = sum(each.recovery.gap for each in sound if each.recovery is not None)
    if spare and sound:
        names = ", ".join(plain(each.tag) for each in sound)
        say(f"left as they are, because they have no visible problem: {names}")
        return [each for each in outcomes if each not in sound]
    if gap:
        say(
            f"{numbered(len(sound), 'tag')} without a visible problem: at most {gap:,} numbers of these are skipped as "
            "well. That is necessary if the data of Redis was put back to an earlier state. If it was not, --all "
            "--spare-sound leaves these tags as they are."
        )
    return outcomes


def _say_nodes(outcomes: list[_Outcome]) -> None:
    """Say which nodes of Redis were asked besides the master, and which could not be, each of them once."""
    done = [outcome.recovery for outcome in outcomes if outcome.recovery is not None]
    asked = dict.fromkeys(node for each in done for node in each.asked)
    if asked:
        say(f"also checked: {', '.join(map(plain, asked))}")
    unasked = {text.partition(": ")[0]: text for each in done for text in each.unasked}
    for text in unasked.values():
        say(f"{click.style('warning:', fg='yellow')} not checked: {plain(text)}")


def _say_unvouched(outcomes: list[_Outcome]) -> int:
    """Name the tags that only the store vouches for, and what to do if it may be an older one; return how many."""
    tags = [outcome.tag for outcome in outcomes if outcome.recovery is not None and outcome.recovery.unvouched]
    if tags:
        named = ", ".join(map(plain, tags[:NAMED])) + (", ..." if len(tags) > NAMED else "")
        say(
            f"{click.style('warning:', fg='yellow')} only the store has a record of {numbered(len(tags), 'tag')}: "
            f"{named}. Redis and the journals given have none. If the store was restored from a backup, numbers issued "
            "since the backup would be issued twice. To be safe, name the journals with --from-journal, or recover "
            "each tag with --at-least N, where N is the highest counter in your own tables."
        )
    return len(tags)


def _table(outcomes: list[_Outcome]) -> str:
    columns = [
        Column("TAG", flexible=True),
        *(Column(heading, "right") for heading in ("OLD", "NEW", "GAP")),
    ]
    return table(columns, [outcome.row() for outcome in outcomes], screen_width())
