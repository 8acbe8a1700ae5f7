"""Checks of the tags, page by page. Some need only the store's records, others also a tag's ledger and hash."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from issuer.care.discrepancies import MEANINGS, UNSEEN, Discrepancy
from issuer.care.doctor.findings import Check, Facts, Finding
from issuer.core import arithmetic, parts, scheme_record
from issuer.core.periods import PERIOD_BITS, SEQ_MOST
from issuer.core.supply.local_buffer import BUFFERS
from issuer.errors import ConfigurationError
from issuer.gateway.keys import has_blanks
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
    if facts.store_error is not None and not facts.checked:
        return
    why = "The hash and the ledger of a tag show whether it is damaged, behind, used by two stores or short of numbers."
    if facts.examined == facts.there:
        yield Check("tags-looked-at", "tags").ok(f"all tags were examined: {facts.there:,}", why)
        return
    yield Check("tags-looked-at", "tags").unknown(
        f"{facts.examined:,} of {facts.there:,} tags were examined: {facts.left_out or 'a server was unavailable'}",
        why,
        "Run doctor again when Redis and the store are available.",
        error=facts.left_out,
    )


def halted(facts: Facts) -> Iterator[Finding]:
    for record in facts.records:
        if record.halted:
            yield Check("tag-halted", f"tag {record.tag}", record.tag).weak(
                f"the tag is halted at max {record.max}",
                "An operator halted it, or a process found that the store had gone back in time. No more segments are "
                "reserved, so the tag stops when the reserved numbers are used up.",
                "Run {do:recover}.",
            )


def blanks(facts: Facts) -> Iterator[Finding]:
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
    belongs = parts.parents(facts.records)
    drawn = {tag.record.tag: tag.hash.cur for tag in facts.tags if tag.hash is not None}
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
    are those up to `drawn`. If `drawn` is None, they are those up to `max`. `now`: in ms since 1970.
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
        in_hand = arithmetic.runway(None if tag.hash is None else tag.hash.remaining, tag.rate)
        hand = "" if in_hand is None else f", and the numbers in Redis last {lasting(in_hand, 1)}"
        name = record.tag
        trusted = target if tag.rated_for is None else min(target, TRUSTED * tag.rated_for)
        step = _rounded(ceil(tag.rate * trusted))
        if step <= record.step:
            continue
        more = "" if trusted == target else " The rate was measured over a short time only: run doctor again later."
        yield Check("tag-runway", f"tag {name}", name).advice(
            f"at {_rate(tag.rate)} numbers per second, a step of {record.step:,} lasts {lasting(lasts, 1)}{hand}",
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
            f"each process draws {size:,} numbers ahead, from segments of {record.segment:,}",
            f"The next segment is loaded when {record.refill_at:.0%} of the current one is used. Larger leases use up "
            "the segment before it is there, so callers wait for the store.",
            f"Run {{do:configure step={_rounded(size * LEASES // record.ahead + 1)}}}.",
        )


def verified(facts: Facts) -> Iterator[Finding]:
    for found in [*(tag.found for tag in facts.tags), *([each] for each in facts.damaged)]:
        same: dict[str, list[Discrepancy]] = {}
        for each in found:
            same.setdefault(MEANINGS[each.kind].check, []).append(each)
        for check, (first, *others) in same.items():
            if first.kind != UNSEEN:
                what = first.problem + (f" (and {len(others)} more: see verify)" if others else "")
                meaning = MEANINGS[first.kind]
                yield Check(check, f"tag {first.tag}", first.tag).weak(what, meaning.why, meaning.advice)


def _rounded(step: int) -> int:
    """Round a step up to two significant digits, because the rate is only an estimate."""
    unit: int = 10 ** max(0, len(str(step)) - 2)
    return -(-step // unit) * unit


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"  # noqa: PLR2004 - two digits


#: Checks of the tags of one page.
CHECKS = (halted, blanks, dots, limit, runway, lease, verified)
