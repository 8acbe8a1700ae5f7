"""From facts to findings: all checks, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from issuer.care.doctor import redis, store, tags
from issuer.care.doctor.facts import Facts
from issuer.care.doctor.finding import Finding, Level

#: A check. Where there is nothing to look at, as for a Redis that isn't set, it yields nothing.
Check = Callable[[Facts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (*redis.CHECKS, *store.CHECKS, *tags.CHECKS)

#: The order of the levels, the worst first.
LEVELS: tuple[Level, ...] = ("weak", "advice", "unknown", "ok")


def judge(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, the worst first; those of one check by the name of their tag."""
    found = [finding for check in CHECKS for finding in sorted(check(facts), key=lambda finding: finding.tag or "")]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
