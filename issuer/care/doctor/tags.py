"""Checks of the tags, page by page. Some need only the store's records, so they check all tags.

The others need a tag's ledger or hash. They check only the tags that were examined closely.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from issuer.care.discrepancies import described
from issuer.care.doctor.findings import Check, Facts, Finding, TagFacts
from issuer.core import arithmetic, parts, scheme_record
from issuer.core.periods import PERIOD_BITS, SEQ_MOST
from issuer.core.supply.local_buffer import BUFFERS
from issuer.errors import ConfigurationError, CorruptState
from issuer.gateway.keys import has_blanks
from issuer.gateway.tag_scripts import Hash
from issuer.times import lasting
from issuer_persistence.records import HIGHEST, Tag, now_ms

#: How long a step should last, in seconds. A segment consists of one or more steps. If the store is down for this time,
#: no caller waits.
TARGET = 20 * 60

#: If a tag's rate was measured over 10 s, for example, the recommended step lasts at most this many times 10 s.
#: Otherwise, after a burst of two seconds, a huge step would be recommended, and each fault would cost two segments of
#: this size.
TRUSTED = 10

#: A segment should have more numbers than this many leases. A lease is the numbers that a process draws in advance.
LEASES = 5

#: If this share of the numbers up to the limit is left, in percent, the tag is near its limit.
NEAR = 20


def looked_at(facts: Facts) -> Iterator[Finding]:
    """Report how many tags were examined closely."""
    if facts.store_error is not None and not facts.checked:
        return
    there, seen = facts.there, facts.examined
    why = "The hash and the ledger of a tag show whether it is damaged, behind, used by two stores or short of numbers."
    if seen == there:
        yield Check("tags-looked-at", "tags").ok(f"all tags were examined: {there:,}", why)
        return
    all_tags = "all" if facts.checked == there else f"{facts.checked:,}"
    yield Check("tags-looked-at", "tags").unknown(
        f"{seen:,} of {there:,} tags were examined closely; halts and limits were checked for {all_tags} tags",
        why,
        "To examine more tags, use {do:most=N}; the most recently used tags come first."
        if facts.left_out
        else "Run doctor again when Redis and the store are available.",
    )


def halted(facts: Facts) -> Iterator[Finding]:
    """Check whether reservations of a tag are stopped."""
    for record in facts.records:
        if record.halted:
            yield Check("tag-halted", f"tag {record.tag}", record.tag).weak(
                f"the tag is halted at max {record.max}",
                "An operator halted it, or a process found that the store had gone back in time. No more segments are "
                "reserved, so the tag stops when the reserved numbers are used up.",
                "Run {do:recover}.",
            )


def blanks(facts: Facts) -> Iterator[Finding]:
    """Check whether a tag's name begins or ends with blanks, which older versions allowed."""
    for record in facts.records:
        bare = record.tag.strip()
        if not has_blanks(record.tag):
            continue
        goes_on = "" if bare in facts.bare or not bare else f"{{bare:create above={record.max}}}, then run "
        yield Check("tag-blanks", f"tag {record.tag!r}", record.tag).advice(
            "the tag's name has blanks around it",
            "Such a name is easily confused with the name without blanks, which is another tag with its own numbers. "
            "So no number of this tag is issued.",
            f"Run {goes_on}{{do:delete}}.",
            bare=bare,
        )


def dots(facts: Facts) -> Iterator[Finding]:
    """Check whether clients of Leaf that name a tag with a dot get numbers of another tag."""
    if "leaf" not in facts.settings.compat:
        return
    for record in facts.records:
        before, dot, _ = record.tag.rpartition(".")
        if dot:
            yield Check("tag-dot", f"tag {record.tag}", record.tag).advice(
                "the tag's name has a dot, and the calls of Leaf are served",
                f"As Leaf does, a draw of {record.tag!r} by Leaf's calls ignores the part from the last dot on. So it "
                f"issues a number of tag {before!r}.",
                "If no client relied on Leaf's behaviour, serve `leaf:exact` instead of `leaf`.",
            )


def limit(facts: Facts) -> Iterator[Finding]:
    """Check whether a tag is near its limit."""
    belongs = parts.parents(facts.records)
    drawn = {tag.record.tag: hash.cur for tag, hash in _hashes(facts)}
    for record in facts.records:
        limited = Check("tag-limit", f"tag {record.tag}", record.tag)
        try:
            left, unused, of, when = _left(record, drawn.get(record.tag), now_ms())
        except ConfigurationError as error:
            yield limited.unknown(
                str(error),
                "Without the time zone the period is unknown, so processes on this machine issue no number of this "
                "tag.",
                "Install the time zones of the system, or the Python package tzdata.",
            )
            continue
        if unused * 100 > of * NEAR:
            continue
        last = record.scheme.get("limit", of)
        why = "Numbers never start again after the limit. Every call then raises LimitReached."
        remedy = "Raise the limit with {do:configure limit=N}."
        if record.tag in belongs:
            remedy = "Create a new tag to use instead of {whole}: the limit of existing parts can't be changed."
        elif when:
            why += " The next period starts at 1."
            fixed = "scramble" in record.scheme
            remedy = "Use another tag until then." if fixed else f"{remedy[:-1]}, if the format has enough places."
        elif last == HIGHEST:
            remedy = "Create a new tag to use instead: there is no higher 64-bit number."
        yield (limited.advice if left else limited.weak)(
            f"{left:,} numbers are left to reserve up to the limit {last}{when}",
            why,
            remedy,
            whole=belongs.get(record.tag, record.tag),
        )


def _left(record: Tag, drawn: int | None, now: int) -> tuple[int, int, int, str]:
    """Return four values: how many numbers are left to reserve, how many are not used yet, the limit, and the period.

    The period is a text such as " in 2026-11-21". It is "" if the tag has no periods.

    If the tag has periods, or its limit is lower than two segments, its first segment may contain all numbers up to the
    limit. Then the store's `max` reaches the limit long before the numbers are used. So the used numbers of such a tag
    are those up to `drawn`. If `drawn` is None, they are those up to `max`.

    Args:
        record: Record of the tag.
        drawn: The last counter value that was drawn. None if unknown.
        now: Time in ms since 1970.
    """
    periods = scheme_record.periods(record)
    if periods is None:
        small = record.limit < BUFFERS * record.segment
        used = drawn if small and drawn is not None else record.max
        return max(0, record.limit - record.max), max(0, record.limit - used), record.limit, ""
    of, present = min(record.scheme.get("limit", SEQ_MOST), SEQ_MOST), periods.index(now)
    last = record.max if drawn is None else drawn
    # If the last number was drawn in an earlier period, all numbers of the current period are left.
    used = last & SEQ_MOST if last >> PERIOD_BITS >= present else 0
    left = max(0, of - used)
    return left, left, of, f" in {periods.name(present)}"


def runway(facts: Facts) -> Iterator[Finding]:
    """Check whether a tag's segments last long enough at the current rate."""
    belongs = parts.parents(facts.records)
    for tag in facts.tags:
        record, auto = tag.record, tag.record.step_mode == "auto"
        usual = min(TARGET, record.target) if auto else TARGET
        target = arithmetic.target(record, 0 if record.survive else usual)
        lasts = arithmetic.runway(record.step, tag.rate)
        if tag.rate is None or lasts is None or lasts >= target:
            continue
        if auto and record.step < record.max_step:
            continue  # the step grows by itself
        in_hand = arithmetic.runway(_remaining(tag.hash), tag.rate)
        hand = "" if in_hand is None else f", and the numbers in Redis last {lasting(in_hand, 1)}"
        name = record.tag
        trusted = target if tag.rated_for is None else min(target, TRUSTED * tag.rated_for)
        step = _rounded(ceil(tag.rate * trusted))
        if step <= record.step:
            continue
        more = "" if trusted == target else " The rate was measured over a short time only: run doctor again later."
        yield Check("tag-runway", f"tag {name}", name).advice(
            f"at {_rate(tag.rate)} numbers per second, a step of {record.step} lasts {lasting(lasts, 1)}{hand}",
            "An outage of the store that lasts longer makes callers wait. A step should last at least "
            f"{lasting(target)}.{more}",
            f"Run {{whole:configure {'max_step' if auto else 'step'}={step}}}.",
            whole=belongs.get(name, name),
        )


def lease(facts: Facts) -> Iterator[Finding]:
    """Check whether a lease, the numbers that a process draws in advance, is too large a part of a segment."""
    belongs = parts.parents(facts.records)
    for record in facts.records if facts.redis is not None else ():
        size = facts.settings.lease if record.lease is None else record.lease
        leased = record.order == "trend" and scheme_record.strategy(record.scheme) == scheme_record.SEGMENT
        if not leased or record.tag in belongs or size * LEASES < record.segment:
            continue
        yield Check("tag-lease", f"tag {record.tag}", record.tag).advice(
            f"each process draws {size} numbers ahead, from segments of {record.segment}",
            f"The next segment is loaded when {record.refill_at:.0%} of the current one is used. Larger leases use up "
            "the segment before it is there, so callers wait for the store.",
            f"Run {{do:configure step={_rounded(size * LEASES // record.ahead + 1)}}}.",
        )


def two_stores(facts: Facts) -> Iterator[Finding]:
    """Check whether a tag's hash belongs to another store."""
    for tag, hash in _hashes(facts):
        if hash.names_store and facts.store_id is not None and hash.store != facts.store_id:
            yield Check("tag-two-stores", f"tag {tag.record.tag}", tag.record.tag).weak(
                f"its Redis hash belongs to the store {hash.store}; the configured store is {facts.store_id}",
                "Two stores use the same prefix in this Redis, so both would reserve the same numbers. Draws with this "
                "store are rejected with ForeignHash, except in a process that started while its store was "
                "unavailable.",
                "Give each store its own prefix. If numbers were drawn from this hash for users of this store, or if "
                "this store replaces the other one, first run {do:prefix='NEW' recover at_least=N}. N is the max of "
                f"the other store, {hash.top} or more.",
            )


def behind(facts: Facts) -> Iterator[Finding]:
    """Check whether Redis holds numbers above the store's `max`."""
    for tag, hash in _hashes(facts):
        top = hash.top
        if tag.store_max is not None and tag.store_max < top and hash.store in (None, facts.store_id):
            yield Check("tag-store-behind", f"tag {tag.record.tag}", tag.record.tag).weak(
                f"max is {tag.store_max} in the store, but Redis has numbers up to {top}",
                "The store has gone back in time: it was restored from a backup, or lost writes. If Redis lost its "
                "data now, the store would reserve the same numbers again.",
                "Run {do:recover}.",
            )


def in_turns(facts: Facts) -> Iterator[Finding]:
    """Check whether segments of a strict tag are loaded into two Redis hashes."""
    for tag in facts.tags:
        if tag.hashes is not None and tag.record.order == "strict":
            loads = "; ".join(map(described, tag.hashes))
            yield Check("tag-two-hashes", f"tag {tag.record.tag}", tag.record.tag).weak(
                f"the tag is strict, but its segments are loaded into two hashes: {loads}",
                "Services draw from two Redis servers, databases or prefixes, or from two masters after a network "
                "split. The numbers are unique, but a later call can get a lower number.",
                "Set the same Redis, database and prefix for all services. `issuer config` shows those settings.",
            )


def corrupt(facts: Facts) -> Iterator[Finding]:
    """Check whether a tag's hash contains something that no issuer writes."""
    for tag in facts.tags:
        problem = None if tag.hash is None else _problem(tag.hash, facts.store_id)
        if problem is None and not isinstance(tag.error, CorruptState):
            continue
        name = tag.record.tag
        yield Check("tag-corrupt", f"tag {name}", name).weak(
            problem or str(tag.error),
            "To be safe, every draw is rejected with CorruptState, and the hash is left as it is.",
            "Look at the hash with HGETALL, then run {do:recover}.",
        )


def _problem(hash: Hash, store_id: str | None) -> str | None:
    if hash.corrupt is not None:
        return f"the field {hash.corrupt} of its Redis hash is not a whole number"
    if hash.store is None or hash.names_store or store_id is None or hash.store == store_id:
        return None
    return f"the field store of its Redis hash is not the id of a store: {hash.store!r}"


def _hashes(facts: Facts) -> Iterator[tuple[TagFacts, Hash]]:
    for tag in facts.tags:
        if tag.hash is not None:
            yield tag, tag.hash


def _remaining(hash: Hash | None) -> int | None:
    if hash is None or hash.corrupt or hash.max is None or hash.cur is None:
        return None
    return hash.max - hash.cur + (hash.next_max or 0) - (hash.next_cur or 0)


def _rounded(step: int) -> int:
    """Round a step up to two significant digits, because the rate is only an estimate."""
    unit: int = 10 ** max(0, len(str(step)) - 2)
    return -(-step // unit) * unit


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"  # noqa: PLR2004 - two digits


#: Checks of the tags of one page.
CHECKS = (halted, blanks, dots, limit, runway, lease, two_stores, behind, in_turns, corrupt)
