"""Halt and recover: stop reservations; skip all numbers that may be issued, first in the store, then in Redis."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from issuer import gateway
from issuer.core import parts
from issuer.core.floor import floor
from issuer.core.periods import SEQ_MOST
from issuer.core.record import identity
from issuer.core.requests import whole
from issuer.core.scheme_record import countable, in_period, lost
from issuer.core.steps import Steps, ask, elsewhere, send
from issuer.errors import ConfigurationError, ForeignHash, InvalidArgument, RedisUnavailable, UnknownTag, brief
from issuer.gateway.keys import check_found
from issuer_persistence import journal
from issuer_persistence.errors import TagMissing
from issuer_persistence.journal import Journals, Known
from issuer_persistence.records import HIGHEST, Tag, TagChanges

#: Journals as callers name them: by paths, or as what was read from them.
Named = Sequence[str | os.PathLike[str]] | Journals

#: Redis holds two segments at most, so a lost hash had numbers of the two newest ledger entries.
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
        asked: Redis nodes other than the master that answered, as host:port. These are replicas and former masters.
        unasked: Redis nodes that did not answer, with the reason. `new` does not include numbers that only these nodes
            have recorded.
        sound: True if no fault was found: the tag was not halted, its state in Redis belongs to the current master's
            term, the store was not behind, and every node answered. A restore within one term cannot be detected.
        unvouched: True if nothing confirms the store's `max`, because Redis has no state of the tag, and neither a
            journal nor `at_least` was given. In that case, numbers that were issued after the store's backup can be
            issued again.
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

    The store's `max` is raised to the highest number that is recorded in the store, its ledger, Redis or the journals,
    or is `at_least`. Then Redis skips all numbers up to it.

    This is safe twice, on several machines, and while numbers are drawn. `max` only rises. A segment that is being
    loaded in the meantime is rejected, because the state in Redis gets a new id (`born`). A segment that was reserved
    before the store was raised has only numbers up to the new `max`, and Redis skips these. A segment that is reserved
    later starts after the new `max`.

    Args:
        tag: Name of the tag.
        key: Key of the tag's hash in Redis. None if there is no Redis.
        at_least: Highest number known from elsewhere.
        dry_run: If True, change nothing.
        said: Record of the tag in the journals, or None. If the store has lost the tag, or has it as deleted while the
            journals have created it again, the tag is created. If the journals have it as deleted, it is deleted.
    """
    record = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if said is None and (record is None or record.deleted):
        raise UnknownTag(tag)
    known = record if record is not None or said is None else said.record
    _check_counter(known, at_least)
    ledger = yield from ask(lambda store, timeout: store.ledger(tag, newest=BUFFERS, timeout=timeout))
    highest = max(at_least, *(entry.high for entry in ledger), record.max if record else 0, said.top if said else 0)
    issued = record.max if record else said.beneath(BUFFERS) if said else 0
    sound = record is not None and not record.deleted and not record.halted
    hash = away = None
    others, unvouched = Others(), False
    if key is not None:
        try:
            hash = yield from send(gateway.read_hash(key))
        except RedisUnavailable as error:
            if not dry_run:
                raise _unasked(tag, error) from error
            away = str(error)
    if key is not None and hash is not None:
        store_id = yield from identity()
        if hash.names_store and hash.store is not None and hash.store != store_id:
            # Checked before the store is raised: the numbers in this hash are another store's.
            raise ForeignHash(tag, key=key, owner=hash.store, store=store_id, taken=hash.top)
        # `top` uses every field that can be read, also of a damaged hash: it may have the highest number.
        others = yield from _others(key, store_id)
        highest = max(highest, hash.top, others.top)
        if not (hash.top or others.top or at_least or said is not None):
            unvouched, top = yield from _unvouched(known)
            highest = max(highest, top)
        issued = hash.cur if hash.cur is not None else min((entry.low for entry in ledger), default=issued)
        sound = sound and (yield from _of_this_term(key, hash))
    sound = sound and away is None and not others.unasked and record is not None and highest <= record.max
    if not dry_run:
        highest = yield from _raised(tag, record, highest, said)
        if key is not None:
            # Read again: a store that was empty has an id only now.
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


def _of_this_term(key: str, hash: gateway.Hash) -> Steps[bool]:
    """Whether the hash is complete, and was written in the current term of its master."""
    if hash.corrupt is not None or hash.fence is None or hash.born is None or hash.store is None or hash.cur is None:
        return False
    info = yield from send(gateway.replication_info(key))
    return info.get("role") == "master" and info.get("master_replid") == hash.fence


def _check_counter(record: Tag | None, at_least: int) -> None:
    """Raise InvalidArgument if the number can't be a counter value of the tag, because the tag has periods."""
    if record is not None and 0 < at_least <= SEQ_MOST and "restart" in record.scheme:
        problem = (
            f"{at_least} is not a counter of tag {record.tag!r}, which has periods: `decode` shows the counter of a "
            "text"
        )
        raise InvalidArgument(problem, tag=record.tag, value=at_least, argument="at_least")


def _unvouched(record: Tag | None) -> Steps[tuple[bool, int]]:
    """Return whether the store's journal has no record of the tag either, and the journal's highest number of it.

    It is called if Redis has no number of the tag. For a tag without a counter that is normal: (False, 0).
    """
    if record is None or record.deleted or not countable(record.scheme) or parts.is_machine(record):
        return False, 0
    kept = yield from ask(lambda store, timeout: store.witnessed(timeout=timeout))
    return record.tag not in kept, kept.get(record.tag, 0)


@dataclass(frozen=True, slots=True)
class Others:
    """Highest number on other Redis nodes. `asked` and `unasked`: as in Recovery."""

    top: int = 0
    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


def _others(key: str, store_id: str) -> Steps[Others]:
    """Read the hash on every other node: a former master, or a replica that was cut off, may have higher numbers."""
    top, asked, unasked = 0, [], []
    for each in (yield from elsewhere(gateway.read_hash(key))):
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
    """Return the error of a recovery without Redis. Its advice is for tags that are served without Redis."""
    return RedisUnavailable(
        f"{error}. Nothing was recovered, because only Redis may have recorded the highest number",
        tag=tag,
        retry_after=error.retry_after,
        advice="redis_unavailable.recover",
    )


def _raised(tag: str, record: Tag | None, highest: int, said: Known | None) -> Steps[int]:
    """Raise `max` in the store's record, and return it. If the store has lost the record, create it again first."""
    deleted = False
    if said is not None and (record is None or record.deleted):
        # If the deletion in the store is newer than the journals, a process without a journal deleted the tag.
        deleted = said.record.deleted or (record is not None and record.timestamp >= said.record.timestamp)
        if record is not None and deleted and record.max >= highest:
            return record.max
        again, above = said.record.settings, min(highest, HIGHEST - 1)
        full = highest >= again.limit
        # A tag can only be created with a number left. If it had none, the recovery below takes this number.
        limit = above + 1 if full else again.limit
        highest = limit if full else highest
        # A deleted tag can be created only with its old scheme. It gets a later scheme below.
        settings = replace(again, above=above, limit=limit, scheme=again.scheme if record is None else record.scheme)
        yield from ask(lambda store, timeout: store.create(tag, settings, timeout=timeout))
    if record is not None and said is not None and _has_lost_its_scheme(record, said):
        # Before max is raised: if the recovery stops in between, the next one does this again.
        yield from ask(
            lambda store, timeout: store.configure(tag, TagChanges(scheme=said.record.scheme), timeout=timeout)
        )
    raised = yield from ask(lambda store, timeout: store.recover(tag, at_least=highest, timeout=timeout))
    if deleted:
        raised = yield from ask(lambda store, timeout: store.delete(tag, timeout=timeout))
    return raised.max


def _has_lost_its_scheme(record: Tag, said: Known) -> bool:
    """Whether numbers were reserved with a later scheme than the store has. With the store's, values would repeat.

    For a tag that is not deleted, the journals' numbers must be higher as well. With the time alone, a fast clock would
    replace the current scheme by an earlier one.
    """
    later = record.timestamp < said.record.timestamp and (record.deleted or record.max < said.top)
    return later and record.scheme != said.record.scheme


def witnesses(journals: Journals) -> Steps[Mapping[str, Known]]:
    """Return what the journals record about this store's tags, by tag. This function changes nothing.

    Journals of another store count only if this store is empty, or was restored from these journals. From them
    `recover` creates missing tags, but does not raise existing ones. In any other case an error is raised, as the
    journals may have been named by mistake.

    Raises:
        ConfigurationError: The journals belong to another store, and this store was not restored from them.
    """
    if not journals.stores:
        return {}
    store_id = yield from ask(lambda store, timeout: store.store_id(timeout=timeout))
    said = dict(journals.stores.get(store_id, {}))
    foreign = {store: tags for store, tags in journals.stores.items() if store != store_id}
    if foreign:
        records = yield from ask(lambda store, timeout: store.tags(timeout=timeout))
        live = {record.tag: record.max for record in records}
        for store, tags in foreign.items():
            problem = _too_late(live, tags, said)
            if problem:
                raise ConfigurationError(
                    f"these are journals of another store (id {store}, this one is {store_id}), and {problem}",
                    advice="configuration.other_journals",
                )
        for tags in foreign.values():
            for name, known in tags.items():
                said[name] = known.joined(said[name]) if name in said else known
    return said


def _too_late(live: Mapping[str, int], foreign: Mapping[str, Known], own: Mapping[str, Known]) -> str:
    """Return why a store with these tags, and this `max` of each, was not restored from the journals; "" if it was."""
    for name, max in live.items():
        taken = foreign[name].top if name in foreign else 0
        if taken > max and not (name in own and own[name].top >= taken):
            return f"tag {name!r} has max {max} in this store, but {taken} in the journals"
    missing = [name for name, known in foreign.items() if name not in live and not known.record.deleted]
    strangers = [name for name in live if name not in foreign]
    return f"they contain tag {missing[0]!r}, but not {strangers[0]!r}" if missing and strangers else ""


def halt(tag: str) -> Steps[None]:
    """Stop the reservations of the tag and its parts until `recover`. Numbers reserved before are still issued."""
    for name in (yield from with_parts(check_found(tag))):
        try:
            yield from ask(lambda store, timeout: store.halt(name, timeout=timeout))  # noqa: B023 - called at once
        except TagMissing:  # a part that was deleted in the meantime
            if name == tag:
                raise


def with_parts(tag: str, said: Mapping[str, Known] | None = None) -> Steps[list[str]]:
    """Return the names of the tag and of its parts (its shards or series), from the store and the journals.

    The tag itself may be in none of them.
    """
    witnesses = said or {}
    record = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if record is None and tag in witnesses:
        record = witnesses[tag].record
    if record is None or not parts.has_parts(record):
        return [tag]
    lost = [name for name, known in witnesses.items() if parts.is_part(known.record, tag)]
    return [tag, *sorted({*lost, *(yield from parts.of(record))})]


def journals(named: Named) -> Steps[Journals]:
    """Return the journals, read from their paths. Raises InvalidArgument for one path in place of a list."""
    if isinstance(named, Journals):
        return named
    if isinstance(named, (str, bytes, os.PathLike)):
        raise InvalidArgument(f"must be a list of paths, not {brief(named)}", value=named, argument="from_journal")
    # As a request to the store, because that is how drivers call what blocks.
    return (yield from ask(lambda _store, _timeout: journal.read(named)))


def checked_at_least(tag: str | None, at_least: int) -> int:
    """Return `at_least`, 0..2^63-1. Raises InvalidArgument, also if it is given for all tags (`tag` is None)."""
    lowest = whole(at_least, "at_least", 0, HIGHEST)
    if tag is not None:
        check_found(tag)
    elif lowest:
        raise InvalidArgument(
            "requires a tag, because each tag has its own numbers", value=at_least, argument="at_least"
        )
    return lowest


def check_whole(tag: str, names: Sequence[str], at_least: int) -> None:
    """Raise InvalidArgument if the tag has parts: `at_least` can't be right for all. `names`: the tag and its parts."""
    if len(names) > 1:
        problem = f"requires a single part of tag {tag!r}, such as {names[1]!r}, because each part has its own numbers"
        raise InvalidArgument(problem, tag=tag, value=at_least, argument="at_least")
