"""`halt` stops reservations. `recover` skips all numbers that may be issued, first in the store, then in Redis."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from issuer.core import parts
from issuer.core.floor import floor
from issuer.core.periods import SEQ_MOST
from issuer.core.record import identity, select
from issuer.core.requests import whole
from issuer.core.scheme_record import countable, in_period, lost
from issuer.core.steps import Steps, ask, elsewhere, send
from issuer.errors import ConfigurationError, ForeignHash, InvalidArgument, RedisUnavailable, UnknownTag, brief
from issuer.gateway import tag_scripts
from issuer.gateway.keys import check_found
from issuer_persistence import journal
from issuer_persistence.errors import TagMissing
from issuer_persistence.journal import Journals, Known
from issuer_persistence.reads import ReadLedger, ReadTag
from issuer_persistence.records import HIGHEST, Tag, TagChanges

#: The argument `from_journal`: the paths of journal files, or the content that was read from these files.
Named = Sequence[str | os.PathLike[str]] | Journals

#: Redis holds at most two segments of a tag. So if Redis has lost the tag's hash, the lost numbers are those of the two
#: newest ledger entries.
BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of `recover`, or of its dry run, for one tag.

    Attributes:
        tag: Name of the tag.
        old: The store's `max` before the recovery. None if the store had lost the tag, and `recover` created the tag
            again from the journals.
        new: The store's `max` after the recovery. From now on, only numbers higher than `new` are reserved.
        gap: How many numbers the recovery skips at most: numbers that were reserved but not yet issued.
        redis_error: Why Redis could not be queried, as text. It is set only in a dry run. In that case `new` does not
            include numbers that only Redis has recorded.
        asked: Redis nodes that answered, as host:port, without the master. These are replicas and former masters.
        unasked: Redis nodes that did not answer, with the reason. `new` does not include numbers that only these nodes
            have recorded.
        sound: True if no fault was found: the tag was not halted, its hash in Redis was written in the current term,
            the store's `max` was high enough, and every node answered. A term is the time since the master's last
            restart or failover. If old data was restored into Redis within one term, this cannot be detected.
        unvouched: True if nothing confirms the store's `max`: Redis has no hash of the tag, and neither a journal nor
            `at_least` was given. If the store was restored from a backup, numbers issued after the backup can be issued
            again.
        old_in_period: `old` with its period, such as "17 of 2026-11-21". None if the tag has no periods.
        new_in_period: `new` in the same form.
    """

    tag: str
    old: int | None
    new: int
    gap: int
    redis_error: str | None = None
    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    sound: bool = field(default=False, compare=False)
    unvouched: bool = False
    old_in_period: str | None = None
    new_in_period: str | None = None


def recover(tag: str, key: str | None, *, at_least: int, dry_run: bool, said: Known | None = None) -> Steps[Recovery]:
    """Recover one tag.

    The store's `max` is raised to the highest number in the store, its ledger, Redis and the journals, and at least to
    `at_least`. Then Redis skips all numbers up to the new `max`.

    `recover` can safely run twice, on several machines, and while numbers are drawn. `max` is only raised. The hash in
    Redis gets a new id (`born`), so a segment that is being loaded in the meantime is rejected. A segment that was
    reserved before `max` was raised contains only numbers up to the new `max`, and Redis skips these. A segment that is
    reserved later starts after the new `max`.

    `said`: state of the tag in the journals. If the store has lost the tag, or shows it as deleted although the
    journals show that it was created again later, the tag is created again. If the journals list the tag as deleted, it
    is also deleted again.
    """
    record = yield from ask(ReadTag(tag))
    if said is None and (record is None or record.deleted):
        raise UnknownTag(tag)
    known = record if record is not None or said is None else said.record
    _check_counter(known, at_least)
    ledger = yield from ask(ReadLedger(tag, BUFFERS))
    highest = max(at_least, *(entry.high for entry in ledger), record.max if record else 0, said.top if said else 0)
    issued = record.max if record else said.beneath(BUFFERS) if said else 0
    sound = record is not None and not record.deleted and not record.halted
    hash = live = away = None
    others, unvouched = Others(), False
    if key is not None:
        try:
            hash, live = yield from send(tag_scripts.read_both(key))
        except RedisUnavailable as error:
            if not dry_run:
                raise _unasked(tag, error) from error
            away = str(error)
    if key is not None and hash is not None and live is not None:
        store_id = yield from identity()
        if hash.names_store and hash.store is not None and hash.store != store_id:
            # Check the owner of the hash before the store's `max` is raised: the numbers in this hash belong to another
            # store.
            raise ForeignHash(tag, key=key, owner=hash.store, store=store_id, taken=hash.top)
        # `top` is the highest number in any readable field, even if the hash is damaged, because any field may contain
        # the highest number.
        others = yield from _others(key, store_id)
        highest = max(highest, hash.top, others.top)
        if not (hash.top or others.top or at_least or said is not None):
            unvouched, top = yield from _unvouched(known)
            highest = max(highest, top)
        issued = hash.cur if hash.cur is not None else min((entry.low for entry in ledger), default=issued)
        # The hash is complete, and was written after the master's last restart or failover.
        sound = sound and hash.corrupt is None and None not in (hash.fence, hash.born, hash.store, live.cur)
    sound = sound and away is None and not others.unasked and record is not None and highest <= record.max
    if not dry_run:
        highest = yield from _raised(tag, record, highest, said)
        if key is not None:
            # Read the store's id again: if the store was empty, it got its id only now.
            yield from floor(tag, key, highest, "repair", (yield from identity()))
    old, scheme = record.max if record else None, known.scheme if known is not None else {}
    return Recovery(
        tag,
        old,
        highest,
        lost(issued, highest, scheme),
        away,
        others.asked,
        others.unasked,
        sound,
        unvouched,
        None if old is None else in_period(old, scheme),
        in_period(highest, scheme),
    )


def _check_counter(record: Tag | None, at_least: int) -> None:
    """If the tag has periods, raise InvalidArgument for an `at_least` below 2^40: it cannot be a value of the counter.

    The higher bits of such a counter are the index of the period, see PERIOD_BITS.
    """
    if record is not None and 0 < at_least <= SEQ_MOST and "restart" in record.scheme:
        problem = (
            f"{at_least} is not a counter of tag {record.tag!r}, which has periods: `decode` shows the counter of a "
            "text"
        )
        raise InvalidArgument(problem, tag=record.tag, value=at_least, argument="at_least")


def _unvouched(record: Tag | None) -> Steps[tuple[bool, int]]:
    """Look up a tag in the store's journal. Return whether the tag is missing there, and its highest number there.

    This is called if Redis has no numbers of the tag. Redis never has numbers of a deleted tag, or of a tag without a
    counter. The journal is not read for such a tag: the result is (False, 0).
    """
    if record is None or record.deleted or not countable(record.scheme) or parts.is_machine(record):
        return False, 0
    kept = yield from ask(lambda store, timeout: store.witnessed(timeout=timeout))
    return record.tag not in kept, kept.get(record.tag, 0)


@dataclass(frozen=True, slots=True)
class Others:
    """Result of reading a tag's hash on the Redis nodes other than the master.

    `top`: highest number in these hashes. `asked`: nodes that answered. `unasked`: nodes that did not answer, or have
    the hash of another store, with the reason.
    """

    top: int = 0
    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


def _others(key: str, store_id: str) -> Steps[Others]:
    """Read the tag's hash on all Redis nodes except the master. A former or isolated master may have higher numbers."""
    top, asked, unasked = 0, [], []
    (seen,) = yield from elsewhere([tag_scripts.read_raw(key)])
    for each in seen:
        hash = each.reply
        if hash is None:
            unasked.append(f"{each.node}: {each.error}")
        elif hash.names_store and hash.store != store_id:
            unasked.append(f"{each.node}: its hash belongs to another store (id {hash.store})")
        else:
            top = max(top, hash.top)
            asked.append(each.node)
    return Others(top, tuple(asked), tuple(unasked))


def _unasked(tag: str, error: RedisUnavailable) -> RedisUnavailable:
    """Return the error for a recovery while Redis is unavailable. Its advice explains how to recover without Redis."""
    return RedisUnavailable(
        f"{error}. Nothing was recovered, because only Redis may have recorded the highest number",
        tag=tag,
        retry_after=error.retry_after,
        advice="redis_unavailable.recover",
    )


def _raised(tag: str, record: Tag | None, highest: int, said: Known | None) -> Steps[int]:
    """Raise `max` in the store, and return the new one. If the store has lost the tag, first create it again."""
    deleted = False
    if said is not None and (record is None or record.deleted):
        # If the store's record of the deletion is newer than the journals, a process that writes no journal has deleted
        # the tag. Then the tag stays deleted.
        deleted = said.record.deleted or (record is not None and record.timestamp >= said.record.timestamp)
        if record is not None and deleted and record.max >= highest:
            return record.max
        again, above = said.record.settings, min(highest, HIGHEST - 1)
        full = highest >= again.limit
        # A tag can only be created if at least one number is left up to its limit. If no number is left, create the tag
        # below the limit. `store.recover` below then uses up the number.
        limit = above + 1 if full else again.limit
        highest = limit if full else highest
        # A deleted tag can only be created again with the scheme that it had. If the journals contain a newer scheme,
        # `store.configure` below sets it.
        settings = replace(again, above=above, limit=limit, scheme=again.scheme if record is None else record.scheme)
        yield from ask(lambda store, timeout: store.create(tag, settings, timeout=timeout))
    if record is not None and said is not None and _has_lost_its_scheme(record, said):
        # Set the scheme before `max` is raised. The check above compares `max` with the journals. If `max` was raised
        # first, and the recovery was interrupted then, the next recovery would not find that the scheme is lost.
        yield from ask(
            lambda store, timeout: store.configure(tag, TagChanges(scheme=said.record.scheme), timeout=timeout)
        )
    raised = yield from ask(lambda store, timeout: store.recover(tag, at_least=highest, timeout=timeout))
    if deleted:
        raised = yield from ask(lambda store, timeout: store.delete(tag, timeout=timeout))
    return raised.max


def _has_lost_its_scheme(record: Tag, said: Known) -> bool:
    """Return True if the store has lost a change of the tag's scheme: then the journals have a newer scheme.

    With the store's old scheme, numbers for users could repeat. The times of the two records alone prove nothing: if
    the clock of a process was ahead, an older scheme could look newer. So the journals must also have higher numbers
    than the store. Only for a deleted tag, the times are enough.
    """
    later = record.timestamp < said.record.timestamp and (record.deleted or record.max < said.top)
    return later and record.scheme != said.record.scheme


def witnesses(journals: Journals) -> Steps[Mapping[str, Known]]:
    """Return the state of each tag according to the journals, by the tag's name. Nothing is changed.

    Journals of another store are used only if this store is empty, or was restored from these journals. Then `recover`
    creates missing tags from the journals, but does not raise the `max` of existing tags. In any other case, the
    journals may be the wrong ones, so ConfigurationError is raised.
    """
    if not journals.stores:
        return {}
    store_id = yield from ask(lambda store, timeout: store.store_id(timeout=timeout))
    said = dict(journals.stores.get(store_id, {}))
    foreign = {store: tags for store, tags in journals.stores.items() if store != store_id}
    if foreign:
        live = {record.tag: record.max for record in (yield from select())}
        for store, tags in foreign.items():
            problem = _too_late(live, tags, said)
            if problem:
                problem = f"these are journals of another store (id {store}, this one is {store_id}), and {problem}"
                raise ConfigurationError(problem, advice="configuration.other_journals")
        for tags in foreign.values():
            for name, known in tags.items():
                said[name] = known.joined(said[name]) if name in said else known
    return said


def _too_late(live: Mapping[str, int], foreign: Mapping[str, Known], own: Mapping[str, Known]) -> str:
    """Return why this store was not restored from the journals of another store, as a part of a sentence, or "".

    `live`: the `max` of each tag in this store. `foreign`, `own`: its state in the journals of the other store and of
    this store.
    """
    for name, max in live.items():
        taken = foreign[name].top if name in foreign else 0
        if taken > max and not (name in own and own[name].top >= taken):
            return f"tag {name!r} has max {max} in this store, but {taken} in the journals"
    missing = [name for name, known in foreign.items() if name not in live and not known.record.deleted]
    strangers = [name for name in live if name not in foreign]
    return f"they contain tag {missing[0]!r}, but not {strangers[0]!r}" if missing and strangers else ""


def halt(tag: str) -> Steps[None]:
    """Stop reservations of a tag, with its shards or series, until `recover`. Reserved numbers are still issued."""
    for name in (yield from with_parts(check_found(tag))):
        try:
            yield from ask(lambda store, timeout: store.halt(name, timeout=timeout))  # noqa: B023 - called at once
        except TagMissing:  # a shard or series was deleted in the meantime
            if name == tag:
                raise


def with_parts(tag: str, said: Mapping[str, Known] | None = None) -> Steps[list[str]]:
    """Return the names of the tag and of its parts (its shards or series) in the store and the journals.

    If neither the store nor the journals contain the tag, return only its name. `said`: state of each tag in the
    journals, by name.
    """
    witnesses = said or {}
    record = yield from ask(ReadTag(tag))
    if record is None and tag in witnesses:
        record = witnesses[tag].record
    if record is None or not parts.has_parts(record):
        return [tag]
    lost = sorted(name for name, known in witnesses.items() if parts.is_part(known.record, tag))
    return [*dict.fromkeys([tag, *(yield from parts.of(record)), *lost])]


def journals(named: Named) -> Steps[Journals]:
    """Read the journals from their paths. If the argument is a single path, not a list, raise InvalidArgument."""
    if isinstance(named, Journals):
        return named
    if isinstance(named, (str, bytes, os.PathLike)):
        raise InvalidArgument(f"must be a list of paths, not {brief(named)}", value=named, argument="from_journal")
    # Reading a file blocks the thread. So read it in the same way as the store is called: under asyncio, the driver
    # makes this call in a worker thread.
    return (yield from ask(lambda _store, _timeout: journal.read(named)))


def checked_at_least(tag: str | None, at_least: int) -> int:
    """Check `at_least` and return it. It must be in 0..2^63-1, and 0 if `tag` is None, which means all tags."""
    lowest = whole(at_least, "at_least", 0, HIGHEST)
    if tag is not None:
        check_found(tag)
    elif lowest:
        raise InvalidArgument(
            "requires a tag, because each tag has its own numbers", value=at_least, argument="at_least"
        )
    return lowest


def check_whole(tag: str, names: Sequence[str], at_least: int) -> None:
    """Raise InvalidArgument if `names` contains shards or series of the tag, because each has its own numbers.

    So one `at_least` cannot be right for all of them.
    """
    if len(names) > 1:
        problem = f"requires a single part of tag {tag!r}, such as {names[1]!r}, because each part has its own numbers"
        raise InvalidArgument(problem, tag=tag, value=at_least, argument="at_least")
